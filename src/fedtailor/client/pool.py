"""The pool of examples on the device, and where one client's examples lie in it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt32
from numpy.typing import NDArray

from fedtailor.federation import SPLITS, Federation

_ALIGNMENT = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pool:
    """All examples of a federation.

    Attributes:
        x: [n, ...] inputs as stored (uint8 stays uint8).
        y: [n, ...] targets.
        rows: [r] rows of x, client after client, split after split.
        shift, scale: the model's input is (x - shift) * scale; shape () or [channels].
        normalize: whether shift and scale do anything.
    """

    x: Shaped[Array | np.ndarray, "n ..."]
    y: Shaped[Array | np.ndarray, "n ..."]
    rows: Int[Array | np.ndarray, " r"]
    shift: Float[Array | np.ndarray, "..."]
    scale: Float[Array | np.ndarray, "..."]
    normalize: bool = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientAddress:
    """Where one client's examples are, and its random keys. Stacked over a cohort every field has a leading axis c.

    Attributes:
        start: [3] first position in `Pool.rows` of train, val and test.
        size: [3] samples in train, val and test.
        key: [2] raw key of this client in this round.
        fixed: [2] raw key of this client in all rounds.
    """

    start: Int[Array, "*c 3"]
    size: Int[Array, "*c 3"]
    key: UInt32[Array, "*c 2"]
    fixed: UInt32[Array, "*c 2"]


def split_sizes(federation: Federation) -> NDArray[np.int32]:
    """[m, 3] samples of every client in train, val and test."""
    return np.stack([getattr(federation, name).sizes for name in SPLITS], axis=1).astype(np.int32)


def build_pool(federations: Sequence[Federation], dtype: str) -> tuple[Pool, list[NDArray[np.int32]]]:
    """The pool (host arrays) of federations of one form, and for each start [m, 3] of its clients' splits.

    One form: inputs and targets of equal shapes and types, and one normalisation.

    Lengths are rounded up (to 1/8 of a power of two, at least 1,024), so that federations of nearly one size share
    compiled programs.
    """
    first = federations[0]
    examples = np.cumsum([0, *(len(federation.x) for federation in federations)], dtype=np.int32)
    addresses = [_addresses(federation) for federation in federations]
    before = np.cumsum([0, *(len(rows) for rows, _ in addresses)], dtype=np.int32)
    shift, scale = np.asarray(first.shift, dtype), np.asarray(first.scale, dtype)
    pool = Pool(
        _padded([_input_type(federation.x, dtype) for federation in federations]),
        _padded([_target_type(federation.y, dtype) for federation in federations]),
        _padded([rows + number for (rows, _), number in zip(addresses, examples, strict=False)]),
        shift,
        scale,
        normalize=bool((shift != 0).any() or (scale != 1).any()),
    )
    return pool, [start + number for (_, start), number in zip(addresses, before, strict=False)]


def _addresses(federation: Federation) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The rows [r] of x, client after client, split after split, and where [m, 3] each client's splits start there."""
    size = split_sizes(federation)
    ends = np.cumsum(size.ravel())
    start = (ends - size.ravel()).reshape(size.shape).astype(np.int32)
    rows = np.zeros(int(ends[-1]), np.int32)
    for column, name in enumerate(SPLITS):
        split = getattr(federation, name)
        place = np.repeat(start[:, column] - split.offsets[:-1], size[:, column]) + np.arange(len(split.rows))
        rows[place] = split.rows
    return rows, start


def model_input(pool: Pool, x: Shaped[Array, "b ..."]) -> Shaped[Array, "b ..."]:
    """Stored examples as the model takes them: bytes and floats become normalised floats, token ids stay integers."""
    if x.dtype != jnp.uint8 and not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    x = x.astype(pool.scale.dtype)
    return (x - pool.shift) * pool.scale if pool.normalize else x


def _input_type(x: NDArray, dtype: str) -> NDArray:
    return x.astype(dtype, copy=False) if x.dtype.kind == "f" else x


def _target_type(y: NDArray, dtype: str) -> NDArray:
    return y.astype(np.int32 if y.dtype.kind in "iub" else dtype, copy=False)


def _rounded(n: int) -> int:
    step = 2 ** (max(n - 1, 1).bit_length() - 3) if n > 1024 else 1024
    return -(-max(n, 1) // step) * step


def _padded(parts: Sequence[NDArray]) -> NDArray:
    """All parts and zeros, where JAX's CPU devices can share it instead of copying it: on a multiple of 64 bytes."""
    length = sum(map(len, parts))
    shape, kind = (_rounded(length), *parts[0].shape[1:]), parts[0].dtype
    size = math.prod(shape) * kind.itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    together = memory[start : start + size].view(kind).reshape(shape)
    np.concatenate(parts, out=together[:length])
    return together
