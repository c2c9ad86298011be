"""Quantize: changes travel as bytes."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

from fedtailor.pipelines.change import (
    places_kind,
    received_rows,
    reference,
    scale_kind,
    start_kind,
    which_reference,
)
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

LEVELS = 127
"""Largest integer that travels."""


@hyperparameters
class Quantize(Transform):
    """What a client changed of the model that it received travels as 8-bit integers, rounded at random so that the
    expectation is the change itself (Alistarh et al. 2017, QSGD, section 3.1, with the largest entry as the norm).

        x_j -> s floor(x_j / s + u_j),    s = max_block |x| / 127,    u_j uniform in [0, 1)

    One byte an entry, and 4 bytes a block: about a quarter of 32 bits. Gradients and controls are rounded themselves.
    After `TopK` the entries that travel are rounded.
    """

    block: int = 1024
    """Consecutive entries that share a scale, 1 or more."""

    def __post_init__(self) -> None:
        require(self.block >= 1, f"block is {self.block}; it must be 1 or more")

    def encode(self, update: ClientUpdate, inbox: Inbox, state: Any, local: LocalTrainer) -> tuple[ClientUpdate, Any]:
        sent = dict(update)
        for kind, value in update.items():
            if kind not in MODEL_KINDS:
                continue
            change = value
            if places_kind(kind) not in update:  # else `TopK` has made it a change
                change = value - reference(kind, value, inbox)
                sent |= which_reference(kind, value, inbox)
            key = jax.random.fold_in(local.key("quantize"), sorted(MODEL_KINDS).index(kind))
            sent[kind], sent[scale_kind(kind)] = rounded(change, self.block, key)
        return sent, state

    def decode(self, update: Update, downlink: Downlink, cohort: Cohort, state: Any) -> tuple[Update, Any]:
        seen = {kind: rows for kind, rows in update.items() if kind not in {scale_kind(one) for one in MODEL_KINDS}}
        for kind, rows in update.items():
            if kind not in MODEL_KINDS:
                continue
            values = restored(rows.values, update[scale_kind(kind)].values, self.block)
            if places_kind(kind) not in update:
                values = values + received_rows(kind, update, downlink)
                seen.pop(start_kind(kind), None)
            seen[kind] = replace(rows, values=values)
        return seen, state


def rounded(x: Float[Array, "*k d"], block: int, key: Array) -> tuple[Int8[Array, "*k d"], Float[Array, "*k blocks"]]:
    """A vector as integers, and the scale of each block; see `Quantize`."""
    blocks = _blocks(x, block)
    scale = jnp.abs(blocks).max(axis=-1) / LEVELS
    steps = blocks / jnp.where(scale > 0, scale, 1)[..., None]
    steps = jnp.floor(steps + jax.random.uniform(key, steps.shape, steps.dtype))
    # 127 + u may round up to 128
    whole = jnp.clip(steps, -LEVELS, LEVELS).astype(jnp.int8)
    return whole.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]], scale


def restored(whole: Any, scale: Any, block: int) -> Float[Array, "*k d"]:
    """The vector that integers and scales stand for."""
    whole = jnp.asarray(whole)
    blocks = _blocks(whole, block).astype(scale.dtype) * jnp.asarray(scale)[..., None]
    return blocks.reshape(*whole.shape[:-1], -1)[..., : whole.shape[-1]]


def _blocks(x: Array, block: int) -> Array:
    """[..., d] as [..., blocks, block], filled up with zeros."""
    count = -(-x.shape[-1] // block)
    filled = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * block - x.shape[-1])])
    return filled.reshape(*x.shape[:-1], count, block)
