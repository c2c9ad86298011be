"""A run in progress, on the server's side: its rounds, the serving of clients, and
evaluations.

To serve clients is to send them all that they need to run their personal models. As in
`Rounds`, functions that return `Exchanges` (`serve_clients`, `evaluation`) are generators
that the caller drives; `serve` and `evaluate` drive them with the run's own executor.

The probe is a statistic of its data that each client reports once, before training, if
the method asks for it.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.aggregation.accounting import Ledger
from fedtailor.engine.training.costs import record_exchange
from fedtailor.engine.training.divergence import explained
from fedtailor.engine.training.rounds import ExecutorT, Rounds
from fedtailor.protocol import (
    Answers,
    Clients,
    ClientState,
    ClientTask,
    Cohort,
    Diverged,
    Downlink,
    Exchange,
    Exchanges,
    drive,
    on_host,
    server_rng,
)


@dataclass(frozen=True)
class ServedClients:
    """Clients with all that they need to run their personal models.

    Attributes:
        cohort: the clients.
        downlink: what the server sent them.
        states: the states of clients that never took part, in the form of
            `Answers.states`; None = the executor keeps the states of these clients.
    """

    cohort: Cohort
    downlink: Downlink
    states: ClientState = None


class Training(Rounds[ExecutorT]):
    """Trains one algorithm for the clients of one executor, round by round, and serves
    and measures the clients.

    Example:
        >>> run.training.round
        2
    """

    # serving clients
    # ----------------------------------------------------------------------------------

    def serve(
        self,
        clients: NDArray[np.int64] | None = None,
        *,
        unseen: bool = False,
        ledger: Ledger | None = None,
    ) -> ServedClients:
        """Send clients what they need to predict; see `serve_participants` and
        `serve_newcomers`.

        Args:
            clients: [c] rows in the executor's table of seen clients, or in that of
                unseen clients; None = all of them.
            unseen: whether they are clients that never take part in training.
            ledger: records the costs; None = the costs are not recorded.

        Returns:
            These clients, with what they were sent.
        """
        table = self.executor.unseen if unseen else self.executor.seen
        clients = np.arange(len(table)) if clients is None else clients
        serve_group = self.serve_newcomers if unseen else self.serve_participants
        return drive(serve_group(table, clients, ledger), self.executor)

    def predictors(self, served: ServedClients) -> Any:
        """Compute what served clients predict with.

        Returns:
            A `Predictor` whose leaves are host arrays [c, ...], stacked in the order of
            the served cohort.
        """
        answers = drive(self.run_personal("personal", served), self.executor)
        return on_host(answers.output)

    def serve_clients(
        self, table: Clients, clients: NDArray[np.int64], ledger: Ledger | None = None
    ) -> Exchanges[list[ServedClients]]:
        """Send some clients what they need to predict, whether they have taken part in
        training or not.

        Clients of the population that were never sampled still have the initial state,
        which no round has trained. If the method keeps states, they are served like
        newcomers.

        Args:
            table: the executor's seen or unseen clients, or newcomers.
            clients: [c] rows in that table, ascending.
            ledger: records the costs; None = the costs are not recorded.

        Returns:
            At most two groups: the clients that have taken part, and those that have
            not.
        """
        is_population = table is self.executor.seen
        has_participated = np.full(len(clients), is_population)
        # Before the first round of a phase no client has been sampled, and all clients
        # of the population are treated alike.
        phase = self.phase
        if is_population and phase.keeps_states and self.round > phase.first_round:
            has_participated = phase.participated[clients]
        participants, newcomers = clients[has_participated], clients[~has_participated]
        groups = []
        if len(participants):
            group = yield from self.serve_participants(table, participants, ledger)
            groups.append(group)
        if len(newcomers):
            group = yield from self.serve_newcomers(table, newcomers, ledger)
            if len(group.cohort):
                groups.append(group)
        return groups

    def serve_participants(
        self, table: Clients, clients: NDArray[np.int64], ledger: Ledger | None = None
    ) -> Exchanges[ServedClients]:
        """Send clients that have taken part in training what they need to predict.

        They send nothing up, and the executor keeps their states. Arguments are those of
        `serve_clients`.
        """
        yield from self.probe_if_due()
        cohort = self._cohort(table, clients, seen=True)
        downlink = self._sent(cohort, self.algorithm.serve(self.server, cohort))
        no_answers = Answers(reporting=cohort.reporting)
        self._record_serving(ledger, cohort, downlink, no_answers)
        return ServedClients(cohort, downlink)

    def serve_newcomers(
        self, table: Clients, clients: NDArray[np.int64], ledger: Ledger | None = None
    ) -> Exchanges[ServedClients]:
        """Send clients that never took part in training what they need to predict.

        They first answer the probe, if the method has one, so that `Algorithm.serve` can
        send what suits them; those that do not answer are not served. Then each
        initializes its state from what it is sent. Neither the server nor the executor
        keeps these states. Arguments are those of `serve_clients`.
        """
        yield from self.probe_if_due()
        cohort = self._cohort(table, clients, seen=False)
        if self.algorithm.probes:
            downlink = self.algorithm.probe_downlink(self.server, cohort)
            exchange = self._new_exchange("probe", cohort, downlink)
            answers = yield exchange
            answers.require_finite()
            self._record_serving(ledger, cohort, exchange.downlink, answers)
            # Over machines a newcomer may be away. It cannot be served without a probe,
            # and the others can.
            answered = answers.reporting
            if not answered.any():
                return ServedClients(cohort.subset(answered), Downlink())
            if not answered.all():
                cohort, answers = cohort.subset(answered), answers.subset(answered)
            cohort = replace(cohort, probes=answers)
        downlink = self.algorithm.serve(self.server, cohort)
        exchange = self._new_exchange("init_unseen", cohort, downlink)
        answers = yield exchange
        answers.require_finite()
        self._record_serving(ledger, cohort, exchange.downlink, answers)
        return ServedClients(cohort, exchange.downlink, answers.states)

    def _record_serving(
        self,
        ledger: Ledger | None,
        cohort: Cohort,
        downlink: Downlink,
        answers: Answers,
    ) -> None:
        """Record the costs of an exchange that serves clients, if there is a ledger."""
        if ledger is None:
            return
        is_population = cohort.clients is self.executor.seen
        purpose = "delivery" if is_population else "unseen"
        record_exchange(
            ledger, purpose, self.round, self.model, cohort, downlink, answers
        )

    def deliver(self, ledger: Ledger) -> Exchanges[None]:
        """Send all clients their final models, and record in `ledger` what it costs.

        Clients that keep their personal models themselves make them now.
        """
        for table in (self.executor.seen, self.executor.unseen):
            groups = yield from self.serve_clients(table, np.arange(len(table)), ledger)
            if self.executor.clients_keep_models:
                for served in groups:
                    yield from self.run_personal("personal", served)

    def run_personal(
        self, task: ClientTask, served: ServedClients
    ) -> Exchanges[Answers]:
        """Run "personal" or "evaluate" for served clients.

        Raises:
            Diverged: a personal model is NaN or infinite.
        """
        answers = yield Exchange(
            task,
            self.algorithm,
            served.cohort,
            served.downlink,
            served.states,
            received_through=self.downlink,
            metrics=self.measured if task == "evaluate" else (),
        )
        try:
            return answers.require_finite()
        except Diverged as error:
            raise explained(
                error, self.algorithm, self.model, served.downlink
            ) from None

    # evaluation
    # ----------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Evaluate the personal models of all clients; see `evaluation`."""
        drive(self.evaluation(), self.executor)

    def evaluation(self) -> Exchanges[None]:
        """Evaluate the personal models of clients, seen and unseen, on their val and test
        splits, if clients may send how these do (`Privacy.evaluate`): of all, or of a
        sample (`RunSpec.evaluate_clients`).
        """
        if not self.sends_scores:
            return
        for table in (self.executor.seen, self.executor.unseen):
            groups = yield from self.serve_clients(table, self._evaluated(table))
            if not groups:
                continue
            rows = []
            scores = []
            for served in groups:
                answers = yield from self.run_personal("evaluate", served)
                rows.append(served.cohort.rows)
                scores.append(on_host(answers.output))
            self.metrics.record(
                round=self.round,
                clients=table.original_index[np.concatenate(rows)],
                unseen=table is self.executor.unseen,
                scores=jax.tree.map(lambda *parts: np.concatenate(parts), *scores),
                metrics=self.measured,
                target_scale=self.target_scale,
            )

    def _evaluated(self, table: Clients) -> NDArray[np.int64]:
        """The rows of a table of clients that are evaluated, the same in every round."""
        if self.evaluate_clients is None or self.evaluate_clients >= len(table):
            return np.arange(len(table))
        rng = server_rng(self.seed, "evaluation", 0)
        return np.sort(rng.choice(len(table), self.evaluate_clients, replace=False))

    # checkpoints
    # ----------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that the next round depends on, as dicts, lists, numbers and
        arrays, for `restore`.
        """
        snapshot = {
            "round": self.round,
            "phase": [self.phase.index, self.phase.first_round],
            "server": self.server,
            "states": self.executor.snapshot(),
            "took_part": self.phase.participated,
            "uplink": self.uplink_state,
            "privacy": None if self.privacy is None else self.privacy.snapshot(),
        }
        # The key exists only if the probe is still due, which is rare: most methods have
        # no probe, and most checkpoints are written after it.
        if self.phase.probe_is_due:
            snapshot["probe_is_due"] = True
        if self.asynchronous is not None:
            snapshot["asynchronous"] = self.asynchronous.snapshot()
        return snapshot

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from the snapshot of a training with the same arguments."""
        # A new phase has the structure of all states; then their values are replaced.
        index, first_round = snapshot["phase"]
        self._start_phase(index, self.initial)
        self.phase.first_round = first_round
        self.phase.probe_is_due = snapshot.get("probe_is_due", False)
        self.phase.participated = snapshot["took_part"]
        self.round = snapshot["round"]
        self.server = snapshot["server"]
        self.uplink_state = list(snapshot["uplink"])
        if self.asynchronous is not None:
            self.asynchronous.restore(self.round, snapshot["asynchronous"])
        if self.privacy is not None:
            self.privacy.restore(snapshot["privacy"])
        self.executor.restore(snapshot["states"])
