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
"""The round that keys what a client draws once for all rounds."""

DOING = {"client": "training", "probe": "the probe"}
"""What a client was doing when it diverged, by task."""


class DeviceExecutor:
    """Runs the clients of one federation (implements `fedtailor.protocol.Executor`).

    Attributes:
        federation: who holds which examples.
        model: what is trained.
        settings: devices and the like.
        states: the seen clients' states, in the order of their ids.
        concurrency: how many runs share the devices' time; a `LockstepGroup` sets it.
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
        number: int = 0,
    ) -> None:
        """Place the examples on the devices.

        Args:
            directory: where states that do not fit into memory stay, so that
                checkpoints need not hold them.
            devices: where the examples lie already, with those of other federations;
                this one is their `number`-th.
        """
        self.federation = federation
        self.model = model
        self.settings = settings
        self.directory = directory
        self.seen = _table(federation, ~federation.unseen)
        self.unseen = _table(federation, federation.unseen)
        self.examples = examples_of(federation, self.seen.listed)
        self.devices = (
            Devices([federation], model.dtype, settings) if devices is None else devices
        )
        self.number = number
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
        # One after another: `checked` waits for a part, whose states' memory is free
        # again before the next part begins.
        parts = [
            self.answers(request, self._run(request)).checked() for request in requests
        ]
        return concatenate(parts)

    def _run(self, request: ExchangeRequest) -> Outputs:
        """What the clients of a request yield, stacked by rows; see `run_one`."""
        return self.devices.run([request])[0]

    def requests(self, exchange: Exchange) -> list[ExchangeRequest]:
        """The exchange as the programs take it.

        Returns:
            One request, or several for parts of the cohort where not all states fit
            into memory.
        """
        cohort = exchange.cohort
        if exchange.states is not None:
            return [self._request(exchange, exchange.states)]
        if exchange.task in ("probe", "init_unseen"):
            # These tasks read no state.
            return [self._request(exchange, states=())]
        # Only evaluations and personal models come in parts: in a round the server mixes
        # what one program left on the devices.
        if exchange.task == "client" or len(cohort) <= self.states.at_once:
            return [self._request(exchange)]
        count = math.ceil(len(cohort) / self.states.at_once)
        parts = np.array_split(np.arange(len(cohort)), count)
        return [self._request(select_clients(exchange, chosen)) for chosen in parts]

    def _request(
        self, exchange: Exchange, states: ClientState = None
    ) -> ExchangeRequest:
        """A request for all clients of an exchange; `states` None = those kept here."""
        # Three orders meet here: the cohort's (by id), the federation's (as the user
        # listed the clients), and the program's rows (`order` of the cohort).
        cohort = exchange.cohort
        positions = cohort.clients.listed[cohort.rows]
        order = self._order(positions)
        clients = positions[order]
        row_count = self._row_count(exchange)
        reporting = cohort.reporting & np.asarray(exchange.downlink.reply, bool)
        round_keys = client_keys(cohort.seed, cohort.round, cohort.ids[order])
        fixed_keys = self._keys(cohort.seed)[clients]
        if states is None:
            states = self.states.read(cohort.rows[order], row_count)
        return ExchangeRequest(
            federation=self.number,
            exchange=exchange,
            model=self.model,
            clients=clients,
            order=order,
            sizes=self.split_sizes[clients],
            row_count=row_count,
            keys=(round_keys, fixed_keys),
            reporting=reporting[order],
            states=states,
        )

    def _row_count(self, exchange: Exchange) -> int:
        """Rows of the program: the cohort, rounded up to whole shards."""
        cohort = exchange.cohort
        # -(-a // b) is a / b rounded up
        whole = -(-len(cohort.clients) // self.shards) * self.shards
        needed = -(-max(len(cohort), cohort.room) // self.shards) * self.shards
        if exchange.task == "client" or needed == whole:
            return needed
        # How many clients were never sampled changes from round to round: powers of
        # two, lest each compiles anew.
        return min(self.shards * next_power_of_two(needed // self.shards), whole)

    def answers(self, request: ExchangeRequest, outputs: Outputs) -> Answers:
        """The answers to a request.

        Args:
            request: what was asked.
            outputs: what `Devices.run` gave for it, stacked by rows.

        Returns:
            What the server is given; to wait for its `work` is to wait for the devices.
        """
        # Back from the program's rows to the cohort's order: the arrays stay where they
        # were computed, and `rows` says in which row each client is.
        rows = np.argsort(request.order)
        output = outputs.get("predictor", outputs.get("scores"))
        return Answers(
            reporting=request.reporting[rows],
            update={
                kind: ClientRows(value, rows)
                for kind, value in outputs.get("update", {}).items()
            },
            output=jax.tree.map(lambda leaf: ClientRows(leaf, rows), output),
            states=outputs.get("state"),
            wait=partial(_wait, request.exchange, outputs["done"], rows),
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
        """[m, 2] what every client of the federation draws once for all rounds."""
        # Computed once: they are the same in every round, and there is one for each
        # client of the federation.
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

        They are kept in a file if they exceed the limit, or if `in_file` says so: a
        checkpoint of states in a file can only be continued from that file.
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
        # On CPUs states are in the host's memory anyway. Of several processes each keeps
        # all of them.
        if jax.default_backend() == "cpu" or jax.process_count() > 1:
            return HostStates(self._initial_state, clients)
        return DeviceStates(self._initial_state, clients)

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Make the answers' states the clients' states."""
        if not jax.tree.leaves(answers.states):
            return
        # The answers' states are in the rows of the program, as the request read them.
        cohort = exchange.cohort
        order = self._order(cohort.clients.listed[cohort.rows])
        self.states.write(cohort.rows[order], answers.states)

    def snapshot(self) -> Any:
        """All states; of states in a file of `directory`, which slots of it hold
        them.
        """
        return self.states.snapshot()

    def saved(self) -> None:
        """A checkpoint holds the last snapshot: files that neither it nor the one
        before needs are removed.
        """
        self.states.saved()
        if self.directory is not None:
            remove_others(self.directory, {self._phase, self._saved_phase})
        self._saved_phase = self._phase

    def restore(self, snapshot: Any) -> None:
        """Go back to the states of a snapshot."""
        self._saved_phase = self._phase
        # `FileStates.snapshot` gives a dict, the others a list of arrays.
        self.states = self._initial_states(in_file=isinstance(snapshot, dict))
        self.states.restore(snapshot)


