"""Generalization bounds for federated learning.

The bounds compare training alone, together and in clusters, and say which clients
should learn from each other. Where a paper leaves a constant open ("O"), the constant
is an argument. The bounds can rank alternatives; they do not predict a loss.

Symbols: m clients with n_j training samples, N = sum_j n_j, VC dimension d (for a
network a proxy), range B of the loss, and confidence delta.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation import best_rows


def effective_samples(
    weights: Float[np.ndarray, "rows m"], sizes: Int[np.ndarray, " m"]
) -> Float[np.ndarray, " rows"]:
    """The effective sample size of a weighted mean over clients.

    n_eff = 1 / sum_j (w_j^2 / n_j). Its maximum N is reached by weights proportional to
    the sample counts. For a row of the identity it is that client's own n.

    Args:
        weights: rows of weights, each with sum 1.
        sizes: training samples n_j.
    """
    squares = np.square(np.asarray(weights, np.float64))
    return 1.0 / (squares / np.asarray(sizes, np.float64)).sum(axis=1)


def estimation_term(
    weights: Float[np.ndarray, "rows m"],
    sizes: Int[np.ndarray, " m"],
    dimension: float,
    *,
    loss_range: float = 1.0,
    delta: float = 0.05,
) -> Float[np.ndarray, " rows"]:
    """The estimation error term of each row of weights.

    B S (4 sqrt(2 d log(e N / d)) + sqrt(2 log(2 / delta))) with S = sqrt(sum_j w_j^2 /
    n_j). This follows from the lemmas of Massart and Sauer. Theorems 1 and 2 of
    Mestoukirdi et al. 2022 have another factor 1/N under the root; with it they do not
    hold.

    Raises:
        ValueError: the dimension is not between 1 and N.
    """
    total = float(np.sum(sizes))
    _require_dimension(dimension, total)
    hypothesis_term = 4 * np.sqrt(2 * dimension * np.log(np.e * total / dimension))
    confidence_term = np.sqrt(2 * np.log(2 / delta))
    n_eff = effective_samples(weights, sizes)
    return loss_range * (hypothesis_term + confidence_term) / np.sqrt(n_eff)


def discrepancy_bias(
    weights: Float[np.ndarray, "rows m"],
    discrepancies: Float[np.ndarray, "rows m"],
    gamma: Float[np.ndarray, " rows"] | float = 0.0,
) -> Float[np.ndarray, " rows"]:
    """The bias of client i from others' data: 2 sum_j w_ij d(P_i, P_j) + 2 gamma_i.

    Mestoukirdi et al. 2022, theorem 1. If d is max_h |L_i(h) - L_j(h)| over the
    hypotheses, the theorem holds with gamma = 0.
    """
    weighted = (np.asarray(weights, np.float64) * discrepancies).sum(axis=1)
    return 2 * weighted + 2 * np.asarray(gamma, np.float64)


def jensen_shannon_bias(
    weights: Float[np.ndarray, "rows m"],
    divergences: Float[np.ndarray, "rows m"],
    *,
    loss_range: float = 1.0,
) -> Float[np.ndarray, " rows"]:
    """The bias of client i from others' data: 2 B sqrt(2 sum_j w_ij JS(P_i, P_j)).

    JS is the divergence of `jensen_shannon`. This is theorem 2 of Mestoukirdi et al.
    2022 with a correction: the difference of two losses has range 2 B.
    """
    weighted = (np.asarray(weights, np.float64) * divergences).sum(axis=1)
    return 2 * loss_range * np.sqrt(2 * weighted)


def row_bounds(
    weights: Float[np.ndarray, "rows m"],
    biases: Float[np.ndarray, "rows m"],
    sizes: Int[np.ndarray, " m"],
    complexity: float,
) -> Float[np.ndarray, " rows"]:
    """The objective of `best_rows` for given weights.

    Comparing it with the minimum shows how far UCFL's rows are from the optimum.
    """
    bias = (np.asarray(weights) * biases).sum(axis=1)
    return complexity / np.sqrt(effective_samples(weights, sizes)) + bias


def together_minus_alone(
    discrepancies: Float[np.ndarray, " m"],
    sizes: Int[np.ndarray, " m"],
    dimension: float,
    *,
    constant: float = 1.0,
    delta: float = 0.05,
) -> Float[np.ndarray, " m"]:
    """The bound of one model for all minus the bound of the client's own model.

    A client should collaborate where the difference is negative. It is 2 disc(D_i, U) -
    c (sqrt((d + log 1/delta) / n_i) - sqrt((d + log 1/delta) / N)), from eq. 1 and 2 of
    Mansour et al. 2020, with the factor 2 of the discrepancy that eq. 2 needs.

    Args:
        discrepancies: disc(D_i, U) between each client and the union of all data.
        sizes: training samples n_i.
        dimension: VC dimension d.
        constant: the constant c behind the paper's O.
        delta: the confidence.
    """
    scale = constant * np.sqrt(dimension + np.log(1 / delta))
    n = np.asarray(sizes, np.float64)
    sample_term = scale * (1 / np.sqrt(n) - 1 / np.sqrt(n.sum()))
    return 2 * np.asarray(discrepancies, np.float64) - sample_term


def hypcluster_bound(
    clusters: Int[np.ndarray, " q"],
    clients: int,
    samples: int,
    dimension: float,
    *,
    delta: float = 0.05,
) -> Float[np.ndarray, " q"]:
    """Bound on the gap between training and expected losses with q clusters.

    For a loss in [0, 1] it is 2 sqrt(m log(2 q / delta) / N) + sqrt(d q / N log(e N /
    d)). See theorem 2 and corollary 3 of Mansour et al. 2020; the corollary omits the e
    in the last logarithm, which its proof has.

    Args:
        clusters: the numbers q of clusters to compare.
        clients: number of clients m.
        samples: number of samples N.
        dimension: VC dimension d.
        delta: the confidence.
    """
    _require_dimension(dimension, samples)
    q = np.asarray(clusters, np.float64)
    choice_term = 2 * np.sqrt(clients * np.log(2 * q / delta) / samples)
    log_term = np.log(np.e * samples / dimension)
    return choice_term + np.sqrt(dimension * q / samples * log_term)


def clusters_have_samples(
    clusters: Int[np.ndarray, " q"], sizes: Int[np.ndarray, " m"], dimension: float
) -> Bool[np.ndarray, " q"]:
    """Whether there are enough samples to learn q clusters.

    On average a client needs more than log q samples to find its cluster, and a cluster
    needs more than d samples to learn its model.
    """
    q, total = np.asarray(clusters, np.float64), float(np.sum(sizes))
    finds_cluster = total / len(sizes) > np.log(q)
    learns_model = total / q > dimension
    return finds_cluster & learns_model


def dapper_share(
    own: Int[np.ndarray, " m"],
    shared: Int[np.ndarray, " m"],
    discrepancies: Float[np.ndarray, " m"],
    dimension: float,
    *,
    delta: float = 0.05,
) -> Float[np.ndarray, " m"]:
    """The share lambda* [m] of a client's own data in DAPPER's training, in [0, 1].

    It minimizes sqrt(lambda^2 / n_i + (1 - lambda)^2 / n_C) sqrt(d log(1/delta)) + (1 -
    lambda) disc(D_i, C) (Mansour et al. 2020, section 4). This is the problem of
    `best_rows` with two sources, one of them without bias.

    Args:
        own: samples n_i of each client.
        shared: samples n_C of the shared data C that the client receives.
        discrepancies: disc(D_i, C).
        dimension: VC dimension d.
        delta: the confidence.
    """
    complexity = float(np.sqrt(dimension * np.log(1 / delta)))
    clients = zip(
        np.asarray(own),
        np.asarray(shared),
        np.asarray(discrepancies, np.float64),
        strict=True,
    )
    shares = []
    for samples_own, samples_shared, discrepancy in clients:
        bias = np.array([[0.0, discrepancy]])  # the client's own data have no bias
        solution = best_rows(bias, np.array([samples_own, samples_shared]), complexity)
        shares.append(solution.weights[0, 0])
    return np.array(shares, np.float64)


def mapper_bound(
    clients: int,
    samples: int,
    central: float,
    local: float,
    *,
    lipschitz: float = 1.0,
    delta: float = 0.05,
) -> float:
    """Bound on the gap between MAPPER's training loss and its expected loss.

    Mansour et al. 2020, corollary 7: 2 L (sqrt(d_c / N log(e N / d_c)) + sqrt(d_l m / N
    log(e N / d_l))) + 2 sqrt(log(1 / delta) / N). The bound is small if clients have
    many more samples than d_l on average.

    Args:
        clients: number of clients m.
        samples: number of samples N.
        central: dimension d_c of the central model.
        local: dimension d_l of a local model.
        lipschitz: Lipschitz constant L of the loss.
        delta: the confidence.
    """
    _require_dimension(central, samples)
    _require_dimension(local, samples)
    central_term = np.sqrt(central / samples * np.log(np.e * samples / central))
    local_term = np.sqrt(local * clients / samples * np.log(np.e * samples / local))
    confidence_term = 2 * np.sqrt(np.log(1 / delta) / samples)
    return float(2 * lipschitz * (central_term + local_term) + confidence_term)


def skewness(
    mixtures: Float[np.ndarray, "rows m"], sizes: Int[np.ndarray, " m"]
) -> Float[np.ndarray, " rows"]:
    """The skewness s = sum_k lambda_k^2 / p_k, p_k = n_k / N (Mohri et al. 2019).

    Its minimum 1 is reached by lambda = p. N / s is `effective_samples` of the mixture,
    so agnostic federated learning loses accuracy by clients with few samples.
    """
    return float(np.sum(sizes)) / effective_samples(mixtures, sizes)


def agnostic_bound(
    largest_skewness: float,
    samples: int,
    dimension: float,
    mixtures: float,
    *,
    resolution: float,
    discrepancy: float = 0.0,
    delta: float = 0.05,
) -> float:
    """The bound of agnostic federated learning, up to a constant.

    It is sqrt(s) sqrt((d + log(|Lambda_eps| / delta)) / N) + eps + disc (Mansour et al.
    2020, app. B).

    Args:
        largest_skewness: the largest `skewness` s of the mixtures.
        samples: number of samples N.
        dimension: VC dimension d.
        mixtures: size |Lambda_eps| of a cover of all mixtures.
        resolution: resolution eps of that cover.
        discrepancy: discrepancy between the client and the worst mixture.
        delta: the confidence.
    """
    rate = np.sqrt((dimension + np.log(mixtures / delta)) / samples)
    return float(np.sqrt(largest_skewness) * rate + resolution + discrepancy)


def contexts_bound(
    costs: Float[np.ndarray, " n"],
    counts: Int[np.ndarray, " n"],
    clients: int,
    samples: int,
    dimension: float,
    mu: float,
    *,
    delta: float | None = 0.05,
) -> Float[np.ndarray, " n"]:
    """The objective e(K) of CGPFL (Tang et al., eq. 11), to be minimized over K.

    e(K) = sqrt(d K / N log(e N / d)) + mu cost(K). With a `delta`, 2 sqrt(m log(K /
    delta) / N) is added: theorem 4.2 omits that clients choose among K contexts, which
    costs a union bound over assignments (see theorem 2 of Mansour et al. 2020).

    Args:
        costs: distances of clients' models to their contexts, sum_i n_i / N |theta_i -
            omega_z(i)|^2, for each K.
        counts: the numbers K of contexts.
        clients: number of clients m.
        samples: number of samples N.
        dimension: VC dimension d.
        mu: weight of the cost.
        delta: the confidence, or None for the formula of the paper.

    Raises:
        ValueError: the dimension is not between 1 and N.
    """
    _require_dimension(dimension, samples)
    k = np.asarray(counts, np.float64)
    log_term = np.log(np.e * samples / dimension)
    sample_term = np.sqrt(dimension * k / samples * log_term)
    bound = sample_term + mu * np.asarray(costs, np.float64)
    if delta is None:
        return bound
    choice_term = 2 * np.sqrt(clients * np.log(k / delta) / samples)
    return bound + choice_term


def _require_dimension(dimension: float, samples: float) -> None:
    require(
        1 <= dimension <= samples,
        f"the dimension is {dimension:g}; the bound wants 1 to {samples:g}, all"
        " clients' samples",
    )
