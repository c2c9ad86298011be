"""Cast: sends models in half precision."""

from dataclasses import replace
from typing import ClassVar, Literal

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from fedtailor.aggregation.pipelines.change import replace_vectors
from fedtailor.protocol import (
    ClientRows,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    Stage,
    Streams,
    Transform,
    Update,
    hyperparameters,
)

TYPES = ("float16", "bfloat16")


@hyperparameters
class Cast(Transform):
    """Vectors of the model's size are sent as 16-bit numbers, which halves the bytes;
    clients and server compute in full precision.

    Example:
        >>> from fedtailor.aggregation.pipelines import Cast
        >>> short = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=1, uplink=(Cast(),)
        ... )
        >>> short.summary().bytes_up < run.summary().bytes_up / 2
        True
    """

    name: ClassVar[str] = "cast"
    stage: ClassVar[Stage | None] = "numbers"

    dtype: Literal["float16", "bfloat16"] = "bfloat16"
    """`bfloat16` has the range of single precision and 8 bits of precision, `float16` a
    smaller range and 11 bits.
    """

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        def cast(kind: str, value: Array) -> ClientUpdate:
            return {kind: value.astype(self.dtype)}

        return replace_vectors(update, cast), state

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        def cast_back(kind: str, rows: ClientRows) -> Update:
            values = jnp.asarray(rows.values).astype(_compute_dtype(rows.dtype))
            return {kind: replace(rows, values=values)}

        return replace_vectors(update, cast_back), state

    def largest_norm(
        self, norm: float | None, size: int, announced: float | None = None
    ) -> float | None:
        return norm

    def send(self, downlink: Downlink) -> Downlink:
        def cast(kind: str, streams: Streams) -> dict[str, Streams]:
            values = jnp.asarray(streams.values).astype(self.dtype)
            return {kind: replace(streams, values=values)}

        return replace(downlink, streams=replace_vectors(downlink.streams, cast))

    def receive(self, inbox: Inbox) -> Inbox:
        def cast_back(kind: str, value: Array) -> dict[str, Array]:
            return {kind: value.astype(_compute_dtype(value.dtype))}

        return replace(inbox, values=replace_vectors(inbox.values, cast_back))


def _compute_dtype(dtype: DTypeLike) -> DTypeLike:
    """The dtype to compute in: JAX's default for 16-bit floats; all other dtypes do not
    change.
    """
    return jnp.result_type(float) if dtype in TYPES else dtype
