"""Messages: a `Downlink` from the server to a cohort, the `Inbox` with the part of it that
one client receives, and the `ClientUpdate` that the client sends back.

Every message has a kind ("model", "gradient", "control", ...). A downlink has one or more
streams of each kind, and each client receives some of these. For example, if the server
has several models, client i receives only the model of its cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from numpy.typing import NDArray

from fedtailor._base.choice import require

ClientUpdate = dict[str, Array]
"""What one client sends: kind -> array. The ledger counts an array of shape () as a scalar,
and all others in bytes.
"""


NOT_SENT = -1
"""In `Streams.recipients`: the client receives nothing at this position."""

Scalars = float | NDArray[np.floating] | NDArray[np.integer] | Array
"""One number for all clients of a cohort, or one number for each client [c]."""


@dataclass(frozen=True)
class Streams:
    """Several arrays of one kind, and which clients receive which of them.

    Attributes:
        values: the s streams [s, ...]: models [s, d], controls [s, d], examples [s, n,
            ...].
        recipients: [c, k] for each client of the cohort, the rows of `values` that it
            receives. A client that receives fewer than k has `NOT_SENT` (-1) in the
            other entries.
        already_held: whether the clients have these values already, so that the ledger
            does not count them (UCFL's first round starts from the model of the probe).
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
            One stream [1, ...], which every client receives.

        Raises:
            ValueError: there are several.
        """
        require(
            theta.ndim == 1 or len(theta) == 1,
            f"everyone receives one stream, and there are {len(theta)} (shape"
            f" {theta.shape}): average the clients' answers, or say who receives which"
            " by Streams.by_index, one_each or all_to_all",
        )
        values = theta.reshape(1, -1) if theta.ndim == 1 else theta
        return Streams(values, np.zeros((clients, 1), np.int32), already_held)

    @staticmethod
    def one_each(values: Shaped[Array, "c ..."]) -> "Streams":
        """One stream for each client of the cohort, in the order of the cohort."""
        index = np.arange(len(values), dtype=np.int32)
        return Streams(values, index[:, None])

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
        scalars: name -> one number for all clients, or one for each client of the cohort
            [c]. The ledger counts scalars separately from bytes.
        reply: whether clients are asked to answer: one bool for all, or [c]. A client
            reports if `cohort.reporting & reply` is True for it.
        mode: which of its ways of working a client's function takes in this exchange, for
            methods with several (`Algorithm.modes`). Each is a compiled program of its
            own, which a plain `if` in Python decides.
    """

    streams: Mapping[str, Streams] = field(default_factory=dict)
    scalars: Mapping[str, Scalars] = field(default_factory=dict)
    reply: bool | NDArray[np.bool_] = True
    mode: str = ""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inbox:
    """The part of a `Downlink` that one client receives (traced).

    `inbox["model"]` is [k, d]: the k streams that this client receives, and zeros for
    entries of `NOT_SENT` in `Streams.recipients`.

    Attributes:
        values: kind -> [k, ...].
        received: kind -> [k] bool, False for entries of `NOT_SENT` in `Streams.recipients`.
        scalars: name -> this client's number.
        reply: whether the server will use this client's answer.
        mode: `Downlink.mode`, a text that is known when JAX traces the function.
    """

    values: dict[str, Shaped[Array, "k ..."]]
    received: dict[str, Bool[Array, " k"]]
    scalars: dict[str, Array]
    reply: Bool[Array, ""]
    mode: str = field(default="", metadata={"static": True})

    def __getitem__(self, kind: str) -> Shaped[Array, "k ..."]:
        return self.values[kind]

    def only(self, kind: str) -> Shaped[Array, "..."]:
        """The one array of a kind of which each client receives one: a model [d], not
        [1, d].
        """
        return self.values[kind][0]
