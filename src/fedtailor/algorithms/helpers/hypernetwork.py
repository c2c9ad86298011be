"""A perceptron on the server that maps a client's embedding to a model."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedtailor.protocol import Inbox

Layers = list[dict[str, Array]]
"""Dense layers with "weights" [in, out] and "bias" [out]; a linear map has no bias."""


def init_layers(rng: np.random.Generator, sizes: Sequence[int], dtype: Any) -> Layers:
    """Layers before training, as PyTorch draws them, but with 0 for the last bias.

    Args:
        rng: draws the weights and biases.
        sizes: of the embedding, the hidden layers and the output. Without hidden layers
            the map is linear and 0.
        dtype: of the layers.
    """
    if len(sizes) == 2:
        return [{"weights": jnp.zeros(tuple(sizes), dtype)}]
    layers: Layers = []
    for inputs, outputs in pairwise(sizes):
        bound = 1 / np.sqrt(inputs)
        weights = rng.uniform(-bound, bound, (inputs, outputs))
        is_last = len(layers) == len(sizes) - 2
        bias = np.zeros(outputs) if is_last else rng.uniform(-bound, bound, outputs)
        layer = {
            "weights": jnp.asarray(weights, dtype),
            "bias": jnp.asarray(bias, dtype),
        }
        layers.append(layer)
    return layers


@jax.jit
def generate(
    layers: Layers, initial: Float[Array, " d"], embedding: Float[Array, "*c e"]
) -> Float[Array, "*c d"]:
    """theta^0 + H(e; phi), the model of each embedding.

    Args:
        layers: phi.
        initial: theta^0, or the part of it that is generated.
        embedding: e, one or several.
    """
    h = embedding
    for number, layer in enumerate(layers):
        h = h @ layer["weights"] + layer.get("bias", 0)
        is_last = number + 1 == len(layers)
        h = h if is_last else jax.nn.relu(h)
    return initial + h


def layers_to_messages(layers: Layers) -> dict[str, Array]:
    """Layers by the kind of their message: "layer 0 weights", "layer 0 bias", ..."""
    messages = {}
    for number, layer in enumerate(layers):
        for name, value in layer.items():
            messages[f"layer {number} {name}"] = value
    return messages


def layers_from_inbox(inbox: Inbox, count: int) -> Layers:
    """The `count` layers that a client received, each as one stream."""
    layers: Layers = []
    for number in range(count):
        names = ("weights", "bias") if count > 1 else ("weights",)
        layers.append({name: inbox.only(f"layer {number} {name}") for name in names})
    return layers
