"""The executor of a federation of machines: it asks the clients over a transport.

The clients keep their examples and states. The coordinator knows after which round each
client's state counts, and says so in every request.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.client.pool import build_pool
from fedtailor.federation import Federation
from fedtailor.protocol import (
    Algorithm,
    Answers,
    ClientRows,
    Clients,
    Cohort,
    Exchange,
    Pipeline,
    client_ids,
    init_pipeline,
)
from fedtailor.remote.held import INITIAL, Holdings, digest
from fedtailor.remote.hidden_updates import HiddenUpdates
from fedtailor.remote.messages import ArraySpec, Request
from fedtailor.remote.plan import Plan
from fedtailor.remote.secure_sums import SUM, hidden_kinds
from fedtailor.remote.sum_server import Stage
from fedtailor.remote.transport import PAUSE_S, Collected, Transport
from fedtailor.remote.transport import exchange as ask
from fedtailor.remote.wire import (
    WORK,
    WORK_SPEC,
    answer_shapes,
    downlink_arrays,
    downlink_digests,
    specs_of,
    stack,
)
from fedtailor.remote.work import NEWCOMER

SENT_UP = {"client": "update", "probe": "update", "evaluate": "scores"}
"""The output of a task that leaves the client; personal models and states stay."""


@dataclass(frozen=True)
class Rules:
    """How long clients are waited for, and how many must answer.

    Attributes:
        minimum: answers without which a round does not count. A probe needs the answers
            of all its clients, as they serve the whole training; an evaluation needs
            none.
        deadline: seconds that an exchange waits.
        pause: seconds between two looks at what arrived.
    """

    minimum: int = 1
    deadline: float = 300.0
    pause: float = PAUSE_S


def client_table(
    names: tuple[str, ...], sizes: Any, *, first: int = 0, groups: Any = None
) -> Clients:
    """A table of clients, ordered by id.

    Args:
        names: of the clients, in the order in which they are listed.
        sizes: [c] training rows of each.
        first: position of the first of them in the list of all, seen and unseen.
        groups: [c] true groups, where they are known.
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
    """Asks clients that keep their own data (implements `fedtailor.protocol.Executor`).

    Attributes:
        seen: the clients that take part in training.
        unseen: those that came after it began.
        federation: the form of the clients' examples, and the federation's name;
            nobody's examples.
        examples: None: a server has none.
        concurrency: 1.
    """

    examples = None
    concurrency = 1

    def __init__(
        self,
        plan: Plan,
        seen: Clients,
        transport: Transport,
        template: Federation,
        *,
        unseen: Clients | None = None,
        rules: Rules = Rules(),
        remember: bool = True,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Make an executor; no client is asked yet.

        Args:
            plan: what all machines have agreed to.
            seen: the clients that take part in training.
            transport: carries the messages.
            template: any federation whose examples have the form of the clients'; the
                shapes of answers follow from it.
            unseen: clients that came after the training began.
            rules: when an exchange ends.
            remember: name vectors that clients hold instead of sending them.
            tell: is given a line for every answer that is refused, and for clients that
                are missing.

        Raises:
            ValueError: the plan shows the server sums only, and the method needs more.
        """
        if unseen is None:
            unseen = client_table((), np.zeros(0), first=len(seen))
        self.plan, self.seen, self.unseen, self.rules = plan, seen, unseen, rules
        self.federation, self._transport, self._tell = template, transport, tell
        pool, _ = build_pool([template], plan.model.dtype)
        self._pool = jax.tree.map(jnp.asarray, pool)
        self._shapes: dict[Any, Any] = {}
        self._newcomer_shapes: Any = ()  # of the state that `init_unseen` makes
        self._holdings = Holdings(plan.common_vectors()) if remember else None
        self._last_exchange = (-1, -1)  # round, number within the round
        if plan.sums is not None:
            plan.sums.check(plan.algorithm, plan.uplink)
            plan.sums.check_crowd(plan.algorithm, len(seen))
        # The round after which each seen client's state counts (-1: none): as of now,
        # in the snapshot that is being written, and in the last one on the disk.
        nothing = np.full(len(seen), -1, np.int64)
        self._accepted = self._pending = self._durable = nothing

    def begin(
        self, algorithm: Algorithm, uplink: Pipeline, theta: Any, phase: int
    ) -> None:
        """Forget the clients' states: all start again from `theta`."""
        self._algorithm, self._phase, self._theta = algorithm, phase, np.asarray(theta)
        self._first = (
            algorithm.init_state(theta, self.plan.model),
            init_pipeline(uplink, theta),
        )
        self._accepted = np.full(len(self.seen), -1, np.int64)

    def exchange(self, exchange: Exchange) -> Answers:
        """Ask the clients of a cohort, and wait for their answers or the deadline.

        Returns:
            What came, in the order of the cohort; zeros where nothing came. Updates
            that are added behind masks are `HiddenRows`, for whose sums the clients
            are asked when the server needs them.

        Raises:
            TooFewClients: fewer answers came than the minimum.
        """
        cohort, task, sums = exchange.cohort, exchange.task, self.plan.sums
        prefix = SENT_UP.get(task, "")
        shapes = self._answer_shapes(exchange).get(prefix, {}) if prefix else {}
        if task == "init_unseen":
            self._newcomer_shapes = self._answer_shapes(exchange)["state"]
        hidden: dict[str, Any] = {}  # shapes of what is added behind masks
        if sums is not None and task == "client":
            hidden = {kind: shapes[kind] for kind in hidden_kinds(shapes)}
            shapes = {kind: shapes[kind] for kind in shapes if kind not in hidden}
        specs = specs_of(shapes, prefix)
        if task == "evaluate" and not self.plan.evaluate:
            # The job lets no client say how good its model is: nobody is asked.
            output = stack([None] * len(cohort), specs, prefix, shapes)
            return Answers(np.zeros(len(cohort), bool), output=output)

        asked_to_report = cohort.reporting & np.asarray(exchange.downlink.reply, bool)
        replies = self._ask(exchange, asked_to_report, specs).replies
        answers: list[Mapping[str, np.ndarray] | None] = []
        work = np.zeros(2, np.int64)
        for row in cohort.rows:
            reply = replies.get(cohort.clients.names[row])
            answers.append(None if reply is None else reply.arrays)
            if reply is not None:
                work += reply.arrays[WORK]
        answered = np.array([answer is not None for answer in answers], bool)
        reporting = asked_to_report & answered
        output = stack(answers, specs, prefix, shapes)
        update: dict[str, ClientRows] = dict(output) if prefix == "update" else {}
        extra_bytes = np.zeros(2, np.int64)
        if sums is not None and hidden:
            updates = HiddenUpdates(
                sums,
                cohort,
                reporting,
                partial(self._ask_stage, cohort=cohort),
                minimum=min(self.rules.minimum, int(asked_to_report.sum())),
                tell=self._tell,
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

    def _ask_stage(
        self, stage: Stage, asked: Mapping[str, Any], cohort: Cohort
    ) -> dict[str, Mapping[str, np.ndarray]]:
        """Ask clients to do a stage of a secure sum.

        Args:
            stage: of the sum.
            asked: which vectors are added.
            cohort: of the round.

        Returns:
            The answers of those that did it in time, by name; fewer than the minimum
            are for the sum to judge.
        """
        number = self._next_number(cohort.round)
        deadline = time.time() + self.rules.deadline
        description = self.plan.describe(self._phase)
        requests = {
            name: Request(
                self.plan.experiment,
                cohort.round,
                number,
                stage.task,
                name,
                deadline=deadline,
                algorithm=description | {SUM: {**asked, **stage.told(name)}},
                arrays=arrays,
            )
            for name, arrays in stage.arrays.items()
        }
        collected = ask(
            self._transport,
            requests,
            lambda request: stage.expected[request.client],
            minimum=0,
            tell=self._tell,
            pause=self.rules.pause,
        )
        return {name: reply.arrays for name, reply in collected.replies.items()}

    def _next_number(self, round: int) -> int:
        """The number of the next exchange within a round."""
        last_round, last_number = self._last_exchange
        number = last_number + 1 if last_round == round else 0
        self._last_exchange = (round, number)
        return number

    def _ask(
        self,
        exchange: Exchange,
        asked_to_report: NDArray[np.bool_],
        specs: Mapping[str, ArraySpec],
    ) -> Collected:
        """Send each client of the cohort its request, and collect the answers.

        Args:
            exchange: of the round.
            asked_to_report: [c] whose answers must hold the arrays of `specs`.
            specs: of those arrays.
        """
        cohort, holdings = exchange.cohort, self._holdings
        minimum = 0
        if exchange.task == "client":
            minimum = min(self.rules.minimum, len(cohort))
        elif exchange.task == "probe":
            minimum = len(cohort)
        requests = self._requests(exchange, asked_to_report)
        digests = self._digests(exchange, requests)
        shortened = {}
        if holdings is not None:
            for name, request in requests.items():
                shortened[name] = holdings.shorten(request, digests[name])

        def expected(request: Request) -> dict[str, ArraySpec]:
            return {WORK: WORK_SPEC, **(specs if request.reply else {})}

        collected = ask(
            self._transport,
            requests,
            expected,
            shortened=shortened,
            minimum=minimum,
            tell=self._tell,
            pause=self.rules.pause,
        )
        if holdings is not None:
            # Only who answered has surely received its vectors.
            for name in collected.replies:
                holdings.received(name, digests[name])
        return collected

    def _digests(
        self, exchange: Exchange, requests: Mapping[str, Request]
    ) -> dict[str, dict[str, list[bytes]]]:
        """The digests of the vectors in each client's request: name -> array -> rows."""
        of_streams = downlink_digests(exchange.downlink, len(requests))
        digests = dict(zip(requests, of_streams, strict=True))
        for name, request in requests.items():
            if INITIAL in request.arrays:
                digests[name][INITIAL] = [digest(request.arrays[INITIAL])]
        return digests

    def _requests(
        self, exchange: Exchange, asked_to_report: NDArray[np.bool_]
    ) -> dict[str, Request]:
        """One request for each client of the cohort, by name."""
        cohort = exchange.cohort
        number = self._next_number(cohort.round)
        description = self.plan.describe(self._phase)
        if exchange.states is not None:
            description |= {NEWCOMER: True}
        stateful = bool(jax.tree.leaves(self._first))
        deadline = time.time() + self.rules.deadline
        arrays = downlink_arrays(exchange.downlink, self.plan.model.dtype, len(cohort))
        requests = {}
        for client, row in enumerate(cohort.rows):
            accepted = int(self._accepted[row]) if cohort.seen else -1
            durable = int(self._durable[row]) if cohort.seen else -1
            # What the first state follows from. In the first phase a client knows it by
            # itself (`Plan.initial`).
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
                reply=bool(asked_to_report[client]),
                algorithm=description,
                arrays=arrays[client],
            )
        return requests

    def _answer_shapes(self, exchange: Exchange) -> dict[str, Any]:
        """The shapes of a client's outputs, traced once for every form of a task."""
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
        form = (task, self._phase, newcomers, streams, scalars)
        if form not in self._shapes:
            state = self._newcomer_shapes if newcomers else self._first
            if task in ("probe", "init_unseen"):
                state = ()
            state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
            self._shapes[form] = answer_shapes(
                exchange, self._algorithm, state, self.plan.model, self._pool
            )
        return self._shapes[form]

    # The clients keep their states; which of them count is decided here. The order is:
    # a client saves its state and answers; `commit` counts it once the server has
    # accepted the round; `snapshot` goes into the checkpoint; `snapshot_saved`, once that is on
    # the disk, lets clients drop what is older. So wherever either side dies, the state
    # that the coordinator will ask for is still on the client's disk.

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Count the states after this round, of the clients whose answers came."""
        self._accepted = self._accepted.copy()
        self._accepted[exchange.cohort.position[answers.states]] = exchange.cohort.round

    def snapshot(self) -> Any:
        """What a checkpoint stores of the clients' states.

        Returns:
            The rounds [m] after which they count, and the model that they start from in
            a later phase.
        """
        self._pending = self._accepted
        return {
            "accepted": self._accepted,
            "initial": self._theta if self._phase else None,
        }

    def snapshot_saved(self) -> None:
        """Let clients drop states older than those of the last snapshot."""
        self._durable = self._pending

    def restore(self, snapshot: Any) -> None:
        """Ask for the states of a snapshot from now on."""
        accepted = np.asarray(snapshot["accepted"])
        self._accepted = self._pending = self._durable = accepted
        if snapshot["initial"] is not None:
            self._theta = np.asarray(snapshot["initial"])


def _pair(numbers: NDArray[np.int64]) -> tuple[int, int]:
    return int(numbers[0]), int(numbers[1])
