"""The affine mix: how stream models and clients' models become new stream models."""

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
    """The affine mix (1 - sum_i W_si) theta_s + sum_i W_si x_i of every stream s.

    A row summing to 1 averages the clients (FedAvg; the user-centric rule of
    Mestoukirdi et al., eq. 8), a row summing to beta relaxes towards their average, and
    a zero row leaves its stream untouched, bit for bit. A one-hot row returns that
    client's model exactly. Nothing without weight is read: neither the old model of a
    stream that is replaced, nor a client whose column is zero, whatever they hold (NaN,
    say). A client that is not finite does spoil every stream, also those where it
    weighs nothing, once any stream uses it.

    Args:
        theta: the streams' models, on the host or any device.
        x: what the clients sent: models [c, d], or the rows of an answer, wherever they
            are. Where these are sharded over a mesh of devices the result is on all of
            them. Of hidden rows the clients add up what is needed.
        weights: W [s, c], on the host in double precision.

    Returns:
        The new models, on the device or devices of x.

    Raises:
        ValueError: the shapes do not fit, or a weight is not finite.
    """
    rows = x if isinstance(x, ClientRows) else ClientRows(x, np.arange(len(x)))
    w = np.asarray(weights, np.float64)
    same_models = theta.shape[1:] == rows.shape[1:]
    fits = same_models and w.shape == (len(theta), len(rows))
    if not fits:
        raise ValueError(
            f"cannot mix streams {theta.shape} and clients {rows.shape} with weights"
            f" {w.shape}; they must be [s, d], [c, d] and [s, c]"
        )
    require(bool(np.isfinite(w).all()), "weights of an aggregation must be finite")
    # The part of the old model that stays. Rows that should sum to 1 do so up to
    # rounding, and keep nothing.
    keep = 1.0 - w.sum(axis=1)
    keep[np.abs(keep) < _ROUNDING] = 0.0
    if isinstance(x, HiddenRows):
        return _mix_hidden(theta, x, w, keep)
    # The models stay in the executor's rows; instead the weights get a column for each
    # of these, 0 for padding. What stays of the old models is the last column: an array
    # more would cost the host as much as the rest of this call.
    padded = np.zeros((len(w), len(rows.values) + 1), theta.dtype)
    padded[:, rows.row] = w
    # Which clients any stream uses: the others' rows need not even be finite.
    all_used = bool(padded[:, :-1].any(axis=0).all())
    padded[:, -1] = keep
    everywhere = _on_all_devices_of(rows.values)
    if everywhere is not None and getattr(theta, "sharding", None) != everywhere:
        theta = jax.device_put(theta, everywhere)
    return _mix(
        theta,
        rows.values,
        padded,
        all_used=all_used,
        sharding=everywhere,
    )


def _mix_hidden(
    theta: Float[Array | np.ndarray, "s d"],
    x: HiddenRows,
    w: Float[np.ndarray, "s c"],
    keep: Float[np.ndarray, " s"],
) -> Float[Array, "s d"]:
    """`mix` of vectors of which only sums can be had.

    Returns:
        The new models. A stream stays as it is where the sum cannot be had either, as
        all its clients are lost.
    """
    mixed = np.array(theta)
    moved = np.flatnonzero(w.any(axis=1))
    if not len(moved):
        return jnp.asarray(mixed)
    # One masked sum for each stream that moves: the clients weigh their own vectors by
    # the rows of w.
    sums, is_known = x.sums(w[moved])
    for place, stream in enumerate(moved):
        if is_known[place]:
            # nothing of an old model that is replaced is read, as it may be NaN
            kept = (
                keep[stream] * mixed[stream].astype(np.float64) if keep[stream] else 0.0
            )
            mixed[stream] = kept + sums[place]
    return jnp.asarray(mixed)


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
    of_client = cohort.sizes if weights == "samples" else 1
    share = np.where(cohort.reporting, of_client, 0).astype(np.float64)
    return share / max(share.sum(), 1.0)


def cluster_averages(
    label: NDArray[np.integer], clusters: int, share: NDArray[np.float64]
) -> Float[np.ndarray, "clusters c"]:
    """Weights of the average of every cluster.

    Args:
        label: the cluster of each client [c].
        clusters: how many there are.
        share: weight of each client [c], such as `reporter_weights`.

    Returns:
        A row for each cluster: its members' shares, scaled to sum 1; zero where they
            have none.
    """
    # Row k is 1[label = k] times the shares; a cluster of nobody divides by 1 and stays
    # a row of zeros.
    weights = (label == np.arange(clusters)[:, None]) * share
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


@partial(jax.jit, static_argnames=("all_used", "sharding"))
def _mix(
    theta: Float[Array, "s d"],
    x: Float[Array, "c d"],
    weights_and_keep: Float[Array, "s c+1"],
    all_used: bool,
    sharding: NamedSharding | None,
) -> Float[Array, "s d"]:
    weights, keep = weights_and_keep[:, :-1], weights_and_keep[:, -1]

    def average(x: Float[Array, "c d"]) -> Float[Array, "s d"]:
        # full precision, also on accelerators that would round to TF32: a one-hot row
        # must return its client unchanged
        return jnp.matmul(
            weights, x, precision=jax.lax.Precision.HIGHEST, out_sharding=sharding
        )

    mixed = average(x)
    if not all_used:
        # A client without weight may be NaN, and 0 * NaN is NaN. To clear such rows in
        # advance would copy every model, so it is done only when the average is not
        # finite.
        used = (weights != 0).any(axis=0)
        mixed = jax.lax.cond(
            jnp.isfinite(mixed).all(),
            lambda: mixed,
            lambda: average(jnp.where(used[:, None], x, 0)),
        )
    # (1 - sum_i W_si) theta_s, left out where it is 0: the old model of a stream that
    # is replaced may be NaN.
    mixed = jnp.where(keep[:, None] == 0, mixed, keep[:, None] * theta + mixed)
    # A row of zeros leaves its stream to the bit, which theta + 0 does not for entries
    # of -0.0.
    is_moved = (weights != 0).any(axis=1)
    return jnp.where(is_moved[:, None], mixed, theta)


def _on_all_devices_of(x: object) -> NamedSharding | None:
    """Replication over the mesh of `x`; None where x is on one device or on the
    host.
    """
    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.num_devices > 1:
        return NamedSharding(sharding.mesh, PartitionSpec())
    return None
