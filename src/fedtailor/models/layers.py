"""Layers, written for batches.

Images are [b, height, width, channels]. Convolutions take and return feature maps
[channels, height, width, b]; the module `convolution` explains why.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, Int, Shaped

from fedtailor._base.choice import require
from fedtailor.models.convolution import (
    convolve,
    convolve_stride_2,
    pad,
    to_feature_maps,
)
from fedtailor.models.normalization import StatefulLayer
from fedtailor.models.pooling import PoolKind, convolve_windows, pool_relu, windows

Layer = Callable[[Array, Array | None], Array]
"""(x, key) -> output; the key is None in evaluation mode."""


MOST_LAYERS = 1000
"""Of a network whose layers a setting counts. They are built one by one, also to count its
parameters: a larger number would take all memory.
"""


def check_layers(setting: str, layers: int) -> None:
    """Check that a network can be built of so many layers.

    Raises:
        ValueError: it cannot.
    """
    require(
        1 <= layers <= MOST_LAYERS,
        f"{setting} is {layers}; it must be from 1 to {MOST_LAYERS}",
    )


class InitStream:
    """The random initial parameters of a network, from one call of the generator (each
    call takes XLA a third of a second to compile).

    A network is built twice: first with `counter = InitStream()`, which counts the numbers
    that the layers ask for, then with `counter.filled(key)`, which holds these numbers.
    """

    def __init__(self, numbers: Float[Array, " n"] | None = None) -> None:
        self._numbers, self._used = numbers, 0

    def filled(self, key: Array) -> "InitStream":
        """A stream of as many random numbers as this one was asked for."""
        return InitStream(_uniform(key, self._used))

    def uniform(self, shape: tuple[int, ...], fan_in: int) -> Float[Array, "..."]:
        """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as PyTorch initialises dense,
        convolutional and recurrent layers.
        """
        return self._next(shape) / math.sqrt(fan_in)

    def normal(self, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Standard normal, as PyTorch initialises embeddings."""
        return math.sqrt(2) * jax.scipy.special.erfinv(self._next(shape))

    def _next(self, shape: tuple[int, ...]) -> Array:
        first = self._used
        self._used += math.prod(shape)
        if self._numbers is None:
            return jnp.zeros(shape)
        return self._numbers[first : self._used].reshape(shape)


BLOCK = 2**20
"""The numbers that are drawn at a time: the generator needs five times their memory."""


def _uniform(key: Array, count: int) -> Float[Array, " count"]:
    """`jax.random.uniform(key, (count,), minval=low, maxval=1)`, in blocks.

    The interval is open at -1, which `InitStream.normal` would map to minus infinity.
    """
    low = float(np.nextafter(np.float32(-1), np.float32(0)))
    blocks = math.ceil(count / BLOCK)
    is_counted = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if blocks < 2 or not is_counted or count >= 2**32:
        return jax.random.uniform(key, (count,), jnp.float32, low, 1)

    def draw(block: Int[Array, ""]) -> Float[Array, " block"]:
        """The numbers of one block, as `jax.random` makes them of random bits."""
        index = block.astype(jnp.uint32) * np.uint32(BLOCK)
        index += jnp.arange(BLOCK, dtype=jnp.uint32)
        words = jax.random.key_data(key)
        # XLA holds each number as the exclusive or of two words.
        high, low_word = threefry2x32_p.bind(
            words[0], words[1], jnp.zeros_like(index), index
        )
        mantissa = ((high ^ low_word) >> np.uint32(9)) | np.uint32(0x3F800000)
        unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1)
        scaled = unit * (np.float32(1) - np.float32(low)) + np.float32(low)
        return jnp.maximum(np.float32(low), scaled)

    return jax.lax.map(draw, jnp.arange(blocks)).reshape(-1)[:count]


NARROW = 16
"""A matrix of fewer columns is stored transposed: its rows fill no vector register, so that
logistic regression on ten classes would train half as fast on CPUs."""


class Dense(eqx.Module):
    """x [b, inputs] -> x W + bias [b, outputs]. W is stored as [inputs, outputs], or
    transposed if it has fewer columns than `NARROW`.
    """

    weight: Float[Array, "rows columns"]
    bias: Float[Array, " outputs"]
    transposed: bool = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, stream: InitStream) -> None:
        self.transposed = outputs < NARROW <= inputs
        self.weight = stream.uniform(
            (outputs, inputs) if self.transposed else (inputs, outputs), inputs
        )
        self.bias = stream.uniform((outputs,), inputs)

    def __call__(
        self, x: Float[Array, "b inputs"], key: Array | None = None
    ) -> Float[Array, "b outputs"]:
        return x @ (self.weight.T if self.transposed else self.weight) + self.bias


