"""The user-centric weights of Mestoukirdi et al.: who learns from whom, from one
gradient of every client.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from fedtailor.aggregation.best_rows import best_rows
from fedtailor.aggregation.distances import Rows, squared_distances
from fedtailor.protocol import Cohort, require

Kernel = Literal["eq9", "eq6", "bound"]
"""`eq9` (the long paper): w_ij ~ n_j exp(-|g_i - g_j|^2 / (2 sigma_i^2)); `eq6` (the
short paper and the released code): 2 sigma_i sigma_j instead, a symmetric kernel. Equal
where all deviations are. `bound` (not of the papers): the weights that minimise
sqrt(sum_j w_j^2 v_j) + sum_j w_j |E g_i - E g_j|, a bound on how far the mixed gradient
sum_j w_j g_j is from E g_i, where v_j is the variance of g_j."""

_LEAST_MASS = 0.1
"""Mass of a row on the reporters, relative to their share of all samples, below which
its stream stays as it is.
"""
_LEAST_NOISE = 1e-12
"""The least variance of a gradient that `bound` reckons with, relative to the largest.
"""


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
        shapes = (np.shape(self.gradients), np.shape(self.sigma2), np.shape(self.sizes))
        of_gradients, of_sigma2, of_sizes = shapes
        require(
            len(of_gradients) == 2 and of_sigma2 == of_sizes == of_gradients[:1],
            f"answers to the probe have shapes {shapes}; they must be gradients [m, d],"
            " sigma2 [m] and sizes [m]",
        )
        # "not at least 0", which NaN is not either
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
        """The same with sigma2 times `bandwidth`: 0 makes every client keep to itself,
        infinity averages them all.
        """
        if bandwidth == np.inf:
            return replace(self, sigma2=np.full(len(self.sizes), np.inf))
        if bandwidth == 1:
            return self
        return replace(self, sigma2=bandwidth * np.asarray(self.sigma2, np.float64))


def user_centric_weights(
    probe: Probe, kernel: Kernel = "eq9"
) -> Float[np.ndarray, "m m"]:
    """The collaboration matrix W: row i weighs all clients for client i (Mestoukirdi et
    al., eq. 9 or 6).

    Exponents are taken relative to the largest of a row, since the kernel itself
    underflows for networks. A client of variance exactly 0 keeps to itself: its row is
    the identity's, even where another client has the same gradient, and under `eq6`
    nobody else uses it either. If every client has a single sample nothing tells their
    distances from noise, and the rows are those of FedAvg.

    Returns:
        W, whose rows sum to 1.
    """
    distances = squared_distances(probe.gradients)
    if kernel == "bound":
        noise = _noise(probe, probe)
        return _bound_rows(distances, noise, noise, own=True)
    sigma = _deviations(probe, probe)
    weights = _rows(distances, sigma, probe, sigma, kernel)
    # The limit sigma_i -> 0 of either kernel, which the quotient does not give.
    alone = sigma == 0
    weights[alone] = np.eye(len(sigma))[alone]
    return weights


def newcomer_weights(
    newcomers: Probe,
    seen: Probe,
    kernel: Kernel = "eq9",
    among: Bool[np.ndarray, " m"] | None = None,
) -> Float[np.ndarray, "c m"]:
    """Rows over the seen clients for clients that arrive after training (they have no
    weight of their own).

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
    return _rows(distances, own, seen, sigma, kernel, among)


def restrict_to_reporters(
    rows: Float[np.ndarray, "s m"], sizes: NDArray[np.integer], cohort: Cohort
) -> Float[np.ndarray, "s c"]:
    """Rows of weights over the population, as rows over a cohort: renormalised over the
    clients that report.

    A row with less mass on the reporters than a tenth of their share of all samples
    becomes zero, which leaves its stream as it is: a mass of 1e-30 scaled up to 1 would
    replace the stream by the model of a client that it hardly uses. (The papers define
    full participation only.)

    Args:
        rows: weights over the whole population.
        sizes: [m] training samples of the population.
        cohort: who is there and reports.

    Returns:
        Rows over the cohort's clients, each of sum 1 or zero.
    """
    # What is left of each row on the reporters, against their share of the samples (the
    # mass that FedAvg's row has).
    present = np.where(cohort.reporting, rows[:, cohort.position], 0.0)
    mass = present.sum(axis=1, keepdims=True)
    share = sizes[cohort.position][cohort.reporting].sum() / sizes.sum()
    enough = (mass > 0) & (mass >= _LEAST_MASS * share)
    return np.divide(present, mass, out=np.zeros_like(present), where=enough)


