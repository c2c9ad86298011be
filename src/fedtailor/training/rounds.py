"""The server's side of rounds: who reports, what travels, how the server aggregates
it, what that costs and how much privacy it spends.

It knows a population, a method and a model; no example, device, file or thread. A round
is a generator of exchanges.
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

    Attributes:
        algorithm: the method (of the present phase of a schedule).
        round: rounds done.
        keeps_states: whether the method's clients keep a state between rounds.
        measured: the metrics of evaluations.
        metric: the metric that the run is judged by.
        took_part: [m] who has ever taken part in a round of this phase, in the order of
            the population.
        ledger: what travelled and what was computed in training so far.
        metrics: evaluations so far.
        privacy: the privacy spent so far, where some is promised; else None.
        round_seconds: wall time of every round without its evaluation; of runs that
            share the clients' time, a share.
        seconds: wall time of all rounds and evaluations, likewise.
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
            metrics: what to measure, by name, beside the loss and, of classifications,
                the accuracy; the run is judged by the first one (by default: as the
                model says).
            target_scale: what one unit of the model's target is in the user's own:
                metrics in the target's unit are recorded in the user's.
            secret: the seed of the server's random numbers (who reports, noise on
                sums), where others know `seed` and must not foresee them; None =
                `seed`.

        Raises:
            ValueError: the method or a pipeline is not defined for this population, or
                a metric for this model; or the seed would give the random numbers of
                another one.
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
        methods = [phase for phase, _ in self.schedule]
        seen = executor.seen
        # A server that hands out clients' examples, as a simulated one may, would break
        # every promise of privacy.
        examples = None if promises_privacy(methods, uplink) else executor.examples
        self.population = Population(
            seen.ids,
            seen.names,
            seen.sizes,
            seen.groups,
            seen.listed,
            reporters_per_round=participation.reporters(len(seen)),
            seed=seed,
            examples=examples,
            model=model,
        )
        check_order(uplink)
        # All phases are checked now: the second one must not be refused after hours of
        # the first one.
        for phase in methods:
            phase.check(self.population)
            for transform in (*uplink, *downlink):
                transform.check(phase)
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
        self._begin(0, self.initial)

    def initial(self, k: int) -> jax.Array:
        """The k-th random initial model [d]; k = 0 is common to all methods."""
        return self.model.init(jax.random.fold_in(jax.random.key(self.seed), k))

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of all clients, seen and unseen, in the order in which the user
        listed them.
        """
        seen, unseen = self.executor.seen, self.executor.unseen
        listed = np.concatenate([seen.listed, unseen.listed])
        names = (*seen.names, *unseen.names)
        return tuple(names[row] for row in np.argsort(listed))

    @property
    def server(self) -> Any:
        """The server's state; asks the clients for the probe first, if the method has
        one and they have not answered it.

        Inside a round, which is a generator, `_probe` has been done and `_server` is
        read.
        """
        if self._unprobed:
            drive(self._probe(), self.executor)
        return self._server

    @server.setter
    def server(self, state: Any) -> None:
        self._server = state
        self._unprobed = False

    # a round
    # ----------------------------------------------------------------------------------

    def advance(self, reporting: NDArray[np.bool_] | None = None) -> None:
        """Do one round; see `next_round`."""
        drive(self.next_round(reporting), self.executor)

    def next_round(self, reporting: NDArray[np.bool_] | None = None) -> Exchanges[None]:
        """One round, and before it the next phase of a schedule and the probe, where
        they are due.

        A round yields one exchange: `broadcast` makes the downlink, the executor has
        the clients of the cohort train, `server` makes the next state of their answers.
        Nothing changes before all answers are known to be finite.

        Args:
            reporting: [m] who reports, in the order of the population; None = as
                participation draws them.

        Raises:
            Diverged: a client's model or message became NaN or infinite; the state is
                that of the round before.
        """
        yield from self._next_phase()
        yield from self._probe()
        if reporting is None:
            reporting = self.participation.sample(
                self.population.ids, self._secret, self.round, self.population.sizes
            )
        cohort = self.round_cohort(reporting)
        if not len(cohort):
            self._round_alone(cohort)
            return
        # Down: what the method sends, what the uplink's transforms send beside it, and
        # (in `_exchange`) the transforms of the downlink.
        downlink = self.algorithm.broadcast(self._server, cohort)
        announced = announce(self.uplink, downlink, self.uplink_state)
        exchange = self._exchange("client", cohort, announced)
        answers = yield exchange

        # Up: the server's work is queued behind the clients', whose answers may still be
        # under way on the devices.
        answered = replace(cohort, reporting=answers.reporting)
        messages = {
            kind: rows for kind, rows in answers.update.items() if kind != PRIVATE_STEPS
        }
        try:
            update, uplink_state = decode(
                self.uplink, messages, exchange.downlink, answered, self.uplink_state
            )
            server = self.algorithm.server(
                self._server, downlink, replace(answers, update=update), answered
            )
        except Exception:
            # A client's NaN may be the cause of the server's error: that one is raised.
            answers.checked()
            raise
        answers.checked()

        # All answers are there and finite, and only now does anything change.
        self.executor.commit(exchange, answers)
        self.server = server
        self.uplink_state = uplink_state
        self.took_part[cohort.position] = True
        self._charge(self.ledger, "round", exchange.downlink, answered, answers)
        self.round += 1
        # Who was asked spends privacy, also without an answer.
        self._spend_privacy(cohort, answers)

    def _round_alone(self, cohort: Cohort) -> None:
        """A round in which nobody reports: only transforms with `steps_alone` act, as
        noise does whose accounting assumes that it is added in every round.
        """
        if any(transform.steps_alone for transform in self.uplink):
            one = self._cohort(self.executor.seen, np.zeros(1, np.int64), seen=True)
            downlink = self.algorithm.broadcast(self._server, one)
            update = unchanged(downlink)
            states = []
            for transform, state in zip(self.uplink, self.uplink_state, strict=True):
                if transform.steps_alone:
                    update, state = transform.decode(update, downlink, one, state)
                states.append(state)
            answers = Answers(reporting=np.ones(1, bool), update=update)
            self.server = self.algorithm.server(self._server, downlink, answers, one)
            self.uplink_state = states
        self._charge(self.ledger, "round", Downlink(), cohort)
        self.round += 1
        self._spend_privacy(cohort, None)

    def _spend_privacy(self, cohort: Cohort, answers: Answers | None) -> None:
        """Account for a round's privacy, and record every client's epsilon."""
        if self.privacy is None:
            return
        if answers is not None:
            self.privacy.add(cohort, answers)
        clients = self.executor.seen.listed
        order = np.argsort(clients)
        for name, values in self.privacy.epsilons(self.round).items():
            self.metrics.evaluations.append(
                Evaluation(
                    self.round, clients[order], False, PRIVACY, name, values[order]
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

    def _next_phase(self) -> Exchanges[None]:
        """Go on to the next method of a schedule when the rounds of the present one are
        over.
        """
        _, rounds = self.schedule[self.phase]
        last = self.phase + 1 == len(self.schedule)
        if rounds is None or last or self.round - self.phase_start < rounds:
            return
        yield from self._probe()
        # The next method starts from this one's result as the common initial model; all
        # further random models are as usual.
        start = self.algorithm.global_model(self._server)
        self._begin(self.phase + 1, lambda k: self.initial(k) if k else start)

    def _begin(self, phase: int, init: Callable[[int], jax.Array]) -> None:
        """Start a phase of the schedule: server and client states. The probe, if the
        method has one, comes later (`_probe`).
        """
        self.phase = phase
        self.phase_start = self.round
        self.algorithm, _ = self.schedule[phase]
        # Server, clients and transforms all begin at the same model, `init(0)`.
        self.server = self.algorithm.init_server(init, self.population)
        self.executor.begin(self.algorithm, self.uplink, init(0), phase)
        self.took_part = np.zeros(len(self.population), bool)
        # The shapes say whether there is any state; nothing is computed.
        state = jax.eval_shape(
            lambda theta: self.algorithm.init_state(theta, self.model), init(0)
        )
        self.keeps_states = bool(jax.tree.leaves(state))
        self._unprobed = self.algorithm.probes

    def _probe(self) -> Exchanges[None]:
        """The round before training, for methods that have one.

        It is put off until the server's state is needed: a training that is restored
        from a checkpoint does not probe.
        """
        if not self._unprobed:
            return
        cohort = self._cohort(
            self.executor.seen, np.arange(len(self.population)), seen=True
        )
        downlink = self.algorithm.probe_downlink(self._server, cohort)
        exchange = self._exchange("probe", cohort, downlink)
        answers = yield exchange
        answers.checked()
        self.server = self.algorithm.aggregate_probe(
            self._server, answers, replace(cohort, reporting=answers.reporting)
        )
        self._charge(self.ledger, "probe", exchange.downlink, cohort, answers)

    def count_time(self, round: float, total: float) -> None:
        """Add the wall time of a round, and of the round with its evaluation."""
        self.round_seconds.append(round / self.executor.concurrency)
        self.seconds += total / self.executor.concurrency

    # helpers
    # ----------------------------------------------------------------------------------

    def _cohort(
        self,
        table: Clients,
        clients: NDArray[np.int64],
        *,
        seen: bool,
        reporting: NDArray[np.bool_] | None = None,
    ) -> Cohort:
        """Some clients of a table; everybody reports by default."""
        return Cohort(
            clients=table,
            rows=clients,
            seen=seen,
            reporting=np.ones(len(clients), bool) if reporting is None else reporting,
            round=self.round,
            seed=self._secret,
            examples=self.population.examples,
            room=self.participation.room(len(clients)),
        )

    def _charge(
        self,
        ledger: Ledger | None,
        phase: Phase,
        downlink: Downlink,
        cohort: Cohort,
        answers: Answers | None = None,
    ) -> None:
        """Record an exchange, or a downlink that nobody answers; where there is no
        ledger, do nothing.
        """
        if ledger is None:
            return
        update = {} if answers is None else answers.sent
        gradients, forwards = (0, 0) if answers is None else answers.work
        beside = (0, 0) if answers is None else answers.beside()
        ledger.record(
            self.round,
            phase,
            downlink,
            update,
            cohort.reporting,
            gradients,
            forwards,
            beside,
        )

    def _exchange(self, task: Task, cohort: Cohort, downlink: Downlink) -> Exchange:
        """An exchange whose downlink has gone through the pipeline."""
        uplink = self.uplink if task == "client" else ()
        sent = send(self.downlink, downlink)
        return Exchange(
            task,
            self.algorithm,
            cohort,
            sent,
            uplink=uplink,
            received_through=self.downlink,
        )