def _table(federation: Federation, chosen: NDArray[np.bool_]) -> Clients:
    """Some clients of a federation, sorted by id; `chosen` [m] is a mask."""
    listed = np.flatnonzero(chosen)
    listed = listed[np.argsort(federation.ids[listed])]
    return Clients(
        ids=federation.ids[listed],
        names=tuple(federation.names[position] for position in listed),
        sizes=federation.train.sizes[listed],
        groups=None if federation.groups is None else federation.groups[listed],
        listed=listed,
    )


def _wait(exchange: Exchange, done: Any, rows: NDArray[np.int64]) -> tuple[int, int]:
    """Wait for the devices.

    Args:
        exchange: what was asked.
        done: [r, 3] gradients, forward passes and whether all outputs are finite, by
            rows; see `run_one`.
        rows: [c] the row of each client of the cohort.

    Returns:
        Gradients and forward passes of the whole cohort.

    Raises:
        Diverged: a client's answer is NaN or infinite; names the first one.
    """
    done = np.asarray(done)[rows]
    is_finite = done[:, 2]
    if not is_finite.all():
        cohort = exchange.cohort
        name = cohort.clients.names[cohort.rows[np.argmin(is_finite)]]
        doing = DOING.get(exchange.task, "the personal model")
        raise Diverged(name, cohort.round, doing=doing)
    gradients, forwards = done[:, :2].sum(axis=0, dtype=np.int64)
    return int(gradients), int(forwards)
