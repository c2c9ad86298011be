"""The user-centric weights of Mestoukirdi et al., from one gradient of every client."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from fedtailor.aggregation.best_rows import best_rows
from fedtailor.aggregation.distances import Rows, squared_distances
from fedtailor.protocol import Cohort, require

Kernel = Literal["eq9", "eq6", "bound"]
"""The rule that makes weights of gradients g_i and deviations sigma_i.

* `eq9` (the long paper): w_ij ~ n_j exp(-|g_i - g_j|^2 / (2 sigma_i^2)).
* `eq6` (the short paper and the released code): 2 sigma_i sigma_j instead, a symmetric
  kernel. It equals `eq9` where all deviations are equal.
* `bound` (not of the papers): the weights that minimise
  sqrt(sum_j w_j^2 v_j) + sum_j w_j |E g_i - E g_j|, a bound on how far the mixed
  gradient sum_j w_j g_j is from E g_i, where v_j is the variance of g_j.
"""

_LEAST_MASS = 0.1
"""A stream keeps its old model if the weights of the reporters in its row sum to less
than this fraction of the reporters' share of all samples.
"""
_LEAST_NOISE = 1e-12
"""Smallest variance of gradients that `bound` uses, relative to the largest one."""


@dataclass(frozen=True)
class Probe:
    """What clients answer to the probe round at the common initial model.

    Attributes:
        gradients: [m, d] gradients of the mean loss over all training samples.
        sigma2: [m] mean squared distance of batch gradients to the full one
            (Mestoukirdi et al., eq. 10). For a client with one training sample it is
            not defined and not read: the median deviation of the others stands in. For
            the kernel `bound`: the variance v of the gradients themselves, tr S / n,
            which n_k = n / 2 would give.
        sizes: [m] training samples.
    """

    gradients: Float[Rows, "m d"]
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
        # In this form, not sigma2 < 0, NaN is refused, too.
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

    def widened(self, bandwidth: float) -> "Probe":
        """The same answers with `sigma2` times `bandwidth`.

        0 makes every client keep to itself, infinity averages them all.
        """
        if bandwidth == np.inf:
            return replace(self, sigma2=np.full(len(self.sizes), np.inf))
        if bandwidth == 1:
            return self
        return replace(self, sigma2=bandwidth * np.asarray(self.sigma2, np.float64))


def user_centric_weights(
    probe: Probe, kernel: Kernel = "eq9"
) -> Float[np.ndarray, "m m"]:
    """The collaboration matrix W, whose row i weighs all clients for client i.

    Mestoukirdi et al., eq. 9 or 6. A client of variance exactly 0 keeps to itself: its
    row is the identity's, even where another client has the same gradient, and under
    `eq6` nobody else uses it either. If every client has a single sample nothing tells
    distances from noise, and the rows are those of FedAvg.

    Returns:
        W, whose rows sum to 1.
    """
    distances = squared_distances(probe.gradients)
    if kernel == "bound":
        noise = _noise(probe, probe)
        return _bound_rows(distances, noise, noise, same_clients=True)
    sigma = _deviations(probe, probe)
    weights = _kernel_rows(distances, sigma, probe, sigma, kernel)
    # The limit sigma_i -> 0 of either kernel, in which the quotient is not defined.
    is_exact = sigma == 0
    weights[is_exact] = np.eye(len(sigma))[is_exact]
    return weights


def newcomer_weights(
    newcomers: Probe,
    seen: Probe,
    kernel: Kernel = "eq9",
    among: Bool[np.ndarray, " m"] | None = None,
) -> Float[np.ndarray, "c m"]:
    """Weights of the seen clients for clients that arrive after training.

    Newcomers have no weight themselves: their models have not been trained.

    Args:
        newcomers: their answers to the probe.
        seen: those of the seen clients.
        among: the seen clients that may have weight (one at least); default all.

    Returns:
        Rows that sum to 1. A newcomer of variance 0, or so far from everybody that all
        its weights are 0 in floating point, gets the clients nearest to it, by their
        samples.
    """
    distances = squared_distances(newcomers.gradients, seen.gradients)
    if kernel == "bound":
        usable = np.ones(len(seen.sizes), bool) if among is None else among
        own_noise = _noise(newcomers, seen)
        noise = _noise(seen, seen)[usable]
        rows = np.zeros(distances.shape)
        rows[:, usable] = _bound_rows(distances[:, usable], own_noise, noise)
        return rows
    own = _deviations(newcomers, seen)
    sigma = _deviations(seen, seen)
    return _kernel_rows(distances, own, seen, sigma, kernel, among)


def restrict_to_reporters(
    rows: Float[np.ndarray, "s m"], sizes: NDArray[np.integer], cohort: Cohort
) -> Float[np.ndarray, "s c"]:
    """Restrict rows of weights to the clients that report, and renormalise them.

    A row becomes zero, so that `mix` keeps the stream's old model, if the weights of
    the reporters (their mass) sum to less than a tenth of their share of all samples. A
    mass of 1e-30 scaled up to 1 would replace the stream by the model of a client that
    it hardly uses. (The papers define full participation only.)

    Args:
        rows: weights over the whole population.
        sizes: [m] training samples of the population.
        cohort: the clients of the round, of which some report.

    Returns:
        Rows over the cohort's clients, each of sum 1 or zero.
    """
    weights = np.where(cohort.reporting, rows[:, cohort.position], 0.0)
    mass = weights.sum(axis=1, keepdims=True)
    # The reporters' share of all samples is the mass that FedAvg's row has on them.
    reporters_share = sizes[cohort.position][cohort.reporting].sum() / sizes.sum()
    is_enough = (mass > 0) & (mass >= _LEAST_MASS * reporters_share)
    return np.divide(weights, mass, out=np.zeros_like(weights), where=is_enough)


def _deviations(probe: Probe, others: Probe) -> NDArray[np.float64]:
    """Standard deviations of the clients' batch gradients.

    Args:
        probe: the clients whose deviations are wanted.
        others: clients with more than one sample among these give the median that
            replaces the unknown deviation of a client with a single sample.

    Returns:
        sigma [m]; infinite for single samples where nobody has more.
    """
    has_several = np.asarray(others.sizes) > 1
    known = np.sqrt(np.asarray(others.sigma2, np.float64)[has_several])
    median = np.median(known) if len(known) else np.inf
    is_single = np.asarray(probe.sizes) == 1
    # What a client with a single sample sent is not read: it may be NaN.
    variances = np.where(is_single, 0.0, np.asarray(probe.sigma2, np.float64))
    return np.where(is_single, median, np.sqrt(variances))


def _noise(probe: Probe, others: Probe) -> NDArray[np.float64]:
    """Variances of the clients' whole gradients, as the kernel `bound` takes them.

    Args:
        probe: the clients whose variances are wanted.
        others: clients with more than one sample among these give the median that
            replaces the unknown variance of a client with a single sample.

    Returns:
        v [m] = tr S / n; for a single sample, the median of the others' tr S.
    """
    has_several = np.asarray(others.sizes) > 1
    traces = np.asarray(others.sigma2, np.float64) * others.sizes
    median = np.median(traces[has_several]) if has_several.any() else np.inf
    is_single = np.asarray(probe.sizes) == 1
    return np.where(is_single, median, np.asarray(probe.sigma2, np.float64))


def _bound_rows(
    squared: NDArray[np.float64],
    own_noise: NDArray[np.float64],
    noise: NDArray[np.float64],
    *,
    same_clients: bool = False,
) -> NDArray[np.float64]:
    """The rows of weights of the kernel `bound`.

    Args:
        squared: squared distances [r, m] between gradients, noise included.
        own_noise: variances v of the rows' gradients [r].
        noise: variances v of the columns' gradients [m].
        same_clients: whether rows and columns are the same clients, each at distance 0
            from itself.

    Returns:
        Rows [r, m] that sum to 1.
    """
    # With single samples only nothing tells distances from noise.
    if np.isinf(noise).all():
        return np.full(squared.shape, 1 / len(noise))
    # E |g_i - g_j|^2 = |E g_i - E g_j|^2 + v_i + v_j, so the distance of the means is
    # what remains without the noise.
    without_noise = squared - own_noise[:, None] - noise[None]
    distances = np.sqrt(np.maximum(without_noise, 0.0))
    if same_clients:
        np.fill_diagonal(distances, 0.0)
    largest = noise.max()
    # Exact gradients: the nearest clients get all the weight, in equal shares.
    if largest == 0:
        is_nearest = distances == distances.min(axis=1, keepdims=True)
        return is_nearest / is_nearest.sum(axis=1, keepdims=True)
    # The first term of the bound, sqrt(sum_j w_j^2 v_j), is that of `best_rows` with
    # n_j = 1 / v_j samples and c = 1.
    samples = 1 / np.maximum(noise, _LEAST_NOISE * largest)
    return best_rows(distances, samples, complexity=1.0).weights


def _kernel_rows(
    distances: NDArray[np.float64],
    own_sigma: NDArray[np.float64],
    clients: Probe,
    sigma: NDArray[np.float64],
    kernel: Kernel,
    among: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """The rows of weights of the kernels `eq9` and `eq6`.

    They are computed as a softmax: for networks the factors exp(-distance / scale)
    underflow.

    Args:
        distances: |g_i - g_j|^2 [r, m].
        own_sigma: sigma_i of the rows' clients [r].
        clients: the columns' clients.
        sigma: sigma_j of the columns' clients [m].
        kernel: `eq9` or `eq6`.
        among: [m] the clients that may have weight; None = all.

    Returns:
        Rows [r, m] that sum to 1; 0 outside `among`.
    """
    if kernel not in ("eq9", "eq6"):
        raise ValueError(f"kernel is {kernel!r}; it must be 'eq9', 'eq6' or 'bound'")
    own = own_sigma[:, None]
    # Where the scale is 0, or 0 * infinity, the weight is 0.
    with np.errstate(invalid="ignore", over="ignore"):
        scale = 2 * own * (own if kernel == "eq9" else sigma[None])
        divisor = np.where(scale > 0, scale, 1.0)
        exponents = np.where(scale > 0, -distances / divisor, -np.inf)
    if among is not None:
        exponents = np.where(among, exponents, -np.inf)
        distances = np.where(among, distances, np.inf)
    # A row in which all weights would be 0 weighs the nearest clients by their samples.
    is_zero = np.isneginf(exponents).all(axis=1, keepdims=True)
    is_nearest = distances == distances.min(axis=1, keepdims=True)
    exponents = np.where(is_zero, np.where(is_nearest, 0.0, -np.inf), exponents)
    # Relative to the largest exponent of its row, which becomes 0, no row underflows.
    relative = exponents - exponents.max(axis=1, keepdims=True)
    weights = clients.sizes * np.exp(relative)
    return weights / weights.sum(axis=1, keepdims=True)
