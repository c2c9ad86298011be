"""The executor of simulations: all clients of a federation, mapped over this machine's
devices.
"""

import math
from collections.abc import Callable
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
    """

    states: States

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
    def concurrency(self) -> int:
        """Runs that share the devices' time."""
        return 1

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
        # In parts each waits for the one before: only then is the memory of its states
        # free again.
        if len(requests) == 1:
            return self.answers(requests[0], self._run(requests[0]))
        return concatenate(
            [
                self.answers(request, self._run(request)).checked()
                for request in requests
            ]
        )

    def _run(self, request: ExchangeRequest) -> Outputs:
        (outputs,) = self.devices.run([request])
        return outputs

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
        if exchange.task == "client" or len(cohort) <= self.states.at_once:
            return [self._request(exchange)]
        count = math.ceil(len(cohort) / self.states.at_once)
        parts = np.array_split(np.arange(len(cohort)), count)
        return [self._request(select_clients(exchange, chosen)) for chosen in parts]

    def _request(
        self, exchange: Exchange, states: ClientState = None
    ) -> ExchangeRequest:
        # Three orders meet here: the cohort's (by id), the federation's (as listed),
        # and the program's rows.
        cohort = exchange.cohort
        listed = cohort.clients.listed[cohort.rows]
        order = self._order(listed)
        clients = listed[order]
        row_count = self._row_count(exchange)
        reporting = cohort.reporting & np.asarray(exchange.downlink.reply, bool)
        of_round = client_keys(cohort.seed, cohort.round, cohort.ids[order])
        of_all_rounds = self._keys(cohort.seed)[clients]
        return ExchangeRequest(
            federation=self.number,
            exchange=exchange,
            model=self.model,
            clients=clients,
            order=order,
            sizes=self.split_sizes[clients],
            row_count=row_count,
            keys=(of_round, of_all_rounds),
            reporting=reporting[order],
            states=(
                self.states.read(cohort.rows[order], row_count)
                if states is None
                else states
            ),
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
        # The row of each client, in the order of the cohort; rows stay where they were
        # computed.
        rows = np.argsort(request.order)
        reporting = request.reporting[rows]
        blame = partial(self._blame, request)
        output = outputs.get("predictor", outputs.get("scores"))
        return Answers(
            reporting=reporting,
            update={
                kind: ClientRows(value, rows)
                for kind, value in outputs.get("update", {}).items()
            },
            output=jax.tree.map(lambda leaf: ClientRows(leaf, rows), output),
            states=outputs.get("state"),
            wait=partial(_wait, outputs["done"], rows, blame),
        )

    def _order(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The order of a cohort's clients [c] (positions in the federation) in the rows
        of the program.
        """
        if self.settings.canonical:
            return np.arange(len(clients))
        # What a client does in a round grows with its training samples.
        work = self.split_sizes[clients, 0].astype(np.int64)
        return balanced_order(work, self.shards, self.settings.several_at_once)

    def _keys(self, seed: int) -> NDArray[np.uint32]:
        """[m, 2] what every client of the federation draws once for all rounds."""
        # Kept: they are the same in every round, and there is one for each client of
        # the federation.
        if self._fixed_keys is None or self._fixed_keys[0] != seed:
            self._fixed_keys = seed, client_keys(seed, ALL_ROUNDS, self.federation.ids)
        _, keys = self._fixed_keys
        return keys

    def _blame(self, request: ExchangeRequest, client: int) -> Diverged:
        """The error for a client of the cohort whose answer is NaN or infinite."""
        exchange = request.exchange
        name = exchange.cohort.clients.names[exchange.cohort.rows[client]]
        return Diverged(
            name,
            exchange.cohort.round,
            doing=DOING.get(exchange.task, "the personal model"),
        )

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
        first = (algorithm.init_state(theta, self.model), init_pipeline(uplink, theta))
        self._first = jax.tree.map(jnp.asarray, first)
        self.states = self._stored(in_file=False)

    def _stored(self, in_file: bool) -> States:
        """The states at the start of a phase: in a file where they exceed the limit."""
        clients = len(self.seen)
        size = clients * sum(
            leaf.nbytes for leaf in jax.tree.leaves(self._first)
        )  # bytes
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
            return FileStates(self._first, clients, path, self.settings.state_dir)
        # On CPUs states are in the host's memory anyway; of several processes each
        # keeps all of them.
        if jax.default_backend() == "cpu" or jax.process_count() > 1:
            return HostStates(self._first, clients)
        return DeviceStates(self._first, clients)

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        """Make the answers' states the clients' states."""
        if not jax.tree.leaves(answers.states):
            return
        cohort = exchange.cohort
        # in the order in which the request read them
        order = self._order(cohort.clients.listed[cohort.rows])
        self.states.write(cohort.rows[order], answers.states)

    def snapshot(self) -> Any:
        """All states, or, of states in a file of `directory`, where they stand
        there.
        """
        return self.states.snapshot()

    def saved(self) -> None:
        """From now on keep what the last two snapshots need, and only that."""
        self.states.saved()
        if self.directory is not None:
            remove_others(self.directory, {self._phase, self._saved_phase})
        self._saved_phase = self._phase

    def restore(self, snapshot: Any) -> None:
        """Put the states where they stood at a snapshot."""
        self._saved_phase = self._phase
        self.states = self._stored(in_file=isinstance(snapshot, dict))
        self.states.restore(snapshot)


def _table(federation: Federation, chosen: NDArray[np.bool_]) -> Clients:
    """Some clients of a federation, sorted by id."""
    listed = np.flatnonzero(chosen)
    listed = listed[np.argsort(federation.ids[listed])]
    return Clients(
        ids=federation.ids[listed],
        names=tuple(federation.names[position] for position in listed),
        sizes=federation.train.sizes[listed],
        groups=None if federation.groups is None else federation.groups[listed],
        listed=listed,
    )


def _wait(
    done: Any, rows: NDArray[np.int64], blame: Callable[[int], Diverged]
) -> tuple[int, int]:
    """Gradients and forward passes of a cohort; raises for the first client whose
    answer is not finite.
    """
    done = np.asarray(done)[rows]
    if not done[:, 2].all():
        raise blame(int(np.argmin(done[:, 2])))
    gradients, forwards = done[:, :2].sum(axis=0, dtype=np.int64)
    return int(gradients), int(forwards)
