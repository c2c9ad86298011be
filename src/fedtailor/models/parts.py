"""`Part`: a fixed set of entries of a model's vector theta [d], such as its last layer.

`fedtailor.models.part_finder` selects the parts of a model by name.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from fedtailor.protocol.parts import Vector

NOT = "not "
"""The prefix of a part's name that selects all entries except those of that part."""


@dataclass(frozen=True)
class Part:
    """Some entries of theta [d], in the order of theta. A part is hashable, and static in
    compiled programs.

    Attributes:
        name: the name or pattern that selected it, such as "head".
        slices: (start, end) of each contiguous slice of theta that belongs to the part,
            in ascending order. Slices neither overlap nor touch.
        d: the number of entries of theta.

    Example:
        >>> model = ft.models.mlp(hidden=8).bind((4,), 3)
        >>> model.part("head").size
        27
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
        """The indices of its entries in theta [d_part]."""
        return np.flatnonzero(self.mask)

    @property
    def complement(self) -> "Part":
        """All other entries of theta."""
        # The slices before, between and after those of the part.
        starts = (0, *(end for _, end in self.slices))
        ends = (*(start for start, _ in self.slices), self.d)
        slices = zip(starts, ends, strict=True)
        is_negated = self.name.startswith(NOT)
        name = self.name.removeprefix(NOT) if is_negated else NOT + self.name
        not_empty = tuple((start, end) for start, end in slices if start < end)
        return Part(name, not_empty, self.d)

    def take(self, theta: Vector) -> Vector:
        """The part's entries of one model [d], or of stacked ones [..., d].

        Returns:
            [..., d_part].

        Raises:
            ValueError: theta has another number of entries.
        """
        self._require("theta", theta, self.d)
        slices = [theta[..., start:end] for start, end in self.slices]
        return _concatenate(slices, theta)

    def put(self, theta: Vector, values: Vector) -> Vector:
        """Replace the part's entries.

        Args:
            theta: one model [d], or stacked ones [..., d].
            values: the new entries [..., d_part]; leading axes broadcast.

        Returns:
            New models [..., d]: a NumPy array if both arguments are NumPy arrays, else a
            JAX array.

        Raises:
            ValueError: theta or values have another number of entries.
        """
        self._require("theta", theta, self.d)
        self._require("values", values, self.size)
        leading = np.broadcast_shapes(theta.shape[:-1], values.shape[:-1])
        xp = _array_module(theta, values)
        theta = xp.broadcast_to(theta, (*leading, self.d))
        values = xp.broadcast_to(values, (*leading, self.size)).astype(theta.dtype)
        # XLA compiles slices and a concatenation to copies. An assignment by indices would
        # be a slower scatter.
        slices = []
        theta_start = values_start = 0
        for start, end in self.slices:
            values_end = values_start + end - start
            slices.append(theta[..., theta_start:start])
            slices.append(values[..., values_start:values_end])
            theta_start = end
            values_start = values_end
        slices.append(theta[..., theta_start:])
        return _concatenate(slices, theta)

    def tree_mask(self, params: PyTree) -> PyTree[bool]:
        """The part as a tree of bools, one for each array of `params`.

        Args:
            params: a model's parameters as a tree, or their shapes.

        Returns:
            True for an array that belongs to the part. A part of `Model.part` contains
            either all entries of an array or none.
        """
        leaves, structure = jax.tree.flatten(params)
        ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
        # Test the last entry of each array, as all of its entries are in the part or none.
        masks = [
            leaf.size > 0 and bool(self.mask[end - 1])
            for leaf, end in zip(leaves, ends, strict=True)
        ]
        return jax.tree.unflatten(structure, masks)

    def _require(self, what: str, vector: Any, size: int) -> None:
        if vector.shape[-1:] != (size,):
            raise ValueError(
                f"{what} has shape {vector.shape}; part {self.name!r} takes [...,"
                f" {size}] (of d = {self.d})"
            )


def _array_module(*arrays: Any) -> Any:
    """`numpy` if all arrays are NumPy arrays, else `jax.numpy`."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def _concatenate(arrays: list[Any], like: Any) -> Any:
    """Concatenate arrays [..., n_i] along the last axis.

    Without arrays, the result is empty, with the leading axes and the dtype of `like`.
    """
    arrays = [like[..., :0], *arrays]
    return _array_module(*arrays).concatenate(arrays, axis=-1)
