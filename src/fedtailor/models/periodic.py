"""Periodic embeddings of numbers, for networks on tables (Gorishniy et al. 2022, "On
Embeddings for Numerical Features in Tabular Deep Learning").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor._base.choice import require_one_or_more
from fedtailor.models.layered import Layered, dense_layers
from fedtailor.models.layers import InitStream, Reshape, Stack
from fedtailor.models.registry import register


class PeriodicEmbedding(eqx.Module):
    """Each input x_j -> max(0, W_j [sin(2 pi c_j x_j), cos(2 pi c_j x_j)] + b_j): [b,
    inputs] -> [b, inputs width].

    Frequencies c and biases are stored as vectors, as a penalty of weights would pull them
    to 0, and an input of frequency 0 is a constant.
    """

    frequency: Float[Array, " inputs_frequencies"]
    weight: Float[Array, "inputs waves width"]
    bias: Float[Array, " inputs_width"]

    def __init__(
        self,
        inputs: int,
        frequencies: int,
        width: int,
        sigma: float,
        stream: InitStream,
    ) -> None:
        self.frequency = sigma * stream.normal((inputs * frequencies,))
        waves = 2 * frequencies
        self.weight = stream.uniform((inputs, waves, width), waves)
        self.bias = stream.uniform((inputs * width,), waves)

    def __call__(
        self, x: Float[Array, "b inputs"], key: Array | None = None
    ) -> Float[Array, "b outputs"]:
        rows, inputs = x.shape
        # [inputs, b, frequencies], so that the product is one of each input's matrices.
        angles = 2 * math.pi * x.T[..., None] * self.frequency.reshape(inputs, 1, -1)
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        embedded = (waves @ self.weight).swapaxes(0, 1).reshape(rows, -1)
        return jax.nn.relu(embedded + self.bias)


@dataclass(frozen=True)
class PeriodicMLP(Layered):
    """A periodic embedding of each input, and dense layers with ReLU between them."""

    hidden: tuple[int, ...]
    frequencies: int
    width: int
    sigma: float

    def network(
        self, input_shape: tuple[int, ...], outputs: int, stream: InitStream
    ) -> Stack:
        inputs = math.prod(input_shape)
        return Stack(
            [
                Reshape((inputs,)),
                PeriodicEmbedding(
                    inputs, self.frequencies, self.width, self.sigma, stream
                ),
                *dense_layers(inputs * self.width, (*self.hidden, outputs), stream),
            ]
        )


@register
def periodic_mlp(
    hidden: int | Sequence[int] = 32,
    frequencies: int = 8,
    width: int = 8,
    sigma: float = 0.3,
) -> PeriodicMLP:
    """A multilayer perceptron on periodic embeddings of its inputs, for targets that rise
    and fall with a number (MLP-PLR of Gorishniy et al. 2022, section 3.3).

    Each input, standardised as those of tables are, passes through sines and cosines of
    trained frequencies, a dense layer of its own and ReLU.

    Args:
        hidden: the width of the hidden layer, or of each of several.
        frequencies: the number of frequencies of an input.
        width: the numbers into which an input is embedded.
        sigma: the standard deviation of the initial frequencies, which are normal, in
            periods for each unit of the input.

    Raises:
        ValueError: a number of units is below 1, or sigma is not a positive number.

    Example:
        >>> ft.models.periodic_mlp().bind((4,), 3).size
        1731
    """
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    require_one_or_more("frequencies", frequencies)
    require_one_or_more("width", width)
    require_one_or_more("hidden", *widths)
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma is {sigma}; it must be a number above 0")
    return PeriodicMLP(widths, frequencies, width, sigma)
