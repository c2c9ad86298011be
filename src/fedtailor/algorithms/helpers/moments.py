"""Second moments of a client's samples, and the squared error of a linear model on the
data that they describe.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.protocol import (
    SGD,
    Batch,
    LocalTrainer,
    Params,
    ServerState,
    server_state,
)


@server_state
class WithMoments(ServerState):
    """The common models, and the second moments of all clients' samples."""

    models: Any
    """What training goes on from."""
    moments: Float[np.ndarray, "p1 p1_t"] | None
    """Means of u u' and u y' side by side, u = (x, 1); None before the probe."""

    @property
    def model(self) -> Float[Array, "q d"]:
        """The common models."""
        return self.models.model


def models_of(server: Any) -> Any:
    """The state of the common models, with or without moments beside it."""
    return server.models if isinstance(server, WithMoments) else server


def sums_of_moments(
    theta: Float[Array, " d"], local: LocalTrainer, batch_size: int
) -> tuple[Float[Array, "p1 p1_t"], Float[Array, ""]]:
    """Sums over a client's training samples of u u' and u y', side by side, where u =
    (x, 1).

    Args:
        theta: any model, whose form is looked at.
        batch_size: samples at a time.

    Returns:
        The sums, and by how much at most the loss of theta on a sample differs from the
        squared error of a linear model, relative to one more than that error.
    """
    example = local.draw("moments", 0, 1)
    input_shape = example.x.shape[1:]
    inputs = math.prod(input_shape)
    targets = math.prod(example.y.shape[1:])
    params = local.params(theta)
    matrix = _as_matrix(params, local, input_shape)

    def add(
        carry: tuple[Array, Array], batch: Batch, step: Int[Array, ""]
    ) -> tuple[Array, Array]:
        local.count_work(forwards=1)
        size = len(batch.x)
        ones = jnp.ones((size, 1), theta.dtype)
        u = jnp.concatenate([batch.x.reshape(size, -1), ones], axis=1)
        y = batch.y.reshape(size, -1).astype(theta.dtype)
        sums, deviation = carry
        # Is the model linear and its loss the squared error? Then its losses are |H' u
        # - y|^2 on every sample.
        expected = jnp.square(u @ matrix - y).sum(axis=1)
        losses = local.losses(local.logits(params, batch.x, training=False), batch.y)
        relative = jnp.abs(losses - expected) / (1 + expected)
        of_samples = jnp.where(batch.weight > 0, relative, 0)
        # Padding weighs nothing. One product gives both blocks: u' [u, y].
        weighted = u * batch.weight[:, None].astype(u.dtype)
        sums = sums + weighted.T @ jnp.concatenate([u, y], axis=1)
        return sums, jnp.maximum(deviation, of_samples.max())

    no_sums = jnp.zeros((inputs + 1, inputs + 1 + targets), theta.dtype)
    zero = no_sums, jnp.zeros((), theta.dtype)
    steps = local.steps(SGD(batch_size=batch_size))
    return local.loop(zero, add, steps, batch_size, purpose="moments")


def loss_by_moments(
    params: Params,
    moments: Float[Array, "p1 p1_t"],
    local: LocalTrainer,
    input_shape: tuple[int, ...],
) -> Float[Array, ""]:
    """Mean squared error of a linear model on data of these moments, less a constant.

    tr(H' M_uu H) - 2 tr(H' M_uy)    for the model x -> H' (x, 1)
    """
    matrix = _as_matrix(params, local, input_shape)
    of_inputs, with_targets = moments[:, : len(moments)], moments[:, len(moments) :]
    return jnp.vdot(matrix, of_inputs @ matrix) - 2 * jnp.vdot(matrix, with_targets)


def _as_matrix(
    params: Params, local: LocalTrainer, input_shape: tuple[Any, ...]
) -> Float[Array, "p1 t"]:
    """H of the linear model x -> H' (x, 1), from its outputs for unit vectors and for
    zero.
    """
    size = math.prod(input_shape)
    dtype = jax.tree.leaves(params)[0].dtype
    unit_vectors = jnp.eye(size, dtype=dtype)
    zero = jnp.zeros((1, size), dtype)
    inputs = jnp.concatenate([unit_vectors, zero]).reshape(-1, *input_shape)
    outputs = local.logits(params, inputs, training=False).reshape(size + 1, -1)
    bias = outputs[-1]
    return jnp.concatenate([outputs[:-1] - bias, outputs[-1:]])
