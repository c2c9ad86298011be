"""Models of series [time, channels], such as windows of sensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor._base.choice import require_one_or_more
from fedtailor._base.documentation import see
from fedtailor.models.architecture import Network
from fedtailor.models.layered import Layered, StreamArchitecture
from fedtailor.models.layers import Dense, InitStream, Layer, Stack, check_layers
from fedtailor.models.part_finder import LayerInfo
from fedtailor.models.registry import register


class Conv1dRelu(eqx.Module):
    """Convolution over time (stride 1, no padding) and ReLU: [b, t, c] -> [b, t2, o]."""

    weight: Float[Array, "k c o"]
    bias: Float[Array, " o"]

    def __init__(
        self, inputs: int, outputs: int, size: int, stream: InitStream
    ) -> None:
        self.weight = stream.uniform((size, inputs, outputs), size * inputs)
        self.bias = stream.uniform((outputs,), size * inputs)

    def __call__(
        self, x: Float[Array, "b t c"], key: Array | None = None
    ) -> Float[Array, "b t2 o"]:
        size, inputs, outputs = self.weight.shape
        length = x.shape[1] - size + 1
        # One product of matrices: many clients' kernels at once are a batch of these,
        # where XLA's convolution would be a slow grouped one.
        shifted = [x[:, start : start + length] for start in range(size)]
        rows = jnp.concatenate(shifted, axis=-1)
        weight = self.weight.reshape(size * inputs, outputs)
        return jax.nn.relu(rows @ weight + self.bias)


class MaxPool1d(eqx.Module):
    """The larger one of every two steps; an odd last step is dropped."""

    def __call__(
        self, x: Float[Array, "b t c"], key: Array | None = None
    ) -> Float[Array, "b t2 c"]:
        b, t, c = x.shape
        return x[:, : t // 2 * 2].reshape(b, t // 2, 2, c).max(axis=2)


class MeanOverTime(eqx.Module):
    """The mean over all steps."""

    def __call__(
        self, x: Float[Array, "b t c"], key: Array | None = None
    ) -> Float[Array, "b c"]:
        return x.mean(axis=1)


class GRULayer(eqx.Module):
    """A gated recurrent unit: [b, t, inputs] -> states [b, t, hidden]. The gates are in
    PyTorch's order r, z, n, and n has a bias of its own behind the reset gate.
    """

    input_weight: Float[Array, "inputs gates"]
    state_weight: Float[Array, "hidden gates"]
    input_bias: Float[Array, " gates"]
    state_bias: Float[Array, " gates"]

    def __init__(self, inputs: int, hidden: int, stream: InitStream) -> None:
        self.input_weight = stream.uniform((inputs, 3 * hidden), hidden)
        self.state_weight = stream.uniform((hidden, 3 * hidden), hidden)
        self.input_bias = stream.uniform((3 * hidden,), hidden)
        self.state_bias = stream.uniform((3 * hidden,), hidden)

    def __call__(
        self, x: Float[Array, "b t inputs"], key: Array | None = None
    ) -> Float[Array, "b t hidden"]:
        def step(state: Array, projected: Array) -> tuple[Array, Array]:
            recurrent = state @ self.state_weight + self.state_bias
            r_in, z_in, n_in = jnp.split(projected, 3, axis=-1)
            r_state, z_state, n_state = jnp.split(recurrent, 3, axis=-1)
            reset = jax.nn.sigmoid(r_in + r_state)
            update = jax.nn.sigmoid(z_in + z_state)
            new = jnp.tanh(n_in + reset * n_state)
            state = (1 - update) * new + update * state
            return state, state

        # The products with the inputs of all steps are one large product.
        projected = (x @ self.input_weight + self.input_bias).swapaxes(0, 1)
        start = jnp.zeros((len(x), self.state_weight.shape[0]), x.dtype)
        _, states = jax.lax.scan(step, start, projected)
        return states.swapaxes(0, 1)


@dataclass(frozen=True)
class Conv1dNet(Layered):
    """Convolutions over time with ReLU and max-pooling, the mean over time, and a dense
    layer.
    """

    channels: tuple[int, ...]
    size: int

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        steps, inputs = _series_shape(input_shape, "conv1d")
        layers: list[Layer] = []
        left = steps
        for width in self.channels:
            left = (left - self.size + 1) // 2
            if left < 1:
                raise ValueError(
                    f"{len(self.channels)} convolutions of {self.size} steps leave nothing"
                    f" of windows of {steps}; take longer windows, or fewer or smaller"
                    f" convolutions (channels, size){see('errors#inputs-that-are-not-series')}"
                )
            layers += [Conv1dRelu(inputs, width, self.size, stream), MaxPool1d()]
            inputs = width
        return Stack([*layers, MeanOverTime(), Dense(inputs, outputs, stream)])


@register
def conv1d(channels: int | Sequence[int] = (32, 64), size: int = 5) -> Conv1dNet:
    """Convolutions over time, for windows of series [time, channels].

    Each convolution (no padding) has ReLU and max-pooling of two steps; the mean over the
    remaining steps goes into a dense layer.

    Args:
        channels: outputs of each convolution.
        size: steps of a kernel.

    Raises:
        ValueError: a number is below 1, or (when bound) inputs are not series or shorter
            than the kernels.

    Example:
        >>> ft.models.conv1d(channels=16).bind((32, 6), 4).size
        564
    """
    widths = (channels,) if isinstance(channels, int) else tuple(channels)
    require_one_or_more("size", size)
    require_one_or_more("channels", *widths)
    if not widths:
        raise ValueError("channels is empty; give one number for each convolution")
    return Conv1dNet(widths, size)


@dataclass(frozen=True)
class SeriesGRU(StreamArchitecture):
    """GRU layers over a series, and a dense layer on the last state."""

    hidden: int
    layers: int

    def __post_init__(self) -> None:
        check_layers("layers", self.layers)

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> dict[str, Any]:
        _, inputs = _series_shape(input_shape, "gru")
        widths = (inputs, *[self.hidden] * self.layers)
        return {
            "recurrent": [
                GRULayer(width, self.hidden, stream) for width in widths[:-1]
            ],
            "classifier": Dense(self.hidden, outputs, stream),
        }

    def apply(
        self, network: Network, x: Shaped[Array, "b t c"], key: Array | None
    ) -> Float[Array, "b outputs"]:
        return network["classifier"](_last_state(network, x))

    def layer_info(self, network: Network, input_shape: tuple[int, ...]) -> LayerInfo:
        recurrent = [f"recurrent.{index}" for index in range(self.layers)]
        return LayerInfo("classifier", order=(*recurrent, "classifier"))

    def features(
        self,
        network: Network,
        layer_info: LayerInfo,
        x: Shaped[Array, "b t c"],
        key: Array | None,
    ) -> Float[Array, "b hidden"]:
        return _last_state(network, x)

    def head_outputs(
        self,
        network: Network,
        layer_info: LayerInfo,
        features: Float[Array, "b hidden"],
        input_shape: tuple[int, ...],
    ) -> Float[Array, "b outputs"]:
        return network["classifier"](features)


@register
def gru(hidden: int = 64, layers: int = 1) -> SeriesGRU:
    """GRU layers over windows of series [time, channels]; the last state goes into a
    dense layer.

    Args:
        hidden: width of the state.
        layers: GRU layers on top of one another.

    Raises:
        ValueError: a number is below 1, or (when bound) inputs are not series.

    Example:
        >>> ft.models.gru(hidden=16).bind((32, 6), 4).size
        1220
    """
    require_one_or_more("hidden", hidden)
    return SeriesGRU(hidden, layers)


def _last_state(network: Network, x: Float[Array, "b t c"]) -> Float[Array, "b hidden"]:
    for layer in network["recurrent"]:
        x = layer(x)
    return x[:, -1]


def _series_shape(input_shape: tuple[int, ...], model: str) -> tuple[int, int]:
    """The steps and channels of inputs.

    Raises:
        ValueError: they are not series.
    """
    if len(input_shape) != 2 or math.prod(input_shape) == 0:
        raise ValueError(
            f"{model} takes series [time, channels], not inputs of shape {input_shape};"
            " make windows of a long table with window and time, or choose another"
            f" model, such as mlp{see('errors#inputs-that-are-not-series')}"
        )
    return input_shape[0], input_shape[1]
