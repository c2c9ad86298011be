"""Residual networks for small images (He et al. 2016, section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.models.convolution import KEEP
from fedtailor.models.layered import Layered, image_of
from fedtailor.models.layers import (
    Convolution,
    Dense,
    InitStream,
    Layer,
    Relu,
    Reshape,
    Stack,
    ToFeatureMaps,
    check_layers,
)
from fedtailor.models.normalization import NormKind, StatefulLayer, norm_layer
from fedtailor.models.registry import register
from fedtailor.models.resnet18 import ResNet18, Stem

WIDTHS = (16, 32, 64)
"""Channels of the three stages."""


class Residual(StatefulLayer):
    """relu(branch(x) + x) on feature maps.

    If the branch halves the image and adds channels, the shortcut takes every second pixel
    of x and adds channels of zeros. It has no parameters (option A of the paper).
    """

    branch: Stack

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "o h2 w2 b"]:
        return _add_shortcut(self.branch(x, key), x)

    def train(
        self, x: Array, key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Array, "Residual"]:
        y, branch = self.branch.train(x, key, weight)
        return _add_shortcut(y, x), Residual(branch)


def _add_shortcut(
    y: Float[Array, "o h2 w2 b"], x: Float[Array, "c h w b"]
) -> Float[Array, "o h2 w2 b"]:
    # Option A: half of the missing channels of zeros are added on either side.
    if y.shape != x.shape:
        missing = y.shape[0] - x.shape[0]
        padding = ((missing // 2, missing - missing // 2, 0), KEEP, KEEP, KEEP)
        x = jax.lax.pad(x[:, ::2, ::2], jnp.zeros((), x.dtype), padding)
    return jax.nn.relu(y + x)


class GlobalAveragePool(eqx.Module):
    """Feature maps to the mean over the pixels of each [b, channels]."""

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "b c"]:
        return x.mean((1, 2)).T


@dataclass(frozen=True)
class ResNet(Layered):
    """Three stages of residual blocks of two 3x3 convolutions each, a mean over pixels
    and a dense layer.
    """

    depth: int = 8
    norm: NormKind = "batch"
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_layers("depth", self.depth)

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        h, w, c = image_of(input_shape, self.image_shape, "the ResNet", smallest=8)
        layers: list[Layer] = [Reshape((h, w, c)), ToFeatureMaps()]
        layers += [*self._conv_norm(c, WIDTHS[0], stream), Relu()]
        channels = WIDTHS[0]
        for width in WIDTHS:
            for _ in range((self.depth - 2) // 6):
                # The first block of a stage halves the image.
                stride = 1 if width == channels else 2
                first = self._conv_norm(channels, width, stream, stride)
                second = self._conv_norm(width, width, stream)
                layers.append(Residual(Stack([*first, Relu(), *second])))
                channels = width
        return Stack([*layers, GlobalAveragePool(), Dense(WIDTHS[-1], outputs, stream)])

    def _conv_norm(
        self,
        inputs: int,
        outputs: int,
        stream: InitStream,
        stride: Literal[1, 2] = 1,
    ) -> list[Layer]:
        """A 3x3 convolution and its normalisation."""
        return [
            Convolution(inputs, outputs, 3, stream, padding=1, stride=stride),
            norm_layer(self.norm, outputs),
        ]


@register
def resnet(
    depth: int = 8,
    norm: NormKind = "batch",
    image_shape: Sequence[int] | None = None,
    stem: Stem | None = None,
) -> ResNet | ResNet18:
    """The ResNets for CIFAR-10 of He et al. 2016: 269,722 parameters for depth 20 and
    ten classes, 75,290 for depth 8; or, with depth 18, their ResNet-18.

    Running statistics of batch normalisation come on top. The arrays of ResNet-18 have
    torchvision's names and shapes, so that `frozen` and `lora` start from its weights.

    Args:
        depth: 6 n + 2 layers, for n residual blocks in each of three stages of 16, 32
            and 64 channels; or 18.
        norm: "batch", or "group" (of two groups; not with depth 18).
        image_shape: as for `lenet5`.
        stem: of depth 18: "7x7" (None is the same), torchvision's, for images of 32x32
            or more, which it makes four times smaller; "3x3" for small images.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: the depth is not 6 n + 2 and not 18, the normalisation or the stem is
            unknown or not one of this depth, or (when bound) the inputs are not images
            of 8x8 or more.

    Example:
        >>> ft.models.resnet(depth=8, norm="group").bind((32, 32, 3), 10).size
        75290
    """
    shape = None if image_shape is None else tuple(image_shape)
    require(stem in (None, "7x7", "3x3"), f"stem is {stem!r}; choose '7x7' or '3x3'")
    require(norm in ("group", "batch"), f"norm is {norm!r}; choose 'group' or 'batch'")
    if depth == 18:
        require(
            norm == "batch",
            "ResNet-18 has batch normalisation, as torchvision's; choose norm 'batch', or"
            " depth 20",
        )
        return ResNet18("7x7" if stem is None else stem, shape)
    require(
        depth >= 8 and depth % 6 == 2,
        f"depth is {depth}; a ResNet for small images has 8, 14, 20, 26, 32, ..."
        " layers, and torchvision's has 18",
    )
    require(stem is None, f"depth {depth} has one stem only; leave stem out")
    return ResNet(depth, norm, shape)
