"""The executor of simulations: all clients of a federation, mapped over this machine's
devices.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor.client.pool import split_sizes
from fedtailor.client.tasks import Outputs
from fedtailor.executors.cohort_parts import concatenate, select_clients
from fedtailor.executors.devices import Devices, ExchangeRequest
from fedtailor.executors.examples import examples_of
from fedtailor.executors.map_clients import balanced_order
from fedtailor.executors.settings import Settings
from fedtailor.executors.state_file import FileStates, remove_others, states_path
from fedtailor.executors.states import DeviceStates, HostStates, States
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.protocol import (
    Algorithm,
    Answers,
    ClientRows,
    Clients,
    ClientState,
    Diverged,
    Exchange,
    Pipeline,
    client_keys,
    init_pipeline,
    next_power_of_two,
    require,
)

ALL_ROUNDS = 2**63
"""The number that stands for the round in the derivation of a client's second key, from
which it draws what stays the same in all rounds."""

STATELESS_TASKS = ("probe", "init_unseen")
"""Tasks that read no client state."""

DOING = {"client": "training", "probe": "the probe"}
"""What a client was doing when it diverged, by task; of the others, "the personal
model"."""


class DeviceExecutor:
    """Runs the clients of one federation (implements `fedtailor.protocol.Executor`).

    Attributes:
        federation: who holds which examples.
        model: what is trained.
        settings: devices and the like.
        states: the seen clients' states, in the order of their ids.
        shards: how many devices there are. The rows of a cohort are divided into as
            many equal parts.
        concurrency: how many runs are trained on the devices at the same time. A
            `LockstepGroup` sets it.
    """

    states: States
    concurrency: int = 1

    def __init__(
        self,
        federation: Federation,
        model: Model,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        *,
        directory: Path | None = None,
        devices: Devices | None = None,
        federation_index: int = 0,
    ) -> None:
        """Place the examples on the devices.

        Args:
            federation: who holds which examples.
            model: what is trained.
            settings: which devices to use, and how.
            directory: where states that do not fit into memory are kept in a file,
                which checkpoints refer to; None = in a file without a name.
            devices: on which the examples are already, together with those of other
                federations; None = place them.
            federation_index: the position of this federation among those of `devices`.
        """
        self.federation = federation
        self.model = model
        self.settings = settings
        self.directory = directory
        self.seen = _table(federation, ~federation.unseen)
        self.unseen = _table(federation, federation.unseen)
        self.examples = examples_of(federation, self.seen.original_index)
        self.devices = (
            Devices([federation], model.dtype, settings) if devices is None else devices
        )
        self.federation_index = federation_index
        self.shards = self.devices.mesh.size
        self.split_sizes = split_sizes(federation)
        self._fixed_keys: tuple[int, NDArray[np.uint32]] | None = None
        self._phase = self._saved_phase = 0

    @property
    def client_states(self) -> ClientState:
        """The algorithm's states of all seen clients, stacked in the order of their
        ids: every leaf is [m, ...].
        """
        of_algorithm, _ = self.states.rows
        return of_algorithm

    # exchanges
    # ----------------------------------------------------------------------------------

    def exchange(self, exchange: Exchange) -> Answers:
        """Run a task for a cohort; the devices may still be at work when this
        returns.
        """
        requests = self.requests(exchange)
        if len(requests) == 1:
            return self.answers(requests[0], self._run(requests[0]))
        # `checked` waits for a part, so that the memory of its states is free again
        # before the next part begins.
        parts = [
            self.answers(request, self._run(request)).require_finite()
            for request in requests
        ]
        return concatenate(parts)

    def _run(self, request: ExchangeRequest) -> Outputs:
        """The outputs of `run_one` for the clients of a request, stacked by rows."""
        return self.devices.run([request])[0]

    def requests(self, exchange: Exchange) -> list[ExchangeRequest]:
        """The exchange as the programs take it.

        Returns:
            One request, or several for parts of the cohort where not all states fit
            into memory.
        """
        cohort = exchange.cohort
        # Only evaluations and personal models come in parts: in a round the server
        # aggregates what one program left on the devices.
        is_whole = exchange.task == "client" or not _reads_states(exchange)
        if is_whole or len(cohort) <= self.states.at_once:
            return [self._request(exchange)]
        count = math.ceil(len(cohort) / self.states.at_once)
        parts = np.array_split(np.arange(len(cohort)), count)
        return [self._request(select_clients(exchange, chosen)) for chosen in parts]

    def _request(self, exchange: Exchange) -> ExchangeRequest:
        """A request for all clients of an exchange."""
        # Clients are listed in three orders: the cohort's (by id), the federation's (as
        # the user listed them), and that of the program's rows. The suffix of a name
        # says which one; `order` holds the position in the cohort of each row's client.
        cohort = exchange.cohort
        positions_by_id = cohort.clients.original_index[cohort.rows]
        order = self._order(positions_by_id)
        positions_by_row = positions_by_id[order]
        reporting_by_id = cohort.reporting & np.asarray(exchange.downlink.reply, bool)
        round_keys_by_row = client_keys(cohort.seed, cohort.round, cohort.ids[order])
        fixed_keys_by_row = self._keys(cohort.seed)[positions_by_row]
        row_count = self._row_count(exchange)
        return ExchangeRequest(
            federation=self.federation_index,
            exchange=exchange,
            model=self.model,
            clients=positions_by_row,
            order=order,
            sizes=self.split_sizes[positions_by_row],
            row_count=row_count,
            keys=(round_keys_by_row, fixed_keys_by_row),
            reporting=reporting_by_id[order],
            states=self._input_states(exchange, cohort.rows[order], row_count),
        )

    def _input_states(
        self, exchange: Exchange, clients_by_row: NDArray[np.int64], row_count: int
    ) -> ClientState:
        """The states that the clients of an exchange start from.

        Args:
            exchange: what is asked of them.
            clients_by_row: [c] their rows in the exchange's table of clients.
            row_count: rows of the program, c or more.

        Returns:
            A tree whose leaves are [row_count, ...]; without leaves for tasks that read
            no state.
        """
        if _reads_states(exchange):
            return self.states.read(clients_by_row, row_count)
        # Of unseen clients nothing is stored here: an earlier answer had their states,
        # which are in the order of the rows already.
        return () if exchange.states is None else exchange.states

    def _row_count(self, exchange: Exchange) -> int:
        """Rows of the program: the cohort and padding, the same number for every
        device.
        """
        cohort = exchange.cohort
        rows_of_all = _ceil_to_multiple(len(cohort.clients), self.shards)
        rows = _ceil_to_multiple(max(len(cohort), cohort.capacity), self.shards)
        if exchange.task == "client" or rows == rows_of_all:
            return rows
        # The number of clients that were never sampled changes from round to round. A
        # program is compiled for every number of rows, so these are powers of two for
        # each device.
        rows = self.shards * next_power_of_two(rows // self.shards)
        return min(rows, rows_of_all)

    def answers(self, request: ExchangeRequest, outputs: Outputs) -> Answers:
        """The answers to a request.

        Args:
            request: what was asked.
            outputs: what `Devices.run` gave for it, stacked by rows.

        Returns:
            What the server is given. Reading its `work` waits for the devices.
        """
        # The arrays stay in the order of the program's rows, where they were computed;
        # `row_of_client` says in which row each client of the cohort is.
        row_of_client = np.argsort(request.order)
        # A task yields a predictor ("personal"), scores ("evaluate") or neither.
        output = outputs.get("predictor", outputs.get("scores"))
        return Answers(
            reporting=request.reporting[row_of_client],
            update={
                kind: ClientRows(value, row_of_client)
                for kind, value in outputs.get("update", {}).items()
            },
            output=jax.tree.map(lambda leaf: ClientRows(leaf, row_of_client), output),
            states=outputs.get("state"),
            wait=partial(
                _wait, request.exchange, outputs["work_and_finite"], row_of_client
            ),
        )

    def _order(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which client of a cohort each row of the program is for.

        Args:
            clients: [c] the cohort's clients, as positions in the federation.

        Returns:
            [c] positions in the cohort.
        """
        if self.settings.canonical:
            return np.arange(len(clients))
        # What a client does in a round grows with its training samples.
        work = self.split_sizes[clients, 0].astype(np.int64)
        return balanced_order(work, self.shards, self.settings.several_at_once)

    def _keys(self, seed: int) -> NDArray[np.uint32]:
        """[m, 2] the keys of all clients of the federation for what they draw once for
        all rounds.
        """
        # Computed once for a seed, as the federation may be large.
        if self._fixed_keys is None or self._fixed_keys[0] != seed:
            self._fixed_keys = seed, client_keys(seed, ALL_ROUNDS, self.federation.ids)
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
        state = (algorithm.init_state(theta, self.model), init_pipeline(uplink, theta))
        self._initial_state = jax.tree.map(jnp.asarray, state)
        self.states = self._initial_states(in_file=False)

    def _initial_states(self, in_file: bool) -> States:
        """All clients' states at the start of a phase.

        Args:
            in_file: keep them in a file, even if they are below the limit of
                `Settings.state_limit`.
        """
        clients = len(self.seen)
        leaves = jax.tree.leaves(self._initial_state)
        size = clients * sum(leaf.nbytes for leaf in leaves)
        if in_file or size > self.settings.state_limit:
            require(
                jax.process_count() == 1,
                f"the states of {clients} clients need {size / 2**30:.1f} GiB, which"
                " several processes keep in memory: raise Settings.state_limit, or use"
                " one process",
            )
            path = (
                None
                if self.directory is None
                else states_path(self.directory, self._phase)
            )
            return FileStates(
                self._initial_state, clients, path, self.settings.state_dir
            )
        # On CPUs states are in the host's memory anyway. Where several processes train
        # together, each keeps all states.
        if jax.default_backend() == "cpu" or jax.process_count() > 1:
            return HostStates(self._initial_state, clients)
        return DeviceStates(self._initial_state, clients)

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Make the answers' states the clients' states."""
        if not jax.tree.leaves(answers.states):
            return
        # The answers' states are in the rows of the program, as the request read them.
        cohort = exchange.cohort
        order = self._order(cohort.clients.original_index[cohort.rows])
        self.states.write(cohort.rows[order], answers.states)

    def snapshot(self) -> Any:
        """All states. If they are in a file of `directory`, a reference to its content:
        the slots of the file that hold them.
        """
        return self.states.snapshot()

    def snapshot_saved(self) -> None:
        """To be called when the last snapshot is in a checkpoint on the disk. Removes
        the files that neither this checkpoint nor the one before refers to.
        """
        self.states.snapshot_saved()
        if self.directory is not None:
            remove_others(self.directory, {self._phase, self._saved_phase})
        self._saved_phase = self._phase

    def restore(self, snapshot: Any) -> None:
        """Go back to the states of a snapshot."""
        self._saved_phase = self._phase
        # A dict refers to a file (`FileStates.snapshot`), and can only be restored from
        # that file; a list holds the states themselves.
        refers_to_file = isinstance(snapshot, dict)
        self.states = self._initial_states(in_file=refers_to_file)
        self.states.restore(snapshot)


def _table(federation: Federation, chosen: NDArray[np.bool_]) -> Clients:
    """Some clients of a federation, sorted by id; `chosen` [m] is a mask."""
    chosen_by_id = np.flatnonzero(chosen)
    chosen_by_id = chosen_by_id[np.argsort(federation.ids[chosen_by_id])]
    return Clients(
        ids=federation.ids[chosen_by_id],
        names=tuple(federation.names[position] for position in chosen_by_id),
        sizes=federation.train.sizes[chosen_by_id],
        groups=None if federation.groups is None else federation.groups[chosen_by_id],
        original_index=chosen_by_id,
    )


def _reads_states(exchange: Exchange) -> bool:
    """Whether the clients start from the states that the executor keeps."""
    return exchange.states is None and exchange.task not in STATELESS_TASKS


def _ceil_to_multiple(number: int, factor: int) -> int:
    """The smallest multiple of `factor` that is `number` or more."""
    return math.ceil(number / factor) * factor


def _wait(
    exchange: Exchange, work_and_finite: Any, row_of_client: NDArray[np.int64]
) -> tuple[int, int]:
    """Wait for the devices.

    Args:
        exchange: what was asked.
        work_and_finite: [r, 3] gradients, forward passes and whether all outputs are
            finite, by rows; see `run_one`.
        row_of_client: [c] the row of each client of the cohort.

    Returns:
        Gradients and forward passes of the whole cohort.

    Raises:
        Diverged: a client's answer is NaN or infinite; names the first one.
    """
    by_client = np.asarray(work_and_finite)[row_of_client]
    is_finite = by_client[:, 2]
    if not is_finite.all():
        cohort = exchange.cohort
        name = cohort.clients.names[cohort.rows[np.argmin(is_finite)]]
        doing = DOING.get(exchange.task, "the personal model")
        raise Diverged(name, cohort.round, doing=doing)
    gradients, forwards = by_client[:, :2].sum(axis=0, dtype=np.int64)
    return int(gradients), int(forwards)
