"""Published models. Weights and biases are initialised as in PyTorch, by U(+-1/sqrt(fan
in)).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models.architecture import Architecture, Network
from fedtailor.models.cnn_5x5 import (
    CNN5x5 as CNN5x5,
)  # where exported models look for their architecture
from fedtailor.models.layered import Layered, StreamArchitecture, dense_layers, image_of
from fedtailor.models.layers import (
    LSTM,
    Conv,
    Convolution,
    ConvPool,
    Dense,
    Dropout,
    Embedding,
    FlattenFeatureMaps,
    ImageConvPool,
    InitStream,
    Layer,
    Relu,
    ReluPool,
    Reshape,
    Stack,
    ToFeatureMaps,
    check_layers,
)
from fedtailor.models.normalization import NormKind, norm_layer
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.periodic import (
    PeriodicMLP as PeriodicMLP,
)  # where exported models look for their architecture
from fedtailor.models.pooling import PoolKind
from fedtailor.models.registry import register
from fedtailor.models.resnet import (
    ResNet as ResNet,
)  # where exported models look for their architecture
from fedtailor.models.resnet18 import (
    ResNet18 as ResNet18,
)
from fedtailor.models.series import (
    Conv1dNet as Conv1dNet,
)  # where exported models look for their architecture
from fedtailor.models.series import (
    SeriesGRU as SeriesGRU,
)
from fedtailor.models.survival import (
    ProportionalHazards as ProportionalHazards,
)


@dataclass(frozen=True)
class MLP(Layered):
    """Dense layers with ReLU between them, on flattened inputs."""

    hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        check_layers("the number of layers", len(self.hidden) + 1)

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        inputs = math.prod(input_shape)
        return Stack(
            [Reshape((inputs,)), *dense_layers(inputs, (*self.hidden, outputs), stream)]
        )


@dataclass(frozen=True)
class Linear(MLP):
    """One dense layer whose initial weights and bias are a tenth of an MLP's."""

    hidden: tuple[int, ...] = ()

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        stack = super().network(input_shape, outputs, stream)
        return jax.tree.map(
            lambda leaf: leaf / 10 if eqx.is_array(leaf) else leaf, stack
        )


@register
def linear() -> Linear:
    """A linear model from small initial weights: multinomial logistic regression of
    classes, otherwise linear regression.

    What its training rows do not determine stays near 0, as a penalty would have it.
    From PyTorch's initial weights, where `logistic` starts, thousands of steps do not
    undo them in directions in which a client's rows hardly vary.

    Example:
        >>> ft.models.linear().bind((4,), 3).size
        15
    """
    return Linear()


@register
def logistic() -> MLP:
    """Multinomial logistic regression (its l2 term is the weight decay of `SGD`).

    Example:
        >>> ft.models.logistic().bind((4,), 3).size
        15
    """
    return MLP(())


@register
def mlp(hidden: int | Sequence[int] = 64) -> MLP:
    """A multilayer perceptron with ReLU; `hidden` is the width of its hidden layer, or
    of each of several.

    Raises:
        ValueError: a width is below 1.

    Example:
        >>> ft.models.mlp(hidden=(64, 32)).bind((4,), 3).size
        2499
    """
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    for width in widths:
        if width < 1:
            raise ValueError(
                f"a hidden layer of the MLP is {width} wide; it needs 1 unit or more"
            )
    return MLP(widths)


