"""Asynchronous training: a server that updates its model as soon as enough answers have
arrived, and does not wait for the others (FedBuff, FedAsync).

`AsynchronousServer` are the settings. `Arrivals` plays a clock: whose answer arrives when,
and how many steps the server has taken since that client began. It depends on no model, so
that it is the same for all methods, and a resumed run plays it again. Over machines there
is no clock: answers are taken as they come (`Exchange.first`), and an `AnswerRecord` says
whose they were. `Replay` takes them in that order again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require, require_one_of
from fedtailor.aggregation.accounting.wireless import Wireless
from fedtailor.engine.training.participation import Participation
from fedtailor.protocol import (
    Algorithm,
    Clients,
    Pipeline,
    draw_uniform,
)

Staleness = Literal["constant", "hinge", "polynomial"]
Slowness = tuple[tuple[str, float], ...]

RELIABLE = Wireless(rho=1, t_min=1, mean_delay=0)
"""The clock of `AsynchronousServer`, if none is given."""


@dataclass(frozen=True)
class AsynchronousServer:
    """A server that does not wait for late clients.

    `Participation` says how many clients train at the same time. As soon as `buffer`
    answers have arrived, the server takes a step, which counts as a round. Clients that
    have answered are replaced at once by others, which start from the newest model. A client
    whose answer waits for the step is not asked again before it.

    The age tau of an answer is the number of steps that the server has taken since the
    client began, from the model w_old. The answer x has the weight s = alpha weight(tau)
    and takes the place of

        w + s (x - w_old)    step "change" (FedBuff, Nguyen et al. 2022, algorithm 1)
        w + s (x - w)        step "model" (FedAsync, Xie et al. 2019, algorithm 1)

    where w is the server's newest model; then the method averages as it always does. In
    FedBuff clients weigh alike (`weights = "uniform"` of the method), and its server rate is
    that of the method's `optimizer`. FedAsync has a buffer of 1.

    ==========  ========================================================================
    weight      of an answer of age tau
    ==========  ========================================================================
    constant    1
    hinge       1 if tau <= b, else 1 / (a (tau - b) + 1)
    polynomial  (tau + 1)^-a
    ==========  ========================================================================

    A client's answer takes `slowness` times its computing time by `clock`, which is t_min
    and an exponential delay, and the time of one model down and up. With equal speeds and
    a buffer of all that train at the same time, nobody is late, and all results are those
    of rounds that wait, to the bit.

    Attributes:
        buffer: K, the number of answers for a step.
        weight: how the weight of an answer falls with its age.
        a, b: its constants (FedBuff: polynomial, a = 0.5; FedAsync: hinge, a = 10 and
            b = 4, or polynomial, a = 0.5).
        alpha: the weight of an answer that is not late (FedAsync: 0.6 in most of its
            figures; FedBuff: 1).
        step: what the server adds: "change" or "model".
        clock: times of computing and sending, in a unit of your choice.
        slowness: "equal"; "samples" for clients that compute in proportion to their
            training samples, with mean 1; or a factor by client name, which is 1 for
            clients that are not named.

    Raises:
        ValueError: a setting has a wrong value.

    Example:
        >>> server = ft.AsynchronousServer(buffer=5, slowness={federation.names[0]: 10.0})
        >>> fedbuff = ft.run(
        ...     ft.FedAvg(weights="uniform"), federation, ft.models.logistic(), rounds=2,
        ...     participation=10, asynchronous=server,
        ... )
        >>> fedbuff.ledger.totals().models_up  # five answers in each of two steps
        10
    """

    buffer: int
    weight: Staleness = "polynomial"
    a: float = 0.5
    b: float = 4.0
    alpha: float = 1.0
    step: Literal["change", "model"] = "change"
    clock: Wireless = RELIABLE
    slowness: Literal["equal", "samples"] | Slowness = "equal"

    has_plain_type: ClassVar[bool] = False

    def __post_init__(self) -> None:
        is_whole = isinstance(self.buffer, int | np.integer)
        require(
            is_whole and not isinstance(self.buffer, bool) and self.buffer >= 1,
            f"buffer is {self.buffer!r}; it must be a whole number, 1 or more",
        )
        weights = get_args(Staleness)
        require_one_of(self.weight, weights, "weight")
        for name in ("a", "b", "alpha"):
            value = getattr(self, name)
            require(
                isinstance(value, int | float) and 0 <= value < np.inf,
                f"{name} is {value!r}; it must be a number of 0 or more",
            )
        require(
            0 < self.alpha <= 1, f"alpha is {self.alpha}; it must be above 0, up to 1"
        )
        require(
            self.step in ("change", "model"),
            f"step is {self.step!r}; it must be 'change' or 'model'",
        )
        require(
            isinstance(self.clock, Wireless),
            f"clock is {self.clock!r}; give fedtailor.aggregation.accounting.Wireless(...)",
        )
        require(
            self.clock.uplink == "simultaneous",
            "late clients send when they are done; the clock's uplink must be"
            " 'simultaneous'",
        )
        object.__setattr__(self, "slowness", _as_slowness(self.slowness))

    def weights(self, age: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weights s of answers [c] of some ages."""
        tau = np.asarray(age, np.float64)
        if self.weight == "constant":
            fall = np.ones_like(tau)
        elif self.weight == "hinge":
            late = np.maximum(tau - self.b, 0.0)
            fall = 1.0 / (self.a * late + 1.0)
        else:
            fall = (tau + 1.0) ** -self.a
        return self.alpha * fall

    def factors(self, clients: Clients) -> NDArray[np.float64]:
        """The slowness of each client of a table.

        Raises:
            ValueError: a factor names no client of the table.
        """
        if self.slowness == "equal":
            return np.ones(len(clients))
        if self.slowness == "samples":
            return clients.sizes / max(float(clients.sizes.mean()), 1.0)
        factors = dict(cast(Slowness, self.slowness))
        unknown = sorted(factors.keys() - set(clients.names))
        require(
            not unknown,
            f"slowness names {unknown[:1]}, and no client that trains has that name",
        )
        return np.array([factors.get(name, 1.0) for name in clients.names])

    def check(
        self,
        algorithm: Algorithm,
        uplink: Pipeline,
        participation: Participation,
        *,
        hides_updates: bool,
    ) -> None:
        """Refuse a run whose answers cannot be late.

        Args:
            algorithm: the method.
            uplink: the transforms of what clients send.
            participation: chooses who trains.
            hides_updates: whether the server sees sums only.

        Raises:
            ValueError: it is not defined for late answers; the message is one line.
        """
        name = algorithm.about.name if hasattr(algorithm, "about") else "a schedule"
        require(
            len(algorithm.phases()) == 1,
            f"late answers need one method from beginning to end, and {name}"
            " changes it during the run",
        )
        require(
            algorithm.participants == "reporters" and algorithm.server_only_averages,
            f"{name} is not defined for late clients, which need a server that only"
            " averages one model of each client (fedavg, fedprox, ditto, fedper,"
            " finetune, ...)",
        )
        require(
            not hides_updates,
            "secure sums are over clients that answer together: leave out"
            " secure_aggregation, or asynchronous",
        )
        for transform in uplink:
            require(
                transform.stage != "mean",
                "a robust mean compares clients that start from one model, and late"
                " clients do not: leave out robust-mean, or asynchronous",
            )
            require(
                transform.noise is None,
                "noise on updates is accounted for rounds that wait for all their"
                " clients: leave out gaussian-noise, or asynchronous",
            )
        require(
            participation.sampling != "poisson",
            "late clients need a fixed number that train at the same time, which"
            ' sampling = "poisson" does not give',
        )