def _kernel(
    inputs: int, outputs: int, size: int, stream: InitStream
) -> tuple[Float[Array, "k k c o"], Float[Array, " o"]]:
    """The initial weight and bias of a convolution, with the number of inputs of one output
    pixel as the fan-in.
    """
    fan_in = size * size * inputs
    weight = stream.uniform((size, size, inputs, outputs), fan_in)
    bias = stream.uniform((outputs,), fan_in)
    return weight, bias


class Conv(eqx.Module):
    """Convolution (stride 1, no padding) and ReLU, on feature maps."""

    weight: Float[Array, "k k c o"]
    bias: Float[Array, " o"]

    def __init__(
        self, inputs: int, outputs: int, size: int, stream: InitStream
    ) -> None:
        self.weight, self.bias = _kernel(inputs, outputs, size, stream)

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "o h2 w2 b"]:
        return jax.nn.relu(convolve(x, self.weight) + self.bias[:, None, None, None])


class ConvPool(eqx.Module):
    """Convolution (stride 1, no padding), ReLU and 2x2 pooling, on feature maps.

    Pooling drops an odd last row or column.
    """

    weight: Float[Array, "k k c o"]
    bias: Float[Array, " o"]
    pool: PoolKind = eqx.field(static=True)

    def __init__(
        self, inputs: int, outputs: int, size: int, pool: PoolKind, stream: InitStream
    ) -> None:
        self.weight, self.bias = _kernel(inputs, outputs, size, stream)
        self.pool = pool

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "o h2 w2 b"]:
        # Bias, ReLU and pooling are one operation, so that the activations before pooling,
        # which are four times as many, are never stored.
        y = convolve(x, self.weight)
        o, h, w, b = y.shape
        return pool_relu(windows(y), self.bias, self.pool).reshape(o, h // 2, w // 2, b)


class ImageConvPool(eqx.Module):
    """As `ConvPool`, but from images to feature maps. The size of the kernel is odd."""

    weight: Float[Array, "k k c o"]
    bias: Float[Array, " o"]
    pool: PoolKind = eqx.field(static=True)

    def __init__(
        self, inputs: int, outputs: int, size: int, pool: PoolKind, stream: InitStream
    ) -> None:
        self.weight, self.bias = _kernel(inputs, outputs, size, stream)
        self.pool = pool

    def __call__(
        self, x: Float[Array, "b h w c"], key: Array | None = None
    ) -> Float[Array, "o h2 w2 b"]:
        k, _, _, o = self.weight.shape
        b, h, w, _ = x.shape
        y = pool_relu(convolve_windows(x, self.weight), self.bias, self.pool)
        return y.reshape(o, (h - k + 1) // 2, (w - k + 1) // 2, b)


class ToFeatureMaps(eqx.Module):
    """Images to feature maps."""

    def __call__(
        self, x: Float[Array, "b h w c"], key: Array | None = None
    ) -> Float[Array, "c h w b"]:
        return to_feature_maps(x)


class FlattenFeatureMaps(eqx.Module):
    """Feature maps to vectors [b, c h w], in PyTorch's order of features."""

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "b n"]:
        return x.reshape(-1, x.shape[-1]).T


class Reshape(eqx.Module):
    """Reshapes each example."""

    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(
        self, x: Shaped[Array, "b ..."], key: Array | None = None
    ) -> Shaped[Array, "b ..."]:
        return x.reshape(len(x), *self.shape)


class Relu(eqx.Module):
    """max(x, 0)."""

    def __call__(
        self, x: Float[Array, "..."], key: Array | None = None
    ) -> Float[Array, "..."]:
        return jax.nn.relu(x)


class Dropout(eqx.Module):
    """Sets a fraction `rate` of the inputs to zero and scales up the others; the
    identity without a key.
    """

    rate: float = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "..."], key: Array | None = None
    ) -> Float[Array, "..."]:
        if key is None:
            return x
        # scaled up in training, so that evaluation needs no scaling
        is_kept = jax.random.bernoulli(key, 1 - self.rate, x.shape)
        return jnp.where(is_kept, x / (1 - self.rate), 0)


class Embedding(eqx.Module):
    """Tokens [b, t] -> vectors [b, t, width], standard normal at first; NaN for a token
    outside the vocabulary.
    """

    table: Float[Array, "vocabulary width"]

    def __init__(self, vocabulary: int, width: int, stream: InitStream) -> None:
        self.table = stream.normal((vocabulary, width))

    def __call__(
        self, x: Int[Array, "b t"], key: Array | None = None
    ) -> Float[Array, "b t width"]:
        return self.table.at[x].get(mode="fill", fill_value=jnp.nan)


