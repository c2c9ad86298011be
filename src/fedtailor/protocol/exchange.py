"""The waist between server and clients: `Exchange` (what the server's side asks),
`Answers` (what it gets) and `Executor` (who answers).

A round is a generator of exchanges: it yields an `Exchange` and is handed `Answers`. An
`Executor` makes the answers; it owns the examples and the clients' states. Neither side
knows how the other works.
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
"""Which of an algorithm's client functions to run; "evaluate" = `personal`, then its
scores on val and test.
"""


class BatchMetric(Protocol):
    """A metric as far as clients need it; `fedtailor.metrics.Metric` is one. Equal ones
    share compiled programs.
    """

    name: ClassVar[str]

    def statistic(
        self, model: Any, outputs: Array, y: Array, weight: Array
    ) -> dict[str, Array]:
        """The sums of one batch."""
        ...

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        """What of a split's sums leaves the client."""
        ...


@dataclass(frozen=True)
class Exchange:
    """What the server's side asks of a cohort.

    Attributes:
        task: what the clients do.
        algorithm: whose functions they run.
        cohort: the clients.
        downlink: what they are sent.
        states: states that an earlier answer named (`Answers.states`), for clients
            whose state the executor does not keep (unseen ones); None = the states that
            it keeps.
        uplink: what clients of the task "client" apply to their updates before they
            send them.
        received_through: what the server has applied to the downlink, and clients undo.
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

    `mix` takes it as it is, so that models stay where they were trained. Everything
    else asks for clients by their position in the cohort.

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
        """What travelled, as the ledger counts it: an array [c, ...], or the form of
        one.
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
        """Of clients that each sent several arrays [r, k, ...]: the one of that
        number.
        """
        return replace(self, values=self.values[:, number])

    def to_rows(
        self, values: NDArray[Any], fill: int | float
    ) -> Shaped[np.ndarray, "r ..."]:
        """Spread numbers of the cohort's clients over the executor's rows.

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

    `answers["model"]` is what `mix` takes. Which rows stand where, and what pads them,
    is the executor's business.

    Attributes:
        reporting: [c] who answered: participation's choice, of those who were asked, of
            those who did.
        update: kind -> what the clients sent up.
        output: what else the task yields: "predictor" of `personal`, "scores" of
            `evaluate`; each leaf stacked by rows.
        states: the clients' new states, to be committed or named in a later exchange;
            only executors look inside.
        work: waits for the clients: gradients and forward passes of single examples
            that they computed.
        beside: bytes down and up that travelled beside the method's messages (keys and
            shares of secure sums).
    """

    reporting: Bool[np.ndarray, " c"]
    update: Mapping[str, ClientRows] = field(default_factory=dict)
    output: Any = None
    states: ClientState = None
    wait: Callable[[], tuple[int, int]] = lambda: (0, 0)
    beside: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def __getitem__(self, kind: str) -> ClientRows:
        return self.update[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.update)

    def __len__(self) -> int:
        return len(self.update)

    @property
    def sent(self) -> dict[str, Any]:
        """What travelled of each kind, as the ledger counts it: arrays [c, ...], or
        their forms.
        """
        return {kind: rows.sent for kind, rows in self.update.items()}

    def host(self, kind: str) -> Shaped[np.ndarray, "c ..."]:
        """What all clients of the cohort sent of one kind, on the host, in the order of
        the cohort.
        """
        return self.update[kind].host()

    def reporters(self, kind: str) -> Shaped[np.ndarray, "r ..."]:
        """What those that report sent of one kind, on the host, in the order of the
        cohort.
        """
        return self.host(kind)[self.reporting]

    @cached_property
    def work(self) -> tuple[int, int]:
        """Gradients and forward passes of single examples that the clients computed;
        waits for them.

        Raises:
            Diverged: a client's answer is NaN or infinite.
        """
        return self.wait()

    def checked(self) -> "Answers":
        """Wait for the answers.

        Returns:
            The same answers, which are now computed and finite.

        Raises:
            Diverged: a client's answer is NaN or infinite.
        """
        _ = self.work
        return self


Exchanges = Generator[Exchange, Answers, T]
"""A piece of a run, written as the exchanges that it needs: it yields each, is handed
the answers, and returns `T`.
"""


class Executor(Protocol):
    """Who answers: the clients, wherever they are, with their examples and states.

    Attributes:
        seen: the clients that take part in training.
        unseen: those that never do.
        examples: draws from the seen clients' training data, where the executor could
            let a server see them; else None.
        concurrency: how many runs share the clients' time (lock-step); else 1.
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
            Diverged: where errors are found at once (debugging); else when the answers
                are waited for.
        """
        ...

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """The server has taken the answers: their states are now the clients'
        states.
        """
        ...

    def snapshot(self) -> Any:
        """What `restore` takes back, for a checkpoint: dicts, lists, numbers and
        arrays.
        """
        ...

    def saved(self) -> None:
        """A checkpoint holds the last snapshot."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Put the states where they stood at a snapshot; `begin` was called with the
        phase of that time.
        """
        ...


def drive(exchanges: Exchanges[T], executor: Executor) -> T:
    """Let one executor answer all exchanges, one after another.

    Args:
        exchanges: a piece of a run, as a generator.
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
                # Raised inside the generator, so that the run can save what it has.
                exchange = exchanges.throw(error)
            else:
                exchange = exchanges.send(answers)
    except StopIteration as stopped:
        return stopped.value
