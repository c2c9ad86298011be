"""Clip: no client moves the server by more than a bound."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.protocol import MODEL_KINDS, ClientUpdate, Inbox, LocalTrainer, Transform, hyperparameters, require


@hyperparameters
class Clip(Transform):
    """Scales what a client sends so that its Euclidean norm is at most `norm` (McMahan et al. 2018, Learning
    Differentially Private Recurrent Language Models, section 2).

    What is measured is the change: of a model against the model received that is nearest to it, of a gradient or
    control against zero. A client that sends several vectors has one norm, over all of them.
    """

    norm: float = 1.0
    """Largest Euclidean norm of a client's change, above 0."""

    def __post_init__(self) -> None:
        require(self.norm > 0, f"norm is {self.norm}; it must be above 0")

    def encode(self, update: ClientUpdate, inbox: Inbox, state: Any, local: LocalTrainer) -> tuple[ClientUpdate, Any]:
        start = {kind: reference(kind, value, inbox) for kind, value in update.items() if kind in MODEL_KINDS}
        change = {kind: update[kind] - start[kind] for kind in start}
        square = sum((jnp.square(value).sum() for value in change.values()), start=jnp.zeros(()))
        scale = jnp.minimum(1.0, self.norm / jnp.maximum(jnp.sqrt(square), jnp.finfo(square.dtype).tiny))
        # a client within the bound sends what it would send without it, to the bit
        clipped = {
            kind: jnp.where(scale < 1, start[kind] + scale.astype(value.dtype) * value, update[kind])
            for kind, value in change.items()
        }
        return {**update, **clipped}, state


def reference(kind: str, value: Float[Array, "*k d"], inbox: Inbox) -> Float[Array, "*k d"]:
    """What a vector that a client sends is a change of: the nearest model that it received, else zero."""
    if kind != "model" or "model" not in inbox.values:
        return jnp.zeros_like(value)
    models, received = inbox["model"], inbox.received["model"]
    distances = jnp.square(value[..., None, :] - models).sum(axis=-1)
    nearest = models[jnp.where(received, distances, jnp.inf).argmin(axis=-1)]
    return jnp.where(received.any(), nearest, 0)
