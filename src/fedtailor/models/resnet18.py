"""ResNet-18 (He et al. 2016), with the names and shapes of torchvision's arrays, so that
its trained weights are read as they are.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Network
from fedtailor.models.convolution import (
    KEEP,
    convolve,
    convolve_stride_2,
    pad,
    pad_zeros,
    to_feature_maps,
)
from fedtailor.models.layered import StreamArchitecture, image_of
from fedtailor.models.layers import InitStream, train_layer
from fedtailor.models.normalization import BatchNorm, StatefulLayer
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.tree_paths import paths_of

Stem = Literal["7x7", "3x3"]

WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, of two blocks each."""


class Kernel(eqx.Module):
    """Convolution without a bias; the kernel has PyTorch's order of axes."""

    weight: Float[Array, "o c k k"]
    stride: int = eqx.field(static=True)

    def __init__(
        self, inputs: int, outputs: int, size: int, stream: InitStream, stride: int = 1
    ) -> None:
        # torchvision's: normal, by the fan-out of a ReLU.
        deviation = math.sqrt(2 / (size * size * outputs))
        self.weight = deviation * stream.normal((outputs, inputs, size, size))
        self.stride = stride

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "o h2 w2 b"]:
        kernel = self.weight.transpose(2, 3, 1, 0)
        if len(kernel) == 1:
            return convolve(x[:, :: self.stride, :: self.stride], kernel)
        function = convolve if self.stride == 1 else convolve_stride_2
        return function(pad(x, len(kernel) // 2), kernel)


class Norm(StatefulLayer):
    """`BatchNorm` with PyTorch's names."""

    weight: Float[Array, " channels"]
    bias: Float[Array, " channels"]
    running_mean: Float[Array, " channels"]
    running_var: Float[Array, " channels"]

    def __init__(self, channels: int) -> None:
        self.weight, self.bias = jnp.ones(channels), jnp.zeros(channels)
        self.running_mean, self.running_var = jnp.zeros(channels), jnp.ones(channels)

    @property
    def _layer(self) -> BatchNorm:
        return eqx.tree_at(
            lambda layer: (
                layer.scale,
                layer.bias,
                layer.running_mean,
                layer.running_variance,
            ),
            BatchNorm(len(self.weight)),
            (self.weight, self.bias, self.running_mean, self.running_var),
        )

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        return self._layer(x)

    def train(
        self, x: Array, key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Array, "Norm"]:
        y, layer = self._layer.train(x, key, weight)
        running = layer.running_mean, layer.running_variance
        return y, eqx.tree_at(
            lambda it: (it.running_mean, it.running_var), self, running
        )


class Linear(eqx.Module):
    """A dense layer; the matrix has PyTorch's order of axes."""

    weight: Float[Array, "outputs inputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, stream: InitStream) -> None:
        self.weight = stream.uniform((outputs, inputs), inputs)
        self.bias = stream.uniform((outputs,), inputs)

    def __call__(self, x: Float[Array, "b inputs"]) -> Float[Array, "b outputs"]:
        return x @ self.weight.T + self.bias


class BasicBlock(StatefulLayer):
    """relu(branch(x) + shortcut(x)): two 3x3 convolutions next to the identity or,
    where the image is halved, a 1x1 convolution.
    """

    conv1: Kernel
    bn1: Norm
    conv2: Kernel
    bn2: Norm
    downsample: tuple[Kernel, Norm] | None

    def __init__(
        self, inputs: int, outputs: int, stride: int, stream: InitStream
    ) -> None:
        self.conv1 = Kernel(inputs, outputs, 3, stream, stride)
        self.bn1 = Norm(outputs)
        self.conv2 = Kernel(outputs, outputs, 3, stream)
        self.bn2 = Norm(outputs)
        self.downsample = None
        if inputs != outputs:
            shortcut = Kernel(inputs, outputs, 1, stream, stride)
            self.downsample = shortcut, Norm(outputs)

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        y = self.bn2(self.conv2(jax.nn.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            convolution, norm = self.downsample
            x = norm(convolution(x))
        return jax.nn.relu(y + x)

    def train(
        self, x: Array, key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Array, "BasicBlock"]:
        y, bn1 = self.bn1.train(self.conv1(x), key, weight)
        y, bn2 = self.bn2.train(self.conv2(jax.nn.relu(y)), key, weight)
        downsample = self.downsample
        if downsample is not None:
            convolution, norm = downsample
            x, norm = norm.train(convolution(x), key, weight)
            downsample = convolution, norm
        block = eqx.tree_at(
            lambda it: (it.bn1, it.bn2, it.downsample),
            self,
            (bn1, bn2, downsample),
            is_leaf=lambda it: it is None,
        )
        return jax.nn.relu(y + x), block


class ResNet18Network(eqx.Module):
    """The arrays of ResNet-18. Its fields have torchvision's names."""

    conv1: Kernel
    bn1: Norm
    layer1: tuple[BasicBlock, BasicBlock]
    layer2: tuple[BasicBlock, BasicBlock]
    layer3: tuple[BasicBlock, BasicBlock]
    layer4: tuple[BasicBlock, BasicBlock]
    fc: Linear

    def __init__(
        self, channels: int, outputs: int, stem: Stem, stream: InitStream
    ) -> None:
        size, stride = (7, 2) if stem == "7x7" else (3, 1)
        self.conv1 = Kernel(channels, WIDTHS[0], size, stream, stride)
        self.bn1 = Norm(WIDTHS[0])
        stages, inputs = [], WIDTHS[0]
        for width in WIDTHS:
            first = BasicBlock(inputs, width, 1 if width == inputs else 2, stream)
            stages.append((first, BasicBlock(width, width, 1, stream)))
            inputs = width
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = Linear(inputs, outputs, stream)

    @property
    def blocks(self) -> tuple[BasicBlock, ...]:
        return (*self.layer1, *self.layer2, *self.layer3, *self.layer4)


@dataclass(frozen=True)
class ResNet18(StreamArchitecture):
    """ResNet-18: a stem, four stages of two residual blocks of two 3x3 convolutions each,
    a mean over pixels and a dense layer.

    Attributes:
        stem: "7x7" (of stride 2, with max pooling, as torchvision's), or "3x3" for small
            images.
        image_shape: as for `lenet5`.
    """

    stem: Stem = "7x7"
    image_shape: tuple[int, ...] | None = None
    micro_batch = None  # which batch normalisation does not allow

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> ResNet18Network:
        channels = self._image(input_shape)[2]
        return ResNet18Network(channels, outputs, self.stem, stream)

    def _image(self, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
        smallest = 32 if self.stem == "7x7" else 8
        return image_of(input_shape, self.image_shape, "ResNet-18", smallest)

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b outputs"]:
        return network.fc(self._features(network, x))

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b outputs"], Network]:
        features, network = self._train_features(network, x, weight)
        return network.fc(features), network

    def statistics(self, network: Network) -> tuple[str, ...]:
        norms = paths_of(network, Norm)
        return tuple(
            f"{norm}.running_{name}" for norm in norms for name in ("mean", "var")
        )

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        return LayerInfo("fc", paths_of(network, Norm))

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b features"]:
        return self._features(network, x)

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b features"]:
        return self._train_features(network, x, weight)[0]

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b features"],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b outputs"]:
        return network.fc(features)

    def _features(
        self, network: Any, x: Shaped[Array, "b ..."]
    ) -> Float[Array, "b features"]:
        maps = network.bn1(network.conv1(self._maps(x)))
        maps = self._pooled(maps)
        for block in network.blocks:
            maps = block(maps)
        return maps.mean((1, 2)).T

    def _train_features(
        self, network: Any, x: Shaped[Array, "b ..."], weight: Float[Array, " b"]
    ) -> tuple[Float[Array, "b features"], Any]:
        maps, bn1 = network.bn1.train(network.conv1(self._maps(x)), None, weight)
        maps = self._pooled(maps)
        blocks = []
        for block in network.blocks:
            maps, new = train_layer(block, maps, None, weight)
            blocks.append(new)
        stages = tuple(tuple(blocks[first : first + 2]) for first in range(0, 8, 2))
        network = eqx.tree_at(
            lambda it: (it.bn1, it.layer1, it.layer2, it.layer3, it.layer4),
            network,
            (bn1, *stages),
        )
        return maps.mean((1, 2)).T, network

    def _maps(self, x: Shaped[Array, "b ..."]) -> Float[Array, "c h w b"]:
        return to_feature_maps(x.reshape(len(x), *self._image(x.shape[1:])))

    def _pooled(self, maps: Float[Array, "c h w b"]) -> Float[Array, "c h2 w2 b"]:
        """ReLU and, after the 7x7 stem, the maxima of 3x3 pixels of stride 2."""
        maps = jax.nn.relu(maps)
        if self.stem == "3x3":
            return maps
        # Padding of zeros changes no maximum of numbers that are not negative.
        maps = pad_zeros(maps, KEEP, (1, 1, 0), (1, 1, 0), KEEP)
        low = jnp.asarray(-jnp.inf, maps.dtype)
        return lax.reduce_window(
            maps, low, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID"
        )
