"""A run in progress: its state, one round, the service of clients, one evaluation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.accounting import Ledger, Phase
from fedtailor.engine.cohort import Task
from fedtailor.engine.data import SPLITS
from fedtailor.engine.examples import examples_of
from fedtailor.engine.mapper import Mapper, Outputs
from fedtailor.engine.metrics import Metrics
from fedtailor.engine.participation import Participation
from fedtailor.engine.parts import joined, part
from fedtailor.engine.settings import Settings
from fedtailor.engine.state_file import FileStates, remove_others, states_path
from fedtailor.engine.states import DeviceStates, HostStates, States
from fedtailor.engine.together import Seat
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, Cohort, Down, Population, require


@dataclass(frozen=True)
class Service:
    """All that is needed to run clients' personal models.

    Attributes:
        cohort: the clients, in the order of `places`.
        places: [c] their places in the federation.
        states: their states, stacked; None where the training holds them.
        down: what the server sent them.
    """

    cohort: Cohort
    places: NDArray[np.int64]
    states: Any
    down: Down


class Training:
    """Trains one algorithm on one federation, round by round.

    Attributes:
        round: rounds done.
        states: the clients' states.
        ledger: what travelled and what was computed in training so far.
        metrics: evaluations so far.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        model: Model,
        *,
        seed: int = 0,
        participation: Participation = Participation(),  # noqa: B008 (frozen)
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        directory: Path | None = None,
        seat: Seat | None = None,
    ) -> None:
        """Begin.

        Args:
            directory: where states that do not fit into memory stay, so that checkpoints need not hold them.
            seat: at the meeting of trainings that ask their clients together.
        """
        self.directory = directory
        self.federation, self.model, self.seed = federation, model, seed
        self.participation, self.settings = participation, settings
        self.ids, self.stranger = federation.ids, federation.unseen
        seen, unseen = np.flatnonzero(~federation.unseen), np.flatnonzero(federation.unseen)
        self.seen, self.unseen = seen[np.argsort(self.ids[seen])], unseen[np.argsort(self.ids[unseen])]
        self.population = Population(
            ids=self.ids[self.seen],
            names=tuple(federation.names[client] for client in self.seen),
            sizes=federation.train.sizes[self.seen],
            groups=None if federation.groups is None else federation.groups[self.seen],
            reporters=participation.reporters(len(seen)),
            seed=seed,
            examples=examples_of(federation, self.seen),
        )
        self.schedule = list(algorithm.phases())
        for phase, _ in self.schedule:
            phase.check(self.population)
        self.mapper = Mapper(federation, model, seed, settings, seat)
        self.round = 0
        self.ledger, self.metrics = Ledger(), Metrics()
        self._begin(0, self.initial)

    @property
    def server(self) -> Any:
        """The server's state. The probe of a method that has one is made when the state is first asked for, so that
        a training which is put where another stood makes none."""
        if self._unprobed:
            cohort = self._cohort(np.arange(len(self.seen)))
            down = self.algorithm.ask(self._server, cohort)
            out = self.mapper.run("probe", self.algorithm, cohort, self.seen[cohort.index], (), down).checked()
            self.server = self.algorithm.absorb(self._server, out.values["up"], cohort)
            self._charge(self.ledger, "probe", down, cohort, out)
        return self._server

    @server.setter
    def server(self, state: Any) -> None:
        self._server, self._unprobed = state, False

    @property
    def sharing(self) -> int:
        """How many trainings share the devices' time, with a seat at a meeting; else it is this one's."""
        return 1 if self.mapper.seat is None else self.mapper.seat.sharing

    def initial(self, k: int) -> jax.Array:
        """The k-th random initial model [d]; k = 0 is common to all methods."""
        return self.model.init(jax.random.fold_in(jax.random.key(self.seed), k))

    def advance(self) -> None:
        """Do one round.

        Raises:
            Diverged: a client's model or message became NaN or infinite; the state is that of the round before.
        """
        rounds = self.schedule[self.phase][1]
        if rounds is not None and self.round - self.phase_start >= rounds and self.phase + 1 < len(self.schedule):
            start = self.algorithm.handover(self.server)
            self._begin(self.phase + 1, lambda k: self.initial(k) if k else start)
        report = self.participation.sample(self.population.ids, self.seed, self.round)
        everyone = self.algorithm.trains == "all"
        cohort = self._cohort(np.arange(len(self.seen)) if everyone else np.flatnonzero(report), report)
        down = self.algorithm.broadcast(self.server, cohort)
        out = self._exchange("client", cohort, down)
        cohort = replace(cohort, report=out.report)
        try:
            server = self.algorithm.server(self.server, down, out.values["up"], cohort)
        except Exception:
            out.checked()  # NaN may have led the server there
            raise
        out.checked()  # before anything is kept; the devices have gone on meanwhile
        self.states.write(cohort.index, out.values["state"])
        self.server = server
        self._charge(self.ledger, "round", down, cohort, out)
        self.round += 1

    def serve(self, clients: NDArray[np.int64], ledger: Ledger | None = None) -> Service:
        """What `clients` (places in the federation; all seen or all unseen) need to predict; charged to `ledger`.

        Unseen clients answer the probe (if the method has one) and enroll; their states are not kept.
        """
        seen = not self.stranger[clients].any()
        if seen:
            cohort = self._cohort(np.searchsorted(self.population.ids, self.ids[clients]))
            places = self.seen[cohort.index]
        else:
            cohort, places = self._strangers(clients)
            if self.algorithm.probes:
                down = self.algorithm.ask(self.server, cohort)
                out = self.mapper.run("probe", self.algorithm, cohort, places, (), down).checked()
                self._charge(ledger, "unseen", down, cohort, out)
                probes = {kind: np.asarray(value)[: len(cohort)] for kind, value in out.values["up"].items()}
                cohort = replace(cohort, probes=probes)
        down = self.algorithm.serve(self.server, cohort)
        if seen:
            self._charge(ledger, "delivery", down, cohort)
            states = None
        else:
            out = self.mapper.run("enroll", self.algorithm, cohort, places, (), down).checked()
            self._charge(ledger, "unseen", down, cohort, replace(out, values={}))
            states = out.values["state"]
        return Service(cohort, places, states, down)

    def evaluate(self) -> None:
        """Evaluate the personal models of all clients, seen and unseen, on their val and test splits."""
        for clients, unseen in ((self.seen, False), (self.unseen, True)):
            if len(clients):
                service = self.serve(clients)
                out = self.ask("evaluate", service).values["scores"]
                for split, scores in jax.device_get(out).items():
                    count = self.mapper.size[service.places, SPLITS.index(split)]
                    loss, correct = scores[: len(clients)].T
                    correct = correct if self.model.classification else None
                    self.metrics.append(self.round, service.places, unseen, split, count, loss, correct)

    def ask(self, task: Task, service: Service) -> Outputs:
        """Run "personal" or "evaluate" for the clients of a service."""
        if service.states is not None:
            return self.mapper.run(
                task, self.algorithm, service.cohort, service.places, service.states, service.down
            ).checked()
        times = -(-len(service.cohort) // self.states.at_once)
        parts = np.array_split(np.arange(len(service.cohort)), times)
        return joined([self._exchange(task, *part(service.cohort, service.down, rows)) for rows in parts])

    def _exchange(self, task: Task, cohort: Cohort, down: Down) -> Outputs:
        """Run `task` for seen clients."""
        states = self.states.read(cohort.index, self.mapper.padded(len(cohort)))
        return self.mapper.run(task, self.algorithm, cohort, self.seen[cohort.index], states, down)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the next round depends on, as dicts, lists, numbers and arrays (`restore` takes it back).

        States in a file of `directory` stay there; call `saved` when the snapshot is safely stored."""
        return {
            "round": self.round,
            "phase": [self.phase, self.phase_start],
            "server": self.server,
            "states": self.states.snapshot(),
        }

    def saved(self) -> None:
        """The last snapshot is stored: from now on keep what it needs, and only that."""
        self.states.saved()
        if self.directory is not None:
            remove_others(self.directory, self.phase)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue where a training with the same arguments stood."""
        self.round, (self.phase, self.phase_start) = snapshot["round"], snapshot["phase"]
        self.algorithm, self.server = self.schedule[self.phase][0], snapshot["server"]
        self.states = self._states(self.initial(0), in_file=isinstance(snapshot["states"], dict))
        self.states.restore(snapshot["states"])

    def _begin(self, phase: int, init: Callable[[int], jax.Array]) -> None:
        """Start a phase of the schedule: server and client states; the probe, if the method has one, comes later."""
        self.phase, self.phase_start = phase, self.round
        self.algorithm = self.schedule[phase][0]
        self.server = self.algorithm.init_server(init, self.population)
        self.states = self._states(init(0))
        self._unprobed = self.algorithm.probes

    def _states(self, theta: jax.Array, in_file: bool = False) -> States:
        """The clients' states at the start of a phase: in a file where they exceed the limit."""
        state, clients = jax.tree.map(jnp.asarray, self.algorithm.init_client(theta)), len(self.seen)
        size = clients * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        if in_file or size > self.settings.state_limit:
            require(
                jax.process_count() == 1,
                f"the states of {clients} clients need {size / 2**30:.1f} GiB, which several processes keep in "
                "memory: raise Settings.state_limit, or use one process",
            )
            path = None if self.directory is None else states_path(self.directory, self.phase)
            return FileStates(state, clients, path, self.settings.state_dir)
        if jax.default_backend() == "cpu" or jax.process_count() > 1:
            return HostStates(state, clients)
        return DeviceStates(state, clients)

    def _cohort(self, places: NDArray[np.int64], report: NDArray[np.bool_] | None = None) -> Cohort:
        """The seen clients at `places` of the population, dealt to the devices; everybody reports by default."""
        index = places[self.mapper.order(self.seen[places])]
        groups = self.population.groups
        return Cohort(
            index=index,
            ids=self.population.ids[index],
            sizes=self.population.sizes[index],
            groups=None if groups is None else groups[index],
            report=np.ones(len(index), bool) if report is None else report[index],
            round=self.round,
            seed=self.seed,
            examples=self.population.examples,
        )

    def _strangers(self, clients: NDArray[np.int64]) -> tuple[Cohort, NDArray[np.int64]]:
        places = clients[self.mapper.order(clients)]
        groups = self.federation.groups
        cohort = Cohort(
            index=np.full(len(places), -1),
            ids=self.ids[places],
            sizes=self.federation.train.sizes[places],
            groups=None if groups is None else groups[places],
            report=np.ones(len(places), bool),
            round=self.round,
            seed=self.seed,
            examples=self.population.examples,
        )
        return cohort, places

    def _charge(
        self, ledger: Ledger | None, phase: Phase, down: Down, cohort: Cohort, out: Outputs | None = None
    ) -> None:
        if ledger is not None:
            ups = {} if out is None else out.values.get("up", {})
            work = (0, 0) if out is None else out.work
            ledger.record(self.round, phase, down, ups, cohort.report, *work)
