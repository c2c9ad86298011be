"""Layers, written for batches.

Images come as [b, height, width, channels]. Convolutions take and give feature maps
[channels, height, width, b], called planes in names; see `convolution` for the reason.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from fedtailor.models.convolution import convolve, halve, pad, planes
from fedtailor.models.normalization import StatefulLayer
from fedtailor.models.pooling import PoolKind, convolve_windows, pool_relu, windows

Layer = Callable[[Array, Array | None], Array]
"""(x, key) -> output; the key is None in evaluation mode."""


class InitStream:
    """The random numbers of a network, from one call of the generator (each call takes
    XLA a third of a second).

    A network is built twice: first with `InitStream()`, which counts, then with
    `counting.filled(key)`, which holds the numbers.
    """

    def __init__(self, numbers: Float[Array, " n"] | None = None) -> None:
        self._numbers, self._used = numbers, 0

    def filled(self, key: Array) -> "InitStream":
        """Random numbers for as many parameters as this one was asked for."""
        # The interval is open at -1, which `normal` would map to minus infinity.
        above = float(np.nextafter(np.float32(-1), np.float32(0)))
        return InitStream(jax.random.uniform(key, (self._used,), jnp.float32, above, 1))

    def uniform(self, shape: tuple[int, ...], fan_in: int) -> Float[Array, "..."]:
        """U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as PyTorch's dense, convolutional and
        recurrent layers start.
        """
        return self._next(shape) / math.sqrt(fan_in)

    def normal(self, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Standard normal, as PyTorch's embeddings start."""
        return math.sqrt(2) * jax.scipy.special.erfinv(self._next(shape))

    def _next(self, shape: tuple[int, ...]) -> Array:
        first = self._used
        self._used += math.prod(shape)
        if self._numbers is None:
            return jnp.zeros(shape)
        return self._numbers[first : self._used].reshape(shape)


NARROW = 16
"""A matrix of fewer columns is kept transposed: such a column fills no vector register,
and on CPUs logistic regression on ten classes trains half as fast."""


class Dense(eqx.Module):
    """x [b, inputs] -> x W + bias [b, outputs]; W is kept as [inputs, outputs], or
    transposed if it is `NARROW`.
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
    """A convolution's weight and bias as they start: by the number of inputs that an
    output pixel sees.
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
        # Bias, ReLU and pooling in one piece: the activations before pooling, four
        # times as many, are never stored.
        y = convolve(x, self.weight)
        o, h, w, b = y.shape
        return pool_relu(windows(y), self.bias, self.pool).reshape(o, h // 2, w // 2, b)


class ImageConvPool(eqx.Module):
    """As `ConvPool`, from images to feature maps; the size of the kernel is odd."""

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


class Planes(eqx.Module):
    """Images to feature maps."""

    def __call__(
        self, x: Float[Array, "b h w c"], key: Array | None = None
    ) -> Float[Array, "c h w b"]:
        return planes(x)


class FlattenPlanes(eqx.Module):
    """Feature maps to vectors [b, c h w], in PyTorch's order of features."""

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "b n"]:
        return x.reshape(-1, x.shape[-1]).T


class Reshape(eqx.Module):
    """Each example in another shape."""

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
    """A long short-term memory: vectors [b, t, inputs] -> states [b, t, hidden] (gates
    in PyTorch's order i, f, g, o).

    A step at which `keep` [b, t] is False leaves the state unchanged, so sequences may
    be padded at either end.
    """

    input_weight: Float[Array, "inputs gates"]
    state_weight: Float[Array, "hidden gates"]
    bias: Float[Array, " gates"]

    def __init__(self, inputs: int, hidden: int, stream: InitStream) -> None:
        self.input_weight = stream.uniform((inputs, 4 * hidden), hidden)
        self.state_weight = stream.uniform((hidden, 4 * hidden), hidden)
        self.bias = stream.uniform((4 * hidden,), hidden)

    def __call__(
        self, x: Float[Array, "b t inputs"], keep: Shaped[Array, "b t"]
    ) -> Float[Array, "b t hidden"]:
        def step(
            state: tuple[Array, Array], now: tuple[Array, Array]
        ) -> tuple[tuple[Array, Array], Array]:
            projected, keep = now
            hidden, cell = state
            i, f, g, o = jnp.split(projected + hidden @ self.state_weight, 4, axis=-1)
            new_cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_hidden = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            # A step of padding is computed, since all shapes must be the same, and its
            # result is discarded.
            hidden = jnp.where(keep, new_hidden, hidden)
            cell = jnp.where(keep, new_cell, cell)
            return (hidden, cell), hidden

        # The inputs' part of all gates at once: one large product instead of one in
        # every step.
        projected = (x @ self.input_weight + self.bias).swapaxes(0, 1)
        zero = jnp.zeros((len(x), self.state_weight.shape[0]), x.dtype)
        _, states = jax.lax.scan(step, (zero, zero), (projected, keep.T[..., None]))
        return states.swapaxes(0, 1)


class Convolution(eqx.Module):
    """Convolution without a bias, on feature maps, for layers that normalise next.

    `padding` zeros go around the feature maps. A `halved` convolution has stride 2:
    only every second row and column is computed.
    """

    weight: Float[Array, "k k c o"]
    padding: int = eqx.field(static=True)
    halved: bool = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stream: InitStream,
        padding: int = 0,
        halved: bool = False,
    ) -> None:
        self.weight = stream.uniform(
            (size, size, inputs, outputs), size * size * inputs
        )
        self.padding, self.halved = padding, halved

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "o h2 w2 b"]:
        x = pad(x, self.padding)
        return (
            convolve(*halve(x, self.weight))
            if self.halved
            else convolve(x, self.weight)
        )


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
    """Layers one after another; a key is split over them."""

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
        # As in `__call__`, but every layer comes back with its new statistics, and all
        # of them make the new stack.
        trained = []
        for index, layer in enumerate(self.layers):
            layer_key = None if key is None else jax.random.fold_in(key, index)
            x, layer = train_layer(layer, x, layer_key, weight)
            trained.append(layer)
        return x, Stack(trained)


def train_layer(
    layer: Any, x: Array, key: Array | None, weight: Float[Array, " b"]
) -> tuple[Array, Any]:
    """A training step through any layer.

    Args:
        layer: a layer of this package.
        x: its inputs.
        key: randomness of the step, for dropout.
        weight: the weight of each example: 1, or 0 for padding.

    Returns:
        The outputs, and the layer with new statistics where it keeps some.
    """
    if isinstance(layer, StatefulLayer):
        return layer.train(x, key, weight)
    return layer(x, key), layer
