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
    Update,
    hyperparameters,
    require,
)

TYPES = ("float16", "bfloat16")


@hyperparameters
class Cast(Transform):
    """Vectors of the model's size travel as 16-bit numbers, which halves the bytes; everybody computes as before."""

    dtype: Literal["float16", "bfloat16"] = "bfloat16"
    """`bfloat16` keeps the range of single precision (8 bits of precision), `float16` more precision (11 bits)."""

    def __post_init__(self) -> None:
        require(self.dtype in TYPES, f"dtype is {self.dtype!r}; it must be one of {', '.join(TYPES)}")

    def encode(self, update: ClientUpdate, inbox: Inbox, state: Any, local: LocalTrainer) -> tuple[ClientUpdate, Any]:
        return {kind: self._narrow(value) if kind in MODEL_KINDS else value for kind, value in update.items()}, state

    def decode(self, update: Update, downlink: Downlink, cohort: Cohort, state: Any) -> tuple[Update, Any]:
        return {
            kind: replace(rows, values=jnp.asarray(rows.values).astype(_wide(rows.dtype)))
            if kind in MODEL_KINDS
            else rows
            for kind, rows in update.items()
        }, state

    def send(self, downlink: Downlink) -> Downlink:
        streams = {
            kind: replace(sent, values=self._narrow(jnp.asarray(sent.values))) if kind in MODEL_KINDS else sent
            for kind, sent in downlink.streams.items()
        }
        return replace(downlink, streams=streams)

    def receive(self, inbox: Inbox) -> Inbox:
        values = {
            kind: value.astype(_wide(value.dtype)) if kind in MODEL_KINDS else value
            for kind, value in inbox.values.items()
        }
        return replace(inbox, values=values)

    def _narrow(self, values: Any) -> Any:
        return values.astype(self.dtype)


def _wide(dtype: Any) -> Any:
    """The type that everybody computes in: that of JAX's floating-point numbers."""
    return jnp.result_type(float) if dtype in TYPES else dtype
