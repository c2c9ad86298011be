"""The pool of examples on the device, and where one client's examples lie in it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt32
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.tensors import aligned
from fedtailor.data.federation import SPLITS, Federation
from fedtailor.data.federation.federation import weight_scale
from fedtailor.protocol import DataFacts, next_power_of_two


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Normalization:
    """Turns stored inputs x into the inputs of a model: (x - shift) * scale.

    Attributes:
        shift, scale: shape () or [channels], in the model's precision.
        is_identity: whether shift is 0 and scale is 1; compiled programs then omit both.
    """

    shift: Float[Array | np.ndarray, "..."]
    scale: Float[Array | np.ndarray, "..."]
    is_identity: bool = field(metadata={"static": True})

    @classmethod
    def of(cls, shift: ArrayLike, scale: ArrayLike, dtype: str) -> "Normalization":
        """The normalisation of a federation, for a model of the precision `dtype`."""
        shift = np.asarray(shift, dtype)
        scale = np.asarray(scale, dtype)
        return cls(shift, scale, bool((shift == 0).all() and (scale == 1).all()))

    def __call__(self, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
        """Bytes and floats become normalised floats, token ids stay integers."""
        is_token = x.dtype != jnp.uint8 and not jnp.issubdtype(x.dtype, jnp.floating)
        if is_token:
            return x
        x = x.astype(self.scale.dtype)
        return x if self.is_identity else (x - self.shift) * self.scale


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowWeights:
    """How much the samples of a pool count.

    Attributes:
        values: [r] the weight of each entry of `Pool.rows` times `scale`: no weight but 0
            is below 1. So where a sum of weights is 0, a method may divide by 1 instead.
        totals: [r] the sum of the weights, without `scale`, of the split to which each entry
            belongs.
        scale: a power of two, whose products are exact.
    """

    values: Float[Array | np.ndarray, " r"]
    totals: Float[Array | np.ndarray, " r"]
    scale: Float[Array | np.ndarray, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pool:
    """All examples of a federation.

    Attributes:
        x: [n, ...] inputs as stored (uint8 stays uint8).
        y: [n, ...] targets.
        rows: [r] rows of x, client after client, split after split.
        normalization: of x, applied to the examples of a batch.
        largest: an upper bound on the number of samples in a split (`largest_split`).
        weights: how much samples count; None = all the same, and programs have no
            weights.
    """

    x: Shaped[Array | np.ndarray, "n ..."]
    y: Shaped[Array | np.ndarray, "n ..."]
    rows: Int[Array | np.ndarray, " r"]
    normalization: Normalization
    largest: int = field(metadata={"static": True})
    weights: RowWeights | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientAddress:
    """Where one client's examples are, and its random keys.

    Stacked over a cohort, every field has a leading axis c.

    Attributes:
        start: [3] first position in `Pool.rows` of train, val and test.
        size: [3] the number of samples in train, val and test.
        key: [2] the client's raw key for this round.
        fixed: [2] the client's raw key for what stays the same in all rounds.
    """

    start: Int[Array, "*c 3"]
    size: Int[Array, "*c 3"]
    key: UInt32[Array, "*c 2"]
    fixed: UInt32[Array, "*c 2"]


def client_split_sizes(data: DataFacts) -> NDArray[np.int32]:
    """[m, 3] the number of samples of every client in train, val and test."""
    sizes = data.sizes
    return np.stack([sizes[name] for name in SPLITS], axis=1).astype(np.int32)


def largest_split(federation: Federation) -> int:
    """The size of the largest split of any client, rounded up to a power of two, so that
    federations of similar sizes share compiled programs.

    No batch has more rows than this.
    """
    return next_power_of_two(int(client_split_sizes(federation).max(initial=1)))


class PoolSize(NamedTuple):
    """The least size of a pool, for processes whose pools must have equal shapes.

    Attributes:
        examples: the number of examples.
        rows: the number of rows in all splits of all clients.
        largest: the number of samples in the largest split.
    """

    examples: int = 0
    rows: int = 0
    largest: int = 1


def build_pool(
    federations: Sequence[Federation],
    dtype: str,
    least: PoolSize = PoolSize(),  # noqa: B008 (immutable)
) -> tuple[Pool, list[NDArray[np.int32]]]:
    """Put the examples of several federations into one pool.

    Lengths are rounded up (`_rounded`), so that federations of similar sizes share
    compiled programs.

    Args:
        federations: with inputs and targets of equal shapes and types, and with the
            same normalisation.
        dtype: the floating-point type that the model computes in.
        least: what the pool has room for, at least.

    Returns:
        The pool (host arrays), and for each federation the start [m, 3] of its clients'
        splits in `Pool.rows`.
    """
    # The examples and rows of a federation follow those of all federations before it.
    rows, starts = [], []
    examples_before = rows_before = np.int32(0)
    for federation in federations:
        federation_rows, federation_start = _addresses(federation)
        rows.append(federation_rows + examples_before)
        starts.append(federation_start + rows_before)
        examples_before += np.int32(len(federation.x))
        rows_before += np.int32(len(federation_rows))
    first = federations[0]
    pool = Pool(
        x=_concatenate_padded(
            [_input_type(federation.x, dtype) for federation in federations],
            least.examples,
        ),
        y=_concatenate_padded(
            [_target_type(federation.y, dtype) for federation in federations],
            least.examples,
        ),
        rows=_concatenate_padded(rows, least.rows),
        normalization=Normalization.of(first.shift, first.scale, dtype),
        largest=max(next_power_of_two(least.largest), *map(largest_split, federations)),
        weights=_row_weights(federations, starts, dtype, least),
    )
    return pool, starts


def _row_weights(
    federations: Sequence[Federation],
    starts: Sequence[NDArray[np.int32]],
    dtype: str,
    least: PoolSize,
) -> RowWeights | None:
    """The weights of the entries of `Pool.rows`; None = no federation has any."""
    if all(federation.weights_of("train") is None for federation in federations):
        return None
    values, totals = [], []
    for federation, start in zip(federations, starts, strict=True):
        count = sum(len(getattr(federation, name).rows) for name in SPLITS)
        of_row, of_split = np.ones(count), np.zeros(count)
        # Positions of this federation's entries begin at 0.
        start = start - start[0, 0]
        for column, name in enumerate(SPLITS):
            split, weights = getattr(federation, name), federation.weights_of(name)
            weights = np.ones(len(split.rows)) if weights is None else weights
            positions = start[split.owners, column] + split.positions
            of_row[positions] = weights
            sums = np.bincount(split.owners, weights, minlength=len(split))
            of_split[positions] = sums[split.owners]
        values.append(of_row)
        totals.append(of_split)
    scale = weight_scale(np.concatenate(values))
    return RowWeights(
        _concatenate_padded([(it * scale).astype(dtype) for it in values], least.rows),
        _concatenate_padded([it.astype(dtype) for it in totals], least.rows),
        np.asarray(scale, dtype),
    )


def _addresses(federation: Federation) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`Pool.rows` [r] of one federation, and the position [m, 3] in it at which each
    client's train, val and test begin.
    """
    size = client_split_sizes(federation)
    ends = np.cumsum(size.ravel())
    start = (ends - size.ravel()).reshape(size.shape).astype(np.int32)
    rows = np.zeros(int(ends[-1]), np.int32)
    for column, name in enumerate(SPLITS):
        split = getattr(federation, name)
        # A client's samples stay next to each other, so all of them are shifted by the
        # same distance.
        shift = start[:, column] - split.offsets[:-1]
        positions = np.arange(len(split.rows)) + np.repeat(shift, size[:, column])
        rows[positions] = split.rows
    return rows, start


