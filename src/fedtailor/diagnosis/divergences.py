"""How far apart clients' distributions are.

They are compared in labels, in inputs, and in what models lose on them.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fedtailor.protocol import require


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """JS(p, q) = (KL(p, (p + q)/2) + KL(q, (p + q)/2)) / 2 in nats, in [0, log 2].

    Args:
        p, q: distributions on k values [..., k]; the leading axes broadcast.

    Returns:
        The leading axes.
    """
    middle = (np.asarray(p, np.float64) + np.asarray(q, np.float64)) / 2
    from_p = special.rel_entr(p, middle).sum(axis=-1)
    from_q = special.rel_entr(q, middle).sum(axis=-1)
    return np.asarray(from_p + from_q) / 2


def jensen_shannon_from_classifier(cross_entropy: ArrayLike) -> NDArray[np.float64]:
    """A lower bound of JS, from a classifier that tells samples of two clients apart.

    It was trained on as many samples of either.

    Args:
        cross_entropy: [...] its mean -log p in nats, on data that it was not trained
            on.
    """
    return np.maximum(np.log(2) - np.asarray(cross_entropy, np.float64), 0.0)


@dataclass(frozen=True)
class LabelDifferences:
    """Pairs of clients, compared by their labels.

    Attributes:
        divergence: [m, m] JS of the label histograms in nats: a lower bound of the
            clients' JS, but for sampling, which makes it too large by about (classes -
            1) (1/n_i + 1/n_j) / 8.
        p: [m, m] of the hypothesis that both clients' labels are distributed alike
            (G-test); 1 on the diagonal.
    """

    divergence: Float[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]


def label_differences(counts: Int[np.ndarray, "m classes"]) -> LabelDifferences:
    """Compares all pairs of clients by how often they have each class.

    The G-test counts the classes that either client has; its chi^2 is an approximation
    that wants about five samples of each.

    Args:
        counts: training samples of each class.

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
    # Row by row, since all pairs at once would take m^2 times classes numbers; each
    # pair once.
    for i in range(clients - 1):
        others = slice(i + 1, None)
        row = jensen_shannon(shares[i], shares[others])
        divergence[i, others] = divergence[others, i] = row

        # G = 2 sum of count log(count / expected) over classes and both clients, where
        # one distribution is expected.
        both = counts[i] + counts[others]
        pooled = both / (totals[i] + totals[others])[:, None]
        of_i = special.rel_entr(counts[i], totals[i] * pooled)
        of_others = special.rel_entr(counts[others], totals[others, None] * pooled)
        statistic = 2 * (of_i.sum(axis=1) + of_others.sum(axis=1))
        degrees = (both > 0).sum(axis=1) - 1
        tail = special.chdtrc(np.maximum(degrees, 1), statistic)
        # Two clients of one and the same class cannot be told apart.
        p[i, others] = p[others, i] = np.where(degrees > 0, tail, 1.0)
    return LabelDifferences(divergence, p)


@dataclass(frozen=True)
class InputDifferences:
    """Pairs of clients, compared by means of their features.

    Attributes:
        standardized: [m, m] root mean square over features of the differences of means,
            in units of the pooled deviation of the two clients (0.2 is small, 0.8
            large), with what sampling adds taken off; 0 at least.
        feature: [m, m] the feature whose means differ most, in standard errors.
        p: [m, m] of the hypothesis that all features have equal means: Welch's test of
            that feature, times the number of features.
    """

    standardized: Float[np.ndarray, "m m"]
    feature: Int[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]


def input_differences(
    means: Float[np.ndarray, "m features"],
    squares: Float[np.ndarray, "m features"],
    sizes: Int[np.ndarray, " m"],
) -> InputDifferences:
    """Compares all pairs of clients by the first two moments of their inputs.

    Features that are constant in both clients count where their means differ.
    Differences beyond the means (shapes, dependence) are not seen.

    Args:
        means, squares: means of each feature and of its square, over training samples.
        sizes: training samples n_i.
    """
    means = np.asarray(means, np.float64)
    n = np.asarray(sizes, np.float64)
    clients, features = means.shape
    # Squares of large features leave rounding where there is no variance.
    variances = np.asarray(squares, np.float64) - means**2
    variances = np.where(variances > 1e-12 * np.abs(squares), variances, 0.0)
    variances = variances * (n / np.maximum(n - 1, 1))[:, None]
    standardized = np.zeros((clients, clients))
    feature = np.zeros((clients, clients), np.int64)
    p = np.ones((clients, clients))
    # What sampling adds to the square of a mean, and that over its degrees of freedom
    # (Welch), once for each client.
    errors = variances / n[:, None]
    by_degrees = errors**2 / np.maximum(n - 1, 1)[:, None]
    for i in range(clients - 1):
        others = slice(i + 1, None)  # each pair once

        # How far the means are apart, in deviations of the data.
        gap = np.abs(means[i] - means[others])
        unlike = np.where(gap != 0, np.inf, 0.0)
        total = errors[i] + errors[others]
        pooled = (variances[i] + variances[others]) / 2
        varies = pooled > 0
        in_deviations = np.divide(gap**2, pooled, out=unlike.copy(), where=varies)
        by_chance = np.divide(total, pooled, out=total.copy(), where=varies)
        apart = np.sqrt(np.maximum((in_deviations - by_chance).mean(axis=1), 0.0))
        standardized[i, others] = standardized[others, i] = apart

        # Which feature they are apart in most, in standard errors.
        t = np.divide(gap, np.sqrt(total), out=unlike, where=total > 0)
        largest = t.argmax(axis=1)
        feature[i, others] = feature[others, i] = largest

        # Welch's test looks at that feature alone.
        pairs = np.arange(len(t))
        t, total = t[pairs, largest], total[pairs, largest]
        spread = by_degrees[i, largest] + by_degrees[others][pairs, largest]
        degrees = np.divide(total**2, spread, out=np.ones_like(total), where=total > 0)
        two_sided = 2 * features * special.stdtr(degrees, -t)
        p[i, others] = p[others, i] = np.minimum(two_sided, 1.0)
    return InputDifferences(standardized, feature, p)


def discrepancy_from_models(
    losses: Float[np.ndarray, "models m"],
) -> Float[np.ndarray, "m m"]:
    """A lower bound of max_h |L_i(h) - L_j(h)|, over the models that are at hand.

    It is a bound for expected losses; the means over a client's samples add noise of
    about deviation / sqrt(n).

    Args:
        losses: mean loss of each model on each client's (validation) data.
    """
    values = np.asarray(losses, np.float64)
    return np.abs(values[:, :, None] - values[:, None]).max(axis=0)


def discrepancy_from_mixture(
    losses: Float[np.ndarray, "models m"], weights: Float[np.ndarray, "rows m"]
) -> Float[np.ndarray, "rows m"]:
    """A lower bound of max_h |L_k(h) - sum_j w_j L_j(h)|, over the models at hand.

    Args:
        losses: mean loss of each model on each client's (validation) data.
        weights: rows that sum to 1: the mixtures of clients (all of them by samples, a
            cluster) to compare with.
    """
    values = np.asarray(losses, np.float64)
    mixed = values @ np.asarray(weights, np.float64).T  # [models, rows]
    return np.abs(mixed[:, :, None] - values[:, None]).max(axis=0)
