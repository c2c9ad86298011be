"""The waist between server and clients: `Exchange` (what the server's side asks),
`Answers` (what it gets) and `Executor` (who answers).

A round is a generator: it yields an `Exchange`, and its caller sends the `Answers` into
it, as `drive` does. An `Executor` makes the answers; it owns the examples and the clients'
states. Neither side knows how the other works.

The arrays of `Answers` stay where they were computed, in the rows of the executor's
programs: the order of these rows and the padding among them are the executor's choice.
`ClientRows` translates between rows and positions in the cohort.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped
from numpy.typing import NDArray

from fedtailor.protocol.cohort import Clients, Cohort, Examples
from fedtailor.protocol.messages import Downlink
from fedtailor.protocol.state import ClientState

if TYPE_CHECKING:
    from fedtailor.protocol.algorithm import Algorithm
    from fedtailor.protocol.pipeline import Pipeline

T = TypeVar("T")

Task = Literal["probe", "client", "init_unseen", "personal", "evaluate"]
"""Which of an algorithm's client functions to run; "evaluate" runs `personal`, then
computes its scores on the splits val and test.
"""


class BatchMetric(Protocol):
    """The part of a metric that clients compute, such as `fedtailor.metrics.Metric`.
    Equal ones share compiled programs.
    """

    name: ClassVar[str]

    def statistic(
        self, model: Any, outputs: Array, y: Array, weight: Array
    ) -> dict[str, Array]:
        """The sums of one batch."""
        ...

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        """The part of a split's sums that is sent to the server."""
        ...


