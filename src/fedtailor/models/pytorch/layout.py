"""Images in the layouts in which this library's convolutions are fast, and in
PyTorch's.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

from fedtailor.models.convolution import planes


@dataclass(frozen=True)
class Planes:
    """Values that PyTorch has as [b, c, h, w], kept as planes."""

    array: Float[Array, "c h w b"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape that PyTorch sees."""
        c, h, w, b = self.array.shape
        return b, c, h, w


@dataclass(frozen=True)
class Images:
    """Inputs that PyTorch has as [b, c, h, w], as they are stored: channels last."""

    array: Float[Array, "b h w c"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape that PyTorch sees."""
        b, h, w, c = self.array.shape
        return b, c, h, w


Value = Array | Planes | Images
"""A batch on its way through a module."""


def plain(value: Any) -> Any:
    """A value in PyTorch's layout."""
    if isinstance(value, Planes):
        return value.array.transpose(3, 0, 1, 2)
    return value.array.transpose(0, 3, 1, 2) if isinstance(value, Images) else value


def as_planes(value: Value) -> Float[Array, "c h w b"]:
    """A batch of images as planes."""
    if isinstance(value, Planes):
        return value.array
    return planes(
        value.array if isinstance(value, Images) else value.transpose(0, 2, 3, 1)
    )


def as_images(value: Value) -> Float[Array, "b h w c"]:
    """A batch of images with channels last."""
    if isinstance(value, Planes):
        return value.array.transpose(3, 1, 2, 0)
    return value.array if isinstance(value, Images) else value.transpose(0, 2, 3, 1)
