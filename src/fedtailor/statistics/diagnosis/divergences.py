"""Divergences between clients' distributions: of labels, of inputs and of losses."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fedtailor._base.choice import require


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """JS(p, q) = (KL(p, (p + q)/2) + KL(q, (p + q)/2)) / 2 in nats, in [0, log 2].

    Args:
        p: distributions over k values [..., k].
        q: distributions over the same values; the leading axes broadcast.

    Returns:
        The divergences, with the shape of the broadcast leading axes.
    """
    mixture = (np.asarray(p, np.float64) + np.asarray(q, np.float64)) / 2
    kl_p = special.rel_entr(p, mixture).sum(axis=-1)
    kl_q = special.rel_entr(q, mixture).sum(axis=-1)
    return np.asarray(kl_p + kl_q) / 2


@dataclass(frozen=True)
class LabelDifferences:
    """Comparison of all pairs of clients by their labels.

    Attributes:
        divergence: [m, m] JS of the label histograms in nats. It estimates a lower
            bound of the clients' JS; sampling adds a bias of about (classes - 1) (1/n_i
            + 1/n_j) / 8.
        p: [m, m] p-values of the hypothesis that both clients have the same label
            distribution (Pearson's X^2, with its mean and variance over all
            assignments of the pair's samples to both); 1 on the diagonal.
    """

    divergence: Float[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]


def label_differences(counts: Int[np.ndarray, "m classes"]) -> LabelDifferences:
    """Compares all pairs of clients by how often they have each class.

    The test uses the classes that at least one of the two clients has, and holds for
    few samples of many classes.

    Args:
        counts: number of training samples of each class.

    Raises:
        ValueError: a client has no sample, or a count is negative.
    """
    counts = np.asarray(counts, np.float64)
    require(
        bool((counts >= 0).all()),
        f"a count of labels is {counts.min():g}; it must be 0 or more",
    )
    require(
        bool((counts.sum(axis=1) > 0).all()),
        "a client has no label; leave out clients without samples",
    )
    clients = len(counts)
    totals = counts.sum(axis=1)
    shares = counts / totals[:, None]
    divergence = np.zeros((clients, clients))
    p = np.ones((clients, clients))
    # The loop over rows bounds the memory: all pairs at once would take m^2 times
    # classes numbers. Each pair is computed once.
    for i in range(clients - 1):
        others = slice(i + 1, None)
        divergences = jensen_shannon(shares[i], shares[others])
        divergence[i, others] = divergence[others, i] = divergences

        p_values = _same_labels_p(counts[i], counts[others])
        p[i, others] = p[others, i] = p_values
    return LabelDifferences(divergence, p)


def _same_labels_p(
    one: Float[np.ndarray, " classes"], others: Float[np.ndarray, "k classes"]
) -> Float[np.ndarray, " k"]:
    """The p-values of Pearson's X^2 between one client and each other one.

    Given how often both together have each class, every assignment of their samples to
    the two is equally likely if they have one distribution. Mean and variance of X^2
    over all assignments follow in closed form from the factorial moments of the
    hypergeometric distribution, for any counts; the tail is that of the gamma
    distribution with this mean and variance.
    """
    pooled = one + others  # [k, classes]
    size, other_size = one.sum(), others.sum(axis=1)
    total = size + other_size
    present = pooled > 0
    classes = present.sum(axis=1)
    safe = np.where(present, pooled, 1.0)
    # Q = sum of count^2 / pooled is X^2 up to shift and scale.
    q = (np.square(one) / safe).sum(axis=1)
    # f[k] = size (size - 1) ... / (total (total - 1) ...), with k factors.
    f = [np.ones(len(total))]
    for k in range(4):
        f.append(f[-1] * max(size - k, 0.0) / np.maximum(total - k, 1.0))
    rest = total - classes  # sum of pooled - 1
    mean = f[2] * rest + f[1] * classes
    fourth = (
        f[4][:, None] * (safe - 1) * (safe - 2) * (safe - 3) / safe
        + 6 * f[3][:, None] * (safe - 1) * (safe - 2) / safe
        + 7 * f[2][:, None] * (safe - 1) / safe
        + f[1][:, None] / safe
    )
    same_class = np.where(present, fourth, 0.0).sum(axis=1)
    squares = np.where(present, np.square(safe - 1), 0.0).sum(axis=1)
    two_classes = (
        f[4] * (rest**2 - squares)
        + 2 * f[3] * (classes - 1) * rest
        + f[2] * classes * (classes - 1)
    )
    variance = same_class + two_classes - mean**2
    # X^2 is 0 where every assignment is.
    shift = size**2 / total
    statistic, mean = np.maximum(q - shift, 0.0), mean - shift
    varies = (variance > 1e-9 * np.square(mean)) & (mean > 0)
    shape = np.divide(mean**2, variance, out=np.ones(len(mean)), where=varies)
    scale = np.divide(variance, mean, out=np.ones(len(mean)), where=varies)
    # Two clients with the same single class cannot differ significantly.
    return np.where(varies, special.gammaincc(shape, statistic / scale), 1.0)


@dataclass(frozen=True)
class InputDifferences:
    """Comparison of all pairs of clients by the means of their features.

    Attributes:
        standardized: [m, m] effect size: root mean square over features of the
            differences of means, in units of the pooled standard deviation of the two
            clients (0.2 is small, 0.8 large). The expected contribution of sampling is
            subtracted; the result is at least 0.
        feature: [m, m] the feature whose means differ most, in standard errors.
        p: [m, m] p-values of the hypothesis that all features have equal means: Welch's
            test of `feature` with Bonferroni's correction for the number of features.
        spread: deviation of each feature's mean between clients, in units of its
            deviation within clients; what sampling adds is subtracted.
        spread_p: p-values of the hypothesis that a feature has the same mean in all
            clients (analysis of variance), with Bonferroni's correction.
        constant: features that do not vary within any client, but between clients. They
            describe clients, not rows, and are not compared.
    """

    standardized: Float[np.ndarray, "m m"]
    feature: Int[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]
    spread: Float[np.ndarray, " features"]
    spread_p: Float[np.ndarray, " features"]
    constant: Bool[np.ndarray, " features"]


def input_differences(
    means: Float[np.ndarray, "m features"],
    squares: Float[np.ndarray, "m features"],
    sizes: Int[np.ndarray, " m"],
) -> InputDifferences:
    """Compares all pairs of clients by the first two moments of their inputs.

    A client in which a feature is constant is taken to have the other clients' mean
    variance of it, since a few equal rows do not show that there is none. Features that
    are constant in every client are left out. Other differences between distributions
    (shape, dependence) are not detected.

    Args:
        means: mean of each feature over training samples.
        squares: mean of each feature's square over training samples.
        sizes: training samples n_i.
    """
    means = np.asarray(means, np.float64)
    n = np.asarray(sizes, np.float64)
    clients, features = means.shape
    # For a large constant feature the difference is a rounding error, not a variance.
    variances = np.asarray(squares, np.float64) - means**2
    variances = np.where(variances > 1e-12 * np.abs(squares), variances, 0.0)
    # Nor does a feature vary in a client where it does so ten thousand times less than
    # over all: in single precision that may be rounding as well.
    grand = n @ means / n.sum()
    overall = n @ (variances + np.square(means - grand)) / n.sum()
    variances = np.where(variances > 1e-8 * overall, variances, 0.0)
    variances = variances * (n / np.maximum(n - 1, 1))[:, None]
    varies = variances > 0
    compared = np.asarray(varies.any(axis=0))
    constant = ~compared & (np.ptp(means, axis=0) > 0)
    spread, spread_p = _spread(means, variances, n, compared)
    within = np.divide(
        variances.sum(axis=0),
        varies.sum(axis=0),
        out=np.zeros(features),
        where=compared,
    )
    variances = np.where(varies, variances, within)
    # What is left out has no difference.
    means = np.where(compared, means, 0.0)
    features = max(int(compared.sum()), 1)
    standardized = np.zeros((clients, clients))
    feature = np.zeros((clients, clients), np.int64)
    p = np.ones((clients, clients))
    # Squared standard error of each mean, and its term in Welch's degrees of freedom.
    squared_errors = variances / n[:, None]
    welch_terms = squared_errors**2 / np.maximum(n - 1, 1)[:, None]
    for i in range(clients - 1):
        others = slice(i + 1, None)  # each pair once

        # The standardized distance of the means, in standard deviations of the data.
        gap = np.abs(means[i] - means[others])
        undefined_ratio = np.where(gap != 0, np.inf, 0.0)
        pair_error = squared_errors[i] + squared_errors[others]
        pooled_variance = (variances[i] + variances[others]) / 2
        has_variance = pooled_variance > 0
        effect = np.divide(
            gap**2, pooled_variance, out=undefined_ratio.copy(), where=has_variance
        )
        sampling_effect = np.divide(
            pair_error, pooled_variance, out=pair_error.copy(), where=has_variance
        )
        excess = (effect - sampling_effect).sum(axis=1) / features
        distance = np.sqrt(np.maximum(excess, 0.0))
        standardized[i, others] = standardized[others, i] = distance

        # The feature with the largest difference of means, in standard errors.
        t = np.divide(
            gap, np.sqrt(pair_error), out=undefined_ratio, where=pair_error > 0
        )
        largest = t.argmax(axis=1)
        feature[i, others] = feature[others, i] = largest

        # Welch's test of that feature.
        pairs = np.arange(len(t))
        t, pair_error = t[pairs, largest], pair_error[pairs, largest]
        welch_sum = welch_terms[i, largest] + welch_terms[others][pairs, largest]
        df = np.divide(
            pair_error**2, welch_sum, out=np.ones_like(pair_error), where=pair_error > 0
        )
        p_values = 2 * features * special.stdtr(df, -t)
        p[i, others] = p[others, i] = np.minimum(p_values, 1.0)
    return InputDifferences(standardized, feature, p, spread, spread_p, constant)


def _spread(
    means: NDArray[np.float64],
    variances: NDArray[np.float64],
    n: NDArray[np.float64],
    compared: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`spread` and `spread_p` of `InputDifferences`, from one-way analyses of variance."""
    clients, features = means.shape
    total = n.sum()
    degrees = clients - 1, max(total - clients, 1.0)
    within = (n - 1) @ variances / degrees[1]
    grand = n @ means / total
    between = n @ np.square(means - grand) / degrees[0]
    # Rows of a client that count, on average (all of them, if clients have equally many).
    rows = (total - np.square(n).sum() / total) / degrees[0]
    known = compared & (within > 0)
    ratio = np.divide(between, within, out=np.ones(features), where=known)
    spread = np.sqrt(np.maximum((ratio - 1) / rows, 0.0))
    p = np.minimum(special.fdtrc(*degrees, ratio) * max(int(known.sum()), 1), 1.0)
    return np.where(known, spread, 0.0), np.where(known, p, 1.0)


def discrepancy_from_models(
    losses: Float[np.ndarray, "models m"],
) -> Float[np.ndarray, "m m"]:
    """A lower bound of max_h |L_i(h) - L_j(h)|: the maximum over the given models.

    The bound holds for expected losses. Mean losses over n samples of a client add
    noise with the standard error of a mean.

    Args:
        losses: mean loss of each model on each client's (validation) data.
    """
    values = np.asarray(losses, np.float64)
    return np.abs(values[:, :, None] - values[:, None]).max(axis=0)


def discrepancy_from_mixture(
    losses: Float[np.ndarray, "models m"], weights: Float[np.ndarray, "rows m"]
) -> Float[np.ndarray, "rows m"]:
    """A lower bound of max_h |L_k(h) - sum_j w_j L_j(h)| over the given models.

    Args:
        losses: mean loss of each model on each client's (validation) data.
        weights: mixtures of clients to compare with, such as a cluster or all clients;
            each row has sum 1.
    """
    values = np.asarray(losses, np.float64)
    mixed = values @ np.asarray(weights, np.float64).T  # [models, rows]
    return np.abs(mixed[:, :, None] - values[:, None]).max(axis=0)
