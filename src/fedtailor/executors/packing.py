"""`PackedInputs`: what a client task needs besides streams and states, in one array of
integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from numpy.typing import NDArray

from fedtailor.client.pool import ClientAddress

FIXED = 12
"""Columns before those of the streams: start (3), size (3), key (2) and fixed key (2)
of the address, round, reply.
"""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedInputs:
    """All integers that clients are given, in one array: moving an array to a device
    costs 0.1 ms, whatever its size.

    Attributes:
        numbers: [w] address (10), round, reply, then the streams of every kind of
            message; over a cohort [c, w].
        kinds: for each kind of message its name, and how many streams of it a client
            receives.
    """

    numbers: Int[Array, "*c w"]
    kinds: tuple[tuple[str, int], ...] = field(metadata={"static": True})

    @staticmethod
    def pack(
        padded: int,
        addresses: Sequence[NDArray],
        round: int,
        reply: NDArray[np.bool_],
        recipients: dict[str, NDArray],
    ) -> "PackedInputs":
        """Pack the inputs of a cohort [c].

        Args:
            padded: rows of the result.
            addresses: the fields of the cohort's `ClientAddress`.
            round: the round (0-based).
            reply: [c] which clients are to answer.
            recipients: kind -> [c, k] the streams that each client receives, -1 =
                nothing.

        Returns:
            Host arrays [padded, w]; rows past the cohort have no examples and receive
            nothing.
        """
        count = len(reply)
        kinds = tuple((kind, streams.shape[1]) for kind, streams in recipients.items())
        width = FIXED + sum(columns for _, columns in kinds)
        # Rows of padding: an address without examples, and -1, which receives nothing.
        numbers = np.zeros((padded, width), np.int32)
        numbers[count:, FIXED:] = -1
        columns = [
            *(part.view(np.int32) for part in addresses),
            np.full((count, 1), round),
            reply[:, None],
            *recipients.values(),
        ]
        np.concatenate(columns, axis=1, out=numbers[:count], casting="same_kind")
        return PackedInputs(numbers, kinds)  # pyright: ignore[reportArgumentType] (the program takes host arrays)

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
    def recipients(self) -> dict[str, Int[Array, " k"]]:
        """kind -> the streams that the client receives, -1 = nothing."""
        recipients = {}
        start = FIXED
        for kind, count in self.kinds:
            recipients[kind] = self.numbers[start : start + count]
            start += count
        return recipients
