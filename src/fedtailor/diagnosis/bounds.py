"""Bounds of the papers, in the forms that hold.

They say who should learn from whom, whether alone or together, and in how many
clusters. Bounds with constants unknown to their papers ("O") take them as an argument;
they rank, and do not predict a loss. Symbols: m clients, n_j training samples, N = sum
n_j, d the VC dimension (for a network a proxy), B the range of the loss, delta the
confidence.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from fedtailor.aggregation import best_rows
from fedtailor.protocol import require


def effective_samples(
    weights: Float[np.ndarray, "rows m"], sizes: Int[np.ndarray, " m"]
) -> Float[np.ndarray, " rows"]:
    """How many samples of one client are worth as much as a weighted mean.

    n_eff = 1 / sum_j w_j^2 / n_j: at most N, which weights in proportion to samples
    reach; for a row of the identity it is that client's own n.

    Args:
        weights: rows that sum to 1.
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
    """What a limited number of samples costs each row of weights.

    B S (4 sqrt(2 d log(e N / d)) + sqrt(2 log(2 / delta))) with S = sqrt(sum_j w_j^2 /
    n_j). By Massart's and Sauer's lemmata; theorems 1 and 2 of Mestoukirdi et al. 2022
    print a factor 1/N too many under the root, with which they do not hold.

    Raises:
        ValueError: the dimension is not between 1 and N.
    """
    total = float(np.sum(sizes))
    _require_dimension(dimension, total)
    of_hypotheses = 4 * np.sqrt(2 * dimension * np.log(np.e * total / dimension))
    of_confidence = np.sqrt(2 * np.log(2 / delta))
    n_eff = effective_samples(weights, sizes)
    return loss_range * (of_hypotheses + of_confidence) / np.sqrt(n_eff)


def discrepancy_bias(
    weights: Float[np.ndarray, "rows m"],
    discrepancies: Float[np.ndarray, "rows m"],
    gamma: Float[np.ndarray, " rows"] | float = 0.0,
) -> Float[np.ndarray, " rows"]:
    """What others' data cost client i: 2 sum_j w_ij d(P_i, P_j) + 2 gamma_i.

    Mestoukirdi et al. 2022, theorem 1. With d = max_h |L_i(h) - L_j(h)| over the
    hypotheses it holds with gamma = 0.
    """
    weighted = (np.asarray(weights, np.float64) * discrepancies).sum(axis=1)
    return 2 * weighted + 2 * np.asarray(gamma, np.float64)


def jensen_shannon_bias(
    weights: Float[np.ndarray, "rows m"],
    divergences: Float[np.ndarray, "rows m"],
    *,
    loss_range: float = 1.0,
) -> Float[np.ndarray, " rows"]:
    """What others' data cost client i: 2 B sqrt(2 sum_j w_ij JS(P_i, P_j)).

    JS is that of `jensen_shannon`. Theorem 2 of Mestoukirdi et al. 2022, corrected: the
    difference of two losses has range 2 B.
    """
    weighted = (np.asarray(weights, np.float64) * divergences).sum(axis=1)
    return 2 * loss_range * np.sqrt(2 * weighted)


