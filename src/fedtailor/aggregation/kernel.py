"""The user-centric weights of Mestoukirdi et al., from one gradient of every client."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.best_rows import best_rows
from fedtailor.aggregation.distances import RowMatrix, squared_distances
from fedtailor.protocol import Cohort

Kernel = Literal["eq9", "eq6", "bound"]
"""The rule for the weights, given gradients g_i and standard deviations sigma_i.

* `eq9` (the long paper): w_ij ~ n_j exp(-|g_i - g_j|^2 / (2 sigma_i^2)).
* `eq6` (the short paper and the released code): with 2 sigma_i sigma_j instead of
  2 sigma_i^2, a symmetric kernel. It equals `eq9` if all sigma_i are equal.
* `bound` (not in the papers): the weights that minimise
  sqrt(sum_j w_j^2 v_j) + sum_j w_j |E g_i - E g_j|, where v_j is the variance of g_j.
  This is a bound on the distance from the mixed gradient sum_j w_j g_j to E g_i.
"""

_MIN_RELATIVE_WEIGHT = 0.1
"""A stream keeps its old model if the reporters' weights in its row sum to less than
this fraction of the reporters' share of all samples.
"""
_MIN_RELATIVE_NOISE = 1e-12
"""The smallest variance of a gradient in `bound`, relative to the largest one."""


@dataclass(frozen=True)
class Probe:
    """The clients' answers to the probe round at the common initial model.

    Attributes:
        gradients: [m, d] gradients of the mean loss over all training samples.
        sigma2: [m] the mean squared distance of batch gradients to the full gradient
            (Mestoukirdi et al., eq. 10). For the kernel `bound` it is tr S / n instead,
            the variance v of the full gradient (the value of eq. 10 for n_k = n / 2).
            It is not defined for a client with a single training sample: that entry is
            ignored, and the median of the other clients is used.
        sizes: [m] the numbers of training samples.

    Example:
        >>> from fedtailor.aggregation import Probe
        >>> Probe(
        ...     np.array([[1.0, 0.0], [0.0, 1.0]]),
        ...     np.array([0.1, 0.1]),
        ...     np.array([50, 50]),
        ... ).sizes
        array([50, 50])
    """

    gradients: Float[RowMatrix, "m d"]
    sigma2: NDArray[np.floating]
    sizes: NDArray[np.integer]

    def __post_init__(self) -> None:
        gradients = np.shape(self.gradients)
        sigma2 = np.shape(self.sigma2)
        sizes = np.shape(self.sizes)
        require(
            len(gradients) == 2 and sigma2 == sizes == gradients[:1],
            f"answers to the probe have shapes {(gradients, sigma2, sizes)}; they must"
            " be gradients [m, d], sigma2 [m] and sizes [m]",
        )
        # `not sigma2 >= 0` also refuses NaN, unlike `sigma2 < 0`.
        bad_variance = (self.sizes > 1) & ~(np.asarray(self.sigma2) >= 0)
        bad_size = np.asarray(self.sizes) < 1
        for name, bad in (("sigma2", bad_variance), ("sizes", bad_size)):
            if bad.any():
                client = int(np.argmax(bad))
                value = np.asarray(getattr(self, name))[client]
                raise ValueError(
                    f"{name} of client {client} is {value}; a variance is 0 or more, a"
                    " size 1 or more"
                )

    def of(self, clients: Bool[np.ndarray, " m"]) -> "Probe":
        """The answers of some of the clients."""
        if clients.all():
            return self
        return Probe(
            np.asarray(self.gradients)[clients],
            np.asarray(self.sigma2)[clients],
            np.asarray(self.sizes)[clients],
        )

    def with_bandwidth(self, bandwidth: float) -> "Probe":
        """The same answers with `sigma2` multiplied by `bandwidth`.

        With 0 the weights are those of training alone, with infinity those of FedAvg.
        """
        if bandwidth == np.inf:
            return replace(self, sigma2=np.full(len(self.sizes), np.inf))
        if bandwidth == 1:
            return self
        return replace(self, sigma2=bandwidth * np.asarray(self.sigma2, np.float64))


def user_centric_weights(
    probe: Probe, kernel: Kernel = "eq9"
) -> Float[np.ndarray, "m m"]:
    """The collaboration matrix W, whose row i holds the weights of all clients for i.

    Mestoukirdi et al., eq. 9 or 6. The row of a client of variance exactly 0 is that of
    the identity matrix, even if another client has the same gradient. Under `eq6` other
    clients give it no weight either. If every client has a single sample, the noise of
    the gradients is unknown, and the rows are those of FedAvg.

    Returns:
        W, whose rows sum to 1.

    Example:
        >>> from fedtailor.aggregation import Probe, user_centric_weights
        >>> probe = Probe(
        ...     np.array([[1.0, 0.0], [0.0, 1.0]]),
        ...     np.array([0.1, 0.1]),
        ...     np.array([50, 50]),
        ... )
        >>> np.asarray(user_centric_weights(probe)).sum(axis=1).round(6)
        array([1., 1.])
    """
    distances = squared_distances(probe.gradients)
    if kernel == "bound":
        column_variances = _gradient_variances(probe, probe)
        return _bound_rows(
            distances, column_variances, column_variances, same_clients=True
        )
    sigma = _standard_deviations(probe, probe)
    weights = _kernel_rows(distances, sigma, probe, sigma, kernel)
    # The limit sigma_i -> 0 of both kernels, whose exponents are not defined at 0.
    has_no_variance = sigma == 0
    weights[has_no_variance] = np.eye(len(sigma))[has_no_variance]
    return weights


def newcomer_weights(
    newcomers: Probe,
    seen: Probe,
    kernel: Kernel = "eq9",
    usable: Bool[np.ndarray, " m"] | None = None,
) -> Float[np.ndarray, "c m"]:
    """Weights of the seen clients for newcomers, which arrive after training.

    Newcomers have no weight, because their models have not been trained.

    Args:
        newcomers: the newcomers' answers to the probe.
        seen: the seen clients' answers to the probe.
        kernel: the rule for the weights.
        usable: [m] the seen clients that may have weight, at least one; None = all.

    Returns:
        Rows that sum to 1. If all weights of a newcomer are 0 in floating point,
        because it has variance 0 or is far from all clients, its nearest clients have
        weights in proportion to their samples.

    Example:
        >>> from fedtailor.aggregation import Probe, newcomer_weights
        >>> probe = Probe(
        ...     np.array([[1.0, 0.0], [0.0, 1.0]]),
        ...     np.array([0.1, 0.1]),
        ...     np.array([50, 50]),
        ... )
        >>> np.asarray(newcomer_weights(probe, probe)).shape
        (2, 2)
    """
    distances = squared_distances(newcomers.gradients, seen.gradients)
    if kernel == "bound":
        usable = np.ones(len(seen.sizes), bool) if usable is None else usable
        row_variances = _gradient_variances(newcomers, seen)
        column_variances = _gradient_variances(seen, seen)[usable]
        rows = np.zeros(distances.shape)
        rows[:, usable] = _bound_rows(
            distances[:, usable], row_variances, column_variances
        )
        return rows
    row_sigma = _standard_deviations(newcomers, seen)
    sigma = _standard_deviations(seen, seen)
    return _kernel_rows(distances, row_sigma, seen, sigma, kernel, usable)


def restrict_to_reporters(
    rows: Float[np.ndarray, "s m"], sizes: NDArray[np.integer], cohort: Cohort
) -> Float[np.ndarray, "s c"]:
    """Restrict rows of weights to the clients that report, and renormalise them.

    The papers define full participation only. Here a row becomes zero, so that `mix`
    keeps the stream's old model, if its weights of the reporters sum to less than a
    tenth of the reporters' share of all samples. Otherwise a total weight of 1e-30
    would be scaled up to 1, and the stream would become the model of an unrelated
    client.

    Args:
        rows: weights over the whole population.
        sizes: [m] training samples of the population.
        cohort: the clients of the round; some of them report.

    Returns:
        Rows over the cohort's clients. Each sums to 1 or is zero.
    """
    weights = np.where(cohort.reporting, rows[:, cohort.position], 0.0)
    total = weights.sum(axis=1, keepdims=True)
    # The reporters' share of all samples is their total weight in FedAvg.
    reporters_share = sizes[cohort.position][cohort.reporting].sum() / sizes.sum()
    is_enough = (total > 0) & (total >= _MIN_RELATIVE_WEIGHT * reporters_share)
    return np.divide(weights, total, out=np.zeros_like(weights), where=is_enough)


def _standard_deviations(probe: Probe, others: Probe) -> NDArray[np.float64]:
    """Standard deviations of the clients' batch gradients.

    Args:
        probe: the clients.
        others: the clients whose median replaces the unknown deviation of a client with
            a single sample.

    Returns:
        sigma [m]. Unknown deviations are infinite if all `others` have a single sample.
    """
    has_estimate = np.asarray(others.sizes) > 1
    known = np.sqrt(np.asarray(others.sigma2, np.float64)[has_estimate])
    median = np.median(known) if len(known) else np.inf
    is_single = np.asarray(probe.sizes) == 1
    # The entry of a client with a single sample is ignored, as it may be NaN.
    variances = np.where(is_single, 0.0, np.asarray(probe.sigma2, np.float64))
    return np.where(is_single, median, np.sqrt(variances))


def _gradient_variances(probe: Probe, others: Probe) -> NDArray[np.float64]:
    """Variances of the clients' full gradients, for the kernel `bound`.

    Args:
        probe: the clients.
        others: the clients whose median tr S replaces the unknown variance of a client
            with a single sample.

    Returns:
        v [m] = tr S / n.
    """
    has_estimate = np.asarray(others.sizes) > 1
    traces = np.asarray(others.sigma2, np.float64) * others.sizes
    median = np.median(traces[has_estimate]) if has_estimate.any() else np.inf
    is_single = np.asarray(probe.sizes) == 1
    return np.where(is_single, median, np.asarray(probe.sigma2, np.float64))


def _bound_rows(
    squared: NDArray[np.float64],
    row_variances: NDArray[np.float64],
    column_variances: NDArray[np.float64],
    *,
    same_clients: bool = False,
) -> NDArray[np.float64]:
    """The rows of weights of the kernel `bound`.

    Args:
        squared: squared distances [r, m] between gradients, including their noise.
        row_variances: variances v of the gradients of the rows' clients [r].
        column_variances: variances v of the gradients of the columns' clients [m].
        same_clients: whether rows and columns are the same clients. The distance of a
            client to itself is then 0.

    Returns:
        Rows [r, m] that sum to 1.
    """
    # If all clients have a single sample, the noise is unknown: equal weights.
    if np.isinf(column_variances).all():
        return np.full(squared.shape, 1 / len(column_variances))
    # |E g_i - E g_j|^2 = E |g_i - g_j|^2 - v_i - v_j
    without_noise = squared - row_variances[:, None] - column_variances[None]
    distances = np.sqrt(np.maximum(without_noise, 0.0))
    if same_clients:
        np.fill_diagonal(distances, 0.0)
    largest = column_variances.max()
    # Without noise the nearest clients have all the weight, in equal shares.
    if largest == 0:
        is_nearest = distances == distances.min(axis=1, keepdims=True)
        return is_nearest / is_nearest.sum(axis=1, keepdims=True)
    # The bound is the one of `best_rows` for n_j = 1 / v_j samples and c = 1.
    samples = 1 / np.maximum(column_variances, _MIN_RELATIVE_NOISE * largest)
    return best_rows(distances, samples, complexity=1.0).weights


def _kernel_rows(
    distances: NDArray[np.float64],
    row_sigma: NDArray[np.float64],
    clients: Probe,
    sigma: NDArray[np.float64],
    kernel: Kernel,
    usable: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """The rows of weights of the kernels `eq9` and `eq6`.

    They are computed as a softmax, because the factors exp(-distance / scale) underflow
    for networks.

    Args:
        distances: |g_i - g_j|^2 [r, m].
        row_sigma: sigma_i of the rows' clients [r].
        clients: the columns' clients.
        sigma: sigma_j of the columns' clients [m].
        kernel: `eq9` or `eq6`.
        usable: [m] the clients that may have weight; None = all.

    Returns:
        Rows [r, m] that sum to 1, with 0 for clients that are not usable.
    """
    if kernel not in ("eq9", "eq6"):
        raise ValueError(f"kernel is {kernel!r}; it must be 'eq9', 'eq6' or 'bound'")
    sigma_i = row_sigma[:, None]
    sigma_j = sigma_i if kernel == "eq9" else sigma[None]
    # Where the scale is 0, or 0 * infinity, the weight is 0.
    with np.errstate(invalid="ignore", over="ignore"):
        scale = 2 * sigma_i * sigma_j
        divisor = np.where(scale > 0, scale, 1.0)
        exponents = np.where(scale > 0, -distances / divisor, -np.inf)
    if usable is not None:
        exponents = np.where(usable, exponents, -np.inf)
        distances = np.where(usable, distances, np.inf)
    # In a row whose weights are all 0 the nearest clients get weights instead.
    is_zero = np.isneginf(exponents).all(axis=1, keepdims=True)
    is_nearest = distances == distances.min(axis=1, keepdims=True)
    exponents = np.where(is_zero, np.where(is_nearest, 0.0, -np.inf), exponents)
    # Subtracting the largest exponent of each row avoids underflow.
    relative = exponents - exponents.max(axis=1, keepdims=True)
    weights = clients.sizes * np.exp(relative)
    return weights / weights.sum(axis=1, keepdims=True)