@dataclass(frozen=True)
class LeNet5(Layered):
    """Convolutions of 6 and 16 channels (5x5, no padding), each with ReLU and pooling,
    and dense layers.
    """

    pool: PoolKind = "average"
    image_shape: tuple[int, ...] | None = None
    norm: NormKind | None = None
    micro_batch = 20

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        h, w, c = image_of(input_shape, self.image_shape, "LeNet-5", smallest=16)
        layers: list[Layer] = [Reshape((h, w, c))]
        # Without normalisation, convolution, ReLU and pooling are one layer, the first of
        # which takes images.
        if self.norm is None:
            layers += [
                ImageConvPool(c, 6, 5, self.pool, stream),
                ConvPool(6, 16, 5, self.pool, stream),
            ]
        else:
            layers += [ToFeatureMaps()]
            layers += self._normalized(c, 6, self.norm, stream)
            layers += self._normalized(6, 16, self.norm, stream)
        # Each 5x5 convolution without padding takes 4 pixels off a side, each pooling
        # halves it.
        final_h, final_w = (((side - 4) // 2 - 4) // 2 for side in (h, w))
        layers += [
            FlattenFeatureMaps(),
            *dense_layers(final_h * final_w * 16, (120, 84, outputs), stream),
        ]
        return Stack(layers)

    def _normalized(
        self, inputs: int, outputs: int, norm: NormKind, stream: InitStream
    ) -> list[Layer]:
        """Convolution without a bias, normalisation, ReLU and pooling."""
        return [
            Convolution(inputs, outputs, 5, stream),
            norm_layer(norm, outputs),
            ReluPool(self.pool),
        ]


@register
def lenet5(
    pool: PoolKind = "average",
    image_shape: Sequence[int] | None = None,
    norm: NormKind | None = None,
) -> LeNet5:
    """LeNet-5 with ReLU and unpadded convolutions, as in the experiments of Mestoukirdi
    et al. 2021.

    Two convolutions (6 and 16 channels, 5x5), each followed by 2x2 pooling, and dense
    layers of 120, 84 and the classes: 44,426 parameters for 28x28 images and ten
    classes.

    Args:
        pool: "average" (the paper's) or "max".
        image_shape: (height, width) or (height, width, channels) of inputs that are
            stored flat; a flat input of square length is taken for a square gray image.
        norm: "group" or "batch" normalisation between each convolution and its ReLU (in
            place of its bias), or None.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: the pooling or the normalisation is unknown, or (when bound) the
            inputs are not images of 16x16 or more.

    Example:
        >>> ft.models.lenet5().bind((32, 32, 3), 10).size
        62006
    """
    if pool not in ("average", "max"):
        raise ValueError(f"pool is {pool!r}; choose 'average' or 'max'")
    if norm not in (None, "group", "batch"):
        raise ValueError(f"norm is {norm!r}; choose 'group', 'batch' or None")
    return LeNet5(pool, None if image_shape is None else tuple(image_shape), norm)


@register
def tutorial_cnn(
    image_shape: Sequence[int] | None = None, norm: NormKind | None = None
) -> LeNet5:
    """The CNN of PyTorch's CIFAR-10 tutorial (Chen et al. 2022; pFedMe): LeNet-5 with
    max-pooling.

    62,006 parameters for 32x32 colour images and ten classes. Arguments and errors as
    for `lenet5`.

    Example:
        >>> ft.models.tutorial_cnn().bind((32, 32, 3), 10).size
        62006
    """
    return lenet5("max", image_shape, norm)


@dataclass(frozen=True)
class CNN(Layered):
    """Convolutions of 32 and 64 channels (3x3, no padding) with ReLU, max-pooling, a
    dense layer of 128.
    """

    dropout: bool = False
    image_shape: tuple[int, ...] | None = None
    micro_batch = 20

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        h, w, c = image_of(input_shape, self.image_shape, "the CNN", smallest=6)
        # Two 3x3 convolutions without padding take 4 pixels off a side, the pooling
        # halves it.
        flat = (h - 4) // 2 * ((w - 4) // 2) * 64
        layers: list[Layer] = [
            Reshape((h, w, c)),
            ToFeatureMaps(),
            Conv(c, 32, 3, stream),
            ConvPool(32, 64, 3, "max", stream),
            Dropout(0.25),
            FlattenFeatureMaps(),
            Dense(flat, 128, stream),
            Relu(),
            Dropout(0.5),
            Dense(128, outputs, stream),
        ]
        return Stack(
            [
                layer
                for layer in layers
                if self.dropout or not isinstance(layer, Dropout)
            ]
        )


@register
def cnn(dropout: bool = False, image_shape: Sequence[int] | None = None) -> CNN:
    """The CNN of the EMNIST experiments of Mansour et al. 2020: 1,206,590 parameters
    for 28x28 images and 62 classes.

    Two 3x3 convolutions (32 and 64 channels, ReLU), 2x2 max-pooling, a dense layer of
    128.

    Args:
        dropout: a quarter of the pooled features and half of the dense ones, as in
            FedJAX's version.
        image_shape: as for `lenet5`.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: (when bound) the inputs are not images of 6x6 or more.

    Example:
        >>> ft.models.cnn().bind((28, 28), 62).size
        1206590
    """
    return CNN(dropout, None if image_shape is None else tuple(image_shape))


@dataclass(frozen=True)
class SequenceLSTM(StreamArchitecture):
    """An embedding and LSTM layers over token ids, and a dense layer on the last state."""

    vocabulary: int
    embedding: int
    hidden: int
    layers: int

    def __post_init__(self) -> None:
        check_layers("layers", self.layers)

    @property
    def known_tokens(self) -> int:
        return self.vocabulary

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> dict[str, Any]:
        if len(input_shape) != 1:
            raise ValueError(
                "the LSTM takes token ids of shape [length], not inputs of shape"
                f" {input_shape}"
            )
        # The first LSTM layer takes word vectors, and each further one the states of the
        # layer before it.
        widths = (self.embedding, *[self.hidden] * self.layers)
        return {
            "embedding": Embedding(self.vocabulary, self.embedding, stream),
            "recurrent": [LSTM(width, self.hidden, stream) for width in widths[:-1]],
            "classifier": Dense(self.hidden, outputs, stream),
        }

    def apply(
        self, network: Network, x: Shaped[Array, "b t"], key: Array | None
    ) -> Float[Array, "b outputs"]:
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(
                f"the LSTM takes token ids (int32), not inputs of type {x.dtype}"
            )
        return network["classifier"](self._states(network, x))

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        recurrent = [f"recurrent.{index}" for index in range(self.layers)]
        return LayerInfo(
            "classifier",
            order=("embedding", *recurrent, "classifier"),
            input_dtype="int32",
        )

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b t"],
        key: Array | None,
    ) -> Float[Array, "b hidden"]:
        return self._states(network, x)

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b hidden"],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b outputs"]:
        return network["classifier"](features)

    def _states(
        self, network: Network, x: Shaped[Array, "b t"]
    ) -> Float[Array, "b hidden"]:
        """The last layer's last state."""
        is_token = x != 0
        states = network["embedding"](x)
        for layer in network["recurrent"]:
            states = layer(states, is_token)
        # Padding does not change the state, so that the last state is that of the last
        # token.
        return states[:, -1]


