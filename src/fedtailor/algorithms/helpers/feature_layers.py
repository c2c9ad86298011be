"""Small layers between a model's features and its head, which methods add to models.

Clients and server exchange the arrays of such layers as one vector.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor.algorithms.helpers.own_steps import mean_over
from fedtailor.protocol import Batch, LocalTrainer, Params, StepGradient

Arrays = dict[str, Array]
"""The arrays of layers by name."""


def numbers_of(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The length of the vector of arrays of these shapes."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


def arrays_in(
    vector: Float[Array, " e"], shapes: Mapping[str, tuple[int, ...]]
) -> Arrays:
    """The arrays that a vector holds one after another."""
    arrays, start = {}, 0
    for name, shape in shapes.items():
        end = start + int(np.prod(shape))
        arrays[name] = vector[start:end].reshape(shape)
        start = end
    return arrays


def vector_of(
    arrays: Mapping[str, Array | NDArray[np.float64]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Float[Array, " e"]:
    """The inverse of `arrays_in`."""
    return jnp.concatenate([jnp.asarray(arrays[name]).reshape(-1) for name in shapes])


def dense_arrays(
    rng: np.random.Generator, name: str, inputs: int, outputs: int
) -> dict[str, NDArray[np.float64]]:
    """A dense layer as PyTorch draws it, and a layer norm with gain 1 and offset 0."""
    bound = 1 / np.sqrt(inputs)
    return {
        f"{name} weights": rng.uniform(-bound, bound, (inputs, outputs)),
        f"{name} bias": rng.uniform(-bound, bound, outputs),
        f"{name} gain": np.ones(outputs),
        f"{name} offset": np.zeros(outputs),
    }


def layer_norm(
    z: Float[Array, "*b size"],
    gain: Float[Array, " size"],
    offset: Float[Array, " size"],
) -> Float[Array, "*b size"]:
    """Features with mean 0 and variance 1 over each row, then scaled and moved."""
    centred = z - z.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * gain + offset


def example_features(
    theta: Float[Array, " d"], local: LocalTrainer
) -> jax.ShapeDtypeStruct:
    """The shape [1, ...] and the type of one example's features in a client's model."""
    example = local.draw("features", 0, 1)
    return jax.eval_shape(local.features, local.params(theta), example.x)


def gradient_of_outputs(
    outputs: Callable[[Params, Array], Array], local: LocalTrainer
) -> StepGradient:
    """The gradient of the mean loss of `outputs(params, x)` on a batch."""

    def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        local.count_work(gradients=1)

        def loss(params: Params) -> Float[Array, ""]:
            losses = local.losses(outputs(params, batch.x), batch.y, batch.weight)
            return mean_over(losses, batch.weight)

        return jax.grad(loss)(params)

    return gradient


def flat_features(z: Float[Array, "b ..."]) -> Float[Array, "b size"]:
    """Features as rows."""
    return z.reshape(len(z), -1)
