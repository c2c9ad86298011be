"""Cast: models travel in half precision."""

from dataclasses import replace
from typing import Any, Literal

import jax.numpy as jnp

from fedtailor.protocol import (
    MODEL_KINDS,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    Transform,
    hyperparameters,
    require,
)
from fedtailor.protocol.pipeline import Update

TYPES = ("float16", "bfloat16")


@hyperparameters
class Cast(Transform):
    """Vectors of the model's size travel as 16-bit numbers, which halves the bytes; everybody computes as before."""

    dtype: Literal["float16", "bfloat16"] = "bfloat16"
    """`bfloat16` keeps the range of single precision (8 bits of precision), `float16` more precision (11 bits)."""

    def __post_init__(self) -> None:
        require(self.dtype in TYPES, f"dtype is {self.dtype!r}; it must be one of {', '.join(TYPES)}")

    def encode(self, update: ClientUpdate, inbox: Inbox, state: Any, local: LocalTrainer) -> tuple[ClientUpdate, Any]:
        narrow = {kind: value.astype(self.dtype) for kind, value in update.items() if kind in MODEL_KINDS}
        return {**update, **narrow}, state

    def decode(self, update: Update, downlink: Downlink, cohort: Cohort) -> Update:
        wide = {
            kind: replace(rows, values=jnp.asarray(rows.values).astype(_computing_type(rows.dtype)))
            for kind, rows in update.items()
            if kind in MODEL_KINDS
        }
        return {**update, **wide}

    def send(self, downlink: Downlink) -> Downlink:
        narrow = {
            kind: replace(sent, values=jnp.asarray(sent.values).astype(self.dtype))
            for kind, sent in downlink.streams.items()
            if kind in MODEL_KINDS
        }
        return replace(downlink, streams={**downlink.streams, **narrow})

    def receive(self, inbox: Inbox) -> Inbox:
        wide = {
            kind: value.astype(_computing_type(value.dtype))
            for kind, value in inbox.values.items()
            if kind in MODEL_KINDS
        }
        return replace(inbox, values={**inbox.values, **wide})


def _computing_type(dtype: Any) -> Any:
    """The type that clients and server compute in, for what travelled in `dtype`."""
    return jnp.result_type(float) if dtype in TYPES else dtype
