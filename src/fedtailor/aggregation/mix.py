"""The affine mix: new models on the server, from its old ones and the clients' models.

The s models that a server keeps are called its streams. The c clients are those of a
round's cohort.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from fedtailor.protocol import ClientRows, Cohort, HiddenRows, require

_ROUNDING = 1e-12
"""A row of weights that sums to 1 up to this replaces its stream."""


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

    Models without weight are not read, so they may be NaN: the old model of a stream
    whose row sums to 1, and the model of a client whose column is zero. But the model
    of a client that any stream uses must be finite: NaN would spread to all streams,
    even to those in which the client's weight is 0.

    Args:
        theta: the streams' models, on the host or any device.
        x: what the clients sent: models [c, d], or the rows of an answer, on any
            device. If they are sharded over a mesh of devices, the result is replicated
            on all of them. If they are hidden, the clients compute the sums.
        weights: W [s, c], on the host in double precision.

    Returns:
        The new models, on the device or devices of x.

    Raises:
        ValueError: the shapes do not fit, or a weight is not finite.
    """
    rows = x if isinstance(x, ClientRows) else ClientRows(x, np.arange(len(x)))
    w = np.asarray(weights, np.float64)
    same_models = theta.shape[1:] == rows.shape[1:]
    if not same_models or w.shape != (len(theta), len(rows)):
        raise ValueError(
            f"cannot mix streams {theta.shape} and clients {rows.shape} with weights"
            f" {w.shape}; they must be [s, d], [c, d] and [s, c]"
        )
    require(bool(np.isfinite(w).all()), "weights of an aggregation must be finite")
    # The weight of the old model: 0 where the row sums to 1 up to rounding.
    own_weight = 1.0 - w.sum(axis=1)
    own_weight[np.abs(own_weight) < _ROUNDING] = 0.0
    if isinstance(x, HiddenRows):
        return _mix_hidden(theta, x, w, own_weight)
    # The models stay where the executor has them, in its order and with its padding;
    # the columns of W are put into that order instead, with zeros for padding. The
    # weights of the old models are the last column: another array would cost the host
    # as much time as the rest of this call.
    padded = np.zeros((len(w), len(rows.values) + 1), theta.dtype)
    padded[:, rows.row] = w
    padded[:, -1] = own_weight
    all_used = bool(padded[:, :-1].any(axis=0).all())
    replicated = _replicated_over_devices_of(rows.values)
    if replicated is not None and getattr(theta, "sharding", None) != replicated:
        theta = jax.device_put(theta, replicated)
    return _mix(theta, rows.values, padded, all_used=all_used, sharding=replicated)


def _mix_hidden(
    theta: Float[Array | np.ndarray, "s d"],
    x: HiddenRows,
    w: Float[np.ndarray, "s c"],
    own_weight: Float[np.ndarray, " s"],
) -> Float[Array, "s d"]:
    """`mix` of vectors of which the server can see weighted sums only.

    Args:
        theta: the streams' models.
        x: the clients' vectors.
        w: their weights.
        own_weight: the weight of each stream's old model.

    Returns:
        The new models. A stream keeps its old model if its sum is not known, because
        all its clients were lost.
    """
    mixed = np.array(theta)
    used = np.flatnonzero(w.any(axis=1))
    if not len(used):
        return jnp.asarray(mixed)
    # One masked sum for each stream that has weights: the clients multiply their own
    # vectors by their entry of the row of w.
    sums, is_known = x.sums(w[used])
    for stream, total, known in zip(used, sums, is_known, strict=True):
        if not known:
            continue
        # An old model without weight is not read, as it may be NaN.
        old = 0.0
        if own_weight[stream]:
            old = own_weight[stream] * mixed[stream].astype(np.float64)
        mixed[stream] = old + total
    return jnp.asarray(mixed)


def weighted_sums(
    x: ClientRows | Float[Array | np.ndarray, "c _"], weights: ArrayLike
) -> Float[Array, "s d"]:
    """Weighted sums over the clients, sum_i W_si x_i: `mix` onto zeros.

    Args:
        x: what the clients sent, as for `mix`.
        weights: W [s, c], one row for each sum.

    Returns:
        The sums [s, d].

    Raises:
        ValueError: as `mix`.
    """
    zeros = jnp.zeros((len(np.asarray(weights)), x.shape[1]), x.dtype)
    return mix(zeros, x, weights)


def reporter_weights(
    cohort: Cohort, weights: Literal["samples", "uniform"]
) -> NDArray[np.float64]:
    """Weights of an average over the clients that report, by training samples or equal.

    Returns:
        [c], summing to 1; all 0 if nobody reports.

    Raises:
        ValueError: `weights` is neither.
    """
    if weights not in ("samples", "uniform"):
        raise ValueError(f"weights is {weights!r}; it must be 'samples' or 'uniform'")
    by_client = cohort.sizes if weights == "samples" else 1
    reporters_only = np.where(cohort.reporting, by_client, 0).astype(np.float64)
    return reporters_only / max(reporters_only.sum(), 1.0)


def cluster_averages(
    label: NDArray[np.integer], clusters: int, share: NDArray[np.float64]
) -> Float[np.ndarray, "clusters c"]:
    """Weights of the average of every cluster.

    Args:
        label: the cluster of each client [c].
        clusters: the number of clusters.
        share: the weight of each client [c], such as `reporter_weights`.

    Returns:
        A row for each cluster with its members' shares, scaled to sum 1; a row of zeros
        where no member has a share.
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
        # A client without weight may be NaN, and 0 * NaN is NaN. Clearing such rows
        # first would copy every model, so it is done only if the sum is not finite.
        is_used = (weights != 0).any(axis=0)
        mixed = jax.lax.cond(
            jnp.isfinite(mixed).all(),
            lambda: mixed,
            lambda: weighted_sum(jnp.where(is_used[:, None], x, 0)),
        )
    # An old model without weight is not added, as it may be NaN.
    mixed = jnp.where(own_weight == 0, mixed, own_weight * theta + mixed)
    # A stream without weights keeps its bits, which theta + 0 does not where an entry
    # is -0.0.
    has_weights = (weights != 0).any(axis=1)
    return jnp.where(has_weights[:, None], mixed, theta)


def _replicated_over_devices_of(x: object) -> NamedSharding | None:
    """Replication over the mesh of `x`; None if x is on one device or on the host."""
    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.num_devices > 1:
        return NamedSharding(sharding.mesh, PartitionSpec())
    return None