def _deviations(probe: Probe, others: Probe) -> NDArray[np.float64]:
    """Deviations of the clients' batch gradients.

    Args:
        probe: whose deviations.
        others: clients whose median stands in for what a single sample does not tell.

    Returns:
        sigma [m]; infinite for single samples where nobody has more.
    """
    several = np.asarray(others.sizes) > 1
    known = np.sqrt(np.asarray(others.sigma2, np.float64)[several])
    stand_in = np.median(known) if len(known) else np.inf
    single = np.asarray(probe.sizes) == 1
    # What single samples sent is not read: it may be NaN.
    variances = np.where(single, 0.0, np.asarray(probe.sigma2, np.float64))
    return np.where(single, stand_in, np.sqrt(variances))


def _noise(probe: Probe, others: Probe) -> NDArray[np.float64]:
    """Variances of the clients' whole gradients, as the kernel `bound` takes them.

    Args:
        probe: whose variances.
        others: clients whose median stands in for what a single sample does not tell.

    Returns:
        v [m] = tr S / n; for a single sample, the median of the others' tr S.
    """
    several = np.asarray(others.sizes) > 1
    traces = (np.asarray(others.sigma2, np.float64) * others.sizes)[several]
    stand_in = np.median(traces) if several.any() else np.inf
    return np.where(
        np.asarray(probe.sizes) == 1, stand_in, np.asarray(probe.sigma2, np.float64)
    )


def _bound_rows(
    squared: NDArray[np.float64],
    own_noise: NDArray[np.float64],
    noise: NDArray[np.float64],
    *,
    own: bool = False,
) -> NDArray[np.float64]:
    """The kernel `bound`'s rows [r, m] from squared distances [r, m], which hold the
    noise of both ends.

    Args:
        own_noise, noise: variances v of the rows' [r] and the columns' [m] gradients.
        own: whether the rows are the columns' clients, each at no distance from itself.

    Returns:
        Rows [r, m] that sum to 1.
    """
    if np.isinf(noise).all():  # single samples only: nothing tells distance from noise
        return np.full(squared.shape, 1 / len(noise))
    # E |g_i - g_j|^2 = |E g_i - E g_j|^2 + v_i + v_j: what is left without the noise is
    # the distance itself.
    apart = np.sqrt(np.maximum(squared - own_noise[:, None] - noise[None], 0.0))
    if own:
        np.fill_diagonal(apart, 0.0)
    largest = noise.max()
    if largest == 0:  # exact gradients: the nearest, equally
        nearest = apart == apart.min(axis=1, keepdims=True)
        return nearest / nearest.sum(axis=1, keepdims=True)
    # sqrt(sum_j w_j^2 v_j) is what `best_rows` charges for 1 / v_j samples
    samples = 1 / np.maximum(noise, _LEAST_NOISE * largest)
    return best_rows(apart, samples, complexity=1.0).weights


def _rows(
    distances: NDArray[np.float64],
    own: NDArray[np.float64],
    clients: Probe,
    sigma: NDArray[np.float64],
    kernel: Kernel,
    among: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """The rows of `eq9` or `eq6`, as a softmax: the factors exp(-distance / scale) of
    networks underflow.

    Args:
        distances: |g_i - g_j|^2 [r, m].
        own: sigma_i of the rows' clients [r].
        clients: the columns' clients.
        sigma: sigma_j of these [m].
        kernel: which.
        among: [m] the clients that may have weight; None = all.

    Returns:
        Rows [r, m] that sum to 1; 0 outside `among`.
    """
    if kernel not in ("eq9", "eq6"):
        raise ValueError(f"kernel is {kernel!r}; it must be 'eq9', 'eq6' or 'bound'")
    own = own[:, None]
    # 0 * inf, and quotients beyond the range: weight 0
    with np.errstate(invalid="ignore", over="ignore"):
        scale = 2 * own * (own if kernel == "eq9" else sigma[None])
        divisor = np.where(scale > 0, scale, 1.0)
        exponents = np.where(scale > 0, -distances / divisor, -np.inf)
    if among is not None:
        exponents = np.where(among, exponents, -np.inf)
        distances = np.where(among, distances, np.inf)
    # A row all of whose weights would be 0 goes to the nearest.
    lost = np.isneginf(exponents).all(axis=1, keepdims=True)
    nearest = np.where(distances == distances.min(axis=1, keepdims=True), 0.0, -np.inf)
    exponents = np.where(lost, nearest, exponents)
    # n_j exp(...), relative to the largest exponent of the row, which is 0 then and
    # cannot vanish.
    weights = clients.sizes * np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
