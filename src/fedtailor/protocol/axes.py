"""Vectors that broadcast along one axis of larger arrays."""

from typing import Any, TypeVar

import jax.numpy as jnp
from jaxtyping import Array
from numpy.typing import NDArray

AnyArray = TypeVar("AnyArray", Array, NDArray[Any])


def along_axis(values: AnyArray, axis: int, ndim: int) -> AnyArray:
    """Reshape values so that they broadcast along one axis of an array.

    Args:
        values: [n] one value for each index of that axis.
        axis: the axis of the array, 0 or more.
        ndim: the number of axes of the array.

    Returns:
        The values with `ndim` axes, all of length 1 except `axis`.
    """
    shape = [1] * ndim
    shape[axis] = -1
    return values.reshape(shape)


def sums_type(values: Any) -> Any:
    """The type in which sums over entries like those of an array are taken: its own, or
    float32 for 16-bit numbers.
    """
    return jnp.promote_types(values.dtype, jnp.float32)
