"""The executor of simulations: all clients of a federation, mapped over this machine's
devices.
"""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation import Federation
from fedtailor.engine.client.pool import client_split_sizes
from fedtailor.engine.client.tasks import Outputs
from fedtailor.engine.executors.cohort_parts import (
    PartStates,
    concatenate,
    select_clients,
)
from fedtailor.engine.executors.devices import Devices, ExchangeRequest, Place
from fedtailor.engine.executors.examples import examples_of
from fedtailor.engine.executors.map_clients import AddedSum, balanced_order
from fedtailor.engine.executors.round_memory import RoundMemory
from fedtailor.engine.executors.settings import Settings
from fedtailor.engine.executors.shard_states import read_states, remove_other_states
from fedtailor.engine.executors.state_file import (
    FileStates,
    remove_unused_states,
    states_path,
)
from fedtailor.engine.executors.states import DeviceStates, HostStates, States
from fedtailor.models import Model
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    Answers,
    ClientRows,
    Clients,
    ClientState,
    Cohort,
    DataFacts,
    Diverged,
    Examples,
    Exchange,
    Pipeline,
    SummedRows,
    WeightedSum,
    client_ids,
    client_keys,
    init_pipeline,
    next_power_of_two,
    sums_type,
)

ALL_ROUNDS = 2**63
"""The number that stands for the round in the derivation of a client's second key, from
which it draws what stays the same in all rounds."""

SHARE_FILES = "files"
"""Key of a snapshot: the files in which processes keep the states of their own clients."""

STATELESS_TASKS = ("probe", "init_unseen")
"""Tasks that read no client state."""

ACTIVITIES = {"client": "training", "probe": "the probe"}
"""Task -> how the message about a diverged client names it; all other tasks are named
"the personal model"."""


Sums = tuple[tuple[AddedSum, NDArray[np.float64]], ...]
"""What is added up, with the weights [s, c] in the order of the cohort."""


