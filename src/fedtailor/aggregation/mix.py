"""The affine mix of the server's models with the clients' models, and its weights.

The s models of a server are called its streams. The c clients are the cohort of a
round.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.protocol import (
    ClientRows,
    Cohort,
    HiddenRows,
    SummedRows,
    sums_type,
)

_ROUNDING = 1e-12
"""A row of weights replaces its stream if its sum differs from 1 by less than this."""


def mix(
    theta: Float[Array | np.ndarray, "s d"],
    x: ClientRows | Float[Array | np.ndarray, "c _"],
    weights: ArrayLike,
) -> Float[Array, "s d"]:
    """The affine mix of every stream s with the clients' models x_i, for weights W:

        theta_s <- theta_s + sum_i W_si (x_i - theta_s)
                 = (1 - sum_i W_si) theta_s + sum_i W_si x_i

    What a row of W means depends on its sum:

    * 1: the weighted average of the clients (FedAvg; the user-centric rule of
      Mestoukirdi et al., eq. 8). A one-hot row returns that client's model exactly.
    * beta: theta_s moves by the fraction beta towards their average.
    * all entries 0: theta_s stays the same, bit for bit.

    Models without weight may be NaN: the old model of a stream whose row sums to 1, and
    the model of a client whose column is zero. But the model of a client that has
    weight in any stream must be finite. Its NaN would spread to all streams, even to
    those in which its weight is 0.

    Args:
        theta: the streams' models, on the host or any device.
        x: the clients' models [c, d], as an array or as the rows of an answer, on any
            device. If they are sharded over a mesh of devices, the result is replicated
            on all of them. If they are hidden, the clients compute the sums.
        weights: W [s, c], on the host in double precision.

    Returns:
        The new models, on the device or devices of x.

    Raises:
        ValueError: the shapes do not fit, or a weight is not finite.

    Example:
        >>> from fedtailor.aggregation import mix
        >>> np.asarray(
        ...     mix(
        ...         np.zeros((1, 2)),
        ...         np.array([[2.0, 0.0], [0.0, 4.0]]),
        ...         np.array([[0.5, 0.5]]),
        ...     )
        ... )
        array([[1., 2.]], dtype=float32)
    """
    rows = x if isinstance(x, ClientRows) else ClientRows(x, np.arange(len(x)))
    w = _finite(weights)
    same_models = theta.shape[1:] == rows.shape[1:]
    if not same_models or w.shape != (len(theta), len(rows)):
        raise ValueError(
            f"cannot mix streams {theta.shape} and clients {rows.shape} with weights"
            f" {w.shape}; they must be [s, d], [c, d] and [s, c]"
        )
    # The weight of the old model: 0 where the row sums to 1 up to rounding.
    own_weight = 1.0 - w.sum(axis=1)
    own_weight[np.abs(own_weight) < _ROUNDING] = 0.0
    if isinstance(x, HiddenRows):
        return _mix_hidden(theta, x, w, own_weight)
    if isinstance(x, SummedRows):
        total = x.sums(w)
        if total is not None:
            return _mix_summed(theta, total, w, own_weight)
        rows = x.rows()
    # The models stay on their devices, in the executor's order and with its padding.
    # The columns of W are put into that order, with zeros for padding. The last column
    # holds the weights of the old models, because transferring another array would take
    # as long as the rest of this call.
    # Sums of 16-bit numbers are taken in float32.
    sums = sums_type(theta)
    padded = np.zeros((len(w), len(rows.values) + 1), sums)
    padded[:, rows.row] = w
    padded[:, -1] = own_weight
    all_used = bool(padded[:, :-1].any(axis=0).all())
    replicated = _replicated_over_devices_of(rows.values)
    if replicated is not None and getattr(theta, "sharding", None) != replicated:
        theta = jax.device_put(theta, replicated)
    return _mix(theta, rows.values, padded, all_used=all_used, sharding=replicated)


def _finite(weights: ArrayLike) -> NDArray[np.float64]:
    """Weights in double precision.

    Raises:
        ValueError: one of them is NaN or infinite.
    """
    w = np.asarray(weights, np.float64)
    require(bool(np.isfinite(w).all()), "weights of an aggregation must be finite")
    return w


def _mix_hidden(
    theta: Float[Array | np.ndarray, "s d"],
    x: HiddenRows,
    w: Float[np.ndarray, "s c"],
    own_weight: Float[np.ndarray, " s"],
) -> Float[Array, "s d"]:
    """`mix` of vectors that the server sees as weighted sums only.

    Args:
        theta: the streams' models.
        x: the clients' vectors.
        w: their weights.
        own_weight: the weight of each stream's old model.

    Returns:
        The new models. A stream keeps its old model if its sum is unknown because all
        its clients were lost.
    """
    mixed = np.array(theta)
    used = np.flatnonzero(w.any(axis=1))
    if not len(used):
        return jnp.asarray(mixed)
    # One masked sum for each stream with weights. Each client multiplies its vector by
    # its entry in the row of w.
    sums, is_known = x.sums(w[used])
    for stream, total, known in zip(used, sums, is_known, strict=True):
        if not known:
            continue
        # An old model without weight may be NaN, so it is not added.
        old = 0.0
        if own_weight[stream]:
            old = own_weight[stream] * mixed[stream].astype(np.float64)
        mixed[stream] = old + total
    return jnp.asarray(mixed)


def _mix_summed(
    theta: Float[Array | np.ndarray, "s d"],
    total: Float[Array, "s d"],
    w: Float[np.ndarray, "s c"],
    own_weight: Float[np.ndarray, " s"],
) -> Float[Array, "s d"]:
    """`mix` of vectors that were added up while the clients trained.

    Args:
        theta: the streams' models.
        total: the weighted sums of the clients' vectors.
        w: the weights.
        own_weight: the weight of each stream's old model.
    """
    has_weights = w.any(axis=1)
    if has_weights.all() and not own_weight.any():
        return total if total.dtype == theta.dtype else total.astype(theta.dtype)
    replicated = _replicated_over_devices_of(total)
    if replicated is not None and getattr(theta, "sharding", None) != replicated:
        theta = jax.device_put(theta, replicated)
    return _onto(theta, total, own_weight.astype(total.dtype), has_weights)


@jax.jit
def _onto(
    theta: Float[Array, "s d"],
    total: Float[Array, "s d"],
    own_weight: Float[Array, " s"],
    has_weights: Bool[Array, " s"],
) -> Float[Array, "s d"]:
    """The streams' old models, times their weights, plus sums of the clients' models."""
    # An old model without weight may be NaN, so it is not added.
    own_weight = own_weight[:, None]
    mixed = jnp.where(own_weight == 0, total, own_weight * theta + total)
    # A stream without weights keeps its bits; theta + 0 would turn -0.0 into 0.0.
    return jnp.where(has_weights[:, None], mixed, theta).astype(theta.dtype)


def weighted_sums(
    x: ClientRows | Float[Array | np.ndarray, "c _"], weights: ArrayLike
) -> Float[Array, "s d"]:
    """Weighted sums over the clients, sum_i W_si x_i: `mix` onto zeros.

    Args:
        x: the clients' vectors, as for `mix`.
        weights: W [s, c], one row for each sum.

    Returns:
        The sums [s, d].

    Raises:
        ValueError: as `mix`.

    Example:
        >>> from fedtailor.aggregation import weighted_sums
        >>> x = np.array([[2, 0], [0, 4]], np.float32)
        >>> np.asarray(weighted_sums(x, np.array([[0.5, 0.5]])))
        array([[1., 2.]], dtype=float32)
    """
    sums = sums_type(x)
    if isinstance(x, SummedRows):
        w = _finite(weights)
        total = x.sums(w) if w.shape[1:] == (len(x),) else None
        if total is not None:
            return total
        x = x.rows()
    sharding = None
    if not isinstance(x, HiddenRows):
        values = x.values if isinstance(x, ClientRows) else x
        sharding = _replicated_over_devices_of(values)
    zeros = _zeros(sharding)((len(np.asarray(weights)), x.shape[1]), np.dtype(sums))
    return mix(zeros, x, weights)


@lru_cache
def _zeros(sharding: NamedSharding | None) -> Callable[..., Array]:
    """Makes zeros where they are needed, so that they are not copied to each device."""
    return jax.jit(jnp.zeros, static_argnums=(0, 1), out_shardings=sharding)


def reporter_weights(
    cohort: Cohort, weights: Literal["samples", "uniform"]
) -> NDArray[np.float64]:
    """Weights of the clients of a cohort in an average over the reporters.

    Args:
        cohort: the clients.
        weights: "samples" for weights in proportion to training samples, "uniform" for
            equal weights.

    Returns:
        [c], summing to 1, and 0 for clients that do not report; all 0 if none reports.

    Raises:
        ValueError: `weights` is neither.
    """
    if weights not in ("samples", "uniform"):
        raise ValueError(f"weights is {weights!r}; it must be 'samples' or 'uniform'")
    by_client = cohort.shares if weights == "samples" else 1
    reporters_only = np.where(cohort.reporting, by_client, 0).astype(np.float64)
    return reporters_only / (reporters_only.sum() or 1.0)


def cluster_averages(
    label: NDArray[np.integer], clusters: int, share: NDArray[np.float64]
) -> Float[np.ndarray, "clusters c"]:
    """The weights with which `mix` averages each cluster.

    Args:
        label: the cluster of each client [c].
        clusters: the number of clusters.
        share: the weight of each client [c], such as `reporter_weights`.

    Returns:
        A row for each cluster with its members' shares, scaled to sum 1; zeros for a
        cluster whose members have no share.

    Example:
        >>> from fedtailor.aggregation import cluster_averages
        >>> cluster_averages(np.array([0, 0, 1]), 2, np.array([0.25, 0.25, 0.5]))
        array([[0.5, 0.5, 0. ],
               [0. , 0. , 1. ]])
    """
    is_member = label == np.arange(clusters)[:, None]  # [clusters, c]
    weights = is_member * share
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


@partial(jax.jit, static_argnames=("all_used", "sharding"))
def _mix(
    theta: Float[Array, "s d"],
    x: Float[Array, "c d"],
    weights_and_own: Float[Array, "s c+1"],
    all_used: bool,
    sharding: NamedSharding | None,
) -> Float[Array, "s d"]:
    """`mix` as one compiled program.

    Args:
        theta: the streams' models.
        x: the clients' models, and padding.
        weights_and_own: weights of the rows of x, and in the last column the weight of
            each stream's old model.
        all_used: whether every row of x has weight in some stream.
        sharding: of the result; None on a single device.
    """
    weights = weights_and_own[:, :-1]
    own_weight = weights_and_own[:, -1][:, None]

    def weighted_sum(x: Float[Array, "c d"]) -> Float[Array, "s d"]:
        # Full precision, also on accelerators that would round to TF32: a one-hot row
        # must return its client's model unchanged.
        return jnp.matmul(
            weights, x, precision=jax.lax.Precision.HIGHEST, out_sharding=sharding
        )

    mixed = weighted_sum(x)
    if not all_used:
        # The model of a client without weight may be NaN, and 0 * NaN is NaN. Setting
        # such rows to 0 copies every model, so it is done only if the sum is not
        # finite.
        is_used = (weights != 0).any(axis=0)
        mixed = jax.lax.cond(
            jnp.isfinite(mixed).all(),
            lambda: mixed,
            lambda: weighted_sum(jnp.where(is_used[:, None], x, 0)),
        )
    # An old model without weight may be NaN, so it is not added.
    mixed = jnp.where(own_weight == 0, mixed, own_weight * theta + mixed)
    # A stream without weights keeps its bits; theta + 0 would turn -0.0 into 0.0.
    has_weights = (weights != 0).any(axis=1)
    return jnp.where(has_weights[:, None], mixed, theta).astype(theta.dtype)


def _replicated_over_devices_of(x: object) -> NamedSharding | None:
    """Replication over the mesh of `x`; None if x is on one device or on the host."""
    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.num_devices > 1:
        return NamedSharding(sharding.mesh, PartitionSpec())
    return None
