"""`PackedInputs`: what a client task needs besides streams and states, in one array of
integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from fedtailor.engine.client.pool import ClientAddress
from fedtailor.protocol import NOT_SENT

FIRST_STREAM = 12
"""The first column of the streams. The columns before it are start (3), size (3), key (2)
and fixed key (2) of the address, round, and reply.
"""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedInputs:
    """All integers that clients receive, in one array, because moving an array to a
    device costs 0.1 ms, whatever its size.

    Attributes:
        numbers: [w] address (10), round, reply, then the streams of every kind of
            message, and the bits of its weights; over a cohort [c, w].
        kinds: for each kind of message its name, and how many streams of it a client
            receives.
        sums: in how many sums the client has a weight.
        weight_type: the type of its weights.
    """

    numbers: Int[Array, "*c w"]
    kinds: tuple[tuple[str, int], ...] = field(metadata={"static": True})
    sums: int = field(default=0, metadata={"static": True})
    weight_type: str = field(default="float32", metadata={"static": True})

    @staticmethod
    def pack(
        row_count: int,
        addresses: Sequence[NDArray],
        rounds: NDArray[np.int64],
        reply: NDArray[np.bool_],
        stream_index: dict[str, NDArray],
        rows: NDArray[np.int64] | None = None,
        weights: Float[np.ndarray, "c sums"] | None = None,
    ) -> "PackedInputs":
        """Pack the inputs of a cohort [c].

        Args:
            row_count: the number of rows of the result.
            addresses: the fields of the cohort's `ClientAddress`.
            rounds: [c] the round in which each client began (0-based).
            reply: [c] which clients are to answer.
            stream_index: kind -> [c, k] the indices of the streams that each client
                receives, or `NOT_SENT`.
            rows: [c] the row of each client; None = the first c rows.
            weights: the weights of each client in sums; None = there are no sums.

        Returns:
            Host arrays [row_count, w]. All other rows are padding: these clients have no
            examples, receive nothing, and have no weight.
        """
        count = len(reply)
        kinds = tuple((kind, index.shape[1]) for kind, index in stream_index.items())
        width = FIRST_STREAM + sum(columns for _, columns in kinds)
        if weights is None:
            weights = np.zeros((count, 0), np.float32)
        words = np.ascontiguousarray(weights).view(np.int32)
        # Padding has an address without examples, and receives no stream.
        numbers = np.zeros((row_count, width + words.shape[1]), np.int32)
        numbers[count if rows is None else 0 :, FIRST_STREAM:width] = NOT_SENT
        columns = [
            *(part.view(np.int32) for part in addresses),
            rounds[:, None],
            reply[:, None],
            *stream_index.values(),
            words,
        ]
        if rows is None:
            np.concatenate(columns, axis=1, out=numbers[:count], casting="same_kind")
        else:
            numbers[rows] = np.concatenate(columns, axis=1, casting="same_kind")
        return PackedInputs(
            numbers,  # pyright: ignore[reportArgumentType] (the program takes host arrays)
            kinds,
            weights.shape[1],
            weights.dtype.name,
        )

    def padding(self) -> "PackedInputs":
        """As many rows of padding [c, w]."""
        numbers = np.zeros(self.numbers.shape, np.int32)
        width = FIRST_STREAM + sum(count for _, count in self.kinds)
        numbers[:, FIRST_STREAM:width] = NOT_SENT
        return replace(self, numbers=numbers)

    @property
    def address(self) -> ClientAddress:
        """Where the client's examples are, and its keys."""
        # Keys are unsigned words, which were packed as signed ones, bit for bit.
        keys = jax.lax.bitcast_convert_type(self.numbers[6:10], jnp.uint32)
        return ClientAddress(self.numbers[:3], self.numbers[3:6], keys[:2], keys[2:])

    @property
    def round(self) -> Int[Array, ""]:
        """The round (0-based)."""
        return self.numbers[10]

    @property
    def reply(self) -> Bool[Array, ""]:
        """Whether the server will use the client's answer."""
        return self.numbers[11] != 0

    @property
    def weights(self) -> Float[Array, " sums"]:
        """The client's weight in each sum."""
        if not self.sums:
            return jnp.zeros(0, self.weight_type)
        first = FIRST_STREAM + sum(count for _, count in self.kinds)
        # A number of 64 bits takes two words.
        words = self.numbers[first:].reshape(self.sums, -1)
        is_word = words.shape[1] == 1
        bits = words[:, 0] if is_word else words
        return jax.lax.bitcast_convert_type(bits, jnp.dtype(self.weight_type))

    @property
    def stream_index(self) -> dict[str, Int[Array, " k"]]:
        """kind -> the indices of the streams that the client receives, or `NOT_SENT`."""
        stream_index = {}
        start = FIRST_STREAM
        for kind, count in self.kinds:
            stream_index[kind] = self.numbers[start : start + count]
            start += count
        return stream_index
