"""The ledger of traffic and computation, derived from the messages themselves."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require_one_of
from fedtailor.protocol import MODEL_KINDS, Downlink, Streams

if TYPE_CHECKING:
    import polars as pl

LedgerPhase = Literal["probe", "round", "delivery", "unseen"]
"""The purpose of an exchange.

"probe": the probe before training; "round": a round; "delivery": sending the final models
to the clients; "unseen": serving unseen clients.
"""

SHARING = "sharing"
"""The kind of message under which keys and shares of secure sums are recorded."""


@dataclass(frozen=True)
class Entry:
    """One row of the ledger.

    It is one kind of message in one direction of one exchange, or the computation of
    the clients in an exchange.

    Attributes:
        round: the round; for `delivery` and `unseen`, the number of rounds done.
        phase: see `LedgerPhase`.
        direction: "down", "up", or "compute".
        kind: the name of the message; "work" for computation.
        clients: clients that receive, send or compute.
        streams: distinct vectors that at least one client receives (down only).
        unicasts: vectors counted once for each client that receives or sends them.
        bytes_multicast: bytes if a stream for many clients is sent once (for uplinks,
            equal to `bytes_unicast`).
        bytes_unicast: bytes if a stream is sent to each of its clients.
        scalars: single numbers, counted for each client; the bytes do not include them.
        gradients: gradients of single examples that clients computed.
        forwards: forward passes of single examples without a gradient.

    Example:
        >>> entry = run.ledger.entries[0]
        >>> entry.round, entry.direction, entry.clients
        (0, 'down', 20)
    """

    round: int
    phase: str
    direction: str
    kind: str
    clients: int
    streams: int = 0
    unicasts: int = 0
    bytes_multicast: int = 0
    bytes_unicast: int = 0
    scalars: int = 0
    gradients: int = 0
    forwards: int = 0


@dataclass(frozen=True)
class Totals:
    """Sums over training and the delivery of the final models.

    The service of unseen clients is not included.

    Attributes:
        models_down: models (of `MODEL_KINDS`) sent to clients, a stream for many of
            them counted once (multicast).
        models_down_unicast: the same, counted once for each client.
        models_up: models sent by clients.
        bytes_down: bytes of everything sent to clients, multicast.
        bytes_down_unicast: the same, unicast.
        bytes_up: bytes of everything sent by clients.
        scalars_down: single numbers sent to clients, counted for each.
        scalars_up: single numbers sent by clients.
        gradients: gradients of single examples.
        forwards: forward passes of single examples without a gradient.

    Example:
        >>> totals = run.ledger.totals()
        >>> totals.models_down, totals.models_up
        (3, 40)
    """

    models_down: int
    models_down_unicast: int
    models_up: int
    bytes_down: int
    bytes_down_unicast: int
    bytes_up: int
    scalars_down: int
    scalars_up: int
    gradients: int
    forwards: int


@dataclass(frozen=True)
class OwnNumbers:
    """How many of a model's numbers each client has, where clients have different networks:
    a message with a model is as long as the client's own network.

    Attributes:
        size: d, the numbers of all networks together.
        of_client: [c] the numbers of the network of each client of the cohort.
    """

    size: int
    of_client: NDArray[np.int64]


class Ledger:
    """The traffic and the computation of a run.

    It looks at messages only, whatever the method.

    Example:
        >>> run.ledger.frame().columns[:4]
        ['round', 'phase', 'direction', 'kind']
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)

    def record(
        self,
        round: int,
        phase: LedgerPhase,
        downlink: Downlink,
        update: Mapping[str, Any],
        reporting: NDArray[np.bool_],
        gradients: int,
        forwards: int,
        extra_bytes: tuple[int, int] = (0, 0),
        own: OwnNumbers | None = None,
    ) -> None:
        """Append one exchange with a cohort of c clients.

        Args:
            round: the round, or the number of rounds done.
            phase: see `LedgerPhase`.
            downlink: what the server sends; streams that clients already hold
                (`Streams.already_held`) cost nothing.
            update: kind -> the answers of all clients, [c, ...]; only those of clients
                that report are counted.
            reporting: [c] which clients report.
            gradients: gradients of single examples that the cohort computed.
            forwards: its forward passes of single examples without a gradient.
            extra_bytes: bytes down and up in addition to these messages: keys and shares of secure
                sums.
            own: how many of a model's numbers each client has; None = all of them.

        Raises:
            ValueError: the phase is unknown.
        """
        require_one_of(phase, get_args(LedgerPhase), "phase")
        # All clients of the cohort receive and compute; only reporters send.
        clients = len(reporting)
        reporters = int(np.count_nonzero(reporting))
        for kind, sent in downlink.streams.items():
            self.entries.extend(_sent(round, phase, kind, sent, own))
        for kind in downlink.scalars:
            self.entries.append(
                Entry(round, phase, "down", kind, clients, scalars=clients)
            )
        if reporters:
            self.entries.extend(
                _received(round, phase, kind, value, reporting, own)
                for kind, value in update.items()
            )
        for direction, size in zip(("down", "up"), extra_bytes, strict=True):
            if size:
                self.entries.append(
                    Entry(
                        round,
                        phase,
                        direction,
                        SHARING,
                        reporters,
                        bytes_multicast=size,
                        bytes_unicast=size,
                    )
                )
        # Even a round without messages and without work gets an entry, because the time
        # over a network depends on the number of rounds.
        if gradients or forwards or phase in ("probe", "round"):
            work = Entry(
                round,
                phase,
                "compute",
                "work",
                clients,
                gradients=int(gradients),
                forwards=int(forwards),
            )
            self.entries.append(work)

    def totals(self) -> Totals:
        """Sums over training and the delivery of the final models."""
        # Serving clients that arrive later is not a cost of training.
        entries = [entry for entry in self.entries if entry.phase != "unseen"]
        down = [entry for entry in entries if entry.direction == "down"]
        up = [entry for entry in entries if entry.direction == "up"]
        models_down = [entry for entry in down if entry.kind in MODEL_KINDS]
        return Totals(
            models_down=sum(entry.streams for entry in models_down),
            models_down_unicast=sum(entry.unicasts for entry in models_down),
            models_up=sum(entry.unicasts for entry in up if entry.kind in MODEL_KINDS),
            bytes_down=sum(entry.bytes_multicast for entry in down),
            bytes_down_unicast=sum(entry.bytes_unicast for entry in down),
            bytes_up=sum(entry.bytes_unicast for entry in up),
            scalars_down=sum(entry.scalars for entry in down),
            scalars_up=sum(entry.scalars for entry in up),
            gradients=sum(entry.gradients for entry in entries),
            forwards=sum(entry.forwards for entry in entries),
        )

    def last_streams(self) -> int:
        """How many distinct models the server sends at the end of training.

        Returns:
            The number of streams of the last round, or of the delivery if that is
            larger: in a first round the clients may already hold the models, and the
            cohort of a last round may not include the clients of some streams.
        """
        models = [entry for entry in self.entries if entry.kind in MODEL_KINDS]
        last_round = max(
            (entry.round for entry in self.entries if entry.phase == "round"),
            default=None,
        )
        in_last_round = sum(
            entry.streams
            for entry in models
            if entry.phase == "round" and entry.round == last_round
        )
        in_delivery = sum(
            entry.streams for entry in models if entry.phase == "delivery"
        )
        return max(in_last_round, in_delivery)

    def frame(self) -> "pl.DataFrame":
        """The entries as a frame (the layout of `ledger.parquet`).

        Returns:
            One row for each entry; the columns are the fields of `Entry`.
        """
        import polars as pl

        schema = {
            field.name: pl.String if field.type is str else pl.Int64
            for field in fields(Entry)
        }
        columns = {}
        for name in schema:
            columns[name] = [getattr(entry, name) for entry in self.entries]
        return pl.DataFrame(columns, schema)

    @staticmethod
    def from_frame(frame: "pl.DataFrame") -> "Ledger":
        """The opposite of `frame`.

        Returns:
            The ledger that the frame came from.

        Raises:
            ValueError: a column is missing.
        """
        names = [field.name for field in fields(Entry)]
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise ValueError(
                f"this is not a ledger: it has no column {', '.join(missing)}"
            )
        return Ledger(Entry(*values) for values in frame.select(names).iter_rows())


