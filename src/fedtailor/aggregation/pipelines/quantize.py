"""Quantize: changes are sent as 8-bit integers."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int8, PyTree, Shaped

from fedtailor._base.choice import require_one_or_more
from fedtailor.aggregation.pipelines.change import (
    change_of,
    change_reference,
    indices_kind,
    received_rows,
    replace_vectors,
    scale_kind,
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

LEVELS = 127
"""The largest integer that is sent."""


@hyperparameters
class Quantize(Transform):
    """A client sends its change of the received model as 8-bit integers, rounded at
    random so that their expectation is the change itself (Alistarh et al. 2017, QSGD,
    section 3.1, with the largest entry as the norm).

        x_j -> s floor(x_j / s + u_j),    s = max_block |x| / 127,    u_j uniform in [0, 1)

    An entry takes one byte, and a block 4 more: about a quarter of 32-bit numbers.
    A running variance that rounding down would send below 0 is rounded up. Gradients and
    controls are changes themselves. After `TopK`, the entries that it has selected are
    rounded.

    Example:
        >>> from fedtailor.aggregation.pipelines import Quantize
        >>> short = ft.run(
        ...     ft.FedAvg(),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=1,
        ...     uplink=(Quantize(),),
        ... )
        >>> short.summary().bytes_up < run.summary().bytes_up / 4
        True
    """

    name: ClassVar[str] = "quantize"
    stage: ClassVar[Stage | None] = "numbers"

    block: int = 1024
    """Consecutive entries that share a scale, 1 or more."""

    def __post_init__(self) -> None:
        require_one_or_more("block", self.block)

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        def as_integers(kind: str, value: Array) -> ClientUpdate:
            # After `TopK` the value is a change already.
            is_change = indices_kind(kind) in update
            change, start = (value, {}) if is_change else change_of(kind, value, inbox)
            # Each kind has its own key, so that their roundings are independent.
            index = sorted(MODEL_KINDS).index(kind)
            key = jax.random.fold_in(local.key("quantize"), index)
            integers, scale = rounded(change, self.block, key)
            if kind == "model" and local.has_statistics:
                # The model to which the server will add the change, where it is sent
                reference = self._reference(value, update, inbox)
                is_variance = _is_variance(local, reference.shape[-1])
                if is_change:
                    indices = update[indices_kind(kind)].astype(jnp.int32)
                    reference = jnp.take_along_axis(reference, indices, axis=-1)
                    is_variance = is_variance[indices]
                sent = reference + restored(integers, scale, self.block)
                falls = is_variance & (sent < 0) & (integers < LEVELS)
                integers = integers + falls.astype(jnp.int8)
            return {kind: integers, scale_kind(kind): scale, **start}

        return replace_vectors(update, as_integers), state

    def _reference(
        self, value: Float[Array, "*k n"], update: ClientUpdate, inbox: Inbox
    ) -> Float[Array, "*k d"]:
        """The received model that the change of each model is measured from."""
        if indices_kind("model") not in update:
            return change_reference("model", value, inbox)
        # `TopK` has chosen it, and says which one it is if there are several.
        start = update.get(start_kind("model"), jnp.zeros(value.shape[:-1], jnp.int32))
        return jnp.where(
            inbox.received["model"].any(), inbox["model"][start.astype(jnp.int32)], 0
        )

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        # `TopK` encodes before this transform and decodes after it. If it is used, it adds
        # the received models to the changes.
        adds_models = not any(indices_kind(kind) in update for kind in MODEL_KINDS)
        accompanying = (scale_kind, start_kind) if adds_models else (scale_kind,)

        def as_vectors(kind: str, rows: ClientRows) -> Update:
            values = restored(rows.values, update[scale_kind(kind)].values, self.block)
            if adds_models:
                values = values + received_rows(kind, update, downlink)
            return {kind: replace(rows, values=values)}

        return replace_vectors(without(update, *accompanying), as_vectors), state

    def largest_norm(
        self, norm: float | None, size: int, announced: float | None = None
    ) -> float | None:
        # An entry moves by less than s = max_block |x| / 127 <= |block| / 127.
        moved = math.sqrt(min(self.block, size)) / LEVELS
        return None if norm is None else norm * (1 + moved)


def _is_variance(local: LocalTrainer, size: int) -> Bool[Array, " d"]:
    """Which entries of a model are running variances."""
    zeros = local.params(jnp.zeros(size))
    statistics = local.with_statistics(zeros, local.params(jnp.ones(size)))

    def kept(keys: Any, values: Array) -> Array:
        name = jax.tree_util.keystr(keys, simple=True, separator=".")
        return values * ("var" in name.rpartition(".")[2])

    return local.vector(jax.tree_util.tree_map_with_path(kept, statistics)) > 0


def rounded(
    x: Float[Array, "*k d"], block: int, key: Array
) -> tuple[Int8[Array, "*k d"], Float[Array, "*k blocks"]]:
    """Round vectors to integers; see `Quantize`.

    Args:
        x: one vector, or several.
        block: the number of entries that share a scale.
        key: the random key of the rounding.

    Returns:
        The integers, and the scale of each block.
    """
    # x / s is between -127 and 127. floor(x / s + u) is one of the two integers around
    # it, and its expectation is x / s. A block of zeros has scale 0 and is divided by 1.
    blocks = _to_blocks(x, block)
    scale = jnp.abs(blocks).max(axis=-1) / LEVELS
    steps = blocks / jnp.where(scale > 0, scale, 1)[..., None]
    steps = jnp.floor(steps + jax.random.uniform(key, steps.shape, steps.dtype))
    # 127 + u may be 128 in floating point.
    integers = jnp.clip(steps, -LEVELS, LEVELS).astype(jnp.int8)
    return _from_blocks(integers, x.shape[-1]), scale


def restored(integers: ArrayLike, scale: ArrayLike, block: int) -> Float[Array, "*k d"]:
    """The vectors that integers and scales encode: the inverse of `rounded`, up to
    rounding.
    """
    integers = jnp.asarray(integers)
    scale = jnp.asarray(scale)
    blocks = _to_blocks(integers, block).astype(scale.dtype) * scale[..., None]
    return _from_blocks(blocks, integers.shape[-1])


def _to_blocks(
    x: Shaped[Array, "*k d"], block: int
) -> Shaped[Array, "*k blocks block"]:
    """Split vectors into blocks. The last block is padded with zeros."""
    *leading, size = x.shape
    count = math.ceil(size / block)
    padding = [(0, 0)] * len(leading) + [(0, count * block - size)]
    return jnp.pad(x, padding).reshape(*leading, count, block)


def _from_blocks(
    blocks: Shaped[Array, "*k blocks block"], size: int
) -> Shaped[Array, "*k d"]:
    """Join blocks to vectors of `size` entries: the inverse of `_to_blocks`."""
    *leading, _, _ = blocks.shape
    return blocks.reshape(*leading, -1)[..., :size]
