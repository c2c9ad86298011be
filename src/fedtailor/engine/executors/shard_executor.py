"""The executor of one of several processes that train a federation together, each of which
holds the examples and states of its own clients only.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.files import reason
from fedtailor.data.federation.shards import (
    FederationShard,
    ShardedData,
    gather,
    gather_texts,
)
from fedtailor.engine.client.pool import PoolSize
from fedtailor.engine.client.tasks import Outputs
from fedtailor.engine.executors.cohort_parts import PartStates
from fedtailor.engine.executors.device_executor import (
    SHARE_FILES,
    DeviceExecutor,
    reads_states,
)
from fedtailor.engine.executors.devices import Devices, ExchangeRequest, Place
from fedtailor.engine.executors.map_clients import balanced_order
from fedtailor.engine.executors.settings import Settings
from fedtailor.engine.executors.shard_states import write_states
from fedtailor.models import Model
from fedtailor.protocol import (
    Answers,
    Clients,
    ClientState,
    Exchange,
    next_power_of_two,
)

_FAILED = "!"
"""What a process tells the others instead of a file's name if it could not write it."""


class ShardExecutor(DeviceExecutor):
    """`DeviceExecutor` of a process that holds the examples and states of its own clients.

    All processes run the same program, and call everything here at the same places. A
    client is trained by the process that holds it. The messages of a cohort's clients and
    what they measure reach every process, which all do the server's part; examples and
    states do not.

    Attributes:
        federation: this process's clients.
        data: what is known of the clients of all processes.

    Example:
        >>> from fedtailor.engine.executors import ShardExecutor
        >>> model = ft.models.logistic().bind((8, 8), 10)
        >>> executor = ShardExecutor(ft.federation.shard(federation), model)
        >>> len(executor.federation), executor.shards % executor.machine["processes"]
        (20, 0)
    """

    def __init__(
        self,
        shard: FederationShard,
        model: Model,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        *,
        directory: Path | None = None,
    ) -> None:
        """Exchange what is known of the clients, and place the examples.

        Args:
            shard: this process's clients.
            model: what is trained.
            settings: how to use the devices.
            directory: where the states of checkpoints are written.

        Raises:
            ValueError: the shards of the processes do not fit together, or a setting is
                for one process.
        """
        require(
            not settings.debug,
            "a process that has its own clients only runs compiled programs; debug with a"
            " whole federation in one process",
        )
        require(
            settings.devices is None,
            "processes that share a federation use all their devices together; leave out"
            " Settings(devices)",
        )
        require(
            shard.own.training_weights is None,
            "processes that share a federation take no weights of rows; train in one"
            " process, or leave out weights",
        )
        data = ShardedData.of(shard)
        largest = max(int(sizes.max(initial=1)) for sizes in data.sizes.values())
        least = PoolSize(data.most_examples, data.most_rows, largest)
        devices = Devices([shard.own], model.precision.sums, settings, least)
        super().__init__(
            shard.own,
            model,
            settings,
            directory=directory,
            place=Place(devices),
            data=data,
        )
        self._shared = data
        # Programs ask where the examples of a row's client are; here, of own ones only.
        start = np.zeros((len(data.names), devices.start[0].shape[1]), np.int32)
        start[data.positions] = devices.start[0]
        devices.start[0] = start
        self._number, self._processes = jax.process_index(), jax.process_count()
        owners = [device.process_index for device in devices.mesh.devices.flat]
        self._local = self.shards // self._processes
        require(
            owners == np.repeat(np.arange(self._processes), self._local).tolist(),
            "processes that share a federation need the same number of devices each",
        )
        self._kept = np.flatnonzero(self._process(self.seen) == self._number)
        self._most_kept = int(np.bincount(self._process(self.seen)).max())
        self._kept_row = np.zeros(len(self.seen), np.int64)
        self._kept_row[self._kept] = np.arange(len(self._kept))
        self.examples = self._draw

    @property
    def machine(self) -> dict[str, Any]:
        """The devices, and over how many processes the clients are divided."""
        return {**super().machine, "processes": self._processes}

    @property
    def client_states(self) -> ClientState:
        raise ValueError(
            "each process has the states of its own clients only (executor.states)"
        )

    def _process(self, clients: Clients) -> NDArray[np.int64]:
        """[m] the process that holds each client of a table."""
        return self._shared.process[clients.original_index]

    def _draw(
        self,
        rng: np.random.Generator,
        count: int,
        clients: NDArray[np.integer[Any]] | None = None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draws from the training data of all seen clients (`Examples`). All processes draw
        the same numbers, and the one that holds an example gives it to the others.
        """
        rows = np.arange(len(self.seen)) if clients is None else np.asarray(clients)
        ends = np.cumsum(self.seen.sizes[rows])
        number = rng.integers(ends[-1], size=count)
        place = np.searchsorted(ends, number, side="right")
        owner = self.seen.original_index[rows[place]]
        before_end = ends[place] - number
        is_own = self._shared.process[owner] == self._number
        own = np.searchsorted(self._shared.positions, owner[is_own])
        train = self.federation.train
        source = train.rows[train.offsets[own + 1] - before_end[is_own]]
        drawn = []
        for pool in (self.federation.x, self.federation.y):
            values = np.zeros((count, *pool.shape[1:]), pool.dtype)
            values[is_own] = pool[source]
            if self._processes > 1:
                of_all = gather(values)
                values = of_all[self._shared.process[owner], np.arange(count)]
            drawn.append(values)
        return drawn[0], drawn[1]

    # the rows of a program
    # ----------------------------------------------------------------------------------

    def _layout(
        self, exchange: Exchange
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, int]:
        cohort = exchange.cohort
        process = self._process(cohort.clients)
        of_cohort = process[cohort.rows]
        on_device = self._on_device(process)
        # How many clients of a sampled cohort a process holds changes from round to round,
        # and a program is compiled for every number of rows.
        if len(cohort) < len(cohort.clients):
            sampled = next_power_of_two(self._on_device(of_cohort))
            on_device = min(sampled, on_device)
        orders, rows = [], []
        for number in range(self._processes):
            own = np.flatnonzero(of_cohort == number)
            if not self.settings.canonical:
                longest_first = self.settings.trains_in_chunks
                own = own[balanced_order(cohort.sizes[own], self._local, longest_first)]
            each = max(-(-len(own) // self._local), 1)
            device, slot = np.divmod(np.arange(len(own)), each)
            orders.append(own)
            rows.append((number * self._local + device) * on_device + slot)
        return np.concatenate(orders), np.concatenate(rows), self.shards * on_device

    def _on_device(self, process: NDArray[np.int64]) -> int:
        """How many rows a device needs for clients [c] of these processes."""
        most = int(np.bincount(process, minlength=1).max())
        return max(-(-most // self._local), 1)

    def _own_rows(
        self, rows: NDArray[np.int64], row_count: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], int]:
        """Which of some rows of a program are this process's.

        Returns:
            A mask [c]; the positions of those rows among the rows of this process; and
            the number of the latter.
        """
        count = row_count // self._processes
        is_own = rows // count == self._number
        return is_own, rows[is_own] - self._number * count, count

    def answers(self, request: ExchangeRequest, outputs: Outputs) -> Answers:
        answers = super().answers(request, outputs)
        if not self.settings.canonical:
            return answers
        # The server adds up rows in the order of client ids, as in one process.
        in_order = partial(
            jax.tree.map,
            partial(_in_order, count=super()._row_count(request.exchange)),
            is_leaf=lambda leaf: hasattr(leaf, "row"),
        )
        return replace(
            answers,
            update={kind: in_order(rows) for kind, rows in answers.update.items()},
            output=in_order(answers.output),
        )

    # states
    # ----------------------------------------------------------------------------------

    def _input_states(
        self,
        exchange: Exchange,
        table_rows: NDArray[np.int64],
        rows: NDArray[np.int64] | None,
        row_count: int,
    ) -> ClientState:
        if not reads_states(exchange):
            return () if exchange.states is None else exchange.states
        assert rows is not None
        is_own, places, count = self._own_rows(rows, row_count)
        index = np.zeros(count, np.int64)
        index[places] = self._kept_row[table_rows[is_own]]
        sharding = self.devices.sharded

        def of_all(leaf: NDArray[Any]) -> Array:
            shape = (row_count, *leaf.shape[1:])
            return jax.make_array_from_process_local_data(sharding, leaf, shape)

        return jax.tree.map(of_all, self.states.read(index, count))

    def commit(self, exchange: Exchange, answers: Answers) -> None:
        if isinstance(answers.states, PartStates):
            super().commit(exchange, answers)
            return
        if not jax.tree.leaves(answers.states):
            return
        order, rows, row_count = self._layout(exchange)
        assert rows is not None
        is_own, places, _ = self._own_rows(rows, row_count)
        own = jax.tree.map(lambda leaf: _own_part(leaf)[places], answers.states)
        table_rows = exchange.cohort.rows[order[is_own]]
        self.states.write(self._kept_row[table_rows], own)

    def snapshot(self) -> Any:
        """The files of all processes with the states of their clients; without a
        directory, the states of this process's clients. All processes must call it.

        Raises:
            ValueError: a process could not write its file.
        """
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.states.rows)]
        if not leaves:
            self._use_files([])
            return []
        if self.directory is None:
            return {"own": leaves}
        try:
            name = write_states(self.directory, self.seen.ids[self._kept], leaves)
        except OSError as error:
            name = _FAILED + reason(error)
        names = gather_texts(name)
        for number, name in enumerate(names):
            require(
                not name.startswith(_FAILED),
                f"process {number} cannot write the states of its clients to"
                f" {self.directory}: {name[1:]}; make room and resume",
            )
        self._use_files(names)
        return {SHARE_FILES: names}

    def restore(self, snapshot: Any) -> None:
        if isinstance(snapshot, dict) and "own" in snapshot:
            snapshot = snapshot["own"]
        elif isinstance(snapshot, list):
            # A single process has saved the states of all clients.
            snapshot = [np.asarray(leaf)[self._kept] for leaf in snapshot]
        require(
            not isinstance(snapshot, dict) or SHARE_FILES in snapshot,
            "the states of this run are in a file of one process; continue it with one",
        )
        super().restore(snapshot)


def _own_part(leaf: Array) -> NDArray[Any]:
    """The rows of an array over all devices that this process has."""
    shards = sorted(
        leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0
    )
    parts = [np.asarray(shard.data) for shard in shards]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _in_order(rows: Any, count: int) -> Any:
    """`ClientRows` whose rows are in the order of the cohort.

    Args:
        rows: the `ClientRows`.
        count: how many rows the result has; those past the cohort are padding.
    """
    index = np.zeros(max(count, len(rows)), np.int64)
    index[: len(rows)] = rows.row
    return replace(rows, values=_take(rows.values, index), row=np.arange(len(rows)))


@jax.jit
def _take(values: Array, index: Array) -> Array:
    return jnp.take(values, index, axis=0)
