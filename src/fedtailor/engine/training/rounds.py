"""The server's side of rounds: who reports, which messages are sent, how the server
aggregates the answers, what that costs and how much privacy it spends.

`cohort.reporting` says which clients are asked for an answer, `answers.reporting` which
of them answered.

This side knows a population, a method and a model. It knows no example, device, file or
thread: clients are reached through an `Executor` only.

Functions that return `Exchanges` are generators. Such a function hands an exchange to its
caller and continues when the caller has sent it the answers:

    answers = yield exchange

Read the line as a call that asks the clients of `exchange` and waits for their answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.accounting import Ledger
from fedtailor.aggregation.pipelines import check_stages
from fedtailor.data.federation.checks import check_seed
from fedtailor.engine.training.asynchronous import (
    AnswerRecord,
    Arrivals,
    AsynchronousServer,
    Replay,
)
from fedtailor.engine.training.asynchronous_rounds import AsynchronousRounds, by_age
from fedtailor.engine.training.costs import record_exchange
from fedtailor.engine.training.divergence import explained, require_finite_update
from fedtailor.engine.training.metrics import Metrics, select_metrics
from fedtailor.engine.training.networks import check_networks
from fedtailor.engine.training.noise_alone import aggregate_noise
from fedtailor.engine.training.privacy import privacy_account, promises_privacy
from fedtailor.engine.training.private_seed import private_seed
from fedtailor.engine.training.schedule import SchedulePhase
from fedtailor.engine.training.server_sums import ServerSums
from fedtailor.engine.training.simulated_sums import SimulatedSums
from fedtailor.engine.training.single_rows import note_single_rows
from fedtailor.engine.training.spec import RunSpec
from fedtailor.models import Model
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    Answers,
    Clients,
    ClientTask,
    Cohort,
    Diverged,
    Downlink,
    Exchange,
    Exchanges,
    Executor,
    ExpectedSums,
    FirstCome,
    Population,
    announce,
    decode,
    drive,
    send,
)
from fedtailor.protocol.returned import check_downlink, check_server

ExecutorT = TypeVar("ExecutorT", bound=Executor)


class Rounds(Generic[ExecutorT]):
    """The rounds of one algorithm with the clients of one executor.

    Whatever needs the clients comes in two forms. A generator (`next_round`,
    `probe_if_due`) yields an `Exchange`, which says what the clients are to do, and is
    sent their `Answers`. Its caller chooses how they are computed: `LockstepGroup`
    drives the generators of several runs together. A plain method (`advance`, `probe`)
    drives its generator to the end with this object's executor (`protocol.drive`).

    Attributes:
        server: the server's state. If the method probes its clients before training,
            this is what `init_server` returned until `probe` or a round is called.
        uplink_state: the server's state of each transform of the uplink.
        schedule: (method, rounds) of every phase, as `Algorithm.phases` returns them.
        phase: the present phase of the schedule.
        round: the number of rounds done.
        population: the seen clients.
        measured: the functions that every evaluation computes, such as the accuracy.
        metric: the main one of `measured`, which judges the run.
        metrics: the history: the values of `measured` at all evaluations so far.
        ledger: what was sent and computed in training so far.
        sends_scores: whether clients send sums of losses, which measure them.
        evaluate_clients: how many of them are asked to; None = all.
        privacy: the privacy spent so far; None if the run promises no privacy.
        round_seconds: wall time of every round without its evaluation. Runs that train
            in lock-step divide their common time equally.
        seconds: wall time of all rounds and evaluations, divided likewise.
        core_seconds: processor time of this process, on all cores, in them; None if an
            earlier part of the run did not measure it.
    """

    phase: SchedulePhase

    def __init__(
        self,
        spec: RunSpec,
        executor: ExecutorT,
        *,
        secret: int | None = None,
        data: str = "",
    ) -> None:
        """Start the first phase; the clients are not asked for anything yet.

        Args:
            spec: the settings, with a bound model. Without metrics, those of the
                clients' data are measured, in the unit of the user's data.
            executor: answers for the clients.
            secret: the seed of the server's random numbers (who reports, noise on
                sums), where others know the run's seed and must not foresee them; None =
                that seed.
            data: a digest of the clients' examples, if they are known. A run that
                promises privacy draws its random numbers from `secret`, from all of
                these settings and from this digest (`private_seed`).

        Raises:
            ValueError: the method or a pipeline is not defined for this population, or
                a metric for this model; or the seed is not in 0..2^32 - 1.
        """
        assert isinstance(spec.model, Model)
        algorithm, model, participation = spec.algorithm, spec.model, spec.participation
        uplink, downlink, privacy = spec.uplink, spec.downlink, spec.privacy
        metrics = spec.metrics or executor.data.default_metrics
        self.seed = check_seed(spec.seed)
        self.executor = executor
        self.model = model
        self._is_statistic: NDArray[np.bool_] | None = None
        if model.has_statistics:
            self._is_statistic = np.zeros(model.size, bool)
            self._is_statistic[model.statistics.indices] = True
        self.participation = participation
        self.uplink = uplink
        self.downlink = downlink
        self.target_scale = executor.data.target_units[1]
        self._secret = self.seed if secret is None else secret
        self.measured, self.metric = select_metrics(metrics, model)
        self.schedule = list(algorithm.phases())
        methods = [method for method, _ in self.schedule]
        self.population = self._population(methods, spec.asynchronous)
        # All methods are checked now: the second one must not be refused after hours of
        # training with the first one.
        check_stages(uplink)
        self.sends_scores = privacy.evaluate
        self.evaluate_clients = spec.evaluate_clients
        self._sums: SimulatedSums | None = None
        if privacy.sums is not None:
            privacy.sums.check(algorithm, uplink)
            privacy.sums.check_client_count(
                algorithm,
                participation.reporters(len(self.population)),
                len(self.population),
            )
            self._sums = SimulatedSums(privacy.sums)
        weighted = self.population.weights is not None
        require(
            not weighted or not promises_privacy(methods, uplink),
            "what noise hides holds for rows that count the same; leave out weights and"
            " class_weights, or the noise (dp_noise, noise)",
        )
        for method in methods:
            if weighted and not method.takes_weights:
                raise ValueError(
                    f"{method.about.name} counts rows and takes no weights; leave out"
                    " weights and class_weights, or choose another method, such as fedavg"
                )
            check_networks(method, model)
            method.check(self.population)
            for transform in (*uplink, *downlink):
                transform.check(method)
        if model.has_statistics:
            note_single_rows(methods, self.population)
        self.privacy = privacy_account(
            methods, uplink, downlink, participation, self.population
        )
        if self.privacy is not None:
            self._secret = private_seed(self._secret, self._settings(algorithm), data)
        self.uplink_state = [
            transform.init_server(self.population) for transform in uplink
        ]
        self.round = 0
        self.ledger = Ledger()
        self.metrics = Metrics()
        self.round_seconds: list[float] = []
        self.seconds = 0.0
        self.core_seconds: float | None = 0.0
        self.asynchronous: AsynchronousRounds | None = None
        if spec.asynchronous is not None:
            order = None
            if executor.machine is not None:
                # Clients are simulated, and a clock says who is late.
                order = Arrivals(
                    spec.asynchronous, participation, executor.seen, self._secret
                )
            nobody = np.full(len(executor.seen), -1, np.int64)
            self.asynchronous = AsynchronousRounds(spec.asynchronous, order, nobody)
        self._start_phase(0, self.initial)

    def _population(
        self, methods: Sequence[Algorithm], asynchronous: AsynchronousServer | None
    ) -> Population:
        """The seen clients, and what the methods of the schedule may know about the run."""
        seen = self.executor.seen
        # A server that hands out clients' examples, as a simulated one may, would break
        # every promise of privacy.
        is_private = promises_privacy(methods, self.uplink)
        return Population(
            ids=seen.ids,
            names=seen.names,
            sizes=seen.sizes,
            groups=seen.groups,
            original_index=seen.original_index,
            weights=seen.weights,
            reporters_per_round=(
                self.participation.reporters(len(seen))
                if asynchronous is None
                else asynchronous.buffer
            ),
            seed=self.seed,
            examples=None if is_private else self.executor.examples,
            model=self.model,
            public=self.executor.data.public,
        )

    def _settings(self, algorithm: Algorithm) -> dict[str, Any]:
        """All that the releases of a run depend on, apart from seeds and examples."""
        return {
            "algorithm": algorithm,
            "model": self.model,
            "parameters": self.model.size,
            "participation": self.participation,
            "uplink": self.uplink,
            "downlink": self.downlink,
            "clients": self.population.names,
            "sizes": self.population.sizes,
        }

    @property
    def algorithm(self) -> Algorithm:
        """The method of the present phase."""
        return self.phase.algorithm

    def initial(self, k: int) -> jax.Array:
        """The k-th random initial model [d]; k = 0 is common to all methods."""
        return self.model.init(jax.random.fold_in(jax.random.key(self.seed), k))

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of all clients, seen and unseen, in the user's order."""
        return self.executor.data.names

    # a round
    # ----------------------------------------------------------------------------------

    def advance(self, reporting: NDArray[np.bool_] | None = None) -> None:
        """Do one round; see `next_round`."""
        drive(self.next_round(reporting), self.executor)

    def next_round(self, reporting: NDArray[np.bool_] | None = None) -> Exchanges[None]:
        """Do one round, after the change of phase and the probe if they are due.

        A round yields one exchange: `broadcast` makes the downlink, the clients of the
        cohort train, `server` aggregates their answers. Nothing changes before all
        answers are known to be finite.

        Args:
            reporting: [m] which clients are asked to report, in the order of the
                population; None = `participation` chooses them. With `asynchronous` the
                clock says whose answers the round takes.

        Raises:
            Diverged: a client's model or message became NaN or infinite; the state is
                that of the round before.
        """
        yield from self._start_next_phase_if_due()
        yield from self.probe_if_due()
        if self.algorithm.asks_again(self.server):
            yield from self._probe()
        if self.asynchronous is not None:
            yield from self._next_asynchronous_round(self.asynchronous)
            return
        if reporting is None:
            reporting = self.participation.sample(
                self.population.ids, self._secret, self.round, self.population.sizes
            )
        cohort = self.round_cohort(reporting)
        if not len(cohort):
            # Without a transform that asks for it, the server's state does not change.
            if any(transform.runs_without_reporters for transform in self.uplink):
                anyone = self._cohort(
                    self.executor.seen, np.zeros(1, np.int64), seen=True
                )
                self.server, self.uplink_state = aggregate_noise(
                    self.algorithm,
                    self.server,
                    self.uplink,
                    self.uplink_state,
                    anyone,
                )
            self._end_round(cohort, Downlink(), Answers(reporting=cohort.reporting))
            return

        # Down: the algorithm's message, to which the transforms of the uplink add what
        # they need on the clients.
        downlink = self.algorithm.broadcast(self.server, cohort)
        yield from self._exchange_round(cohort, downlink)

    def _exchange_round(
        self,
        cohort: Cohort,
        downlink: Downlink,
    ) -> Exchanges[None]:
        """Send a round's downlink, and aggregate the answers.

        Args:
            cohort: the clients.
            downlink: the algorithm's message to them.
        """
        exchange = self._round_exchange(cohort, downlink)
        answers = yield exchange
        if self._sums is not None:
            answers = self._sums.hide(answers, cohort)

        # Up: all answers have arrived and are finite before the state changes.
        try:
            server, uplink_state = self._aggregate_finite(downlink, exchange, answers)
        except Diverged as error:
            raise explained(
                error, self.algorithm, self.model, exchange.downlink, downlink
            ) from None
        self.executor.commit(exchange, answers)
        self.server = server
        self.uplink_state = uplink_state
        self.phase.participated[cohort.position] = True
        self._end_round(cohort, exchange.downlink, answers)

    def _round_exchange(self, cohort: Cohort, downlink: Downlink) -> Exchange:
        """The exchange of a round; arguments are those of `_exchange_round`."""
        announced = announce(self.uplink, downlink, self.uplink_state)
        exchange = self._new_exchange("client", cohort, announced)
        return replace(exchange, sums=self._expected_sums(downlink, exchange))

    def planned_exchange(self) -> Exchange:
        """The exchange that the next round would yield first, for estimates of what it
        takes: that of the probe if it is due. Nothing is changed.
        """
        if self.phase.probe_is_due:
            everyone = np.arange(len(self.population))
            cohort = self._cohort(self.executor.seen, everyone, seen=True)
            downlink = self.algorithm.probe_downlink(self.server, cohort)
            return self._new_exchange("probe", cohort, downlink)
        reporting = self.participation.sample(
            self.population.ids, self._secret, self.round, self.population.sizes
        )
        cohort = self.round_cohort(reporting)
        return self._round_exchange(
            cohort, self.algorithm.broadcast(self.server, cohort)
        )

    def _expected_sums(
        self, downlink: Downlink, exchange: Exchange
    ) -> ExpectedSums | None:
        """What says which sums of a round's answers the server needs (`Exchange.sums`)."""
        # Behind masks, clients add up what they send.
        if self._sums is not None or self.algorithm.server_sees != "sums":
            return None
        return self._server_sums.of_round(
            partial(self._aggregate, downlink, exchange),
            exchange.cohort,
            exchange.downlink.reply,
        )

    def _next_asynchronous_round(
        self, asynchronous: AsynchronousRounds
    ) -> Exchanges[None]:
        """Take the answers that have arrived, each of a client that began from the
        server's model of its time (`AsynchronousServer`).
        """
        asynchronous.servers[self.round] = self.server
        if asynchronous.order is not None:
            clients, age = asynchronous.order.next_step()
        else:
            clients, age = yield from self._first_come(asynchronous)
        cohort = replace(self._cohort(self.executor.seen, clients, seen=True), age=age)
        yield from self._exchange_round(
            cohort, asynchronous.downlink(self.algorithm, cohort)
        )
        asynchronous.forget()

    def _first_come(
        self, asynchronous: AsynchronousRounds
    ) -> Exchanges[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Have free clients begin, and wait for the first answers of all that are at work.

        Returns:
            Their rows and ages, as `AnswerOrder.next_step`.
        """
        if asynchronous.asks_again:
            asynchronous.asks_again = False
            for step in np.unique(asynchronous.began[asynchronous.began >= 0]):
                clients = np.flatnonzero(asynchronous.began == step)
                everyone = FirstCome(0, len(clients), np.arange(len(clients)))
                yield self._late_exchange(asynchronous, clients, int(step), everyone)
        seen = self.executor.seen
        places = self.participation.reporters(len(seen))
        order = self.participation.order(seen.ids, self._secret, self.round, seen.sizes)
        first = FirstCome(asynchronous.settings.buffer, places, order)
        answers = yield self._late_exchange(
            asynchronous, np.arange(len(seen)), self.round, first
        )
        return asynchronous.came(self.round, answers)

    def _late_exchange(
        self,
        asynchronous: AsynchronousRounds,
        clients: NDArray[np.int64],
        step: int,
        first: FirstCome,
    ) -> Exchange:
        """An exchange that does not wait, in which clients begin from the model after a
        step.
        """
        cohort = replace(
            self._cohort(self.executor.seen, clients, seen=True), round=step
        )
        sent = asynchronous.downlink_of_step(self.algorithm, cohort)
        downlink = announce(self.uplink, sent, self.uplink_state)
        return replace(self._new_exchange("client", cohort, downlink), first=first)

    def replay(self, record: AnswerRecord) -> None:
        """Take late clients' answers in the order of a record, instead of the clock's.

        Raises:
            ValueError: this server waits for all clients.
        """
        require(
            self.asynchronous is not None,
            "a record of answers is for a server that does not wait: set asynchronous",
        )
        assert self.asynchronous is not None
        self.asynchronous.order = Replay(record)
        self.asynchronous.order.restore(self.round)

    @property
    def times(self) -> NDArray[np.float64] | None:
        """[t] when the server took each step, by the clock of late clients; None if it
        waits for all clients, or there is no clock.
        """
        order = None if self.asynchronous is None else self.asynchronous.order
        return np.array(order.times) if isinstance(order, Arrivals) else None

    def _aggregate_finite(
        self, downlink: Downlink, exchange: Exchange, answers: Answers
    ) -> tuple[Any, list[Any]]:
        """Do `_aggregate`, and require that all answers are finite.

        Raises:
            Diverged: an answer is NaN or infinite.
        """
        # The server's work is queued first, behind that of the clients, whose answers may
        # still be computed on the devices; only then are they waited for.
        try:
            aggregated = self._aggregate(downlink, exchange, answers)
        except Exception:
            # The cause may be a NaN that a client sent. In that case `require_finite`
            # raises Diverged instead of this error.
            answers.require_finite()
            raise
        answers.require_finite()
        return aggregated

    def _aggregate(
        self, downlink: Downlink, exchange: Exchange, answers: Answers
    ) -> tuple[Any, list[Any]]:
        """Aggregate the answers of a round, without changing this object.

        Args:
            downlink: what `broadcast` returned, before any transform. The algorithm is
                given it again.
            exchange: what the clients received: its downlink has gone through both
                pipelines, and the transforms of the uplink decode relative to it.
            answers: what the clients sent.

        Returns:
            The server's next state, and the next state of each transform of the uplink.
        """
        cohort = replace(exchange.cohort, reporting=answers.reporting)
        # The number of private steps is for the accounting of privacy only.
        messages = {
            kind: rows for kind, rows in answers.update.items() if kind != PRIVATE_STEPS
        }
        update, uplink_state = decode(
            self.uplink, messages, exchange.downlink, cohort, self.uplink_state
        )
        if self.asynchronous is not None and cohort.age is not None:
            newest = self.algorithm.broadcast(self.server, cohort)
            update = by_age(
                self.asynchronous.settings,
                update,
                cohort.age,
                exchange.downlink,
                newest,
                cohort.is_statistic,
            )
        decoded = replace(answers, update=update)
        try:
            server = self.algorithm.server(self.server, downlink, decoded, cohort)
        except Exception:
            # The cause may be a NaN that a transform has made of a finite answer.
            require_finite_update(update, cohort)
            raise
        check_server(self.algorithm, self.server, server)
        return server, uplink_state

    def _end_round(self, cohort: Cohort, downlink: Downlink, answers: Answers) -> None:
        """Count a round, and record its costs and the privacy that it spent.

        Args:
            cohort: the clients, and which of them were asked to report.
            downlink: what the clients received.
            answers: what they sent, and which of them answered.
        """
        record_exchange(
            self.ledger, "round", self.round, self.model, cohort, downlink, answers
        )
        if self.asynchronous is not None:
            self.asynchronous.count(replace(cohort, reporting=answers.reporting))
        self.round += 1
        if self.privacy is not None:
            # A client that was asked spends privacy even if it did not answer.
            self.privacy.add(cohort, answers)
            self.metrics.evaluations += self.privacy.evaluations(self.round)

    def round_cohort(self, reporting: NDArray[np.bool_]) -> Cohort:
        """The clients of the next round: those that are asked to report, or all clients
        if the method trains all of them.

        Args:
            reporting: [m] which clients are asked to report, in the order of the
                population.

        Returns:
            A cohort whose `reporting` is that of its clients. It is empty if no client
            is asked and the method trains reporters only.
        """
        clients = np.flatnonzero(reporting)
        if self.algorithm.participants == "all":
            clients = np.arange(len(self.population))
        return self._cohort(
            self.executor.seen, clients, seen=True, reporting=reporting[clients]
        )

    # phases of the schedule, and their probes
    # ----------------------------------------------------------------------------------

    def _start_next_phase_if_due(self) -> Exchanges[None]:
        """Start the next phase of the schedule if all rounds of this one are done."""
        phase = self.phase
        is_last = phase.index + 1 == len(self.schedule)
        if (
            is_last
            or phase.rounds is None
            or self.round < phase.first_round + phase.rounds
        ):
            return
        yield from self.probe_if_due()
        # The next method starts from this one's result as the common initial model; all
        # further random models are as usual.
        trained = phase.algorithm.global_model(self.server)

        def initial_model(k: int) -> jax.Array:
            return trained if k == 0 else self.initial(k)

        self._start_phase(phase.index + 1, initial_model)

    def _start_phase(
        self, index: int, initial_model: Callable[[int], jax.Array]
    ) -> None:
        """Initialize the states of server and clients for a phase.

        Args:
            index: the position of the phase in the schedule.
            initial_model: k -> the k-th initial model [d].
        """
        algorithm, rounds = self.schedule[index]
        self._server_sums = ServerSums()
        # Server, clients and transforms all begin at the same model.
        first_model = initial_model(0)
        self.server = algorithm.init_server(initial_model, self.population)
        check_server(algorithm, self.server, self.server, "init_server")
        self.executor.begin(algorithm, self.uplink, first_model, index)

        def init_client_state(theta: jax.Array) -> Any:
            return algorithm.init_state(theta, self.model)

        # The shapes say whether there is any state; nothing is computed.
        client_state = jax.eval_shape(init_client_state, first_model)
        self.phase = SchedulePhase(
            index=index,
            algorithm=algorithm,
            rounds=rounds,
            first_round=self.round,
            keeps_states=bool(jax.tree.leaves(client_state)),
            # The probe waits until the server's state is needed: a training that is
            # restored from a checkpoint must not repeat it.
            probe_is_due=algorithm.probes,
            participated=np.zeros(len(self.population), bool),
        )

    def probe(self) -> None:
        """Have the clients answer the probe if it is due; see `probe_if_due`."""
        drive(self.probe_if_due(), self.executor)

    def probe_if_due(self) -> Exchanges[None]:
        """Ask all clients for the statistic that the method needs before training, if it
        needs one. This is done once in a phase; a method may ask again between rounds
        (`Algorithm.asks_again`).

        Raises:
            Diverged: a client's answer is NaN or infinite; the probe is still due.
        """
        if self.phase.probe_is_due:
            yield from self._probe()
            self.phase.probe_is_due = False

    def _probe(self) -> Exchanges[None]:
        """Have all clients answer the probe.

        Raises:
            Diverged: a client's answer is NaN or infinite; the state is that before.
        """
        all_clients = np.arange(len(self.population))
        cohort = self._cohort(self.executor.seen, all_clients, seen=True)
        downlink = self.algorithm.probe_downlink(self.server, cohort)
        exchange = self._new_exchange("probe", cohort, downlink)
        answers = yield exchange
        answers.require_finite()
        answered = replace(cohort, reporting=answers.reporting)
        probed = self.algorithm.aggregate_probe(self.server, answers, answered)
        check_server(self.algorithm, self.server, probed, "aggregate_probe")
        self.server = probed
        record_exchange(
            self.ledger,
            "probe",
            self.round,
            self.model,
            cohort,
            exchange.downlink,
            answers,
        )

    # helpers
    # ----------------------------------------------------------------------------------

    def record_time(
        self, round_seconds: float, total_seconds: float, core_seconds: float
    ) -> None:
        """Add the time of a round: wall time without and with its evaluation, and
        processor time with it.
        """
        at_once = self.executor.concurrency
        self.round_seconds.append(round_seconds / at_once)
        self.seconds += total_seconds / at_once
        if self.core_seconds is not None:
            self.core_seconds += core_seconds / at_once

    def _cohort(
        self,
        table: Clients,
        clients: NDArray[np.int64],
        *,
        seen: bool,
        reporting: NDArray[np.bool_] | None = None,
    ) -> Cohort:
        """Some clients of a table, by their rows in it; by default all of them report."""
        return Cohort(
            clients=table,
            rows=clients,
            seen=seen,
            reporting=np.ones(len(clients), bool) if reporting is None else reporting,
            round=self.round,
            seed=self._secret,
            examples=self.population.examples,
            capacity=self.participation.capacity(len(clients)),
            public=self.population.public,
            is_statistic=self._is_statistic,
        )

    def _new_exchange(
        self, task: ClientTask, cohort: Cohort, downlink: Downlink
    ) -> Exchange:
        """An exchange that sends `downlink` through the pipeline of the downlink."""
        return Exchange(
            task,
            self.algorithm,
            cohort,
            self._sent(cohort, downlink),
            uplink=self.uplink if task == "client" else (),
            received_through=self.downlink,
        )

    def _sent(self, cohort: Cohort, downlink: Downlink) -> Downlink:
        """What the pipeline of the downlink makes of a downlink; both are checked."""
        check_downlink(self.algorithm, cohort, downlink)
        if not self.downlink:
            return downlink
        sent = send(self.downlink, downlink)
        check_downlink(self.algorithm, cohort, sent)
        return sent
