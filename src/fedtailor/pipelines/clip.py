"""Clip: no client moves the server by more than a bound."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedtailor.pipelines.change import reference
from fedtailor.protocol import (
    MODEL_KINDS,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Stage,
    Transform,
    hyperparameters,
    require,
)


@hyperparameters
class Clip(Transform):
    """Scales what a client sends so that its Euclidean norm is at most `norm` (McMahan
    et al. 2018, Learning Differentially Private Recurrent Language Models, section 2).

    What is measured is the change: of a model against the model received that is
    nearest to it, of a gradient or control against zero. A client that sends several
    vectors has one norm, over all of them.
    """

    name: ClassVar[str] = "clip"
    stage: ClassVar[Stage | None] = "bound"

    norm: float = 1.0
    """Largest Euclidean norm of a client's change, above 0."""

    def __post_init__(self) -> None:
        require(self.norm > 0, f"norm is {self.norm}; it must be above 0")

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        return clipped(update, inbox, self.norm)[0], state


def clipped(
    update: ClientUpdate, inbox: Inbox, norm: Any
) -> tuple[ClientUpdate, Float[Array, ""]]:
    """Clip the change of an update.

    Args:
        update: the client's messages.
        inbox: what it received, of which `update` is a change.
        norm: the largest Euclidean norm.

    Returns:
        The update with a change of at most `norm`, and the norm of the change before.
    """
    # One norm over all vectors together bounds everything that a client can do to the
    # server.
    start = {
        kind: reference(kind, value, inbox)
        for kind, value in update.items()
        if kind in MODEL_KINDS
    }
    change = {kind: update[kind] - start[kind] for kind in start}
    squared_norm = jnp.zeros(())
    for value in change.values():
        squared_norm = squared_norm + jnp.square(value).sum()
    length = jnp.sqrt(squared_norm)
    tiny = jnp.finfo(length.dtype).tiny
    scale = jnp.minimum(1.0, norm / jnp.maximum(length, tiny))
    clipped_vectors = {}
    for kind, value in change.items():
        scaled = start[kind] + scale.astype(value.dtype) * value
        # A client within the bound sends what it would send without it, to the bit.
        clipped_vectors[kind] = jnp.where(scale < 1, scaled, update[kind])
    return {**update, **clipped_vectors}, length
