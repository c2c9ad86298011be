"""Bases of the architectures of the zoo."""

import math
from abc import abstractmethod
from collections.abc import Sequence

from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.layers import Dense, Dropout, InitStream, Layer, Relu, Stack
from fedtailor.models.normalization import BatchNorm, GroupNorm
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.tree_paths import paths_of


class StreamArchitecture(Architecture):
    """An architecture whose parameters come from one `InitStream`, so that they are drawn
    in one call.
    """

    @abstractmethod
    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Network:
        """Make the network, with parameters from `stream`."""

    def build(self, input_shape: tuple[int, ...], outputs: int, key: Array) -> Network:
        # The first call counts the random numbers that all layers need.
        counter = InitStream()
        self.network(input_shape, outputs, counter)
        return self.network(input_shape, outputs, counter.filled(key))


class Layered(StreamArchitecture):
    """An architecture whose network is a `Stack` of layers."""

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b outputs"]:
        return network(x, key)

    def train(
        self,
        network: Network,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> tuple[Float[Array, "b outputs"], Network]:
        return network.train(x, key, weight)

    def is_stochastic(self, network: Network) -> bool:
        return any(isinstance(layer, Dropout) for layer in network.layers)

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        return LayerInfo(
            f"layers.{len(network.layers) - 1}",
            paths_of(network, (GroupNorm, BatchNorm)),
        )

    def statistics(self, network: Network) -> tuple[str, ...]:
        norms = paths_of(network, BatchNorm)
        return tuple(
            f"{norm}.running_{name}" for norm in norms for name in ("mean", "variance")
        )

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
    ) -> Float[Array, "b ..."]:
        return Stack(network.layers[:-1])(x, key)

    def train_features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b ..."],
        key: Array | None,
        weight: Float[Array, " b"],
    ) -> Float[Array, "b ..."]:
        return Stack(network.layers[:-1]).train(x, key, weight)[0]

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b ..."],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b outputs"]:
        return network.layers[-1](features)


def dense_layers(inputs: int, widths: Sequence[int], stream: InitStream) -> list[Layer]:
    """Dense layers of these widths, with ReLU between them."""
    layers: list[Layer] = []
    for width in widths:
        layers += [Dense(inputs, width, stream), Relu()]
        inputs = width
    return layers[:-1]


def image_of(
    input_shape: tuple[int, ...],
    image_shape: tuple[int, ...] | None,
    model: str,
    smallest: int,
) -> tuple[int, int, int]:
    """The shape of inputs as images. Inputs may be stored without channels, or flat.

    Args:
        input_shape: the shape in which inputs are stored.
        image_shape: their shape as images; None = derive it from `input_shape`.
        model: the model's name, for messages.
        smallest: the smallest height and width that the model accepts.

    Returns:
        (height, width, channels).

    Raises:
        ValueError: the inputs are not images, or too small.
    """
    shape = image_shape or input_shape
    side = math.isqrt(math.prod(input_shape))
    # A flat input whose length is a square is a square gray image.
    if len(shape) == 1 and side * side == shape[0]:
        shape = (side, side)
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or math.prod(shape) != math.prod(input_shape):
        raise ValueError(
            f"{model} takes images [height, width(, channels)], not inputs of shape"
            f" {input_shape} as images of shape {shape}; give image_shape=(height,"
            " width, channels)"
        )
    if min(shape[:2]) < smallest:
        raise ValueError(
            f"{model} takes images of {smallest}x{smallest} or more, not"
            f" {shape[0]}x{shape[1]}; use models.mlp instead"
        )
    return shape[0], shape[1], shape[2]