def row_bounds(
    weights: Float[np.ndarray, "rows m"],
    biases: Float[np.ndarray, "rows m"],
    sizes: Int[np.ndarray, " m"],
    complexity: float,
) -> Float[np.ndarray, " rows"]:
    """What `best_rows` minimises, for given weights.

    It tells how far UCFL's rows are from the best ones.
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
    """Bound of the one model for all, less that of the client's own.

    Clients should collaborate where it is below 0. The difference is 2 disc(D_i, U) - c
    (sqrt((d + log 1/delta) / n_i) - sqrt((d + log 1/delta) / N)): Mansour et al. 2020,
    eq. 1 and 2, with twice the discrepancy, which eq. 2 needs.

    Args:
        discrepancies: disc(D_i, U) of each client and the union of all clients' data.
        sizes: training samples n_i.
        dimension: d.
        constant: c, that of the paper's O.
        delta: the confidence.
    """
    scale = constant * np.sqrt(dimension + np.log(1 / delta))
    n = np.asarray(sizes, np.float64)
    fewer_samples = scale * (1 / np.sqrt(n) - 1 / np.sqrt(n.sum()))
    return 2 * np.asarray(discrepancies, np.float64) - fewer_samples


def hypcluster_bound(
    clusters: Int[np.ndarray, " q"],
    clients: int,
    samples: int,
    dimension: float,
    *,
    delta: float = 0.05,
) -> Float[np.ndarray, " q"]:
    """How far training losses may be from expected ones with q clusters.

    For a loss in [0, 1]: 2 sqrt(m log(2 q / delta) / N) + sqrt(d q / N log(e N / d)):
    Mansour et al. 2020, theorem 2 and corollary 3 (whose last logarithm is printed
    without the e that its proof has).

    Args:
        clusters: the numbers q to compare.
        clients, samples: m and N.
        dimension: d.
        delta: the confidence.
    """
    _require_dimension(dimension, samples)
    q = np.asarray(clusters, np.float64)
    of_choice = 2 * np.sqrt(clients * np.log(2 * q / delta) / samples)
    log_term = np.log(np.e * samples / dimension)
    return of_choice + np.sqrt(dimension * q / samples * log_term)


def clusters_have_samples(
    clusters: Int[np.ndarray, " q"], sizes: Int[np.ndarray, " m"], dimension: float
) -> Bool[np.ndarray, " q"]:
    """Whether q clusters can be learned.

    Clients need more than log q samples each on average, so that they find their
    cluster, and clusters more than d.
    """
    q, total = np.asarray(clusters, np.float64), float(np.sum(sizes))
    clients_have_enough = total / len(sizes) > np.log(q)
    clusters_have_enough = total / q > dimension
    return clients_have_enough & clusters_have_enough


def dapper_share(
    own: Int[np.ndarray, " m"],
    shared: Int[np.ndarray, " m"],
    discrepancies: Float[np.ndarray, " m"],
    dimension: float,
    *,
    delta: float = 0.05,
) -> Float[np.ndarray, " m"]:
    """The share lambda* [m] of a client's own data in DAPPER's training, in [0, 1].

    It minimises sqrt(lambda^2 / n_i + (1 - lambda)^2 / n_C) sqrt(d log(1/delta)) + (1 -
    lambda) disc(D_i, C) (Mansour et al. 2020, section 4): `best_rows` of two sources,
    one of them without bias.

    Args:
        own, shared: samples n_i of the client and n_C of the data C that it is given.
        discrepancies: disc(D_i, C).
        dimension: d.
        delta: the confidence.
    """
    complexity = float(np.sqrt(dimension * np.log(1 / delta)))
    pairs = zip(
        np.asarray(own),
        np.asarray(shared),
        np.asarray(discrepancies, np.float64),
        strict=True,
    )
    shares = []
    for samples_own, samples_shared, discrepancy in pairs:
        bias = np.array([[0.0, discrepancy]])  # the client's own data have none
        best = best_rows(bias, np.array([samples_own, samples_shared]), complexity)
        shares.append(best.weights[0, 0])
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
    """How far MAPPER's training loss may be from the expected one.

    Mansour et al. 2020, corollary 7: 2 L (sqrt(d_c / N log(e N / d_c)) + sqrt(d_l m / N
    log(e N / d_l))) + 2 sqrt(log(1 / delta) / N): small where clients have many more
    samples than d_l on average.

    Args:
        clients, samples: m and N.
        central, local: dimensions d_c and d_l of the central and the local models.
        lipschitz: L of the loss.
        delta: the confidence.
    """
    _require_dimension(central, samples)
    _require_dimension(local, samples)
    of_central = np.sqrt(central / samples * np.log(np.e * samples / central))
    of_local = np.sqrt(local * clients / samples * np.log(np.e * samples / local))
    of_confidence = 2 * np.sqrt(np.log(1 / delta) / samples)
    return float(2 * lipschitz * (of_central + of_local) + of_confidence)


def skewness(
    mixtures: Float[np.ndarray, "rows m"], sizes: Int[np.ndarray, " m"]
) -> Float[np.ndarray, " rows"]:
    """s = sum_k lambda_k^2 / p_k with p_k = n_k / N (Mohri et al. 2019).

    It is 1 for lambda = p, else more. N / s is `effective_samples` of the mixture:
    agnostic federated learning pays for clients with few samples.
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

    sqrt(s) sqrt((d + log(|Lambda_eps| / delta)) / N) + eps + disc: Mansour et al. 2020,
    app. B.

    Args:
        largest_skewness: s, the largest `skewness` of the mixtures.
        samples: N.
        dimension: d.
        mixtures: |Lambda_eps|, how many mixtures cover all.
        resolution: eps of that cover.
        discrepancy: of the client and the worst mixture.
        delta: the confidence.
    """
    rate = np.sqrt((dimension + np.log(mixtures / delta)) / samples)
    return float(np.sqrt(largest_skewness) * rate + resolution + discrepancy)


def _require_dimension(dimension: float, samples: float) -> None:
    require(
        1 <= dimension <= samples,
        f"the dimension is {dimension:g}; the bound wants 1 to {samples:g}, all"
        " clients' samples",
    )