def _as_slowness(value: Any) -> Any:
    """The factors of `AsynchronousServer.slowness`, as sorted pairs.

    Raises:
        ValueError: they are not positive numbers by client name.
    """
    if isinstance(value, str):
        require(
            value in ("equal", "samples"),
            f"slowness is {value!r}; it must be 'equal', 'samples' or a factor for each"
            " client",
        )
        return value
    pairs = value.items() if isinstance(value, Mapping) else value
    factors = []
    for name, factor in pairs:
        is_number = isinstance(factor, int | float | np.number)
        require(
            is_number and bool(0 < factor < np.inf),
            f"the slowness of {name!r} is {factor!r}; it must be a number above 0",
        )
        factors.append((str(name), float(factor)))
    return tuple(sorted(factors))


def check_buffer(server: AsynchronousServer, clients: int) -> None:
    """Refuse a step that needs more answers than there are clients.

    Raises:
        ValueError: it does.
    """
    require(
        server.buffer <= clients,
        f"buffer is {server.buffer}, and only {clients} clients train; a client has one"
        " answer in a step",
    )


class AnswerOrder(Protocol):
    """Whose answers the server takes in each step of a simulation."""

    def next_step(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Go on to the server's next step.

        Returns:
            clients [k]: the rows of the clients whose answers it takes, ascending;
            ages [k]: the number of steps since each of them began.
        """
        ...

    @property
    def oldest(self) -> int:
        """The smallest number of steps after which a client began whose answer is still
        to come.
        """
        ...

    def restore(self, step: int) -> None:
        """Continue after a number of steps."""
        ...


@dataclass
class AnswerRecord:
    """Whose answers a server took, one after another.

    Attributes:
        step: [n] the step that took each answer, from 0, ascending.
        client: [n] the rows of the clients, ascending within a step.
        age: [n] the number of steps since the client began.
    """

    step: list[int] = field(default_factory=list)
    client: list[int] = field(default_factory=list)
    age: list[int] = field(default_factory=list)

    def add(
        self, step: int, clients: NDArray[np.int64], ages: NDArray[np.int64]
    ) -> None:
        """Record a step."""
        self.step += [step] * len(clients)
        self.client += clients.tolist()
        self.age += ages.tolist()

    @property
    def steps(self) -> int:
        """The number of steps."""
        return max(self.step, default=-1) + 1

    def snapshot(self) -> dict[str, Any]:
        """Arrays, from which `of` makes the same record."""
        columns = {"step": self.step, "client": self.client, "age": self.age}
        return {name: np.array(values, np.int64) for name, values in columns.items()}

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> "AnswerRecord":
        """The record of a snapshot."""
        step, client, age = (
            np.asarray(columns[name], np.int64).tolist()
            for name in ("step", "client", "age")
        )
        return cls(step, client, age)


class Replay:
    """Takes answers in the order of a record, in a simulation."""

    def __init__(self, record: AnswerRecord) -> None:
        step, client, age = (
            np.array(column, np.int64)
            for column in (record.step, record.client, record.age)
        )
        self._steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        began = []
        for number in range(record.steps):
            rows = step == number
            self._steps.append((client[rows], age[rows]))
            began.append(int((number - age[rows]).min(initial=number)))
        # By step: when the first of those began whose answers it or a later one takes.
        self._oldest = np.minimum.accumulate(began[::-1])[::-1]
        self._next = 0

    def next_step(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Go on to the server's next step; see `AnswerOrder`.

        Raises:
            ValueError: the record has no further step.
        """
        require(
            self._next < len(self._steps),
            f"the record has the answers of {len(self._steps)} steps, and no more",
        )
        self._next += 1
        return self._steps[self._next - 1]

    @property
    def oldest(self) -> int:
        """See `AnswerOrder`."""
        if self._next == len(self._steps):
            return self._next
        return int(self._oldest[self._next])

    def restore(self, step: int) -> None:
        """See `AnswerOrder`."""
        self._next = step


class Arrivals:
    """Whose answers the server takes in each step, by the clock.

    Attributes:
        step: the number of steps taken.
        times: the time of each step taken.
    """

    def __init__(
        self,
        server: AsynchronousServer,
        participation: Participation,
        clients: Clients,
        seed: int,
    ) -> None:
        """Nobody has begun yet.

        Args:
            server: the settings.
            participation: how many clients train at the same time, and in which order
                they are drawn.
            clients: the clients [m] that train.
            seed: of the order and of random delays.

        Raises:
            ValueError: there are fewer clients than answers in a step.
        """
        check_buffer(server, len(clients))
        self._server = server
        self._participation = participation
        self._clients = clients
        self._seed = seed
        self._places = participation.reporters(len(clients))
        self._slowness = server.factors(clients)
        self._start()

    def _start(self) -> None:
        """Set the clock to 0."""
        clients = self._clients
        self.step = 0
        self.times: list[float] = []
        self._now = 0.0
        # Of each client [m]: when its answer arrives (infinite if it is not training),
        # and the step after which it began.
        self._arrival = np.full(len(clients), np.inf)
        self._began = np.zeros(len(clients), np.int64)
        # Clients whose answers have arrived: `_ready` before the server has counted them,
        # `_buffer` when they wait for its step.
        self._ready: list[int] = []
        self._buffer: list[int] = []

    def next_step(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Play the clock to the server's next step.

        Returns:
            clients [buffer]: the rows of the clients whose answers it takes, ascending;
            ages [buffer]: the number of steps since each of them began.
        """
        while True:
            # Answers that have arrived at the same time are counted in the order of the
            # clients, before anybody starts again.
            while self._ready and len(self._buffer) < self._server.buffer:
                self._buffer.append(self._ready.pop(0))
            if len(self._buffer) == self._server.buffer:
                break
            self._begin()
            self._now = float(self._arrival.min())
            arrived = np.flatnonzero(self._arrival == self._now)
            self._arrival[arrived] = np.inf
            self._ready = [int(client) for client in arrived]
        clients = np.sort(np.array(self._buffer, np.int64))
        ages = self.step - self._began[clients]
        self._buffer = []
        self.step += 1
        self.times.append(self._now)
        return clients, ages

    def _begin(self) -> None:
        """Let clients begin to train from the newest model, as many as there are places.

        Clients whose answers wait for the step do not begin again before it.
        """
        is_free = np.isinf(self._arrival)
        is_free[self._buffer] = False
        places = self._places - int(np.isfinite(self._arrival).sum())
        order = self._participation.order(
            self._clients.ids, self._seed, self.step, self._clients.sizes
        )
        chosen = order[is_free[order]][:places]
        clock = self._server.clock
        uniform = draw_uniform(self._seed, "delay", self.step, self._clients.ids)
        delay = -np.log1p(-uniform) * clock.mean_delay
        computing = self._slowness * (clock.t_min + delay)
        sending = clock.t_dl * (1.0 + clock.rho)
        self._arrival[chosen] = self._now + (computing + sending)[chosen]
        self._began[chosen] = self.step

    @property
    def oldest(self) -> int:
        """The smallest number of steps after which a client began whose answer is still
        to come.
        """
        is_awaited = np.isfinite(self._arrival)
        is_awaited[[*self._ready, *self._buffer]] = True
        return int(self._began[is_awaited].min(initial=self.step))

    def restore(self, step: int) -> None:
        """See `AnswerOrder`; the clock is played again."""
        self._start()
        for _ in range(step):
            self.next_step()
