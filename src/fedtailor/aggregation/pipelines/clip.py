"""Clip: bounds the norm of each client's change."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedtailor._base.choice import require
from fedtailor.aggregation.pipelines.change import change_reference
from fedtailor.protocol import (
    MODEL_KINDS,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Stage,
    Transform,
    hyperparameters,
)


@hyperparameters
class Clip(Transform):
    """Scales a client's change so that its Euclidean norm is at most `norm` (McMahan et
    al. 2018, Learning Differentially Private Recurrent Language Models, section 2).

    The change is the difference between a model and the nearest one that the client
    received; gradients and controls are changes themselves. If a client sends several
    vectors, the norm is that of all of them together.

    Example:
        >>> from fedtailor.aggregation.pipelines import Clip
        >>> short = ft.run(
        ...     ft.FedAvg(),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=1,
        ...     uplink=(Clip(norm=0.5),),
        ... )
        >>> short.summary().rounds
        1
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
        update, _ = clipped(update, inbox, self.norm)
        return update, state

    def largest_norm(
        self, norm: float | None, size: int, announced: float | None = None
    ) -> float | None:
        return smaller_bound(norm, self.norm)


def smaller_bound(norm: float | None, clip_norm: float) -> float:
    """The largest norm after clipping; `norm` is that before it, None without a bound."""
    return clip_norm if norm is None else min(norm, clip_norm)


def clipped(
    update: ClientUpdate,
    inbox: Inbox,
    clip_norm: Any,
    measured_from: Callable[[str, Array, Inbox], Array] = change_reference,
) -> tuple[ClientUpdate, Float[Array, ""]]:
    """Clip the change of an update.

    Args:
        update: the client's messages.
        inbox: what the client received, from which changes are measured.
        clip_norm: the largest Euclidean norm.
        measured_from: (kind, vectors, inbox) -> the vectors from which changes are
            measured.

    Returns:
        A new update, whose change has a norm of at most `clip_norm`, and the norm of the
        change before clipping.
    """
    # One norm over all vectors together bounds everything that a client sends.
    start = {
        kind: measured_from(kind, value, inbox)
        for kind, value in update.items()
        if kind in MODEL_KINDS
    }
    change = {kind: update[kind] - start[kind] for kind in start}
    squared_norm = jnp.zeros(())
    for value in change.values():
        squared_norm = squared_norm + jnp.square(value).sum()
    change_norm = jnp.sqrt(squared_norm)
    tiny = jnp.finfo(change_norm.dtype).tiny
    scale = jnp.minimum(1.0, clip_norm / jnp.maximum(change_norm, tiny))
    clipped_vectors = {}
    for kind, value in change.items():
        scaled = start[kind] + scale.astype(value.dtype) * value
        # A client within the bound sends its vectors unchanged, without rounding errors.
        clipped_vectors[kind] = jnp.where(scale < 1, scaled, update[kind])
    return {**update, **clipped_vectors}, change_norm