@register
def lstm(
    vocabulary: int, embedding: int = 32, hidden: int = 64, layers: int = 1
) -> SequenceLSTM:
    """An embedding and LSTM layers over token ids [length], for Sent140 and other text;
    the last state is classified.

    Args:
        vocabulary: the number of token ids. Id 0 is padding at either end, and does not
            change the state.
        embedding: width of the learned word vectors.
        hidden: width of the state.
        layers: LSTM layers on top of one another.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: a number is below 1 (the vocabulary: 2), or (when bound) the inputs
            are not sequences of ids.

    Example:
        >>> ft.models.lstm(vocabulary=100).bind((25,), 2).size
        28162
    """
    for name, value, minimum in (
        ("vocabulary", vocabulary, 2),
        ("embedding", embedding, 1),
        ("hidden", hidden, 1),
    ):
        if value < minimum:
            raise ValueError(f"{name} is {value}; it must be {minimum} or more")
    return SequenceLSTM(vocabulary, embedding, hidden, layers)


@dataclass(frozen=True)
class Density(Architecture):
    """A categorical distribution without inputs: one logit for each symbol."""

    def build(
        self, input_shape: tuple[int, ...], outputs: int, key: Array
    ) -> Float[Array, " outputs"]:
        if math.prod(input_shape) > 0:
            shape = " x ".join(map(str, input_shape))
            raise ValueError(
                f"density() looks at no inputs, and these examples have {shape}; choose"
                " another model"
            )
        return jnp.zeros(outputs, jnp.float32)

    def apply(
        self, network: Network, x: Shaped[Array, "b ..."], key: Array | None
    ) -> Float[Array, "b outputs"]:
        return jnp.broadcast_to(network, (len(x), len(network)))


@register
def density() -> Density:
    """A density over symbols, uniform at first (the synthetic task of Mansour et al.
    2020, section 6.1).

    Examples have inputs of shape [0], labels are the symbols, and `cross_entropy` is
    their negative log-likelihood in nats.

    Raises:
        ValueError: (when bound) the examples have inputs, which would be ignored.

    Example:
        >>> ft.models.density().bind((0,), 10).size
        10
    """
    return Density()
