"""The server's side of rounds: who reports, which messages are sent, how the server
aggregates the answers, what that costs and how much privacy it spends.

This side knows a population, a method and a model. It knows no example, device, file or
thread: clients are reached through an `Executor` only.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.accounting import Ledger, Phase
from fedtailor.federation.checks import check_seed
from fedtailor.metrics import Metric, default_metrics, find_metric, find_metrics
from fedtailor.models import Model
from fedtailor.pipelines import check_order
from fedtailor.pipelines.gaussian_noise import unchanged
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    Answers,
    Clients,
    Cohort,
    Downlink,
    Exchange,
    Exchanges,
    Executor,
    Pipeline,
    Population,
    Task,
    announce,
    decode,
    drive,
    send,
)
from fedtailor.training.metrics import PRIVACY, Evaluation, Metrics
from fedtailor.training.participation import Participation
from fedtailor.training.privacy import privacy_account, promises_privacy

ExecutorT = TypeVar("ExecutorT", bound=Executor)


class Rounds(Generic[ExecutorT]):
    """The rounds of one algorithm with the clients of one executor.

    Whatever needs the clients comes in two forms. A generator (`next_round`,
    `probe_if_due`) yields an `Exchange`, which says what the clients are to do, and is
    sent their `Answers`. Whoever drives it chooses how they are made: `LockstepGroup`
    drives the generators of several runs together. A plain method (`advance`, `probe`)
    drives its generator to the end with this object's executor (`protocol.drive`).

    Attributes:
        server: the server's state. Of a method that probes its clients before training
            it is what `init_server` returned until `probe` or a round has been called.
        schedule: (method, rounds) of every phase, as `Algorithm.phases` gives them.
        phase: position of the present phase in `schedule`.
        phase_start: rounds done before the present phase.
        algorithm: the method of the present phase.
        round: rounds done.
        keeps_states: whether the method's clients keep a state between rounds.
        measured: the metrics that an evaluation computes.
        metric: the one of them that the run is judged by.
        metrics: the values recorded by the evaluations so far.
        participated: [m] who has ever taken part in a round of this phase, in the order of
            the population.
        ledger: what was sent and computed in training so far.
        privacy: the privacy spent so far, where some is promised; else None.
        round_seconds: wall time of every round without its evaluation. Runs that train
            in lock-step divide their common time equally.
        seconds: wall time of all rounds and evaluations, divided likewise.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        executor: ExecutorT,
        model: Model,
        *,
        seed: int = 0,
        participation: Participation = Participation(),  # noqa: B008 (frozen)
        uplink: Pipeline = (),
        downlink: Pipeline = (),
        metrics: Sequence[str | Metric] = (),
        target_scale: float = 1.0,
        secret: int | None = None,
    ) -> None:
        """Begin; nothing is asked of the clients yet.

        Args:
            executor: who answers for the clients.
            uplink: transforms of what clients send in rounds.
            downlink: transforms of what the server sends.
            metrics: what to measure, by name, in addition to the loss and, for
                classification, the accuracy. The run is judged by the first one (by
                default: by the metric of the model).
            target_scale: the factor by which metrics in the unit of the model's target
                are multiplied, so that they are recorded in the unit of the user's data.
            secret: the seed of the server's random numbers (who reports, noise on
                sums), where others know `seed` and must not foresee them; None =
                `seed`.

        Raises:
            ValueError: the method or a pipeline is not defined for this population, or
                a metric for this model; or the seed is not in 0..2^32 - 1.
        """
        seed = check_seed(seed)
        self.executor = executor
        self.model = model
        self.seed = seed
        self.participation = participation
        self.uplink = uplink
        self.downlink = downlink
        self.target_scale = target_scale
        self._secret = seed if secret is None else secret

        # Loss and accuracy are always measured, once, beside what was asked for.
        requested = find_metrics(metrics, model)
        names = {metric.name for metric in requested}
        always = [
            metric for metric in default_metrics(model) if metric.name not in names
        ]
        self.measured = (*always, *requested)
        self.metric = requested[0] if requested else find_metric(model.metric)

        self.schedule = list(algorithm.phases())
        methods = [method for method, _ in self.schedule]
        seen = executor.seen
        # A server that hands out clients' examples, as a simulated one may, would break
        # every promise of privacy.
        examples = None if promises_privacy(methods, uplink) else executor.examples
        self.population = Population(
            seen.ids,
            seen.names,
            seen.sizes,
            seen.groups,
            seen.original_index,
            reporters_per_round=participation.reporters(len(seen)),
            seed=seed,
            examples=examples,
            model=model,
        )
        check_order(uplink)
        # All methods are checked now: the second one must not be refused after hours of
        # training with the first one.
        for method in methods:
            method.check(self.population)
            for transform in (*uplink, *downlink):
                transform.check(method)
        self.privacy = privacy_account(
            methods, uplink, downlink, participation, self.population
        )
        self.uplink_state = [
            transform.init_server(self.population) for transform in uplink
        ]
        self.round = 0
        self.ledger = Ledger()
        self.metrics = Metrics()
        self.round_seconds: list[float] = []
        self.seconds = 0.0
        self._start_phase(0, self.initial)

    def initial(self, k: int) -> jax.Array:
        """The k-th random initial model [d]; k = 0 is common to all methods."""
        return self.model.init(jax.random.fold_in(jax.random.key(self.seed), k))

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of all clients, seen and unseen, in the order in which the user
        listed them.
        """
        seen, unseen = self.executor.seen, self.executor.unseen
        order = np.concatenate([seen.original_index, unseen.original_index])
        names = (*seen.names, *unseen.names)
        return tuple(names[row] for row in np.argsort(order))

    # a round
    # ----------------------------------------------------------------------------------

    def advance(self, reporting: NDArray[np.bool_] | None = None) -> None:
        """Do one round; see `next_round`."""
        drive(self.next_round(reporting), self.executor)

    def next_round(self, reporting: NDArray[np.bool_] | None = None) -> Exchanges[None]:
        """One round, preceded by the change of phase and the probe where they are due.

        A round yields one exchange: `broadcast` makes the downlink, the clients of the
        cohort train, `server` aggregates their answers. Nothing changes before all
        answers are known to be finite.

        Args:
            reporting: [m] who reports, in the order of the population; None = as
                participation draws them.

        Raises:
            Diverged: a client's model or message became NaN or infinite; the state is
                that of the round before.
        """
        yield from self._start_next_phase_if_due()
        yield from self.probe_if_due()
        if reporting is None:
            reporting = self.participation.sample(
                self.population.ids, self._secret, self.round, self.population.sizes
            )
        cohort = self.round_cohort(reporting)
        if not len(cohort):
            self._round_without_clients(cohort)
            return

        # Down: the algorithm's message, to which the transforms of the uplink add what
        # they need on the clients.
        downlink = self.algorithm.broadcast(self.server, cohort)
        announced = announce(self.uplink, downlink, self.uplink_state)
        exchange = self._new_exchange("client", cohort, announced)
        answers = yield exchange

        # Up: the server's work is queued behind the clients', whose answers may still be
        # computed on the devices.
        reporting_cohort = replace(cohort, reporting=answers.reporting)
        try:
            server, uplink_state = self._aggregate(
                downlink, exchange, answers, reporting_cohort
            )
        except Exception:
            # A client's NaN may be the cause: `require_finite` raises Diverged if an answer is
            # not finite, in preference to this error.
            answers.require_finite()
            raise
        answers.require_finite()

        # All answers are there and finite, and only now does anything change.
        self.executor.commit(exchange, answers)
        self.server = server
        self.uplink_state = uplink_state
        self.participated[cohort.position] = True
        self._charge(self.ledger, "round", exchange.downlink, reporting_cohort, answers)
        self.round += 1
        # Who was asked spends privacy, also without an answer.
        self._spend_privacy(cohort, answers)

    def _aggregate(
        self, downlink: Downlink, exchange: Exchange, answers: Answers, cohort: Cohort
    ) -> tuple[Any, list[Any]]:
        """What the server makes of a round's answers; this object stays as it is.

        Args:
            downlink: what `broadcast` returned. The algorithm is given it again.
            exchange: whose downlink has gone through both pipelines. The transforms of
                the uplink are given it, as they decode relative to what clients received.
            answers: what the clients sent.
            cohort: the clients; those report that answered.

        Returns:
            The server's next state, and the next state of each transform of the uplink.
        """
        # The number of private steps is for the accounting of privacy only.
        messages = {
            kind: rows for kind, rows in answers.update.items() if kind != PRIVATE_STEPS
        }
        update, uplink_state = decode(
            self.uplink, messages, exchange.downlink, cohort, self.uplink_state
        )
        decoded = replace(answers, update=update)
        server = self.algorithm.server(self.server, downlink, decoded, cohort)
        return server, uplink_state

    def _round_without_clients(self, cohort: Cohort) -> None:
        """A round in which nobody reports; `cohort` is empty.

        The accounting of noise assumes that it is added in every round. So if a
        transform of the uplink asks for it (`runs_without_reporters`), one client is simulated that
        sends back the model that it was sent, a change of zero. The server aggregates
        what such transforms make of it: the noise alone.
        """
        if any(transform.runs_without_reporters for transform in self.uplink):
            # Any client will do: nothing of it is used.
            first_client = np.zeros(1, np.int64)
            one = self._cohort(self.executor.seen, first_client, seen=True)
            downlink = self.algorithm.broadcast(self.server, one)
            update = unchanged(downlink)
            uplink_state = []
            for transform, state in zip(self.uplink, self.uplink_state, strict=True):
                if transform.runs_without_reporters:
                    update, state = transform.decode(update, downlink, one, state)
                uplink_state.append(state)
            answers = Answers(reporting=np.ones(1, bool), update=update)
            self.server = self.algorithm.server(self.server, downlink, answers, one)
            self.uplink_state = uplink_state
        self._charge(self.ledger, "round", Downlink(), cohort)
        self.round += 1
        self._spend_privacy(cohort, None)

    def _spend_privacy(self, cohort: Cohort, answers: Answers | None) -> None:
        """Account for a round's privacy, and record every client's epsilon."""
        if self.privacy is None:
            return
        if answers is not None:
            self.privacy.add(cohort, answers)
        # The population is sorted by id; tables list clients as the user did.
        positions = self.executor.seen.original_index
        order = np.argsort(positions)
        for name, values in self.privacy.epsilons(self.round).items():
            self.metrics.evaluations.append(
                Evaluation(
                    round=self.round,
                    clients=positions[order],
                    unseen=False,
                    split=PRIVACY,
                    metric=name,
                    values=values[order],
                )
            )

    def round_cohort(self, reporting: NDArray[np.bool_]) -> Cohort:
        """The clients of the next round: those that report, or all where the method
        trains everybody.

        Args:
            reporting: [m] who reports, in the order of the population.

        Returns:
            A cohort that knows who of it reports; empty where nobody does and the
            method trains reporters only.
        """
        clients = np.flatnonzero(reporting)
        if self.algorithm.participants == "all":
            clients = np.arange(len(self.population))
        return self._cohort(
            self.executor.seen, clients, seen=True, reporting=reporting[clients]
        )

    # phases of a schedule, and their probes
    # ----------------------------------------------------------------------------------

    def _start_next_phase_if_due(self) -> Exchanges[None]:
        """Start the next phase of the schedule when the rounds of the present one are
        over.
        """
        _, rounds = self.schedule[self.phase]
        is_last = self.phase + 1 == len(self.schedule)
        if rounds is None or is_last or self.round - self.phase_start < rounds:
            return
        yield from self.probe_if_due()
        # The next method starts from this one's result as the common initial model; all
        # further random models are as usual.
        start = self.algorithm.global_model(self.server)
        self._start_phase(self.phase + 1, lambda k: self.initial(k) if k else start)

    def _start_phase(self, phase: int, init: Callable[[int], jax.Array]) -> None:
        """Make the states of server and clients with which a phase starts.

        Args:
            phase: its position in the schedule.
            init: k -> the k-th initial model [d].
        """
        self.phase = phase
        self.phase_start = self.round
        self.algorithm, _ = self.schedule[phase]
        # Server, clients and transforms all begin at the same model, `init(0)`.
        self.server = self.algorithm.init_server(init, self.population)
        self.executor.begin(self.algorithm, self.uplink, init(0), phase)
        # The probe waits until the server's state is needed: a training that is restored
        # from a checkpoint must not repeat it.
        self._probe_is_due = self.algorithm.probes
        self.participated = np.zeros(len(self.population), bool)
        # The shapes say whether there is any state; nothing is computed.
        state = jax.eval_shape(
            lambda theta: self.algorithm.init_state(theta, self.model), init(0)
        )
        self.keeps_states = bool(jax.tree.leaves(state))

    def probe(self) -> None:
        """Have the clients answer the probe, if it is due; see `probe_if_due`."""
        drive(self.probe_if_due(), self.executor)

    def probe_if_due(self) -> Exchanges[None]:
        """The exchange before training, for methods that have one: all clients answer
        it, once in a phase.

        Raises:
            Diverged: a client's answer is NaN or infinite; the probe is still due.
        """
        if not self._probe_is_due:
            return
        everybody = np.arange(len(self.population))
        cohort = self._cohort(self.executor.seen, everybody, seen=True)
        downlink = self.algorithm.probe_downlink(self.server, cohort)
        exchange = self._new_exchange("probe", cohort, downlink)
        answers = yield exchange
        answers.require_finite()
        reporting_cohort = replace(cohort, reporting=answers.reporting)
        self.server = self.algorithm.aggregate_probe(
            self.server, answers, reporting_cohort
        )
        self._probe_is_due = False
        self._charge(self.ledger, "probe", exchange.downlink, cohort, answers)

    # helpers
    # ----------------------------------------------------------------------------------

    def count_time(self, round: float, total: float) -> None:
        """Add the wall time of a round, and of the round with its evaluation."""
        self.round_seconds.append(round / self.executor.concurrency)
        self.seconds += total / self.executor.concurrency

    def _cohort(
        self,
        table: Clients,
        clients: NDArray[np.int64],
        *,
        seen: bool,
        reporting: NDArray[np.bool_] | None = None,
    ) -> Cohort:
        """Some clients of a table, by their rows in it; everybody reports by default."""
        return Cohort(
            clients=table,
            rows=clients,
            seen=seen,
            reporting=np.ones(len(clients), bool) if reporting is None else reporting,
            round=self.round,
            seed=self._secret,
            examples=self.population.examples,
            capacity=self.participation.capacity(len(clients)),
        )

    def _new_exchange(self, task: Task, cohort: Cohort, downlink: Downlink) -> Exchange:
        """An exchange that sends `downlink` through the pipeline of the downlink."""
        return Exchange(
            task,
            self.algorithm,
            cohort,
            send(self.downlink, downlink),
            uplink=self.uplink if task == "client" else (),
            received_through=self.downlink,
        )

    def _charge(
        self,
        ledger: Ledger | None,
        ledger_phase: Phase,
        sent_downlink: Downlink,
        cohort: Cohort,
        answers: Answers | None = None,
    ) -> None:
        """Record what was sent and computed.

        Args:
            ledger: where; None = nowhere, for service that is charged to nobody.
            ledger_phase: what it was for.
            sent_downlink: as the clients received it, after all pipelines.
            cohort: the clients, and who of them reported.
            answers: what they answered; None = they were not asked to.
        """
        if ledger is None:
            return
        if answers is None:
            # Without messages and without work.
            answers = Answers(reporting=cohort.reporting)
        gradients, forwards = answers.work
        ledger.record(
            self.round,
            ledger_phase,
            sent_downlink,
            answers.sent,
            cohort.reporting,
            gradients,
            forwards,
            answers.extra_bytes(),
        )
