"""Messages: a `Downlink` from the server to a cohort, the `Inbox` that one client sees
of it, and the `ClientUpdate` that the client sends back.

Every message has a kind ("model", "gradient", "control", ...). A downlink has one or more
streams of a kind, of which each client receives some: with several models on the server,
client i is sent the model of its cluster only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from numpy.typing import NDArray

ClientUpdate = dict[str, Array]
"""What one client sends: kind -> array. An array of shape () is counted as a scalar, all
others in bytes.
"""


NOT_SENT = -1
"""In `Streams.recipients`: the client receives nothing at this position."""

Scalars = float | NDArray[np.floating] | NDArray[np.integer] | Array
"""One number for all clients of a cohort, or one number for each client [c]."""


@dataclass(frozen=True)
class Streams:
    """s different arrays of one kind, and which clients receive which of them.

    Attributes:
        values: the streams, [s, ...]: models [s, d], controls [s, d], examples [s, n,
            ...].
        recipients: [c, k] the rows of `values` that each client of the cohort receives,
            k at most; `NOT_SENT` (-1) fills the rest for a client that receives fewer.
        already_held: whether the clients have these values already, so that the ledger
            counts nothing (UCFL's first round starts from the model of the probe).
    """

    values: Shaped[Array, "s ..."]
    recipients: Int[np.ndarray, "c k"]
    already_held: bool = False

    @staticmethod
    def everyone(
        theta: Float[Array, "*one d"], clients: int, already_held: bool = False
    ) -> "Streams":
        """One stream for all clients of the cohort.

        Args:
            theta: a vector [d], or an array [1, ...].
            clients: the size of the cohort.
            already_held: as in `Streams`.

        Returns:
            Streams [1, ...], of which every client receives row 0.
        """
        values = theta.reshape(1, -1) if theta.ndim == 1 else theta
        return Streams(values, np.zeros((clients, 1), np.int32), already_held)

    @staticmethod
    def one_each(values: Shaped[Array, "c ..."]) -> "Streams":
        """A stream of its own for each client of the cohort, in the order of the
        cohort.
        """
        own = np.arange(len(values), dtype=np.int32)
        return Streams(values, own[:, None])

    @staticmethod
    def by_index(
        values: Shaped[Array, "s ..."],
        index: Int[np.ndarray, " c"],
        already_held: bool = False,
    ) -> "Streams":
        """One stream to each client of the cohort, such as the model of its cluster.

        Args:
            values: the streams.
            index: for each client the row of `values` that it receives, or `NOT_SENT`.
            already_held: as in `Streams`.
        """
        return Streams(values, index[:, None].astype(np.int32), already_held)

    @staticmethod
    def all_to_all(
        values: Shaped[Array, "s ..."],
        clients: int,
        already_held: bool = False,
        is_sent: Bool[np.ndarray, " s"] | None = None,
    ) -> "Streams":
        """Every stream to every client of the cohort.

        Args:
            values: the streams.
            clients: the size of the cohort.
            already_held: as in `Streams`.
            is_sent: which of the streams are sent; None = all.
        """
        streams = np.arange(len(values), dtype=np.int32)
        if is_sent is not None:
            streams = np.where(is_sent, streams, np.int32(NOT_SENT))
        return Streams(values, np.tile(streams, (clients, 1)), already_held)


@dataclass(frozen=True)
class Downlink:
    """Everything the server sends in one exchange.

    Attributes:
        streams: kind ("model", "control", "example", ...) -> `Streams`. Kinds "inputs"
            and "labels" carry examples.
        scalars: name -> a number for everybody, or one for each client of the cohort
            [c]. The ledger counts scalars separately from bytes.
        reply: whether clients are asked to answer: one bool for all, or [c]. Clients
            report where `cohort.reporting & reply`.
    """

    streams: Mapping[str, Streams] = field(default_factory=dict)
    scalars: Mapping[str, Scalars] = field(default_factory=dict)
    reply: bool | NDArray[np.bool_] = True


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inbox:
    """One client's view of a `Downlink` (traced).

    `inbox["model"]` is [k, d]: the k streams that this client receives, with zeros in
    place of those that are `NOT_SENT` in `Streams.recipients`.

    Attributes:
        values: kind -> [k, ...].
        received: kind -> [k] bool: which of the k rows were sent.
        scalars: name -> this client's number.
        reply: whether the server will use this client's answer.
    """

    values: dict[str, Shaped[Array, "k ..."]]
    received: dict[str, Bool[Array, " k"]]
    scalars: dict[str, Array]
    reply: Bool[Array, ""]

    def __getitem__(self, kind: str) -> Shaped[Array, "k ..."]:
        return self.values[kind]

    def only(self, kind: str) -> Shaped[Array, "..."]:
        """What was sent of a kind of which each client receives one: a model [d], not
        [1, d].
        """
        return self.values[kind][0]
