"""TopK: the largest changes are sent first, and the others later."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, PyTree

from fedtailor._base.choice import require
from fedtailor.aggregation.pipelines.change import (
    change_of,
    indices_kind,
    received_rows,
    replace_vectors,
    start_kind,
    without,
)
from fedtailor.protocol import (
    MODEL_KINDS,
    ClientRows,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    Stage,
    Transform,
    Update,
    hyperparameters,
)


@hyperparameters
class TopK(Transform):
    """A client sends the largest entries of its change of the received model, and their
    indices.

    The client keeps the other entries in a memory and adds them to its next change (error
    feedback: Stich et al. 2018, Sparsified SGD with Memory, algorithm 1), so that they are
    delayed and not lost:

        y = change + memory,    sent = the entries of y that are largest in absolute value,    memory = y - sent

    A value takes 4 bytes, and its index 2, or 4 in models of more than 65,536
    parameters. For entries that are not sent, the server uses those of the model that the
    client received; for gradients and controls, zero.

    Example:
        >>> from fedtailor.aggregation.pipelines import TopK
        >>> short = ft.run(
        ...     ft.FedAvg(),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=1,
        ...     uplink=(TopK(0.1),),
        ... )
        >>> short.summary().bytes_up < run.summary().bytes_up / 4
        True
    """

    name: ClassVar[str] = "top-k"
    stage: ClassVar[Stage | None] = "entries"

    fraction: Any = 0.01
    """The share of each vector's entries that is sent, in (0, 1]; at least one entry."""
    feedback: bool = True
    """Whether clients add the entries that are not sent to their next change (error
    feedback)."""

    def __post_init__(self) -> None:
        is_bool = isinstance(self.fraction, bool)
        is_number = isinstance(self.fraction, int | float) and not is_bool
        require(
            is_number and 0 < self.fraction <= 1,
            f"fraction is {self.fraction!r}; it must be a number in (0, 1]",
        )

    def init(self, theta: Float[Array, " d"]) -> PyTree:
        return jnp.zeros_like(theta) if self.feedback else ()

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        num_vectors = sum(kind in MODEL_KINDS for kind in update)

        def largest_changes(kind: str, value: Array) -> ClientUpdate:
            nonlocal state
            size = value.shape[-1]
            require(
                "model" in inbox.values and size == inbox["model"].shape[-1],
                f"top-k needs a {kind} of the length of the models that clients are"
                " sent",
            )
            change, start = change_of(kind, value, inbox)
            if self.feedback:
                require(
                    num_vectors == 1 and value.ndim == 1 and size <= len(state),
                    "what top-k did not send of several vectors it cannot keep; set"
                    " feedback = false for a method whose clients send more than one",
                )
                # y = change + memory
                change = change + state[:size]
            values, indices = largest(change, max(1, round(self.fraction * size)))
            if self.feedback:
                # memory = y - sent, which is 0 at the indices that are sent
                rest = change.at[indices].set(0)
                if local.has_statistics and size == len(state):
                    # What a running variance has not fallen by yet must not be taken
                    # from it later, when it is smaller.
                    none = local.params(jnp.zeros_like(rest))
                    rest = local.vector(local.with_statistics(local.params(rest), none))
                memory = state.at[:size].set(rest)
                # A client that is not asked for its update sends nothing.
                state = jnp.where(inbox.reply, memory, state)
            return {kind: values, indices_kind(kind): indices, **start}

        return replace_vectors(update, largest_changes), state

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        def as_vectors(kind: str, rows: ClientRows) -> Update:
            size = int(downlink.streams["model"].values.shape[-1])
            indices = jnp.asarray(update[indices_kind(kind)].values)
            change = scattered(jnp.asarray(rows.values), indices, size)
            values = change + received_rows(kind, update, downlink)
            return {kind: replace(rows, values=values)}

        vectors = without(update, indices_kind, start_kind)
        return replace_vectors(vectors, as_vectors), state

    def largest_norm(
        self, norm: float | None, size: int, announced: float | None = None
    ) -> float | None:
        if norm is None or not self.feedback:
            return norm
        # |y - sent| <= q |y| with q = sqrt(1 - k / d), and y = change + memory, so that
        # memory <= q (norm + memory), and sent <= y <= norm + memory <= norm / (1 - q).
        count = max(1, round(self.fraction * size))
        return norm / (1 - math.sqrt(1 - count / size))


def largest(
    x: Float[Array, "*n d"], count: int
) -> tuple[Float[Array, "*n k"], Integer[Array, "*n k"]]:
    """The entries of each vector that are largest in absolute value.

    Returns:
        Their values and their indices, in ascending order of indices. The indices are
        16-bit integers if these suffice for d entries, else 32-bit integers.
    """
    _, indices = jax.lax.top_k(jnp.abs(x), count)
    indices = jnp.sort(indices, axis=-1)
    has_short_indices = x.shape[-1] <= np.iinfo(np.uint16).max + 1
    values = jnp.take_along_axis(x, indices, axis=-1)
    return values, indices.astype(jnp.uint16 if has_short_indices else jnp.int32)


def scattered(
    values: Float[Array, "*n k"], indices: Integer[Array, "*n k"], size: int
) -> Float[Array, "*n d"]:
    """Vectors [..., size] with values at some indices, and zeros elsewhere."""
    *leading, count = values.shape
    flat = values.reshape(-1, count)
    columns = indices.astype(jnp.int32).reshape(-1, count)
    rows = jnp.arange(len(flat))[:, None]
    zeros = jnp.zeros((len(flat), size), values.dtype)
    return zeros.at[rows, columns].set(flat).reshape(*leading, size)
