"""Second moments of data, and the squared error of a linear model given these."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.algorithms.helpers.own_steps import pass_over_samples
from fedtailor.protocol import (
    Batch,
    LocalTrainer,
    Params,
    ServerState,
    server_state,
    sums_type,
)


@server_state
class WithMoments(ServerState):
    """The common models, and the second moments of all clients' samples."""

    models: Any
    """The server's state of the method that trains them."""
    moments: Float[np.ndarray, "p1 p1_t"] | None
    """Means of u u' and u y' side by side, u = (x, 1); None before the probe."""

    @property
    def model(self) -> Float[Array, "q d"]:
        """The common models."""
        return self.models.model


def models_of(server: Any) -> Any:
    """The state of the common models, which a `WithMoments` may contain."""
    return server.models if isinstance(server, WithMoments) else server


def sums_of_moments(
    theta: Float[Array, " d"], local: LocalTrainer, batch_size: int
) -> tuple[Float[Array, "p1 p1_t"], Float[Array, ""]]:
    """Sums of u u' and u y', side by side, over a client's samples, where u = (x, 1).

    Args:
        theta: any model; the function checks that it is linear, with squared error.
        local: the client.
        batch_size: samples at a time.

    Returns:
        The sums, and the largest |loss - e| / (1 + e) over the samples, where e is the
        squared error of a linear model: about 0 if the model is linear with this loss.
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
        ones = jnp.ones((size, 1), sums_type(theta))
        u = jnp.concatenate([batch.x.reshape(size, -1), ones], axis=1)
        y = batch.y.reshape(size, -1).astype(sums_type(theta))
        sums, deviation = carry
        # A linear model with squared error has the loss |H' u - y|^2 on every sample.
        expected = jnp.square(u @ matrix - y).sum(axis=1)
        outputs = local.logits(params, batch.x, training=False)
        losses = local.losses(outputs, batch.y, batch.weight)
        relative = jnp.abs(losses - expected) / (1 + expected)
        deviations = jnp.where(batch.weight > 0, relative, 0)
        # One product gives both blocks, u' [u, y]; padding has weight 0.
        weighted = u * batch.weight[:, None].astype(u.dtype)
        sums = sums + weighted.T @ jnp.concatenate([u, y], axis=1)
        return sums, jnp.maximum(deviation, deviations.max())

    zero_sums = jnp.zeros((inputs + 1, inputs + 1 + targets), sums_type(theta))
    start = zero_sums, jnp.zeros((), sums_type(theta))
    return pass_over_samples(local, start, add, batch_size, purpose="moments")


def loss_by_moments(
    params: Params,
    moments: Float[Array, "p1 p1_t"],
    local: LocalTrainer,
    input_shape: tuple[int, ...],
) -> Float[Array, ""]:
    """Mean squared error of a linear model on data of these moments, up to a constant.

        tr(H' M_uu H) - 2 tr(H' M_uy)    for the model x -> H' (x, 1)

    Args:
        params: of the model.
        moments: M_uu and M_uy, side by side.
        local: the client.
        input_shape: of an example.
    """
    matrix = _as_matrix(params, local, input_shape)
    m_uu = moments[:, : len(moments)]
    m_uy = moments[:, len(moments) :]
    return jnp.vdot(matrix, m_uu @ matrix) - 2 * jnp.vdot(matrix, m_uy)


def _as_matrix(
    params: Params, local: LocalTrainer, input_shape: tuple[Any, ...]
) -> Float[Array, "p1 t"]:
    """H of the linear model x -> H' (x, 1): its outputs for unit vectors and for 0."""
    size = math.prod(input_shape)
    dtype = jax.tree.leaves(params)[0].dtype
    unit_vectors = jnp.eye(size, dtype=dtype)
    zero = jnp.zeros((1, size), dtype)
    inputs = jnp.concatenate([unit_vectors, zero]).reshape(-1, *input_shape)
    outputs = local.logits(params, inputs, training=False).reshape(size + 1, -1)
    bias = outputs[-1]
    return jnp.concatenate([outputs[:-1] - bias, outputs[-1:]])
