"""Vectors along one axis of larger arrays."""

from typing import Any, TypeVar

from jaxtyping import Array
from numpy.typing import NDArray

AnyArray = TypeVar("AnyArray", Array, NDArray[Any])


def along_axis(values: AnyArray, axis: int, ndim: int) -> AnyArray:
    """Values in the shape in which they broadcast along one axis of an array.

    Args:
        values: [n] one for each index of that axis.
        axis: the axis of the array, 0 or more.
        ndim: how many axes the array has.

    Returns:
        The values with `ndim` axes, of length 1 all but `axis`.
    """
    shape = [1] * ndim
    shape[axis] = -1
    return values.reshape(shape)
