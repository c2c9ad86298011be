"""The executor of a federation of machines, which sends requests over a transport.

The clients keep their examples and states. The coordinator records which of a client's
states is valid, by the round that produced it, and names that round in every request.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor.aggregation.secure_sums import hidden_kinds
from fedtailor.aggregation.sum_shares import SumHistory
from fedtailor.data.federation import SPLITS, Federation
from fedtailor.engine.client.pool import build_pool
from fedtailor.engine.executors.cohort_parts import select_clients
from fedtailor.engine.storage.interrupts import Interrupted
from fedtailor.protocol import (
    Algorithm,
    Answers,
    ClientRows,
    Clients,
    Cohort,
    Exchange,
    FirstCome,
    Pipeline,
    client_ids,
    init_pipeline,
)
from fedtailor.remote.job.data_facts import RemoteData
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.server.late import LateRequests
from fedtailor.remote.server.update_check import UpdateCheck, check_scores
from fedtailor.remote.sums.hidden_updates import HiddenUpdates
from fedtailor.remote.sums.server import NamedArrays, SumStage, send_stage
from fedtailor.remote.wire.messages import ArraySpec, Reply, Request
from fedtailor.remote.wire.request_kind import MODE, NEWCOMER
from fedtailor.remote.wire.run_log import COORDINATOR_LOG
from fedtailor.remote.wire.secure_sums import SUM
from fedtailor.remote.wire.transport import (
    POLL_INTERVAL_S,
    TooFewClients,
    Transport,
    poll,
    send_and_receive,
    until_next_poll,
)
from fedtailor.remote.wire.vector_cache import INITIAL, ClientCaches, vector_digest
from fedtailor.remote.wire.wire import (
    WORK,
    WORK_SPEC,
    answer_shapes,
    asked_of_all,
    common_arrays,
    downlink_arrays,
    downlink_digests,
    named_updates,
    specs_of,
    stack,
)

SENT_UP = {"client": "update", "probe": "update", "evaluate": "scores"}
"""The output of each task that the client sends; personal models and states stay."""


@dataclass(frozen=True)
class Rules:
    """How long the coordinator waits for answers, and how many it needs.

    Attributes:
        minimum: minimum number of answers in a round. A probe needs the answers of all
            its clients, as the whole training uses them; an evaluation needs none.
        deadline: seconds that an exchange waits.
        compile_time: seconds that the first exchange of each task waits in addition, as
            clients compile its programs then.
        poll_interval: seconds between two polls for answers.
    """

    minimum: int = 1
    deadline: float = 300.0
    compile_time: float = 0.0
    poll_interval: float = POLL_INTERVAL_S


def population_table(
    names: tuple[str, ...], sizes: Any, *, first: int = 0, groups: Any = None
) -> Clients:
    """Make a table of clients, ordered by id.

    Args:
        names: names of the clients.
        sizes: [c] number of training rows of each client.
        first: index of `names[0]` in the list of all clients, seen and unseen.
        groups: [c] true group of each client, if known.
    """
    ids = client_ids(names)
    order = np.argsort(ids)
    return Clients(
        ids=ids[order],
        names=tuple(names[index] for index in order),
        sizes=np.asarray(sizes, np.int64)[order],
        groups=None if groups is None else np.asarray(groups)[order],
        original_index=order + first,
    )


class RemoteExecutor:
    """Runs the tasks of an algorithm at clients on other machines.

    Implements `fedtailor.protocol.Executor`.

    Attributes:
        seen: the clients that take part in training.
        unseen: the clients that joined after training began.
        data: what is known about the clients' data.
        federation: a federation with the name, and the shapes of examples, of the
            clients' federation, but without their examples.
        examples, machine: None, as the coordinator has neither examples nor clients.
        concurrency: 1.
        clients_keep_models: True.
        late: the open requests of clients that may be late, and their answers.
        stop: when it is set, waiting for late clients ends with `Interrupted`.
    """

    examples = None
    concurrency = 1
    machine = None
    clients_keep_models = True

    def __init__(
        self,
        plan: Plan,
        seen: Clients,
        transport: Transport,
        template: Federation,
        data: RemoteData,
        *,
        unseen: Clients | None = None,
        rules: Rules = Rules(),
        use_caches: bool = True,
        run: str = "",
        stop: threading.Event | None = None,
        history: Path | None = None,
    ) -> None:
        """Make an executor; no client is asked yet.

        Args:
            plan: what all machines have agreed to.
            seen: the clients that take part in training.
            transport: carries the messages.
            template: any federation whose examples have the shapes of the clients'
                examples, from which the shapes of answers follow.
            data: what is known about the clients' data.
            unseen: the clients that joined after training began.
            rules: when an exchange ends.
            use_caches: whether vectors that a client has cached are not sent again.
            run: identity of the run (`run_identity`).
            stop: ends the wait for late clients; None = nothing does.
            history: file of the sums that clients remember; None = it is not kept.

        Raises:
            ValueError: the job uses secure aggregation, and the method's server needs
                more than sums.
        """
        if unseen is None:
            unseen = population_table((), np.zeros(0), first=len(seen))
        self.plan, self.seen, self.unseen, self.rules = plan, seen, unseen, rules
        self.federation, self._transport = template, transport
        self.data = data
        pool, _ = build_pool([template], plan.model.precision.sums)
        self._run = run
        self._pool = jax.tree.map(jnp.asarray, pool)
        self._shapes: dict[Any, Any] = {}
        self._newcomer_shapes: Any = ()  # of the state that `init_unseen` returns
        self._caches = ClientCaches(plan.common_vectors()) if use_caches else None
        self.late = LateRequests(transport)
        self.stop = threading.Event() if stop is None else stop
        self._late_digests: dict[str, dict[str, list[bytes]]] = {}
        self._is_delivering = False
        self._without_state: set[str] = set()
        self._last_exchange = (-1, -1)  # round, number within the round
        self._compiled: set[tuple[int, str]] = set()  # phase and task, once answered
        if plan.sums is not None:
            plan.sums.check(plan.algorithm, plan.uplink)
            plan.sums.check_client_count(plan.algorithm, len(seen), len(seen))
            self._sum_history = SumHistory(plan.sums.scope, history)
        self._asked = ""  # digest of what all clients were asked last
        # The round whose state is valid, for each seen client (-1: none): now, in the
        # snapshot that is being written, and in the last snapshot on disk.
        no_round = np.full(len(seen), -1, np.int64)
        self._accepted = self._pending = self._durable = no_round

    def set_unseen(
        self, unseen: Clients, rows: Mapping[str, NDArray[np.int64]]
    ) -> None:
        """Serve other clients that joined after training began.

        Args:
            unseen: all of them, replacing those so far.
            rows: numbers of rows [3] that they have agreed to, by name.
        """
        self.unseen = unseen
        self.data.rows.update(rows)

    def begin(
        self, algorithm: Algorithm, uplink: Pipeline, theta: Any, phase: int
    ) -> None:
        """Begin a phase: invalidate the clients' states; all start from `theta`."""
        self._algorithm, self._phase, self._theta = algorithm, phase, np.asarray(theta)
        self._initial_state = (
            algorithm.init_state(theta, self.plan.model),
            init_pipeline(uplink, theta),
        )
        self._accepted = np.full(len(self.seen), -1, np.int64)
        self._check = UpdateCheck(uplink)

    def exchange(self, exchange: Exchange) -> Answers:
        """Send a cohort its requests, and wait for the answers or the deadline.

        An answer that no honest client can have sent is logged, and counts as none (see
        `update_check`).

        Returns:
            The answers in the order of the cohort, with zeros for clients that did not
            answer. With secure aggregation, updates are `HiddenRows`, which run the
            protocol when the server computes a sum.

        Raises:
            TooFewClients: fewer clients than the minimum answered.
        """
        if exchange.first is not None:
            return self._first_come(exchange, exchange.first)
        cohort, task, sums = exchange.cohort, exchange.task, self.plan.sums
        prefix = SENT_UP.get(task, "")
        shapes = self._answer_shapes(exchange).get(prefix, {}) if prefix else {}
        if task == "init_unseen":
            self._newcomer_shapes = self._answer_shapes(exchange)["state"]
        hidden: dict[str, Any] = {}  # shapes of updates that are summed behind masks
        if sums is not None and task == "client":
            hidden = {kind: shapes[kind] for kind in hidden_kinds(shapes)}
            shapes = {kind: shapes[kind] for kind in shapes if kind not in hidden}
        specs = specs_of(shapes, prefix)
        if task == "evaluate" and not self.plan.evaluate:
            # The job does not allow clients to send scores, so none is asked.
            output = stack([None] * len(cohort), specs, prefix, shapes)
            return Answers(np.zeros(len(cohort), bool), output=output)

        requested = cohort.reporting & np.asarray(exchange.downlink.reply, bool)
        replies = self._replies(exchange, requested, specs)
        answers: list[Mapping[str, np.ndarray] | None] = []
        for row in cohort.rows:
            reply = replies.get(cohort.clients.names[row])
            answers.append(None if reply is None else reply.arrays)
        self._refuse_impossible(exchange, answers)
        work = np.zeros(2, np.int64)
        for answer in answers:
            if answer is not None:
                work += answer[WORK]
        answered = np.array([answer is not None for answer in answers], bool)
        reporting = requested & answered
        output = stack(answers, specs, prefix, shapes)
        update: dict[str, ClientRows] = dict(output) if prefix == "update" else {}
        extra_bytes = np.zeros(2, np.int64)
        if sums is not None and hidden:
            updates = HiddenUpdates(
                sums,
                cohort,
                reporting,
                partial(self._run_stage, cohort=cohort),
                minimum=sums.minimum(self.rules.minimum, int(requested.sum())),
                history=self._sum_history,
                asked=self._asked,
            )
            for kind, shape in hidden.items():
                update[kind] = updates.rows(kind, shape)
            extra_bytes = updates.extra_bytes
        return Answers(
            reporting=reporting,
            update=update,
            output=output if prefix == "scores" else None,
            states=NEWCOMER if task == "init_unseen" else answered,
            wait=partial(_pair, work),
            extra_bytes=partial(_pair, extra_bytes),
        )

    def _refuse_impossible(
        self, exchange: Exchange, answers: list[Mapping[str, np.ndarray] | None]
    ) -> None:
        """Remove the answers that no honest client can have sent, and name the senders.

        Args:
            exchange: the exchange.
            answers: the arrays of each client's answer, in the order of the cohort;
                changed in place.

        Raises:
            TooFewClients: too few answers are left.
        """
        cohort = exchange.cohort
        names = [cohort.clients.names[row] for row in cohort.rows]
        refused: dict[int, str] = {}
        updates: dict[int, dict[str, np.ndarray]] = {}
        for place, answer in enumerate(answers):
            if answer is None:
                continue
            if exchange.task == "evaluate":
                scores = {name: array for name, array in answer.items() if name != WORK}
                counts = self.data.rows.get(names[place])
                rows: dict[str, int] | None = None
                if counts is not None:
                    rows = {
                        str(split): int(count)
                        for split, count in zip(SPLITS, counts, strict=True)
                    }
                try:
                    check_scores(scores, self.plan.metrics, rows)
                except ValueError as error:
                    refused[place] = str(error)
            elif update := named_updates(answer):
                updates[place] = update
        if updates:
            refused |= self._check.refuse(exchange, updates)
        for place, reason in sorted(refused.items()):
            answers[place] = None
            COORDINATOR_LOG.warning(
                f"client {names[place]}: {reason}; it is left out of this round"
            )
        minimum = self._minimum(exchange)
        left = sum(answer is not None for answer in answers)
        if refused and left < minimum:
            raise TooFewClients(
                f"the answers of {left} of {len(cohort)} clients can be used; the"
                f" job's minimum is {minimum}{see('errors#too-few-clients')}"
            )

    def _minimum(self, exchange: Exchange) -> int:
        """The minimum number of answers in an exchange."""
        asked = len(exchange.cohort)
        if exchange.task == "client" and self.plan.sums is not None:
            return self.plan.sums.minimum(self.rules.minimum, asked)
        is_probe = exchange.task == "probe" and exchange.cohort.seen
        # The whole training uses the probe of the clients that take part in it.
        if is_probe and exchange.algorithm.probe_needs_all:
            return asked
        if exchange.task == "client" and exchange.cohort.age is not None:
            return 1  # the number of answers in a round is its buffer
        if is_probe or exchange.task == "client":
            return min(self.rules.minimum, asked)
        return 0

    def _run_stage(
        self, stage: SumStage, vector_id: Mapping[str, Any], cohort: Cohort
    ) -> dict[str, NamedArrays]:
        """Send the requests of one stage of secure aggregation.

        Args:
            stage: the stage.
            vector_id: identifies the vectors to be added, as plain values.
            cohort: the cohort of the round.

        Returns:
            The answers, by client; see `send_stage`.
        """
        number = self._next_number(cohort.round)
        deadline = time.time() + self.rules.deadline
        description = self.plan.describe(self._phase)

        def request_of(name: str, arrays: NamedArrays) -> Request:
            return Request(
                self.plan.experiment,
                cohort.round,
                number,
                stage.task,
                name,
                deadline=deadline,
                run=self._run,
                algorithm=description
                | {SUM: {**vector_id, **stage.settings_for(name)}},
                arrays=arrays,
            )

        return send_stage(
            self._transport,
            stage,
            request_of,
            poll_interval=self.rules.poll_interval,
        )

    def repeat_exchanges(self) -> None:
        """Number the exchanges of this round from 0 again, as it is retried.

        A client that has answered is then sent the request that it knows.
        """
        self._last_exchange = (-1, -1)

    def _next_number(self, round: int) -> int:
        """The number of the next exchange within a round."""
        last_round, last_number = self._last_exchange
        number = last_number + 1 if last_round == round else 0
        self._last_exchange = (round, number)
        return number

    def _replies(
        self,
        exchange: Exchange,
        requested: NDArray[np.bool_],
        specs: Mapping[str, ArraySpec],
    ) -> Mapping[str, Reply]:
        """Send each client of the cohort its request, and collect the answers.

        The answers of clients that may be late are there already (`_first_come`).

        Args:
            exchange: the exchange.
            requested: [c] whether each client has to send the arrays of `specs`.
            specs: the shapes and types of those arrays.
        """
        cohort = exchange.cohort
        if exchange.task == "client" and cohort.age is not None:
            return self.late.take([cohort.clients.names[row] for row in cohort.rows])
        number = self._next_number(cohort.round)
        requests, digests, cached = self._new_requests(exchange, requested, number)
        for name in self._not_waited_for(exchange):
            requests.pop(name, None)
            cached.pop(name, None)
        result = send_and_receive(
            self._transport,
            requests,
            partial(_expected, specs),
            cached=cached,
            minimum=self._minimum(exchange),
            poll_interval=self.rules.poll_interval,
            late=self.late,
        )
        self._record_received(
            exchange.task, {name: digests[name] for name in result.replies}
        )
        return result.replies

    def _new_requests(
        self, exchange: Exchange, requested: NDArray[np.bool_], number: int
    ) -> tuple[
        dict[str, Request], dict[str, dict[str, list[bytes]]], dict[str, Request]
    ]:
        """The requests of an exchange, by client.

        Returns:
            The requests; the digests of their vectors; and the requests without the
            vectors in the clients' caches.
        """
        requests = self._requests(exchange, requested, number)
        if self.plan.sums is not None and exchange.task == "client":
            asked = [request for request in requests.values() if request.reply]
            self._asked = self._digest_for_all(exchange.algorithm, asked)
        digests = self._digests(exchange, requests)
        cached = {}
        if self._caches is not None:
            for name, request in requests.items():
                cached[name] = self._caches.drop_cached(request, digests[name])
        return requests, digests, cached

    def _digest_for_all(self, method: Algorithm, requests: Sequence[Request]) -> str:
        """The digest of what all clients of a round are asked.

        Raises:
            ValueError: the method sends them different things.
        """
        of_all = [common_arrays(it.arrays, method.sent_to_each) for it in requests]
        if not of_all:
            return ""
        for other in of_all[1:]:
            for name in sorted({*of_all[0], *other}):
                require(
                    name in other
                    and name in of_all[0]
                    and np.array_equal(other[name], of_all[0][name]),
                    f"{method.about.name} sends clients different arrays {name!r}, and"
                    " secure sums are of clients that are sent the same; a method says"
                    " in `sent_to_each` what each client has its own of",
                )
        return asked_of_all(requests[0], method.sent_to_each)

    def _record_received(
        self, task: str, digests: Mapping[str, Mapping[str, list[bytes]]]
    ) -> None:
        """Record that clients have answered requests for a task.

        Args:
            task: the task.
            digests: of the vectors in each client's request. A client that did not answer
                may not have received its vectors.
        """
        if digests:
            self._compiled.add((self._phase, task))
        if self._caches is not None:
            for name, of_client in digests.items():
                self._caches.record(name, of_client)

    # Clients that may be late are asked without waiting for their answers, and work while
    # others are asked for something else.

    def _first_come(self, exchange: Exchange, first: FirstCome) -> Answers:
        """Have clients begin, and wait for the first answers only; see `Exchange.first`.

        Raises:
            TooFewClients: there are too few answers, and nobody is at work.
            Diverged: likewise, and that follows from clients whose model became NaN or
                infinite.
            Interrupted: it was stopped.
        """
        late, cohort, begun = self.late, exchange.cohort, time.monotonic()
        names = [cohort.clients.names[row] for row in cohort.rows]
        if not first.count:
            self._ask(exchange)
        late.refused.clear()
        late.refusals.clear()
        while len(late.replies) < first.count:
            polled = time.monotonic()
            chosen = self._beginners(names, first)
            if len(chosen):
                self._ask(select_clients(exchange, chosen))
            if not late.open:
                late.end_attempt(first.count, cohort.round, len(names))
            self._poll_late()
            if len(late.replies) < first.count:
                pause = until_next_poll(begun, polled, self.rules.poll_interval)
                if self.stop.wait(pause):
                    raise Interrupted
        came = list(late.replies)[: first.count]
        began = [late.began(name) for name in names]
        return Answers(
            np.array([name in came for name in names], bool),
            output=np.array(began, np.int64),
        )

    def _beginners(self, names: list[str], first: FirstCome) -> NDArray[np.int64]:
        """The positions of clients that are free and connected, as many as there are
        places.

        A client whose answer waits for the step is not asked again before it, nor is one
        that has refused.
        """
        places = max(first.places - len(self.late.open), 0)
        online = self._transport.online()
        is_free = np.array(
            [
                name in online
                and name not in self.late.refused
                and self.late.began(name) < 0
                for name in names
            ],
            bool,
        )
        return np.sort(first.order[is_free[first.order]][:places])

    def _ask(self, exchange: Exchange) -> None:
        """Open the requests of an exchange; the next poll sends them."""
        shapes = self._answer_shapes(exchange).get("update", {})
        specs = specs_of(shapes, "update")
        requested = exchange.cohort.reporting
        requests, digests, cached = self._new_requests(exchange, requested, number=0)
        for name, request in requests.items():
            self._late_digests[name] = digests[name]
            self.late.ask(request, cached.get(name), _expected(specs, request))

    def _poll_late(self) -> None:
        """Send what is to be sent to clients that may be late, and take what has come."""
        before = set(self.late.replies)
        poll(self._transport, self.late)
        answered = {
            name: self._late_digests.pop(name)
            for name in self.late.replies
            if name not in before and name in self._late_digests
        }
        self._record_received("client", answered)
        if released := self.late.release_overdue():
            COORDINATOR_LOG.warning(f"no answer in time from {', '.join(released)}")

    def deliver(self) -> None:
        """From now on all clients are waited for, as the training is over."""
        self._is_delivering = True

    def _not_waited_for(self, exchange: Exchange) -> set[str]:
        """The clients that an exchange leaves out, as the training goes on meanwhile: those
        that are at work, or not connected, where clients may be late.
        """
        goes_on = not self._is_delivering and exchange.cohort.round < self.plan.rounds
        is_measured = exchange.task in ("evaluate", "init_unseen")
        if not self.late.is_used or not goes_on or not is_measured:
            return set()
        online = self._transport.online()
        names = exchange.cohort.clients.names
        left_out = {
            name for name in names if name in self.late.open or name not in online
        }
        if exchange.task == "init_unseen":
            self._without_state = left_out
        # One that has answered since then has no state as a newcomer.
        return left_out | (
            self._without_state if exchange.states is not None else set()
        )

    def _digests(
        self, exchange: Exchange, requests: Mapping[str, Request]
    ) -> dict[str, dict[str, list[bytes]]]:
        """The digests of all vectors in the requests: client -> array -> row."""
        of_streams = downlink_digests(exchange.downlink, len(requests))
        digests = dict(zip(requests, of_streams, strict=True))
        for name, request in requests.items():
            if INITIAL in request.arrays:
                digests[name][INITIAL] = [vector_digest(request.arrays[INITIAL])]
        return digests

    def _requests(
        self, exchange: Exchange, requested: NDArray[np.bool_], number: int
    ) -> dict[str, Request]:
        """The request to each client of the cohort, by name."""
        cohort = exchange.cohort
        description = self.plan.describe(self._phase)
        if exchange.states is not None:
            description |= {NEWCOMER: True}
        if exchange.downlink.mode:
            description |= {MODE: exchange.downlink.mode}
        stateful = bool(jax.tree.leaves(self._initial_state))
        deadline = time.time() + self.rules.deadline
        if (self._phase, exchange.task) not in self._compiled:
            deadline += self.rules.compile_time
        arrays = downlink_arrays(
            exchange.downlink, self.plan.model.precision.sums, len(cohort)
        )
        requests = {}
        for client, row in enumerate(cohort.rows):
            accepted = int(self._accepted[row]) if cohort.seen else -1
            durable = int(self._durable[row]) if cohort.seen else -1
            # A client without a valid state starts from this model. In the first phase
            # it can compute the model itself (`Plan.initial`).
            if stateful and accepted < 0 and self._phase:
                arrays[client][INITIAL] = self._theta
            name = cohort.clients.names[row]
            requests[name] = Request(
                experiment=self.plan.experiment,
                round=cohort.round,
                exchange=number,
                task=exchange.task,
                client=name,
                state_round=accepted,
                durable_state_round=durable,
                deadline=deadline,
                reply=bool(requested[client]),
                run=self._run,
                algorithm=description,
                arrays=arrays[client],
            )
        return requests

    def _answer_shapes(self, exchange: Exchange) -> dict[str, Any]:
        """The shapes of a client's outputs, which are traced once for equal inputs."""
        task, downlink = exchange.task, exchange.downlink
        newcomers = exchange.states is not None
        streams = tuple(
            (kind, sent.recipients.shape[1], sent.values.shape, str(sent.values.dtype))
            for kind, sent in downlink.streams.items()
        )
        scalars = tuple(
            (name, np.asarray(value).dtype.kind)
            for name, value in downlink.scalars.items()
        )
        key = (task, self._phase, newcomers, streams, scalars)
        if key not in self._shapes:
            state = self._newcomer_shapes if newcomers else self._initial_state
            if task in ("probe", "init_unseen"):
                state = ()
            state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
            self._shapes[key] = answer_shapes(
                exchange, self._algorithm, state, self.plan.model, self._pool
            )
        return self._shapes[key]

    # The clients keep their states, and the coordinator decides which are valid:
    # 1. A client saves its new state, then answers.
    # 2. When the server has accepted the round, `commit` makes the new states valid.
    # 3. `snapshot` stores the rounds of the valid states in the checkpoint.
    # 4. Once that is on disk, `snapshot_saved` lets clients delete older states.
    # Whenever either side is killed, clients still have the state that the coordinator
    # asks for after its restart.

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Make the states after this round valid, for the clients that answered; a late
        client's state is that of the round in which it began.
        """
        self._accepted = self._accepted.copy()
        cohort = exchange.cohort
        self._accepted[cohort.position[answers.states]] = cohort.began[answers.states]

    def snapshot(self) -> Any:
        """What a checkpoint stores about the clients' states.

        Returns:
            "accepted": the round [m] of each client's valid state; "initial": the model
            from which states start in a later phase, or None in the first phase.
        """
        self._pending = self._accepted
        return {
            "accepted": self._accepted,
            "initial": self._theta if self._phase else None,
        }

    def snapshot_saved(self) -> None:
        """Let clients delete states older than those of the last snapshot."""
        self._durable = self._pending

    def restore(self, snapshot: Any) -> None:
        """Make the states of a snapshot the valid ones."""
        accepted = np.asarray(snapshot["accepted"])
        self._accepted = self._pending = self._durable = accepted
        if snapshot["initial"] is not None:
            self._theta = np.asarray(snapshot["initial"])


def _expected(specs: Mapping[str, ArraySpec], request: Request) -> dict[str, ArraySpec]:
    """The arrays that the answer to a request must hold.

    Args:
        specs: those of a client that has to send its update.
        request: the request.
    """
    return {WORK: WORK_SPEC, **(specs if request.reply else {})}


def _pair(numbers: NDArray[np.int64]) -> tuple[int, int]:
    return int(numbers[0]), int(numbers[1])
