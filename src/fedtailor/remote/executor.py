"""The executor of a federation of machines: every client of a cohort is asked over a
transport.
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
"""What of a task's outputs leaves the client. A personal model stays there, and so does
a state.
"""


@dataclass(frozen=True)
class Rules:
    """How long clients are waited for, and how many must answer.

    Attributes:
        minimum: clients without whose answers a round does not count. A probe needs all
            of its clients, as what they answer serves the whole training; an evaluation
            takes what comes.
        deadline: seconds that an exchange waits.
        pause: seconds between two looks at what arrived.
    """

    minimum: int = 1
    deadline: float = 300.0
    pause: float = PAUSE_S


def client_table(
    names: tuple[str, ...], sizes: Any, *, first: int = 0, groups: Any = None
) -> Clients:
    """A table of clients, from their names and numbers of training rows in the order in
    which they are listed.

    Args:
        first: the place of the first of them in the list of all, seen and unseen.
        groups: true groups, where they are known.
    """
    ids = client_ids(names)
    order = np.argsort(ids)
    return Clients(
        ids=ids[order],
        names=tuple(names[place] for place in order),
        sizes=np.asarray(sizes, np.int64)[order],
        groups=None if groups is None else np.asarray(groups)[order],
        listed=order + first,
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
        """Nobody is asked yet.

        Args:
            plan: what all machines have agreed to.
            transport: carries the messages.
            template: any federation whose examples have the form of the clients': it
                says what answers must look like.
            rules: when an exchange ends.
            remember: name vectors that clients hold instead of sending them.
            tell: is given a line for every answer that is refused, and for clients that
                are missing.

        Raises:
            ValueError: the method needs more than sums, where the plan shows it no
                more.
        """
        self.plan, self.seen, self.rules = plan, seen, rules
        self.unseen = (
            client_table((), np.zeros(0), first=len(seen)) if unseen is None else unseen
        )
        self.federation, self._transport, self._tell = template, transport, tell
        pool, _ = build_pool([template], plan.model.dtype)
        self._pool = jax.tree.map(jnp.asarray, pool)
        self._shapes: dict[Any, Any] = {}
        self._holdings = Holdings(plan.common_vectors()) if remember else None
        self._last = (-1, -1)
        if plan.sums is not None:
            plan.sums.check(plan.algorithm, plan.uplink)
            plan.sums.check_crowd(plan.algorithm, len(seen))
        self._newcomer: Any = ()  # the form of what `init_unseen` makes
        self._accepted = self._durable = self._pending = np.full(
            len(seen), -1, np.int64
        )

    def begin(
        self, algorithm: Algorithm, uplink: Pipeline, theta: Any, phase: int
    ) -> None:
        """Forget the clients' states: all start from that of `theta`."""
        self._algorithm, self._phase, self._theta = algorithm, phase, np.asarray(theta)
        self._first = (
            algorithm.init_state(theta, self.plan.model),
            init_pipeline(uplink, theta),
        )
        self._accepted = np.full(len(self.seen), -1, np.int64)

    def exchange(self, exchange: Exchange) -> Answers:
        """Ask the clients of a cohort, and wait for them.

        Raises:
            TooFewClients: the minimum is not there.
        """
        cohort, task = exchange.cohort, exchange.task
        prefix = SENT_UP.get(task, "")
        shapes = self._answer_shapes(exchange).get(prefix, {}) if prefix else {}
        if task == "init_unseen":
            self._newcomer = self._answer_shapes(exchange)["state"]
        hidden: dict[str, Any] = {}
        if self.plan.sums is not None and task == "client":
            hidden = {kind: shapes[kind] for kind in hidden_kinds(shapes)}
            shapes = {kind: form for kind, form in shapes.items() if kind not in hidden}
        specs = specs_of(shapes, prefix)
        asked = cohort.reporting & np.asarray(exchange.downlink.reply, bool)
        if (
            task == "evaluate" and not self.plan.evaluate
        ):  # the job lets nobody say how good its model is
            output = stack([None] * len(cohort), specs, prefix, shapes)
            return Answers(np.zeros(len(cohort), bool), output=output)
        found = self._ask(exchange, asked, specs)
        names = [cohort.clients.names[row] for row in cohort.rows]
        arrays = [
            found.replies[name].arrays if name in found.replies else None
            for name in names
        ]
        there = np.array([answer is not None for answer in arrays], bool)
        stacked = stack(arrays, specs, prefix, shapes)
        work = np.zeros(2, np.int64)
        for answer in arrays:
            work += 0 if answer is None else answer[WORK]
        added: Mapping[str, ClientRows] = {}
        beside = np.zeros(2, np.int64)
        if self.plan.sums is not None and hidden:
            updates = HiddenUpdates(
                self.plan.sums,
                cohort,
                asked & there,
                partial(self._ask_stage, cohort=cohort),
                minimum=min(self.rules.minimum, int(asked.sum())),
                tell=self._tell,
            )
            added, beside = (
                {kind: updates.rows(kind, form) for kind, form in hidden.items()},
                updates.beside,
            )
        return Answers(
            reporting=asked & there,
            update={**stacked, **added} if prefix == "update" else {},
            output=stacked if prefix == "scores" else None,
            states=NEWCOMER if task == "init_unseen" else there,
            wait=partial(_numbers, work),
            beside=partial(_numbers, beside),
        )

    def _ask_stage(
        self, stage: Stage, asked: Mapping[str, Any], cohort: Cohort
    ) -> dict[str, Mapping[str, np.ndarray]]:
        """Ask clients to do a stage of a secure sum; the answers of those that did in
        time.
        """
        number, until = (
            self._next_number(cohort.round),
            time.time() + self.rules.deadline,
        )
        described = self.plan.describe(self._phase)
        requests = {
            name: Request(
                self.plan.experiment,
                cohort.round,
                number,
                stage.task,
                name,
                deadline=until,
                algorithm=described | {SUM: {**asked, **stage.told(name)}},
                arrays=arrays,
            )
            for name, arrays in stage.arrays.items()
        }
        found = ask(
            self._transport,
            requests,
            lambda request: stage.expected[request.client],
            minimum=0,
            tell=self._tell,
            pause=self.rules.pause,
        )
        return {name: reply.arrays for name, reply in found.replies.items()}

    def _next_number(self, round: int) -> int:
        """The number of the next exchange of a round."""
        self._last = (round, self._last[1] + 1 if self._last[0] == round else 0)
        return self._last[1]

    def _ask(
        self,
        exchange: Exchange,
        asked: NDArray[np.bool_],
        specs: Mapping[str, ArraySpec],
    ) -> Collected:
        cohort, task = exchange.cohort, exchange.task
        everybody = len(cohort)
        minimum = {
            "client": min(self.rules.minimum, everybody),
            "probe": everybody,
        }.get(task, 0)
        requests = self._requests(exchange, asked)
        holdings, digests, shortened = (
            self._holdings,
            self._digests(exchange, requests),
            {},
        )

        def expected(request: Request) -> dict[str, ArraySpec]:
            return {WORK: WORK_SPEC, **(specs if request.reply else {})}

        if holdings is not None:
            shortened = {
                name: holdings.shorten(request, digests[name])
                for name, request in requests.items()
            }
        found = ask(
            self._transport,
            requests,
            expected,
            shortened=shortened,
            minimum=minimum,
            tell=self._tell,
            pause=self.rules.pause,
        )
        if holdings is not None:
            for name in found.replies:
                holdings.received(name, digests[name])
        return found

    def _digests(
        self, exchange: Exchange, requests: Mapping[str, Request]
    ) -> dict[str, dict[str, list[bytes]]]:
        """The digests of the vectors in each client's request, by its name."""
        found = dict(
            zip(
                requests,
                downlink_digests(exchange.downlink, len(requests)),
                strict=True,
            )
        )
        for name, request in requests.items():
            if INITIAL in request.arrays:
                found[name][INITIAL] = [digest(request.arrays[INITIAL])]
        return found

    def _requests(
        self, exchange: Exchange, asked: NDArray[np.bool_]
    ) -> dict[str, Request]:
        """One request for each client of the cohort, by name."""
        cohort, newcomer = exchange.cohort, exchange.states is not None
        number = self._next_number(cohort.round)
        described = self.plan.describe(self._phase) | (
            {NEWCOMER: True} if newcomer else {}
        )
        keeps = bool(jax.tree.leaves(self._first))
        until = time.time() + self.rules.deadline
        arrays = downlink_arrays(exchange.downlink, self.plan.model.dtype, len(cohort))
        found = {}
        for client, row in enumerate(cohort.rows):
            accepted = int(self._accepted[row]) if cohort.seen else -1
            durable = int(self._durable[row]) if cohort.seen else -1
            # a client makes its first state of the first phase by itself
            first = (
                {INITIAL: self._theta} if keeps and accepted < 0 and self._phase else {}
            )
            name = cohort.clients.names[row]
            found[name] = Request(
                self.plan.experiment,
                cohort.round,
                number,
                exchange.task,
                name,
                accepted,
                durable,
                until,
                bool(asked[client]),
                algorithm=described,
                arrays=arrays[client] | first,
            )
        return found

    def _answer_shapes(self, exchange: Exchange) -> dict[str, Any]:
        """What a client's outputs look like; traced once for every form of a task."""
        downlink = exchange.downlink
        form = (
            *(exchange.task, self._phase, exchange.states is not None),
            *(
                (kind, it.recipients.shape[1], it.values.shape, str(it.values.dtype))
                for kind, it in downlink.streams.items()
            ),
            *(
                (name, np.asarray(value).dtype.kind)
                for name, value in downlink.scalars.items()
            ),
        )
        if form not in self._shapes:
            state = self._newcomer if exchange.states is not None else self._first
            state = () if exchange.task in ("probe", "init_unseen") else state
            state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
            self._shapes[form] = answer_shapes(
                exchange, self._algorithm, state, self.plan.model, self._pool
            )
        return self._shapes[form]

    # states: the clients keep them; which of them count is known here
    # ------------------------------------------------

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """From now on the states after this round count, of the clients whose answers
        were accepted.
        """
        self._accepted = self._accepted.copy()
        self._accepted[exchange.cohort.position[answers.states]] = exchange.cohort.round

    def snapshot(self) -> Any:
        """The rounds [m] after which the clients' states count, and what they start
        from in a later phase.
        """
        self._pending = self._accepted
        return {
            "accepted": self._accepted,
            "initial": self._theta if self._phase else None,
        }

    def saved(self) -> None:
        """States before those of the last snapshot will not be asked for again; clients
        are told so.
        """
        self._durable = self._pending

    def restore(self, snapshot: Any) -> None:
        """Ask for the states of a snapshot from now on."""
        self._accepted = self._durable = self._pending = np.asarray(
            snapshot["accepted"]
        )
        if snapshot["initial"] is not None:
            self._theta = np.asarray(snapshot["initial"])


def _numbers(work: NDArray[np.int64]) -> tuple[int, int]:
    return int(work[0]), int(work[1])
