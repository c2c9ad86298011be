"""The interface between server and clients, which the documentation calls the waist:
`Exchange` (a request of the server), `Answers` (the clients' replies) and `Executor` (which
runs the clients).

A round is a generator: it yields an `Exchange`, and its caller sends the `Answers` into
it, as `drive` does. An `Executor` computes the answers; it owns the examples and the
clients' states. Neither side knows how the other works.

The arrays of `Answers` stay on the devices on which they were computed. The executor
chooses the order of their rows, and some rows may be padding. `ClientRows` maps the
clients of the cohort to these rows.
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
from fedtailor.protocol.data_facts import DataFacts
from fedtailor.protocol.messages import Downlink
from fedtailor.protocol.state import ClientState

if TYPE_CHECKING:
    from fedtailor.protocol.algorithm import Algorithm
    from fedtailor.protocol.pipeline import Pipeline
    from fedtailor.protocol.summed_rows import ExpectedSums

T = TypeVar("T")

ClientTask = Literal["probe", "client", "init_unseen", "personal", "evaluate"]
"""Which of an algorithm's client functions to run. "evaluate" runs `personal`, and then
computes the scores of the personal model on the splits "val" and "test".
"""


class BatchMetric(Protocol):
    """The part of a metric that clients compute (`fedtailor.models.metrics.Metric`). Equal metrics
    share compiled programs.
    """

    name: ClassVar[str]

    def statistic(
        self, model: Any, outputs: Array, y: Array, weight: Array
    ) -> dict[str, Array]:
        """Sums over the samples of one batch."""
        ...

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        """Reduce the sums over a split to what is sent to the server."""
        ...


@dataclass(frozen=True)
class FirstCome:
    """Which clients of a cohort begin, and how many answers are waited for.

    Attributes:
        count: the number of answers; 0 = all clients begin, and none is waited for.
        places: how many clients are at work at the same time.
        order: [c] the positions in the cohort, in the order in which clients begin.
    """

    count: int
    places: int
    order: NDArray[np.int64]


@dataclass(frozen=True)
class Exchange:
    """A request of the server to a cohort.

    Attributes:
        task: the client function to run.
        algorithm: the method whose function it is.
        cohort: the clients.
        downlink: the message to the clients.
        states: the clients' states, `Answers.states` of an earlier exchange. None = the
            states that the executor keeps, which it does for seen clients.
        uplink: the transforms that clients apply to their updates in the task "client".
        received_through: the transforms that the server has applied to the downlink, and
            that clients undo.
        metrics: what clients measure in the task "evaluate".
        sums: says which weighted sums of the answers the server needs, if it needs nothing
            else. An executor may then answer with `SummedRows`. None = it may not.
        first: the exchange does not wait for all clients. Those that are free begin, and
            others go on with what they were asked earlier. `Answers.reporting` says whose
            answers came first, and `Answers.output` [c] in which round each client began
            whose answer is there or to come (-1: none). An exchange of these clients
            with ages (`Cohort.age`) takes the answers. None = it waits.
        unchecked: NaN and infinity in the answers are no error (`Answers.work`).
    """

    task: ClientTask
    algorithm: "Algorithm"
    cohort: Cohort
    downlink: Downlink
    states: ClientState = None
    uplink: "Pipeline" = ()
    received_through: "Pipeline" = ()
    metrics: tuple[BatchMetric, ...] = ()
    sums: "ExpectedSums | None" = None
    first: FirstCome | None = None
    unchecked: bool = False


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientRows:
    """One array of every client of a cohort, in the order of the executor's rows.

    `fedtailor.aggregation.mix` averages it without moving the rows, so that models stay
    on the devices on which they were trained. The methods below index clients by their
    position in the cohort, 0 to c - 1.

    Attributes:
        values: [r, ...], r >= c, on the host or sharded over devices. Rows of no client
            are padding.
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
        """An object with the shape [c, ...] and the dtype of the messages, from which
        the ledger computes the traffic.
        """
        return self

    def take(self, clients: NDArray[Any] | int) -> Shaped[Array, "..."]:
        """The arrays of some clients, without moving them to the host.

        Args:
            clients: an index into the cohort, several indices, or a mask [c].

        Returns:
            The array [...] for one index; else stacked arrays [n, ...].
        """
        return cast(Array, self.values[self.row[clients]])

    def host(self) -> Shaped[np.ndarray, "c ..."]:
        """The arrays of all clients, on the host, in the order of the cohort."""
        return np.asarray(self.values)[self.row]

    def item(self, index: int) -> "ClientRows":
        """The array `index` of every client, if each has sent several (`values` [r, k,
        ...]).
        """
        return replace(self, values=self.values[:, index])

    def to_rows(
        self, values: NDArray[Any], fill: int | float
    ) -> Shaped[np.ndarray, "r ..."]:
        """Put one number for each client of the cohort into the order of the rows.

        Args:
            values: [c], in the order of the cohort.
            fill: the value for rows of padding.

        Returns:
            [r], in the order of `self.values`.
        """
        rows = np.full(len(self.values), fill, np.asarray(values).dtype)
        rows[self.row] = values
        return rows


def on_host(output: Any) -> Any:
    """Replace the `ClientRows` in a tree by NumPy arrays [c, ...] in the order of the
    cohort.
    """
    return jax.tree.map(
        lambda rows: rows.host(),
        output,
        is_leaf=lambda leaf: isinstance(leaf, ClientRows),
    )


