"""Images in PyTorch's layout, and in those of this library's convolutions."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

from fedtailor.models.convolution import to_feature_maps


@dataclass(frozen=True)
class FeatureMaps:
    """Images that PyTorch stores as [b, c, h, w], with the batch last."""

    array: Float[Array, "c h w b"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape in PyTorch's layout."""
        c, h, w, b = self.array.shape
        return b, c, h, w


@dataclass(frozen=True)
class Images:
    """Images that PyTorch stores as [b, c, h, w], with the channels last."""

    array: Float[Array, "b h w c"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape in PyTorch's layout."""
        b, h, w, c = self.array.shape
        return b, c, h, w


Value = Array | FeatureMaps | Images
"""A batch of inputs, activations or outputs; an array is in PyTorch's layout."""


def torch_layout(value: Any) -> Any:
    """A value in PyTorch's layout."""
    if isinstance(value, FeatureMaps):
        return value.array.transpose(3, 0, 1, 2)
    return value.array.transpose(0, 3, 1, 2) if isinstance(value, Images) else value


def as_feature_maps(value: Value) -> Float[Array, "c h w b"]:
    """A batch of images with the batch last."""
    if isinstance(value, FeatureMaps):
        return value.array
    return to_feature_maps(
        value.array if isinstance(value, Images) else value.transpose(0, 2, 3, 1)
    )


def as_images(value: Value) -> Float[Array, "b h w c"]:
    """A batch of images with channels last."""
    if isinstance(value, FeatureMaps):
        return value.array.transpose(3, 1, 2, 0)
    return value.array if isinstance(value, Images) else value.transpose(0, 2, 3, 1)
