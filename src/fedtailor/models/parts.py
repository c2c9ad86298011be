"""`Part`: a fixed set of entries of a model's vector theta [d], such as its last layer.

`fedtailor.models.part_finder` says which parts a model has and how they are named.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

Vector = TypeVar("Vector", Array, NDArray[Any])

NOT = "not "
"""Before the name of a part: all entries except those of that part."""


@dataclass(frozen=True)
class Part:
    """Some entries of theta [d], in the order of theta. Hashable, and static in a
    compiled program.

    Attributes:
        name: the name or pattern by which it was asked for, such as "head".
        slices: (start, end) of each contiguous slice of theta that belongs to the part,
            in ascending order; neighbouring slices neither overlap nor touch.
        d: the number of entries of the whole theta.
    """

    name: str
    slices: tuple[tuple[int, int], ...]
    d: int

    @property
    def size(self) -> int:
        """The number of entries, d_part."""
        return sum(end - start for start, end in self.slices)

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Which entries of theta belong to the part [d]."""
        mask = np.zeros(self.d, bool)
        for start, end in self.slices:
            mask[start:end] = True
        return mask

    @property
    def indices(self) -> NDArray[np.int64]:
        """The positions of its entries in theta [d_part]."""
        return np.flatnonzero(self.mask)

    @property
    def complement(self) -> "Part":
        """All other entries of theta."""
        # The gaps before, between and behind the part's slices.
        gaps = []
        gap_start = 0
        for start, end in self.slices:
            gaps.append((gap_start, start))
            gap_start = end
        gaps.append((gap_start, self.d))
        not_empty = tuple((start, end) for start, end in gaps if start < end)
        is_negated = self.name.startswith(NOT)
        name = self.name.removeprefix(NOT) if is_negated else NOT + self.name
        return Part(name, not_empty, self.d)

    def take(self, theta: Vector) -> Vector:
        """The part's entries of one model [d], or of stacked ones [..., d].

        Returns:
            [..., d_part].

        Raises:
            ValueError: theta has another number of entries.
        """
        self._require("theta", theta, self.d)
        pieces = [theta[..., start:end] for start, end in self.slices]
        return _concatenated(pieces, theta)

    def put(self, theta: Vector, values: Vector) -> Vector:
        """Replace the part's entries.

        Args:
            theta: one model [d], or stacked ones [..., d].
            values: the new entries [..., d_part]; leading axes broadcast.

        Returns:
            New models [..., d]: NumPy arrays if both arguments are, else JAX arrays.

        Raises:
            ValueError: theta or values have another number of entries.
        """
        self._require("theta", theta, self.d)
        self._require("values", values, self.size)
        leading = np.broadcast_shapes(theta.shape[:-1], values.shape[:-1])
        xp = _array_module(theta, values)
        theta = xp.broadcast_to(theta, (*leading, self.d))
        values = xp.broadcast_to(values, (*leading, self.size)).astype(theta.dtype)
        # Slices and a concatenation, which XLA compiles to copies; indices would be a
        # scatter.
        pieces = []
        theta_start = values_start = 0
        for start, end in self.slices:
            values_end = values_start + end - start
            pieces.append(theta[..., theta_start:start])
            pieces.append(values[..., values_start:values_end])
            theta_start = end
            values_start = values_end
        pieces.append(theta[..., theta_start:])
        return _concatenated(pieces, theta)

    def tree_mask(self, params: PyTree) -> PyTree[bool]:
        """The part as a tree of bools, one for each array of `params`.

        Args:
            params: what `Model.params` gives, or its shapes.

        Returns:
            True for an array that belongs to the part. A part that `Model.part` makes
            holds an array wholly or not at all.
        """
        leaves, structure = jax.tree.flatten(params)
        ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
        inside = []
        for leaf, end in zip(leaves, ends, strict=True):
            # If an array's last entry belongs to the part, so do all of its entries.
            inside.append(leaf.size > 0 and bool(self.mask[end - 1]))
        return jax.tree.unflatten(structure, inside)

    def _require(self, what: str, vector: Any, size: int) -> None:
        if vector.shape[-1:] != (size,):
            raise ValueError(
                f"{what} has shape {vector.shape}; part {self.name!r} takes [...,"
                f" {size}] (of d = {self.d})"
            )


def _array_module(*arrays: Any) -> Any:
    """`numpy` if all arrays are NumPy arrays, else `jax.numpy`."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def _concatenated(pieces: list[Any], like: Any) -> Any:
    """Concatenate pieces [..., n_i] along the last axis.

    Without pieces, the result is empty, with the leading axes and the type of `like`.
    """
    pieces = [like[..., :0], *pieces]
    return _array_module(*pieces).concatenate(pieces, axis=-1)