@dataclass(frozen=True)
class Answers(Mapping[str, ClientRows]):
    """The replies of the clients of a cohort, which may still be being computed.

    It is a mapping from kinds of message: `answers["model"]` are the models that the
    clients sent. `answers.host("model")` are the same models as a NumPy array, and
    `answers.reporters("model")` those of the clients that reported.

    Attributes:
        reporting: [c] whether each client answered. These are the clients that
            participation chose, that were asked to reply, and that did reply.
        update: kind of message -> what the clients sent.
        output: a tree of `ClientRows`: in the task "personal" the predictors, in
            "evaluate" the scores; else None.
        states: the clients' new states, for `Executor.commit` or a later exchange. Their
            form is the executor's choice.
        wait: waits until everything is computed, and returns `work`.
        extra_bytes: returns the bytes sent down and up in addition to the method's
            messages (keys and shares of secure sums).
    """

    reporting: Bool[np.ndarray, " c"]
    update: Mapping[str, ClientRows] = field(default_factory=dict)
    output: Any = None
    states: ClientState = None
    wait: Callable[[], tuple[int, int]] = lambda: (0, 0)
    extra_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def __getitem__(self, kind: str) -> ClientRows:
        if kind not in self.update:
            sent = ", ".join(self.update) or "nothing"
            raise KeyError(f"clients sent {sent}, and no {kind}")
        return self.update[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.update)

    def __len__(self) -> int:
        return len(self.update)

    def subset(self, clients: Bool[np.ndarray, " c"]) -> "Answers":
        """The answers of some clients of the cohort, without `output` and `states`."""
        update = {
            kind: replace(rows, row=rows.row[clients])
            for kind, rows in self.update.items()
        }
        return replace(
            self,
            reporting=self.reporting[clients],
            update=update,
            output=None,
            states=None,
        )

    @property
    def sent(self) -> dict[str, Any]:
        """Kind -> `ClientRows.sent`, from which the ledger computes the traffic."""
        return {kind: rows.sent for kind, rows in self.update.items()}

    def host(self, kind: str) -> Shaped[np.ndarray, "c ..."]:
        """The arrays of one kind of all clients, on the host, in the order of the cohort."""
        return self[kind].host()

    def reporters(self, kind: str) -> Shaped[np.ndarray, "r ..."]:
        """The arrays of one kind of the clients that reported, on the host, in the order
        of the cohort.
        """
        return self.host(kind)[self.reporting]

    @cached_property
    def work(self) -> tuple[int, int]:
        """The numbers of gradients and of forward passes of single examples that the
        clients computed. The first access waits for the clients.

        Raises:
            Diverged: a client's answer is NaN or infinite.
        """
        return self.wait()

    def require_finite(self) -> "Answers":
        """Wait for the answers, and require that they are finite.

        Returns:
            The answers themselves.

        Raises:
            Diverged: a client's answer is NaN or infinite.
        """
        _ = self.work
        return self


Exchanges = Generator[Exchange, Answers, T]
"""A part of a run as a generator: it yields every exchange that it needs, is sent the
answers, and returns `T`.
"""


class Executor(Protocol):
    """Runs the clients' part of exchanges, and keeps the clients' examples and states.

    Attributes:
        data: what is known about the data.
        machine: the devices on which clients are simulated, for manifests; None if the
            clients are on machines of their own.
        clients_keep_models: whether clients make their personal models at the end of a
            run, and keep them where they are.
        seen: the clients that take part in training.
        unseen: the clients that never take part.
        examples: draws from the seen clients' training data; None unless the executor can
            show these to the server, as in a simulation.
        concurrency: the number of runs that are trained at the same time (in
            lock-step); wall times are divided by it.
    """

    seen: Clients
    unseen: Clients

    @property
    def data(self) -> DataFacts: ...

    @property
    def machine(self) -> Mapping[str, Any] | None: ...

    @property
    def clients_keep_models(self) -> bool: ...

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
        """Initialise the states of all seen clients.

        Args:
            algorithm: the method, which makes the states.
            uplink: the transforms, which may keep states on the clients, too.
            theta: the common initial model.
            phase: the index of the method in a schedule.
        """
        ...

    def exchange(self, exchange: Exchange) -> Answers:
        """Run a task on the clients of a cohort.

        Only clients on machines of their own (`machine` is None) are asked without
        waiting for all of them (`Exchange.first`).

        Raises:
            Diverged: a client's answer is not finite, and the executor checks this
                immediately (debugging). Other executors return answers whose
                `require_finite` raises it.
        """
        ...

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Replace the clients' states by those of the answers. This is called when the
        server has accepted the answers.
        """
        ...

    def snapshot(self) -> Any:
        """The clients' states for a checkpoint, as dicts, lists, numbers and arrays."""
        ...

    def snapshot_saved(self) -> None:
        """Called when the last snapshot has been written to disk."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Restore the states of a snapshot. `begin` must have been called with the phase
        of the snapshot.
        """
        ...


def drive(exchanges: Exchanges[T], executor: Executor) -> T:
    """Have one executor answer all exchanges of a generator, one after another.

    Returns:
        What the generator returns.
    """
    try:
        exchange = next(exchanges)
        while True:
            try:
                answers = [executor.exchange(exchange)]
            except (Exception, KeyboardInterrupt) as error:
                # Raise it at the generator's `yield`, so that the run can save its state.
                exchange = exchanges.throw(error)
            else:
                # Nothing here holds a round's answers while the next round computes its
                # own.
                exchange = exchanges.send(answers.pop())
    except StopIteration as stopped:
        return stopped.value