class LSTM(eqx.Module):
    """A long short-term memory: vectors [b, t, inputs] -> states [b, t, hidden]. The gates
    are in PyTorch's order i, f, g, o.

    A step at which `is_token` [b, t] is False leaves the state unchanged, so that sequences
    may be padded at either end.
    """

    input_weight: Float[Array, "inputs gates"]
    state_weight: Float[Array, "hidden gates"]
    bias: Float[Array, " gates"]

    def __init__(self, inputs: int, hidden: int, stream: InitStream) -> None:
        self.input_weight = stream.uniform((inputs, 4 * hidden), hidden)
        self.state_weight = stream.uniform((hidden, 4 * hidden), hidden)
        self.bias = stream.uniform((4 * hidden,), hidden)

    def __call__(
        self, x: Float[Array, "b t inputs"], is_token: Shaped[Array, "b t"]
    ) -> Float[Array, "b t hidden"]:
        def step(
            state: tuple[Array, Array], inputs: tuple[Array, Array]
        ) -> tuple[tuple[Array, Array], Array]:
            projected, is_token = inputs
            hidden, cell = state
            i, f, g, o = jnp.split(projected + hidden @ self.state_weight, 4, axis=-1)
            new_cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_hidden = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            # A step of padding is computed, since all shapes must be the same, and its
            # result is discarded.
            hidden = jnp.where(is_token, new_hidden, hidden)
            cell = jnp.where(is_token, new_cell, cell)
            return (hidden, cell), hidden

        # The products with the inputs of all steps are one large product, instead of a
        # small one in every step.
        projected = (x @ self.input_weight + self.bias).swapaxes(0, 1)
        zero = jnp.zeros((len(x), self.state_weight.shape[0]), x.dtype)
        _, states = jax.lax.scan(step, (zero, zero), (projected, is_token.T[..., None]))
        return states.swapaxes(0, 1)


class Convolution(eqx.Module):
    """Convolution without a bias, on feature maps, for use before a normalisation layer.

    Attributes:
        weight: the kernel.
        padding: the number of rows and columns of zeros on every side.
        stride: 1 or 2.
    """

    weight: Float[Array, "k k c o"]
    padding: int = eqx.field(static=True)
    stride: Literal[1, 2] = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stream: InitStream,
        padding: int = 0,
        stride: Literal[1, 2] = 1,
    ) -> None:
        self.weight = stream.uniform(
            (size, size, inputs, outputs), size * size * inputs
        )
        self.padding, self.stride = padding, stride

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "o h2 w2 b"]:
        function = convolve if self.stride == 1 else convolve_stride_2
        return function(pad(x, self.padding), self.weight)


class ReluPool(eqx.Module):
    """ReLU and 2x2 pooling, on feature maps; drops an odd last row or column."""

    pool: PoolKind = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "c h2 w2 b"]:
        c, h, w, b = x.shape
        no_bias = jnp.zeros(c, x.dtype)
        return pool_relu(windows(x), no_bias, self.pool).reshape(c, h // 2, w // 2, b)


class Stack(StatefulLayer):
    """Layers one after another. Each layer gets its own key."""

    layers: tuple[Layer, ...]

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)

    def __call__(
        self, x: Shaped[Array, "b ..."], key: Array | None = None
    ) -> Shaped[Array, "..."]:
        for index, layer in enumerate(self.layers):
            layer_key = None if key is None else jax.random.fold_in(key, index)
            x = layer(x, layer_key)
        return x

    def train(
        self, x: Array, key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Array, "Stack"]:
        # As in `__call__`, but every layer is replaced by one with new statistics.
        new_layers = []
        for index, layer in enumerate(self.layers):
            layer_key = None if key is None else jax.random.fold_in(key, index)
            x, new_layer = train_layer(layer, x, layer_key, weight)
            new_layers.append(new_layer)
        return x, Stack(new_layers)


def train_layer(
    layer: Any, x: Array, key: Array | None, weight: Float[Array, " b"]
) -> tuple[Array, Any]:
    """The forward pass of any layer in training mode.

    Args:
        layer: a layer of this package.
        x: its inputs.
        key: randomness of the step, for dropout.
        weight: the weight of each example: 1, or 0 for padding.

    Returns:
        The outputs, and the layer with new statistics if it keeps any.
    """
    if isinstance(layer, StatefulLayer):
        return layer.train(x, key, weight)
    return layer(x, key), layer
