"""A run in progress, on the server's side: its rounds, the service of clients, and
evaluations.

To serve clients is to send them all that they need to run their personal models. As in
`Rounds`, functions that return `Exchanges` (`service`, `evaluation`) are generators that
the caller drives; `serve` and `evaluate` drive them with the run's own executor.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.accounting import Ledger
from fedtailor.protocol import (
    Answers,
    Clients,
    ClientState,
    Cohort,
    Downlink,
    Exchange,
    Exchanges,
    Task,
    drive,
    on_host,
    send,
)
from fedtailor.training.rounds import ExecutorT, Rounds


@dataclass(frozen=True)
class Service:
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
    """

    # the service of clients
    # ----------------------------------------------------------------------------------

    def serve(
        self,
        clients: NDArray[np.int64] | None = None,
        *,
        unseen: bool = False,
        ledger: Ledger | None = None,
    ) -> Service:
        """Send clients what they need to predict; see `service`.

        Args:
            clients: [c] rows in the executor's table of seen clients, or in that of
                unseen clients; None = all of them.
            unseen: whether they are clients that never take part in training.
            ledger: records the costs; None = the costs are not recorded.

        Returns:
            The service of these clients.
        """
        table = self.executor.unseen if unseen else self.executor.seen
        clients = np.arange(len(table)) if clients is None else clients
        return drive(
            self.service(table, clients, seen=not unseen, ledger=ledger), self.executor
        )

    def predictors(self, service: Service) -> Any:
        """Compute what the clients of a service predict with.

        Returns:
            A `Predictor` whose leaves are host arrays [c, ...], stacked in the order of
            the service's cohort.
        """
        answers = drive(self.run_personal("personal", service), self.executor)
        return on_host(answers.output)

    def services(
        self, table: Clients, clients: NDArray[np.int64], ledger: Ledger | None = None
    ) -> Exchanges[list[Service]]:
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
            At most two services: one of the clients that have taken part, and one of
            those that have not.
        """
        is_population = table is self.executor.seen
        participated = np.full(len(clients), is_population)
        # Before the first round of a phase no client has been sampled, and all clients
        # of the population are treated alike.
        phase = self.phase
        if is_population and phase.keeps_states and self.round > phase.first_round:
            participated = phase.participated[clients]
        services = []
        for seen in (True, False):
            rows = clients[participated == seen]
            if len(rows):
                service = yield from self.service(table, rows, seen=seen, ledger=ledger)
                services.append(service)
        return services

    def service(
        self,
        table: Clients,
        clients: NDArray[np.int64],
        *,
        seen: bool,
        ledger: Ledger | None = None,
    ) -> Exchanges[Service]:
        """Send some clients what they need to predict.

        Clients that never took part answer the probe, if the method has one, and
        initialize a state from what they are sent; the server keeps nothing of them.

        Args:
            table: the executor's seen or unseen clients, or newcomers.
            clients: [c] rows in that table, ascending.
            seen: whether they have taken part in training.
            ledger: records the costs; None = the costs are not recorded.

        Returns:
            The cohort, what it was sent, and its states if the executor does not keep
            them.
        """
        yield from self.probe_if_due()
        cohort = self._cohort(table, clients, seen=seen)
        ledger_phase = "delivery" if table is self.executor.seen else "unseen"
        if seen:
            downlink = send(self.downlink, self.algorithm.serve(self.server, cohort))
            if ledger is not None:
                # The clients send nothing up.
                answers = Answers(reporting=cohort.reporting)
                self._record_costs(
                    ledger, ledger_phase, downlink, cohort.reporting, answers
                )
            return Service(cohort, downlink)
        # Clients that never took part first answer the probe, so that `serve` can send
        # what suits them. Then each initializes its state from what it is sent. The
        # executor does not keep these states: it is given `answers.states` again when
        # the clients predict.
        if self.algorithm.probes:
            probe = self._new_exchange(
                "probe", cohort, self.algorithm.probe_downlink(self.server, cohort)
            )
            answers = yield probe
            answers.require_finite()
            if ledger is not None:
                self._record_costs(
                    ledger, ledger_phase, probe.downlink, cohort.reporting, answers
                )
            cohort = replace(cohort, probes=answers)
        exchange = self._new_exchange(
            "init_unseen", cohort, self.algorithm.serve(self.server, cohort)
        )
        answers = yield exchange
        answers.require_finite()
        if ledger is not None:
            self._record_costs(
                ledger, ledger_phase, exchange.downlink, cohort.reporting, answers
            )
        return Service(cohort, exchange.downlink, answers.states)

    def deliver(self, ledger: Ledger) -> Exchanges[None]:
        """Record in `ledger` the costs of sending all clients their final models."""
        for table in (self.executor.seen, self.executor.unseen):
            yield from self.services(table, np.arange(len(table)), ledger)

    def run_personal(self, task: Task, service: Service) -> Exchanges[Answers]:
        """Run "personal" or "evaluate" for the clients of a service.

        Raises:
            Diverged: a personal model is NaN or infinite.
        """
        answers = yield Exchange(
            task,
            self.algorithm,
            service.cohort,
            service.downlink,
            service.states,
            received_through=self.downlink,
            metrics=self.measured if task == "evaluate" else (),
        )
        return answers.require_finite()

    # evaluation
    # ----------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Evaluate the personal models of all clients; see `evaluation`."""
        drive(self.evaluation(), self.executor)

    def evaluation(self) -> Exchanges[None]:
        """Evaluate the personal models of all clients, seen and unseen, on their val
        and test splits.
        """
        for table in (self.executor.seen, self.executor.unseen):
            services = yield from self.services(table, np.arange(len(table)))
            rows = []
            scores = []
            for service in services:
                answers = yield from self.run_personal("evaluate", service)
                rows.append(service.cohort.rows)
                scores.append(on_host(answers.output))
            if not services:
                continue
            self.metrics.record(
                self.round,
                table.original_index[np.concatenate(rows)],
                table is self.executor.unseen,
                jax.tree.map(lambda *parts: np.concatenate(parts), *scores),
                self.measured,
                self.target_scale,
            )

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
        if self.privacy is not None:
            self.privacy.restore(snapshot["privacy"])
        self.executor.restore(snapshot["states"])