@dataclass(frozen=True)
class Exchange:
    """What the server's side asks of a cohort.

    Attributes:
        task: what the clients do.
        algorithm: whose functions they run.
        cohort: the clients.
        downlink: what they are sent.
        states: `Answers.states` of an earlier exchange with these clients, if the
            executor does not keep their states (unseen clients); None = the states that
            it keeps.
        uplink: the transforms that clients of the task "client" apply to their updates
            before they send them.
        received_through: the transforms that the server has applied to the downlink,
            and that clients undo.
        metrics: what clients of the task "evaluate" measure.
    """

    task: Task
    algorithm: "Algorithm"
    cohort: Cohort
    downlink: Downlink
    states: ClientState = None
    uplink: "Pipeline" = ()
    received_through: "Pipeline" = ()
    metrics: tuple[BatchMetric, ...] = ()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientRows:
    """One array of every client of a cohort, in the rows in which the executor left
    them, padding included.

    `fedtailor.aggregation.mix` multiplies weights of clients with it without moving the
    rows, so that models stay where they were trained. All methods below take and return
    clients by their position in the cohort.

    Attributes:
        values: [r, ...], r >= c, on the host or sharded over devices.
        row: [c] the row of each client of the cohort.
    """

    values: Shaped[Array | np.ndarray, "r ..."]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def shape(self) -> tuple[int, ...]:
        """(c, ...)."""
        return (len(self.row), *self.values.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def sent(self) -> Any:
        """What the ledger counts as sent: something with the shape [c, ...] and the
        dtype of the messages.
        """
        return self

    def take(self, clients: NDArray[Any] | int) -> Shaped[Array, "..."]:
        """What some clients sent, without moving it to the host.

        Args:
            clients: a position in the cohort, several positions, or a mask [c].

        Returns:
            One client's array [...], or those of several stacked.
        """
        return cast(Array, self.values[self.row[clients]])

    def host(self) -> Shaped[np.ndarray, "c ..."]:
        """What all clients of the cohort sent, on the host, in the order of the
        cohort.
        """
        return np.asarray(self.values)[self.row]

    def item(self, number: int) -> "ClientRows":
        """One of the arrays of clients that sent k each: of `values` [r, k, ...] the
        entry `number` of the second axis.
        """
        return replace(self, values=self.values[:, number])

    def to_rows(
        self, values: NDArray[Any], fill: int | float
    ) -> Shaped[np.ndarray, "r ..."]:
        """Put one number per client of the cohort into the executor's rows.

        Args:
            values: [c], in the order of the cohort.
            fill: what padding rows get.

        Returns:
            [r], in the order of `self.values`.
        """
        rows = np.full(len(self.values), fill, np.asarray(values).dtype)
        rows[self.row] = values
        return rows


def on_host(output: Any) -> Any:
    """A tree of `ClientRows` as arrays on the host.

    Returns:
        The same tree of NumPy arrays [c, ...], in the order of the cohort.
    """
    return jax.tree.map(
        lambda rows: rows.host(),
        output,
        is_leaf=lambda leaf: isinstance(leaf, ClientRows),
    )


@dataclass(frozen=True)
class Answers(Mapping[str, ClientRows]):
    """What the clients of a cohort answered, perhaps still being computed.

    It is a mapping: `answers["model"]` are the models that the clients sent.

    Attributes:
        reporting: [c] whether each client answered. These are the clients that
            participation chose, that were asked to reply, and that did.
        update: kind of message -> what the clients sent.
        output: the predictor of the task "personal", or the scores of "evaluate", as a
            tree of `ClientRows`; else None.
        states: the clients' new states, which `Executor.commit` or a later exchange is
            given. Only executors look inside.
        wait: waits until all is computed and returns `work`.
        extra_bytes: returns the bytes sent down and up in addition to the method's messages
            (keys and shares of secure sums).
    """

    reporting: Bool[np.ndarray, " c"]
    update: Mapping[str, ClientRows] = field(default_factory=dict)
    output: Any = None
    states: ClientState = None
    wait: Callable[[], tuple[int, int]] = lambda: (0, 0)
    extra_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def __getitem__(self, kind: str) -> ClientRows:
        return self.update[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.update)

    def __len__(self) -> int:
        return len(self.update)

    @property
    def sent(self) -> dict[str, Any]:
        """What the ledger counts as sent: kind -> `ClientRows.sent`."""
        return {kind: rows.sent for kind, rows in self.update.items()}

    def host(self, kind: str) -> Shaped[np.ndarray, "c ..."]:
        """What all clients of the cohort sent of one kind, on the host, in the order of
        the cohort.
        """
        return self.update[kind].host()

    def reporters(self, kind: str) -> Shaped[np.ndarray, "r ..."]:
        """What the clients that reported sent of one kind, on the host, in the order of
        the cohort.
        """
        return self.host(kind)[self.reporting]

    @cached_property
    def work(self) -> tuple[int, int]:
        """How many gradients and how many forward passes of single examples the clients
        computed. The first access waits for the clients.

        Raises:
            Diverged: a client's answer is NaN or infinite.
        """
        return self.wait()

    def require_finite(self) -> "Answers":
        """Wait for the answers, and require that they are finite.

        Returns:
            The same answers, which are now computed.

        Raises:
            Diverged: a client's answer is NaN or infinite.
        """
        _ = self.work
        return self


Exchanges = Generator[Exchange, Answers, T]
"""A part of a run, written as a generator: it yields every exchange that it needs, is
sent the answers, and returns `T`.
"""


class Executor(Protocol):
    """Answers exchanges on behalf of the clients, wherever they are; keeps their
    examples and states.

    Attributes:
        seen: the clients that take part in training.
        unseen: those that never do.
        examples: draws from the seen clients' training data, if the executor could show
            them to a server (in a simulation); else None.
        concurrency: how many runs are trained at the same time (in lock-step); wall
            times are divided by it.
    """

    seen: Clients
    unseen: Clients

    @property
    def examples(self) -> Examples | None: ...

    @property
    def concurrency(self) -> int: ...

    def begin(
        self,
        algorithm: "Algorithm",
        uplink: "Pipeline",
        theta: Float[Array, " d"],
        phase: int,
    ) -> None:
        """Give every seen client the state that `algorithm` starts from at the common
        model theta [d]; `phase` counts the methods of a schedule."""
        ...

    def exchange(self, exchange: Exchange) -> Answers:
        """Have the clients of a cohort do a task.

        Raises:
            Diverged: a client's answer is not finite, if the executor finds that out at
                once (debugging). Others return answers whose `require_finite` raises it.
        """
        ...

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Make the answers' states the clients' states; called when the server has
        accepted the answers.
        """
        ...

    def snapshot(self) -> Any:
        """What `restore` takes back, for a checkpoint: dicts, lists, numbers and
        arrays.
        """
        ...

    def snapshot_saved(self) -> None:
        """Called when the last snapshot is in a checkpoint on the disk."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Go back to the states of a snapshot; `begin` has been called with the phase
        in which it was made.
        """
        ...


def drive(exchanges: Exchanges[T], executor: Executor) -> T:
    """Let one executor answer all exchanges, one after another.

    Args:
        exchanges: a part of a run, as a generator.
        executor: who answers.

    Returns:
        What the generator returns.
    """
    # Answers are sent into the generator, which yields the next exchange, until it
    # returns.
    try:
        exchange = next(exchanges)
        while True:
            try:
                answers = executor.exchange(exchange)
            except Exception as error:
                # Raised at the generator's `yield`, so that the run can save its state.
                exchange = exchanges.throw(error)
            else:
                exchange = exchanges.send(answers)
    except StopIteration as stopped:
        return stopped.value