def _sent(
    round: int, phase: str, kind: str, sent: Streams, own: OwnNumbers | None
) -> Iterator[Entry]:
    """The cost of one kind of message down.

    By multicast a stream is as long as the longest network of its clients: narrower ones
    are parts of it, where they get a model in common.

    Yields:
        Its entry; nothing if no client receives it, or all clients already hold it.
    """
    rows = np.sort(np.asarray(sent.recipients), axis=1)
    # A client that receives one stream twice needs it once: of equal neighbours only the
    # first one is sent. The number -1 stands for no stream.
    is_sent = rows >= 0
    is_repeated = rows[:, 1:] == rows[:, :-1]
    is_sent[:, 1:] &= ~is_repeated
    unicasts = int(np.count_nonzero(is_sent))
    if unicasts == 0 or sent.already_held:
        return
    streams = len(np.unique(rows[is_sent]))
    receivers = int(np.count_nonzero(is_sent.any(axis=1)))
    size = _bytes_of_row(sent.values)
    multicast, unicast = streams * size, unicasts * size
    if own is not None and _is_model(kind, sent.values, own):
        item = size // own.size
        lengths = np.broadcast_to(own.of_client[:, None], rows.shape)[is_sent]
        longest = np.zeros(len(sent.values), np.int64)
        np.maximum.at(longest, rows[is_sent], lengths)
        multicast, unicast = item * int(longest.sum()), item * int(lengths.sum())
    yield Entry(
        round=round,
        phase=phase,
        direction="down",
        kind=kind,
        clients=receivers,
        streams=streams,
        unicasts=unicasts,
        bytes_multicast=multicast,
        bytes_unicast=unicast,
    )


