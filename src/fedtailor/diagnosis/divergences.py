"""How far apart clients' distributions are: in labels, in inputs, and in what models lose on them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fedtailor.protocol import require


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """JS(p, q) = (KL(p, (p + q)/2) + KL(q, (p + q)/2)) / 2 in nats, in [0, log 2], [...].

    Args:
        p, q: distributions on k values [..., k]; the leading axes broadcast.
    """
    middle = (np.asarray(p, np.float64) + np.asarray(q, np.float64)) / 2
    return np.asarray(special.rel_entr(p, middle).sum(axis=-1) + special.rel_entr(q, middle).sum(axis=-1)) / 2


def jensen_shannon_from_classifier(cross_entropy: ArrayLike) -> NDArray[np.float64]:
    """A lower bound of JS, from a classifier that tells samples of two clients (as many of either) apart.

    Args:
        cross_entropy: [...] its mean -log p in nats, on data that it was not trained on.
    """
    return np.maximum(np.log(2) - np.asarray(cross_entropy, np.float64), 0.0)


@dataclass(frozen=True)
class LabelDifferences:
    """Pairs of clients, compared by their labels.

    Attributes:
        divergence: [m, m] JS of the label histograms in nats: a lower bound of the clients' JS, but for sampling, which
            makes it too large by about (classes - 1) (1/n_i + 1/n_j) / 8.
        p: [m, m] of the hypothesis that both clients' labels are distributed alike (G-test); 1 on the diagonal.
    """

    divergence: Float[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]


def label_differences(counts: Int[np.ndarray, "m classes"]) -> LabelDifferences:
    """Compares all pairs of clients by how often they have each class.

    The G-test counts the classes that either client has; its chi^2 is an approximation that wants about five samples
    of each.

    Args:
        counts: training samples of each class.

    Raises:
        ValueError: a client has no sample, or a count is negative.
    """
    counts = np.asarray(counts, np.float64)
    require(bool((counts >= 0).all()), f"a count of labels is {counts.min():g}; it must be 0 or more")
    require(bool((counts.sum(axis=1) > 0).all()), "a client has no label; leave out clients without samples")
    shares, totals = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=1)
    divergence, p = np.zeros((len(counts),) * 2), np.ones((len(counts),) * 2)
    for i in range(len(counts)):  # row by row: all pairs at once would take m^2 times classes numbers
        divergence[i] = jensen_shannon(shares[i], shares)
        both = counts[i] + counts
        pooled = both / (totals[i] + totals)[:, None]
        statistic = 2 * (
            special.rel_entr(counts[i], totals[i] * pooled).sum(axis=1)
            + special.rel_entr(counts, totals[:, None] * pooled).sum(axis=1)
        )
        degrees = (both > 0).sum(axis=1) - 1
        p[i] = np.where(degrees > 0, special.chdtrc(np.maximum(degrees, 1), statistic), 1.0)
    np.fill_diagonal(p, 1.0)
    return LabelDifferences(divergence, p)


@dataclass(frozen=True)
class InputDifferences:
    """Pairs of clients, compared by means of their features.

    Attributes:
        standardized: [m, m] root mean square over features of the differences of means, in units of the pooled
            deviation of the two clients (0.2 is small, 0.8 large), with what sampling adds taken off; 0 at least.
        feature: [m, m] the feature whose means differ most, in standard errors.
        p: [m, m] of the hypothesis that all features have equal means: Welch's test of that feature, times the number
            of features.
    """

    standardized: Float[np.ndarray, "m m"]
    feature: Int[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]


def input_differences(
    means: Float[np.ndarray, "m features"], squares: Float[np.ndarray, "m features"], sizes: Int[np.ndarray, " m"]
) -> InputDifferences:
    """Compares all pairs of clients by the first two moments of their inputs.

    Features that are constant in both clients count where their means differ. Differences beyond the means (shapes,
    dependence) are not seen.

    Args:
        means, squares: means of each feature and of its square, over training samples.
        sizes: training samples n_i.
    """
    means, n = np.asarray(means, np.float64), np.asarray(sizes, np.float64)
    clients, features = means.shape
    # Squares of large features leave rounding where there is no variance.
    variances = np.asarray(squares, np.float64) - means**2
    variances = np.where(variances > 1e-12 * np.abs(squares), variances, 0.0)
    variances = variances * (n / np.maximum(n - 1, 1))[:, None]
    standardized, p = np.zeros((clients, clients)), np.ones((clients, clients))
    feature = np.zeros((clients, clients), np.int64)
    for i in range(clients):
        gap = means[i] - means
        pooled = (variances[i] + variances) / 2
        in_deviations = np.divide(gap**2, pooled, out=np.where(gap != 0, np.inf, 0.0), where=pooled > 0)
        by_chance = (variances[i] / n[i] + variances / n[:, None]) / np.where(pooled > 0, pooled, 1.0)
        standardized[i] = np.sqrt(np.maximum((in_deviations - by_chance).mean(axis=1), 0.0))
        own, other = variances[i] / n[i], variances / n[:, None]
        total = own + other
        degrees = np.divide(
            total**2, own**2 / max(n[i] - 1, 1) + other**2 / np.maximum(n - 1, 1)[:, None],
            out=np.ones_like(total), where=total > 0,
        )  # fmt: skip
        t = np.divide(np.abs(gap), np.sqrt(total), out=np.where(gap != 0, np.inf, 0.0), where=total > 0)
        feature[i] = t.argmax(axis=1)
        largest = feature[i][:, None]
        t, degrees = (np.take_along_axis(values, largest, axis=1)[:, 0] for values in (t, degrees))
        p[i] = np.minimum(2 * features * special.stdtr(degrees, -t), 1.0)
    np.fill_diagonal(standardized, 0.0)
    np.fill_diagonal(p, 1.0)
    return InputDifferences(standardized, feature, p)


def discrepancy_from_models(losses: Float[np.ndarray, "models m"]) -> Float[np.ndarray, "m m"]:
    """A lower bound of max_h |L_i(h) - L_j(h)| [m, m], over the models that are at hand.

    It is a bound for expected losses; the means over a client's samples add noise of about deviation / sqrt(n).

    Args:
        losses: mean loss of each model on each client's (validation) data.
    """
    values = np.asarray(losses, np.float64)
    return np.abs(values[:, :, None] - values[:, None]).max(axis=0)


def discrepancy_from_mixture(
    losses: Float[np.ndarray, "models m"], weights: Float[np.ndarray, "rows m"]
) -> Float[np.ndarray, "rows m"]:
    """A lower bound of max_h |L_k(h) - sum_j w_j L_j(h)| [rows, m], over the models that are at hand.

    Args:
        losses: mean loss of each model on each client's (validation) data.
        weights: rows that sum to 1: the mixtures of clients (all of them by samples, a cluster) to compare with.
    """
    values = np.asarray(losses, np.float64)
    mixed = values @ np.asarray(weights, np.float64).T  # [models, rows]
    return np.abs(mixed[:, :, None] - values[:, None]).max(axis=0)