class DeviceExecutor:
    """Runs the clients of one federation (implements `fedtailor.protocol.Executor`).

    Attributes:
        federation: the clients and their examples.
        model: what is trained.
        settings: the devices, and how to use them.
        states: the seen clients' states, in the order of their ids.
        shards: the number of devices. The rows of a cohort are divided into as many
            equal parts.
        concurrency: how many runs are trained on the devices at the same time. A
            `LockstepGroup` sets it.

    Example:
        >>> from fedtailor.engine.executors import DeviceExecutor
        >>> isinstance(run.executor, DeviceExecutor)
        True
    """

    states: States
    concurrency: int = 1
    clients_keep_models: bool = False

    def __init__(
        self,
        federation: Federation,
        model: Model,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        *,
        directory: Path | None = None,
        place: Place | None = None,
        data: DataFacts | None = None,
    ) -> None:
        """Place the examples on the devices.

        Args:
            federation: the clients and their examples.
            model: what is trained.
            settings: which devices to use, and how.
            directory: the directory of the file for states that do not fit into memory,
                to which checkpoints refer; None = a file without a name.
            place: where the examples are already, with those of other federations;
                None = place them now.
            data: what is known of all clients, if `federation` has not all of them.
        """
        self.federation = federation
        self.data: DataFacts = federation if data is None else data
        self._ids = federation.ids if data is None else client_ids(data.names)
        self.model = model
        self.settings = settings
        self.directory = directory
        self.seen = _table(self.data, self._ids, ~self.data.unseen)
        self.unseen = _table(self.data, self._ids, self.data.unseen)
        self.examples: Examples = examples_of(federation, self.seen.original_index)
        if place is None:
            place = Place(Devices([federation], model.precision.sums, settings))
        self.devices, self.federation_index = place.devices, place.index
        self.shards = self.devices.mesh.size
        self.split_sizes = client_split_sizes(self.data)
        # The models of the clients' networks, and which of them each client has.
        self._models = model.members
        self._member = np.array(
            [model.member_of(name) for name in self.data.names], np.int64
        )
        # The rows of `seen` whose states are kept here, and the most that any process keeps.
        self._kept = np.arange(len(self.seen))
        self._most_kept = len(self.seen)
        # The files of processes' own states to which the last two checkpoints refer.
        self._files: tuple[list[str], list[str]] = ([], [])
        self._fixed_keys: tuple[int, NDArray[np.uint32]] | None = None
        self._phase = self._saved_phase = 0
        # The last exchange whose messages were added up, while its states are not kept.
        self._open: Exchange | None = None

    @property
    def machine(self) -> dict[str, Any]:
        """The devices, and whether results are independent of their number."""
        return {
            "devices": self.shards,
            "platform": jax.default_backend(),
            "canonical": self.settings.canonical,
        }

    @property
    def client_states(self) -> ClientState:
        """The algorithm's states of all seen clients, without those of the uplink,
        stacked in the order of client ids: every leaf is [m, ...].
        """
        return self.states.rows[0]

    # exchanges
    # ----------------------------------------------------------------------------------

    def exchange(self, exchange: Exchange) -> Answers:
        """Run a task for a cohort; the devices may still be computing when this
        returns.
        """
        if self._begins_in_parts(exchange):
            answers = self._exchange_in_parts(exchange)
            if answers is not None:
                return answers
        requests = self.requests(exchange)
        if len(requests) == 1:
            request = self.in_sums(requests[0])
            return self.answers(request, self._run(request))
        # `require_finite` waits for a part, so that the memory of its states is free
        # before the next part begins.
        parts = [
            self.answers(request, self._run(request)).require_finite()
            for request in requests
        ]
        return concatenate(parts, self._parts(exchange))

    def _run(self, request: ExchangeRequest) -> Outputs:
        """The outputs of `run_client` for the clients of a request, stacked by rows."""
        return self.devices.run([request])[0]

    def requests(self, exchange: Exchange) -> list[ExchangeRequest]:
        """Convert an exchange to the form that programs take.

        Returns:
            One request; or several, for parts of the cohort, if its clients have
            different networks, or if the states of all of them do not fit into memory.
        """
        parts = self._parts(exchange)
        if len(parts) == 1 and len(self._models) == 1:
            return [self._request(exchange, self.model)]
        states = [exchange.states] * len(parts)
        if isinstance(exchange.states, PartStates):
            states = [part for _, part in exchange.states.parts]
        members = self._members(exchange.cohort)
        requests = []
        for part, part_states in zip(parts, states, strict=True):
            selected = replace(select_clients(exchange, part), states=part_states)
            if len(self._models) > 1:
                # The number of clients of a network varies with who is drawn, and a
                # program is compiled for each number of rows.
                capacity = next_power_of_two(len(part))
                cohort = replace(selected.cohort, capacity=capacity)
                selected = replace(selected, cohort=cohort)
            model = self._models[members[part[0]]] if len(part) else self.model
            requests.append(self._request(selected, model))
        return requests

    def plan(self, exchange: Exchange) -> RoundMemory:
        """The memory that an exchange would need. Nothing is compiled or trained. If its
        clients have different networks, it is that of those that need most.
        """
        if self._begins_in_parts(exchange):
            request = self._request_of_part(exchange, self._parts_by_work(exchange)[0])
            sums = self._sums(request, exchange)
            if sums is not None:
                memory = self.devices.plan(replace(request, sums=sums))
                # New states wait in memory, or in the file.
                each = memory.states // (2 * memory.clients)
                in_memory = not isinstance(self.states, FileStates)
                waiting = len(exchange.cohort) * each if in_memory else 0
                return replace(
                    memory,
                    clients=len(exchange.cohort),
                    states=memory.states + waiting,
                )
        plans = [
            self.devices.plan(self.in_sums(request))
            for request in self.requests(exchange)
        ]
        return max(plans, key=lambda memory: memory.total)

    def in_sums(self, request: ExchangeRequest) -> ExchangeRequest:
        """The request, with the sums that take the place of the clients' messages if the
        server needs no more and they take less memory.
        """
        exchange = request.exchange
        rows = request.row_count // self.shards
        if exchange.sums is None or not self.adds_up or rows < 2:
            return request
        sums = self._sums(request, exchange)
        if sums is None or sum(added.streams for added, _ in sums) > rows:
            return request
        return replace(request, sums=sums)

    def _sums(self, request: ExchangeRequest, exchange: Exchange) -> Sums | None:
        """What the server of an exchange needs, as sums over its clients; None if it needs
        more than sums.

        Args:
            request: of some of the clients of the exchange.
            exchange: a round of a method whose server may need no more.
        """
        assert exchange.sums is not None
        messages = self.devices.messages(request)
        public = {kind: it for kind, it in messages.items() if kind != PRIVATE_STEPS}
        expected = exchange.sums(public)
        if expected is None:
            return None
        sums = []
        for asked in expected:
            sent = public[asked.kind]
            added = AddedSum(
                asked.kind,
                asked.index,
                len(asked.weights),
                sent.shape if asked.index is None else sent.shape[1:],
                jnp.dtype(sums_type(sent)).name,
            )
            sums.append((added, asked.weights))
        return tuple(sums)

    def _begins_in_parts(self, exchange: Exchange) -> bool:
        """Whether the clients of a round start one part after another, so that their states
        are not copied all at once.
        """
        return (
            exchange.sums is not None
            and self.adds_up
            and len(self._models) == 1
            # Accelerators train as many clients at once as they can.
            and jax.default_backend() == "cpu"
            and len(exchange.cohort) > self._part_rows
        )

    @property
    def _part_rows(self) -> int:
        """The number of clients of such a part: equally many on each device."""
        return self.shards * max(self.states.part_clients // self.shards, 1)

    def _parts_by_work(self, exchange: Exchange) -> list[NDArray[np.int64]]:
        """The positions in the cohort of the clients of each part, which have about equal
        work, for the sake of the devices.
        """
        size = self._part_rows
        by_work = np.argsort(-exchange.cohort.sizes, kind="stable")
        return [
            np.sort(by_work[first : first + size])
            for first in range(0, len(by_work), size)
        ]

    def _request_of_part(
        self, exchange: Exchange, part: NDArray[np.int64]
    ) -> ExchangeRequest:
        """A request for a part of the cohort. All parts have as many rows, and share a
        program.
        """
        selected = select_clients(exchange, part)
        cohort = replace(selected.cohort, capacity=self._part_rows)
        return self._request(replace(selected, cohort=cohort), self.model)

    def _exchange_in_parts(self, exchange: Exchange) -> Answers | None:
        """Run a round for one part of the cohort after another, and add up what all of them
        send. While a part trains, the states of the next one are read.

        Returns:
            The answers; None if the server needs more than sums.
        """
        parts = self._parts_by_work(exchange)
        sums: Sums | None = None
        totals: tuple[Array, ...] = ()
        done: list[tuple[NDArray[np.int64], ExchangeRequest, Outputs]] = []
        states: list[tuple[NDArray[np.int64], Any]] = []
        for part in parts:
            request = self._request_of_part(exchange, part)
            if sums is None:
                sums = self._sums(request, exchange)
                if sums is None:
                    return None
            of_part = tuple((added, weights[:, part]) for added, weights in sums)
            outputs = self._run(replace(request, sums=of_part))
            # The devices have copies of the states that the part begins with.
            request = replace(request, states=())
            new = outputs.pop("sums")
            totals = _plus(totals, new) if totals else new
            # The part before is done when this one has begun.
            if done:
                states.append(self._stage(*done[-1]))
            done.append((part, request, outputs))
        states.append(self._stage(*done[-1]))
        assert sums is not None
        kept = {}
        row_of_client = np.argsort(np.concatenate(parts))

        def stack(leaves: list[Array], requests: list[ExchangeRequest]) -> NDArray[Any]:
            """One array of all parts, in the order of the cohort."""
            rows = []
            for leaf, request in zip(leaves, requests, strict=True):
                rows.append(np.asarray(leaf)[np.argsort(request.order)])
            return np.concatenate(rows)[row_of_client]

        requests = [request for _, request, _ in done]
        in_order = np.arange(len(row_of_client))
        for kind in done[0][2]["update"]:
            leaves = [outputs["update"][kind] for _, _, outputs in done]
            kept[kind] = ClientRows(stack(leaves, requests), in_order)
        work = [outputs["work_status"] for _, _, outputs in done]
        reporting = exchange.cohort.reporting & np.asarray(
            exchange.downlink.reply, bool
        )
        return Answers(
            reporting=reporting,
            update=self._summed(exchange, requests[0], sums, totals, kept),
            states=PartStates(tuple(states)),
            wait=lambda: _wait(exchange, stack(work, requests), in_order),
        )

    def _stage(
        self, part: NDArray[np.int64], request: ExchangeRequest, outputs: Outputs
    ) -> tuple[NDArray[np.int64], Any]:
        """Wait for a part of a cohort, and put its new states where `commit` finds them.

        Returns:
            The part, as `PartStates` holds it.
        """
        # Otherwise the states of all parts would be read before the first part is done.
        jax.block_until_ready(outputs)
        cohort = request.exchange.cohort
        index = cohort.rows[request.order]
        return part, self.states.stage(index, outputs.pop("state"))

    @property
    def adds_up(self) -> bool:
        """Whether messages may be added up while the clients train. The sums of canonical
        runs are taken by the server, in the order of the clients.
        """
        is_whole = self.devices.replicated.is_fully_addressable
        return (
            is_whole and not self.settings.canonical and not self.devices.own_examples
        )

    def _parts(self, exchange: Exchange) -> list[NDArray[np.int64]]:
        """The positions in the cohort of the clients that one program computes."""
        members = self._members(exchange.cohort)
        networks = [np.flatnonzero(members == it) for it in np.unique(members)]
        # Only evaluations and personal models come in more parts: in a round the server
        # aggregates what one program left on the devices.
        is_whole = exchange.task == "client" or not reads_states(exchange)
        if is_whole:
            return networks
        return [
            part
            for clients in networks
            for part in np.array_split(
                clients, math.ceil(len(clients) / self.states.max_clients)
            )
        ]

    def _members(self, cohort: Cohort) -> NDArray[np.int64]:
        """[c] the index of each client's model among `_models`."""
        return self._member[cohort.clients.original_index[cohort.rows]]

    def _request(self, exchange: Exchange, model: Model) -> ExchangeRequest:
        """A request for all clients of an exchange, whose model is `model`."""
        # Everything in a request is in the order of the program's rows: `order` is the
        # position in the cohort of each row's client.
        cohort = exchange.cohort
        order, rows, row_count = self._layout(exchange)
        table_rows = cohort.rows[order]
        clients = cohort.clients.original_index[table_rows]
        draw_seed = cohort.seed if cohort.draw_seed is None else cohort.draw_seed
        round_keys = np.empty((len(order), 2), np.uint32)
        for began in np.unique(cohort.began):
            together = cohort.began[order] == began
            ids = cohort.ids[order][together]
            round_keys[together] = client_keys(draw_seed, int(began), ids)
        reporting = cohort.reporting & np.asarray(exchange.downlink.reply, bool)
        return ExchangeRequest(
            federation=self.federation_index,
            exchange=exchange,
            model=model,
            clients=clients,
            order=order,
            sizes=self.split_sizes[clients],
            row_count=row_count,
            keys=(round_keys, self._keys(cohort.seed)[clients]),
            reporting=reporting[order],
            states=self._input_states(exchange, table_rows, rows, row_count),
            rows=rows,
        )

    def _layout(
        self, exchange: Exchange
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, int]:
        """Which row of the program is whose.

        Returns:
            The position in the cohort of each row's client [c]; the rows of these clients
            [c], or None if they are the first c; and the number of rows.
        """
        return self._order(exchange.cohort), None, self._row_count(exchange)

    def _input_states(
        self,
        exchange: Exchange,
        table_rows: NDArray[np.int64],
        rows: NDArray[np.int64] | None,
        row_count: int,
    ) -> ClientState:
        """The states that the clients of an exchange start from.

        Args:
            exchange: what the clients are asked to do.
            table_rows: [c] the row in the exchange's table of clients of each of the
                program's rows.
            rows: [c] which rows these are; None = the first c.
            row_count: the number of rows of the program, c or more.

        Returns:
            A tree whose leaves are [row_count, ...]; without leaves for tasks that read
            no state.
        """
        if reads_states(exchange):
            return self.states.read(table_rows, row_count)
        # The states of unseen clients are not stored here. They come from an earlier
        # answer, and are in the order of the rows already.
        return () if exchange.states is None else exchange.states

    def _row_count(self, exchange: Exchange) -> int:
        """The number of rows of the program: those of the cohort, and padding so that
        every device has the same number.
        """
        cohort = exchange.cohort
        rows_of_all = _ceil_to_multiple(len(cohort.clients), self.shards)
        rows = _ceil_to_multiple(max(len(cohort), cohort.capacity), self.shards)
        if exchange.task == "client" or rows == rows_of_all:
            return rows
        # The number of clients that were never sampled changes from round to round, and
        # a program is compiled for every number of rows. So each device has a power of
        # two of them.
        rows = self.shards * next_power_of_two(rows // self.shards)
        return min(rows, rows_of_all)

    def answers(self, request: ExchangeRequest, outputs: Outputs) -> Answers:
        """The answers to a request.

        Args:
            request: what the clients were asked to do.
            outputs: what `Devices.run` returned for it, stacked by rows.

        Returns:
            The answers for the server. Reading their `work` waits for the devices.
        """
        # The arrays stay in the order of the program's rows, where they were computed;
        # `row_of_client` says in which row each client of the cohort is.
        place = np.argsort(request.order)
        row_of_client = place if request.rows is None else request.rows[place]
        # A task yields a predictor ("personal"), scores ("evaluate") or neither.
        output = outputs.get("predictor", outputs.get("scores"))
        return Answers(
            reporting=request.reporting[place],
            update=self._update(request, outputs, row_of_client),
            output=jax.tree.map(lambda leaf: ClientRows(leaf, row_of_client), output),
            states=outputs.get("state"),
            wait=partial(
                _wait, request.exchange, outputs["work_status"], row_of_client
            ),
        )

    def _update(
        self,
        request: ExchangeRequest,
        outputs: Outputs,
        row_of_client: NDArray[np.int64],
    ) -> dict[str, ClientRows]:
        """What the clients of a request sent, by kind."""
        update = {
            kind: ClientRows(value, row_of_client)
            for kind, value in outputs.get("update", {}).items()
        }
        if request.sums is None:
            return update
        return self._summed(
            request.exchange, request, request.sums, outputs["sums"], update
        )

    def _summed(
        self,
        exchange: Exchange,
        request: ExchangeRequest,
        sums: Sums,
        totals: tuple[Array, ...],
        kept: dict[str, ClientRows],
    ) -> dict[str, ClientRows]:
        """What the clients of an exchange sent, by kind, where it was added up.

        Args:
            exchange: the round.
            request: of some of its clients.
            sums: what was added up.
            totals: the sums.
            kept: the kinds that have rows.
        """
        known: dict[str, list[tuple[WeightedSum, Array]]] = {}
        for (added, weights), total in zip(sums, totals, strict=True):
            asked = WeightedSum(added.kind, added.place, weights)
            known.setdefault(added.kind, []).append((asked, total))
        self._open = exchange
        again = _Again(self, exchange)
        update = dict(kept)
        for kind, sent in self.devices.messages(request).items():
            if kind not in update:
                shape = (len(exchange.cohort), *sent.shape)
                update[kind] = SummedRows(
                    shape, sent.dtype, known.get(kind, ()), partial(again.rows, kind)
                )
        return update

    def _order(self, cohort: Cohort) -> NDArray[np.int64]:
        """Choose the row of the program for each client of a cohort.

        Returns:
            [c] the position in the cohort of each row's client.
        """
        if self.settings.canonical:
            return np.arange(len(cohort))
        # What a client computes in a round grows with its training samples.
        return balanced_order(
            cohort.sizes, self.shards, longest_first=self.settings.trains_in_chunks
        )

    def _keys(self, seed: int) -> NDArray[np.uint32]:
        """[m, 2] the keys of all clients of the federation for what they draw once for
        all rounds.
        """
        # These are computed once for a seed, because the federation may be large.
        if self._fixed_keys is None or self._fixed_keys[0] != seed:
            self._fixed_keys = seed, client_keys(seed, ALL_ROUNDS, self._ids)
        _, keys = self._fixed_keys
        return keys

    # states
    # ----------------------------------------------------------------------------------

    def begin(
        self,
        algorithm: Algorithm,
        uplink: Pipeline,
        theta: Float[Array, " d"],
        phase: int,
    ) -> None:
        """Give every seen client the state that `algorithm` starts from."""
        self._phase = phase
        state, *others = [
            (algorithm.init_state(theta, model), init_pipeline(uplink, theta))
            for model in self._models
        ]
        self._initial_state = jax.tree.map(jnp.asarray, state)
        self.states = self._initial_states(in_file=False)
        # A state may depend on the client's own network.
        members = self._member[self.seen.original_index[self._kept]]
        for member, other in enumerate(others, 1):
            rows = np.flatnonzero(members == member)
            if len(rows) and jax.tree.leaves(other):
                repeat = partial(_repeat, count=len(rows))
                self.states.write(rows, jax.tree.map(repeat, other))

    def _initial_states(self, in_file: bool) -> States:
        """All clients' states at the start of a phase.

        Args:
            in_file: whether to keep them in a file even if they are below the limit of
                `Settings.state_limit`.
        """
        clients = len(self._kept)
        leaves = jax.tree.leaves(self._initial_state)
        size = self._most_kept * sum(leaf.nbytes for leaf in leaves)
        if in_file or size > self.settings.state_limit:
            require(
                jax.process_count() == 1 and not self.devices.own_examples,
                f"the states of {self._most_kept} clients need {size / 2**30:.1f} GiB,"
                " which several processes keep in memory: raise Settings.state_limit, or"
                " use one process",
            )
            path = (
                None
                if self.directory is None
                else states_path(self.directory, self._phase)
            )
            return FileStates(
                self._initial_state, clients, path, self.settings.state_dir
            )
        # On CPUs states are in the host's memory anyway. Processes that train together
        # keep them there, too.
        several = jax.process_count() > 1 or self.devices.own_examples
        if jax.default_backend() == "cpu" or several:
            return HostStates(self._initial_state, clients)
        return DeviceStates(self._initial_state, clients)

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Make the answers' states the clients' states."""
        self._open = None
        if isinstance(answers.states, PartStates):
            for part, states in answers.states.parts:
                selected = select_clients(exchange, part)
                self.commit(selected, replace(answers, states=states))
            return
        if not jax.tree.leaves(answers.states):
            return
        # The answers' states are in the order of the program's rows.
        cohort = exchange.cohort
        self.states.write(cohort.rows[self._order(cohort)], answers.states)

    def _use_files(self, names: list[str]) -> None:
        """Take note of the files of processes' own states in a new snapshot."""
        self._files = (self._files[1], names)

    def snapshot(self) -> Any:
        """All states; or, if a file of `directory` holds them, a reference to the slots
        of that file.
        """
        self._use_files([])
        return self.states.snapshot()

    def snapshot_saved(self) -> None:
        """Remove the files that neither the last checkpoint nor the one before it refers
        to. Called when the last snapshot is in a checkpoint on the disk.
        """
        self.states.snapshot_saved()
        if self.directory is not None and jax.process_index() == 0:
            remove_unused_states(self.directory, {self._phase, self._saved_phase})
            remove_other_states(self.directory, {*self._files[0], *self._files[1]})
        self._saved_phase = self._phase

    def restore(self, snapshot: Any) -> None:
        """Go back to the states of a snapshot."""
        self._saved_phase = self._phase
        if isinstance(snapshot, dict) and SHARE_FILES in snapshot:
            self._files = ([], snapshot[SHARE_FILES])
            self.states = self._initial_states(in_file=False)
            self.states.restore(
                read_states(
                    self.directory or Path(),
                    snapshot[SHARE_FILES],
                    self.seen.ids[self._kept],
                )
            )
            return
        # A dict refers to a file (`FileStates.snapshot`), and can only be restored from
        # that file; a list holds the states themselves.
        refers_to_file = isinstance(snapshot, dict)
        self.states = self._initial_states(in_file=refers_to_file)
        self.states.restore(snapshot)


@partial(jax.jit, donate_argnums=0)
def _plus(totals: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, ...]:
    """The sums of two parts of a cohort."""
    return jax.tree.map(jnp.add, totals, new)


class _Again:
    """The messages of single clients, whose sums were not enough: the clients train once
    more.
    """

    def __init__(self, executor: DeviceExecutor, exchange: Exchange) -> None:
        self._executor = executor
        self._exchange = exchange
        self._answers: Answers | None = None

    def rows(self, kind: str) -> ClientRows:
        """The messages of a kind of all clients."""
        if self._answers is None:
            require(
                self._executor._open is self._exchange,
                "the messages of single clients are there for `Algorithm.server` only;"
                " it is given sums of them",
            )
            assert self._exchange.sums is not None
            self._exchange.sums.give_up()
            self._answers = self._executor.exchange(replace(self._exchange, sums=None))
        return self._answers[kind]


def _table(
    data: DataFacts, ids: NDArray[np.uint64], mask: NDArray[np.bool_]
) -> Clients:
    """The clients where `mask` [m] is True, sorted by their `ids` [m]."""
    index = np.flatnonzero(mask)
    index = index[np.argsort(ids[index])]
    weights = data.training_weights if isinstance(data, Federation) else None
    return Clients(
        ids=ids[index],
        names=tuple(data.names[client] for client in index),
        sizes=data.sizes["train"][index],
        groups=None if data.groups is None else data.groups[index],
        original_index=index,
        weights=None if weights is None else weights[index],
    )


def _repeat(leaf: Array, count: int) -> Array:
    """An array of the state of each of some clients that all have the same."""
    return jnp.repeat(jnp.asarray(leaf)[None], count, axis=0)


def reads_states(exchange: Exchange) -> bool:
    """Whether the clients start from the states that the executor keeps."""
    return exchange.states is None and exchange.task not in STATELESS_TASKS


def _ceil_to_multiple(number: int, factor: int) -> int:
    """The smallest multiple of `factor` that is `number` or more."""
    return math.ceil(number / factor) * factor


def _wait(
    exchange: Exchange, work_status: Any, row_of_client: NDArray[np.int64]
) -> tuple[int, int]:
    """Wait for the devices.

    Args:
        exchange: what the clients were asked to do.
        work_status: [r, 3] by rows; see `run_client`.
        row_of_client: [c] the row of each client of the cohort.

    Returns:
        The number of gradients and of forward passes of the whole cohort.

    Raises:
        Diverged: a client's answer is NaN or infinite, unless that is unchecked; it names
            the first such client.
    """
    by_client = np.asarray(work_status)[row_of_client]
    is_finite = by_client[:, 2]
    if not (exchange.unchecked or is_finite.all()):
        cohort = exchange.cohort
        name = cohort.clients.names[cohort.rows[np.argmin(is_finite)]]
        activity = ACTIVITIES.get(exchange.task, "the personal model")
        raise Diverged(name, cohort.round, doing=activity)
    gradients, forwards = by_client[:, :2].sum(axis=0, dtype=np.int64)
    return int(gradients), int(forwards)