def _received(
    round: int,
    phase: str,
    kind: str,
    value: Any,
    reporting: NDArray[np.bool_],
    own: OwnNumbers | None,
) -> Entry:
    """The cost of one kind of answer.

    Args:
        round, phase, kind: see `Entry`.
        value: the answers of all clients [c, ...]; only its shape and type are used.
        reporting: [c] which clients send it.
        own: as in `Ledger.record`.
    """
    reporters = int(np.count_nonzero(reporting))
    # One number for each client is a scalar.
    if len(value.shape) == 1:
        return Entry(round, phase, "up", kind, reporters, scalars=reporters)
    # A client that trains several models [k, d] sends k vectors. Other kinds of answers
    # count as one vector.
    vectors = prod(value.shape[1:-1]) if kind in MODEL_KINDS else 1
    size = reporters * _bytes_of_row(value)
    if own is not None and _is_model(kind, value, own):
        item = _bytes_of_row(value) // own.size
        size = item * int(own.of_client[reporting].sum())
    return Entry(
        round=round,
        phase=phase,
        direction="up",
        kind=kind,
        clients=reporters,
        unicasts=reporters * vectors,
        bytes_multicast=size,
        bytes_unicast=size,
    )


def _is_model(kind: str, values: Any, own: OwnNumbers) -> bool:
    """Whether messages are vectors of the numbers of all networks."""
    return kind in MODEL_KINDS and values.shape[-1] == own.size


def _bytes_of_row(values: Any) -> int:
    """Bytes on the wire of one client's, or one stream's, part of an array."""
    return prod(values.shape[1:]) * np.dtype(values.dtype).itemsize