def gather_examples(
    pool: Pool, pool_rows: Int[Array, " b"]
) -> tuple[Shaped[Array, "b ..."], Shaped[Array, "b ..."]]:
    """Gather examples, by indices into `Pool.rows`.

    Returns:
        Normalised inputs, and targets.
    """
    rows = pool.rows[pool_rows]
    return pool.normalization(pool.x[rows]), pool.y[rows]


def _input_type(x: NDArray, dtype: str) -> NDArray:
    return x.astype(dtype, copy=False) if x.dtype.kind == "f" else x


def _target_type(y: NDArray, dtype: str) -> NDArray:
    return y.astype(np.int32 if y.dtype.kind in "iub" else dtype, copy=False)


def _rounded(n: int) -> int:
    """n rounded up to a multiple of 1/8 of the next power of two; at least 1,024."""
    if n <= 1024:
        return 1024
    step = next_power_of_two(n) // 8
    return math.ceil(n / step) * step


def _concatenate_padded(parts: Sequence[NDArray], least: int) -> NDArray:
    """Concatenate arrays and pad them with zeros to a `_rounded` length that is `least` or
    more.
    """
    length = sum(map(len, parts))
    shape = (_rounded(max(length, least)), *parts[0].shape[1:])
    padded = aligned(shape, parts[0].dtype)
    np.concatenate(parts, out=padded[:length])
    return padded
