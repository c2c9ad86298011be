"""The devices: the examples that are stored on them, and the programs that run there for
the clients of exchanges. (`map_clients.py` explains the rows of a program.)
"""

import logging
import math
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.typing import ArrayLike
from jaxtyping import Array
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.memory import available_memory
from fedtailor.data.federation import Federation
from fedtailor.engine.client.pool import PoolSize, build_pool
from fedtailor.engine.client.tasks import Outputs
from fedtailor.engine.executors.map_clients import (
    AXIS,
    AddedSum,
    ClientInputs,
    Pipelines,
    Program,
    SharedInputs,
    map_clients,
    one_client,
)
from fedtailor.engine.executors.packing import PackedInputs
from fedtailor.engine.executors.round_memory import STEP_VECTORS, RoundMemory, gib
from fedtailor.engine.executors.settings import Settings
from fedtailor.models import Model
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.protocol import NOT_SENT, Algorithm, ClientState, Exchange

_log = logging.getLogger("fedtailor")

MEMORY_SHARE = 0.9
"""The fraction of the free memory that a program may use."""
MAX_CHUNK = 1024
"""The largest number of clients that a device trains at the same time."""
MOST_PADDED = 2**26
"""Bytes of models up to which a program has rows for requests that there are none of."""
UNPLANNED_CHUNK = 32
"""The chunk on accelerators that do not report their memory."""


SLOW_SECONDS = 30.0
"""After this long it is said what is being compiled."""
ACTIVITIES = {"client": "a round of training", "evaluate": "an evaluation"}


@dataclass(frozen=True)
class ExchangeRequest:
    """An exchange in the form that programs take: arrays with one row for each of c
    clients, in an order that balances the devices.

    Attributes:
        federation: the federation of the clients, as an index into the federations of
            the `Devices`.
        exchange: what the clients are asked to do.
        model: what is trained.
        clients: [c] the index in the federation of each row's client.
        order: [c] the position in the cohort of each row's client.
        rows: [c] the row of the program of each of these clients; None = the first c rows.
        sizes: [c, 3] the number of samples in train, val and test.
        row_count: the number of rows of the program: c, and the rows of padding.
        keys: raw keys for this round [c, 2], and raw keys for what is drawn once for all
            rounds [c, 2].
        reporting: [c] whether each client is to answer.
        states: the states of the clients; every leaf is [row_count, ...].
        sums: what is added up instead of the clients' messages, with the weights [s, c]
            in the order of the cohort; None = nothing.
    """

    federation: int
    exchange: Exchange
    model: Model
    clients: NDArray[np.int64]
    order: NDArray[np.int64]
    sizes: NDArray[np.int32]
    row_count: int
    keys: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    reporting: NDArray[np.bool_]
    states: ClientState
    rows: NDArray[np.int64] | None = None
    sums: tuple[tuple[AddedSum, NDArray[np.float64]], ...] | None = None

    @cached_property
    def program_key(self) -> Hashable:
        """A key that is equal for requests that one call of a compiled program can
        answer together.

        Such requests have the same task, model and number of rows, equal
        hyper-parameters (to the bit, because the program is given only one copy of
        them), and states and messages of equal shapes and types.
        """
        exchange = self.exchange
        numbers, structure = jax.tree.flatten(
            (exchange.algorithm, exchange.uplink, exchange.received_through)
        )
        bits = tuple(np.asarray(number).tobytes() for number in numbers)
        leaves, state_structure = jax.tree.flatten(self.states)
        state_shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        streams = tuple(
            (kind, sent.recipients.shape[1], sent.values.shape[1:], sent.values.dtype)
            for kind, sent in exchange.downlink.streams.items()
        )
        scalars = tuple(
            (name, _is_integer(value))
            for name, value in exchange.downlink.scalars.items()
        )
        return (
            exchange.task,
            exchange.downlink.mode,
            exchange.metrics,
            (structure, bits),
            self.model,
            self.row_count,
            (state_structure, state_shapes),
            streams,
            scalars,
            None if self.sums is None else tuple(added for added, _ in self.sums),
        )


class Devices:
    """The examples of one federation, or of several that take equal models, and the
    programs that run on them.

    Attributes:
        pool: all examples, on every device; or on each device those of the clients that it
            trains.
        start: for each federation, the positions in `pool.rows` [m, 3] at which the
            splits of its clients begin.
        chunks: program -> the number of clients trained at the same time on one device,
            for programs where the free memory limits it.
        slots: the number of requests that a program has rows for. Where one client trains
            after another, it is the number of federations: a program is compiled once,
            however many of their runs have ended. Rows without clients have no examples.
    """

    def __init__(
        self,
        federations: Sequence[Federation],
        dtype: str,
        settings: Settings,
        least: PoolSize | None = None,
    ) -> None:
        """Place the examples.

        Args:
            federations: who holds which examples.
            dtype: the floating-point type that the model computes in.
            settings: which devices to use, and how.
            least: what the pool of each process has room for, if the examples of every
                process are those of its own clients; None = every process has them all.
        """
        self.dtype = dtype
        self.settings = settings
        self.mesh = settings.mesh()
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self.sharded = NamedSharding(self.mesh, PartitionSpec(AXIS))
        # Brings shards of several processes to all devices.
        self._gather = jax.jit(lambda outputs: outputs, out_shardings=self.replicated)
        # Compiled, as calls of single operations take longer than these.
        self._separate = jax.jit(
            _separate,
            static_argnames=("slots", "requests"),
            out_shardings=(self.sharded, self.replicated),
        )
        self._concatenate = jax.jit(jnp.concatenate, out_shardings=self.replicated)
        self._interleave = jax.jit(_interleave, out_shardings=self.sharded)
        self.own_examples = least is not None
        self.slots = 1 if settings.trains_in_chunks else len(federations)
        pool, self.start = build_pool(federations, dtype, least or PoolSize())
        put = self._in_blocks if self.own_examples else self._on_all
        arrays = {name: put(getattr(pool, name)) for name in ("x", "y", "rows")}
        normalization = jax.tree.map(self._on_all, pool.normalization)
        weights = jax.tree.map(self._on_all, pool.weights)
        self.pool = replace(
            pool, normalization=normalization, weights=weights, **arrays
        )
        # The hyper-parameters of the last exchange on the devices, and the objects of
        # the host that were copied. Nearly all exchanges have the same ones.
        self._last_sources: tuple[Any, ...] = (None, None, None)
        self._last_hyperparameters: Any = None
        self._frozen: tuple[FrozenArrays | None, tuple[Array, ...]] = (None, ())
        self._messages: dict[Hashable, tuple[Any, dict[str, Any]]] = {}
        self.chunks: dict[Hashable, int] = {}
        self._fitting: set[tuple[Program, int]] = set()
        self._compiled: set[tuple[Program, int]] = set()
        self._counts_memory = free_memory(self.mesh.local_devices) < math.inf

    def _on_all(self, values: NDArray[Any]) -> Array:
        """An array, on every device."""
        return place(values, self.replicated)

    def _in_blocks(self, values: NDArray[Any]) -> Array:
        """One array of a block [n, ...] for each device, [shards n, ...]. The blocks of a
        process's devices are `values`; on CPUs they share its memory.
        """
        blocks = [jax.device_put(values, it) for it in self.mesh.local_devices]
        shape = (self.mesh.size * len(values), *values.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharded, blocks)

    def run(self, requests: Sequence[ExchangeRequest]) -> list[Outputs]:
        """Run one program for the clients of all requests, which have equal
        `program_key`s.

        They become one cohort, in which the clients of all requests alternate.

        Returns:
            For each request the outputs of its clients, stacked by rows; see `run_client`.
        """
        program, shared, clients = self._call(requests)
        program = program._replace(chunk=self._chunk(program, shared, clients))
        self._require_memory(program, shared, clients)
        with self._said_if_slow(program, len(clients.packed.numbers)):
            outputs = map_clients(program, shared, clients)
        sums, slots = outputs.pop("sums", None), self._slots(requests)
        parts, totals = [outputs], [sums]
        if slots > 1:
            parts, totals = self._separate(outputs, sums, slots, len(requests))
        parts = [self._to_server(part) for part in parts]
        if sums is not None:
            for part, total in zip(parts, totals, strict=True):
                part["sums"] = total
        return parts

    def _slots(self, requests: Sequence[ExchangeRequest]) -> int:
        """The number of requests that a program for these has rows for."""
        first = requests[0]
        memory = self.slots * first.row_count * _vector(first.model)
        return max(len(requests), self.slots if memory <= MOST_PADDED else 1)

    @contextmanager
    def _said_if_slow(self, program: Program, rows: int) -> Iterator[None]:
        """Say what is being compiled, if it takes long, in the first call of a program."""
        if (program, rows) in self._compiled:
            yield
            return
        self._compiled.add((program, rows))
        what = ACTIVITIES.get(program.task, program.task)
        line = (
            f"fedtailor: compiling {what} for {rows} clients with"
            f" {program.model.size:,} parameters; this is done once"
        )
        timer = threading.Timer(SLOW_SECONDS, _log.warning, (line,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def messages(self, request: ExchangeRequest) -> dict[str, jax.ShapeDtypeStruct]:
        """The shape and type of what each client of a request will send, by kind."""
        exchange = request.exchange
        sources = (
            exchange.algorithm,
            exchange.uplink,
            exchange.received_through,
            request.model,
        )
        streams = tuple(
            (kind, sent.recipients.shape[1], sent.values.shape)
            for kind, sent in exchange.downlink.streams.items()
        )
        # By identity, as `_hyperparameters`.
        key = (*map(id, sources), exchange.task, exchange.downlink.mode, streams)
        if key not in self._messages:
            program, shared, clients = self._call([request])
            one = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf)[1:], leaf.dtype),
                clients,
            )
            outputs = one_client.eval_shape(program, shared, one)
            # The sources are kept, so that no other objects get their identities.
            self._messages[key] = sources, outputs.get("update", {})
        return self._messages[key][1]

    def _call(
        self, requests: Sequence[ExchangeRequest]
    ) -> tuple[Program, SharedInputs, ClientInputs]:
        """The arguments of `map_clients` for requests that one program answers together;
        the chunk is not chosen yet.
        """
        # What the program takes once (task, hyper-parameters, model) is equal in all
        # requests, and comes from the first one.
        first = requests[0].exchange
        streams, rows = self.inputs(requests)
        empty = self._slots(requests) - len(requests)
        if empty:
            padding = rows[0]._replace(packed=rows[0].packed.padding())
            rows += [padding] * empty
        # States may be on the devices already. They are put there if not, as a program
        # would be compiled for each of both cases.
        states = [
            jax.tree.map(lambda leaf: place(leaf, self.sharded), each.state)
            for each in rows
        ]
        rows = [each._replace(state=()) for each in rows]
        clients, state = rows[0], states[0]
        if len(rows) > 1:
            clients, state = _interleave(rows), self._interleave(states)
        clients = jax.tree.map(self._shard_rows, clients)
        clients = clients._replace(state=state)
        algorithm, pipelines = self._hyperparameters(first)
        frozen = self.frozen(requests[0].model)
        shared = SharedInputs(algorithm, pipelines, self.pool, streams, frozen)
        program = Program(
            first.task,
            requests[0].model,
            first.metrics,
            self.mesh,
            chunk=1,
            mode=first.downlink.mode,
            own_examples=self.own_examples,
        )
        if requests[0].sums is not None:
            sums = tuple(
                added._replace(streams=self._slots(requests) * added.streams)
                for added, _ in requests[0].sums
            )
            program = program._replace(sums=sums)
        return program, shared, clients

    def _require_memory(
        self, program: Program, shared: SharedInputs, clients: ClientInputs
    ) -> None:
        """Refuse a program that would not fit, before it is compiled. (The system ends a
        process that takes too much memory; accelerators raise an error.)

        Raises:
            ValueError: there is less memory than it needs.
        """
        rows = len(clients.packed.numbers)
        if self._counts_memory or (program, rows) in self._fitting:
            return
        self._fitting.add((program, rows))
        room = available_memory()
        # To trace a program takes time, and most are far from any limit.
        vector = _vector(program.model)
        if (rows + STEP_VECTORS * self.mesh.size) * vector < 0.02 * room:
            return
        memory = self.memory(program, shared, clients)
        # What clients start from is there already.
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(clients.state))
        needed = memory.total - memory.streams - held
        frozen = 0 if program.model.frozen is None else program.model.frozen.nbytes
        require(
            needed <= room,
            f"{ACTIVITIES.get(program.task, program.task)} needs about {gib(needed)} of"
            f" memory and {gib(room)} are free ({_needs(memory)}, in addition to"
            f" {gib(held + frozen)} already there); {_advice(memory, program)}",
        )

    def memory(
        self, program: Program, shared: SharedInputs, clients: ClientInputs
    ) -> RoundMemory:
        """What a program needs of the memory, by the shapes of its inputs and outputs."""
        outputs = dict(jax.eval_shape(partial(map_clients, program), shared, clients))
        devices = self.mesh.size
        # On each device the sums of its own clients, and those of all.
        sums = 2 * devices * _bytes(outputs.pop("sums", ()))
        after = _bytes(outputs.pop("state", ()))
        return RoundMemory(
            clients=len(clients.packed.numbers),
            devices=devices,
            model=_vector(program.model),
            streams=devices * _bytes(shared.streams),
            states=_bytes(clients.state) + after,
            training=devices * program.chunk * STEP_VECTORS * _vector(program.model),
            answers=sums + _bytes(outputs),
            are_sums=program.sums is not None,
        )

    def plan(self, request: ExchangeRequest) -> RoundMemory:
        """What a request will need of the memory; nothing is compiled."""
        program, shared, clients = self._call([request])
        chunk = self.settings.chunk or (
            UNPLANNED_CHUNK if self.settings.trains_in_chunks else 1
        )
        return self.memory(program._replace(chunk=chunk), shared, clients)

    def frozen(self, model: Model) -> tuple[Array, ...]:
        """The frozen arrays of a model, once on every device."""
        arrays = model.frozen
        if arrays != self._frozen[0]:
            copies = () if arrays is None else arrays.on(self.replicated)
            self._frozen = (arrays, copies)
        return self._frozen[1]

    def inputs(
        self, requests: Sequence[ExchangeRequest]
    ) -> tuple[dict[str, Array], list[ClientInputs]]:
        """The streams and the clients' inputs that `map_clients` takes.

        Returns:
            Kind of message -> the streams of all requests, concatenated, on every
            device; and for each request the inputs of its clients. Slots without a
            request have the streams of the first one, which nobody receives.
        """
        slots = self._slots(requests)
        # The streams of all requests are concatenated. So the numbers of a request's
        # streams are shifted by the count of streams before its own.
        streams = {}
        offsets: list[dict[str, int]] = [{} for _ in requests]
        for kind in requests[0].exchange.downlink.streams:
            parts = []
            count = 0
            for request, offset in zip(requests, offsets, strict=True):
                values = request.exchange.downlink.streams[kind].values
                parts.append(place(values, self.replicated))
                offset[kind] = count
                count += len(values)
            parts += parts[:1] * (slots - len(requests))
            streams[kind] = parts[0] if len(parts) == 1 else self._concatenate(parts)
        packed = []
        for number, (request, offset) in enumerate(zip(requests, offsets, strict=True)):
            weights = None
            if request.sums is not None:
                weights = self._weights(request.sums, request, number, slots)
            packed.append(self._pack(request, offset, weights))
        return streams, packed

    def _weights(
        self,
        sums: tuple[tuple[AddedSum, NDArray[np.float64]], ...],
        request: ExchangeRequest,
        number: int,
        slots: int,
    ) -> NDArray[Any]:
        """The weights [c, w] of a request's clients in the sums of all requests: each sum
        has a block of streams for each of them, and the clients of the others have no
        weight in it.
        """
        blocks = []
        for added, weights in sums:
            block = np.zeros(
                (len(request.order), slots, added.streams),
                request.model.precision.sums,
            )
            block[:, number] = weights.T[request.order]
            blocks.append(block.reshape(len(block), -1))
        if not blocks:
            return np.zeros((len(request.order), 0), np.float32)
        return np.concatenate(blocks, axis=1)

    def _pack(
        self,
        request: ExchangeRequest,
        offset: dict[str, int],
        weights: NDArray[Any] | None,
    ) -> ClientInputs:
        """The inputs of a request's clients.

        Args:
            request: the clients, and what they are sent.
            offset: kind of message -> the number of the request's first stream among the
                streams of all requests.
            weights: [c, w] of the clients in sums; None = there are none.
        """
        downlink = request.exchange.downlink
        addresses = (
            self.start[request.federation][request.clients],
            request.sizes,
            *request.keys,
        )
        stream_index = {}
        for kind, sent in downlink.streams.items():
            streams = np.where(
                sent.recipients >= 0, sent.recipients + offset[kind], NOT_SENT
            )
            stream_index[kind] = streams[request.order]
        began = request.exchange.cohort.began[request.order]
        packed = PackedInputs.pack(
            request.row_count,
            addresses,
            began,
            request.reporting,
            stream_index,
            request.rows,
            weights,
        )
        scalars = {
            name: self._scalar(value, request)
            for name, value in downlink.scalars.items()
        }
        return ClientInputs(packed, request.states, scalars)

    def _scalar(self, value: ArrayLike, request: ExchangeRequest) -> NDArray:
        """A number for each client, in the rows of a request; padding is zero."""
        value = np.asarray(value)
        row = np.zeros(
            request.row_count, np.int32 if _is_integer(value) else self.dtype
        )
        rows = slice(len(request.order)) if request.rows is None else request.rows
        row[rows] = value if value.ndim == 0 else value[request.order]
        return row

    def _shard_rows(self, values: ArrayLike) -> ArrayLike:
        """Put the rows of the clients on their devices.

        The program shards arrays of the host itself, unless other processes have some of
        the devices.
        """
        if isinstance(values, np.ndarray) and self.sharded.is_fully_addressable:
            return values
        return place(values, self.sharded)

    def _hyperparameters(self, exchange: Exchange) -> tuple[Algorithm, Pipelines]:
        """The algorithm and the pipelines, with their hyper-parameters on every device,
        where they stay from round to round.
        """
        sources = exchange.algorithm, exchange.uplink, exchange.received_through
        # By identity: to compare hyper-parameters, arrays would have to be compared.
        pairs = zip(sources, self._last_sources, strict=True)
        if any(source is not last for source, last in pairs):
            self._last_sources = sources
            pipelines = Pipelines(exchange.uplink, exchange.received_through)
            hyperparameters = (exchange.algorithm, pipelines)
            if self.replicated.is_fully_addressable:
                hyperparameters = jax.device_put(hyperparameters, self.replicated)
            self._last_hyperparameters = hyperparameters
        return self._last_hyperparameters

    def _chunk(
        self, program: Program, shared: SharedInputs, clients: ClientInputs
    ) -> int:
        """The number of clients that a device trains at the same time: as many as fit
        into its free memory, by the compiler's own account.

        On CPUs it is one: what one client touches stays in the cache, and its products
        fill the core.

        Args:
            program: the program; its own chunk is not looked at.
            shared, clients: the other arguments of `map_clients`.
        """
        if self.settings.chunk is not None:
            return self.settings.chunk
        if not self._counts_memory:
            return UNPLANNED_CHUNK if self.settings.trains_in_chunks else 1
        # Arrays determine a compiled program by their shapes and types.
        leaves, structure = jax.tree.flatten((shared, clients))
        shapes = ((np.shape(leaf), leaf.dtype) for leaf in leaves)
        key = (program, structure, *shapes)
        if key not in self.chunks:
            self.chunks[key] = self._largest_chunk(program, shared, clients)
        return self.chunks[key]

    def _largest_chunk(
        self, program: Program, shared: SharedInputs, clients: ClientInputs
    ) -> int:
        """The largest chunk that fits into the free memory, found by compiling the
        program for smaller and smaller chunks.
        """
        usable = MEMORY_SHARE * free_memory(self.mesh.local_devices)
        rows = len(clients.packed.numbers) // self.mesh.size
        chunk = min(max(rows, 1), MAX_CHUNK)
        while chunk > 1:
            lowered = map_clients.lower(program._replace(chunk=chunk), shared, clients)
            memory = lowered.compile().memory_analysis()
            # Backends that report their free memory analyse that of programs, too.
            assert memory is not None
            # The outputs twice: the server computes arrays of the same size from them.
            needed = memory.temp_size_in_bytes + 2 * memory.output_size_in_bytes
            if needed <= usable:
                break
            # Memory grows about in proportion to the chunk. All chunks get the same
            # size: a smaller last one would be a program of its own.
            fits = int(chunk * usable / needed)
            largest = min(max(fits, 1), chunk - 1)
            chunks = math.ceil(rows / largest)
            chunk = math.ceil(rows / chunks)
        return chunk

    def _to_server(self, outputs: Outputs) -> Outputs:
        """Move the outputs to where the server computes with them."""
        # States stay with the process that keeps them.
        states = {}
        if self.own_examples and "state" in outputs:
            outputs = {**outputs}
            states = {"state": outputs.pop("state")}
        # If there are several processes, each runs the server's side on all answers.
        if not self.replicated.is_fully_addressable:
            outputs = jax.tree.map(
                lambda leaf: leaf.addressable_data(0), self._gather(outputs)
            )
        # On one device sums are taken in the order of the clients. On several devices
        # the order depends on the number of devices.
        if self.settings.canonical:
            outputs = jax.device_put(outputs, jax.local_devices()[0])
        return {**outputs, **states}


@dataclass(frozen=True)
class Place:
    """Where the examples of a federation are.

    Attributes:
        devices: they hold them, and perhaps those of other federations.
        index: of this federation among them.
    """

    devices: Devices
    index: int = 0


def place(values: ArrayLike, sharding: Sharding) -> Array:
    """Put an array on devices; if there are several processes, each holds all of it."""
    # `device_put` would not move the array either, but takes time to find that out.
    if isinstance(values, Array) and values.sharding == sharding:
        return values
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    host = np.asarray(values)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _vector(model: Model) -> int:
    """Bytes of a model in the type of its training."""
    return model.size * np.dtype(model.precision.sums).itemsize


def _bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(np.shape(leaf)) * leaf.dtype.itemsize for leaf in leaves)


def _needs(memory: RoundMemory) -> str:
    """What needs most of a program's memory."""
    each = gib((memory.answers + memory.states) / memory.clients)
    if memory.are_sums:
        return (
            f"{memory.clients} clients, whose states take"
            f" {gib(memory.states / memory.clients)} each before and after the round,"
            f" and {gib(memory.training + memory.answers)} for those that train at the"
            " same time and their sums"
        )
    return f"{memory.clients} clients, whose answers and states take {each} each"


def _advice(memory: RoundMemory, program: Program) -> str:
    """What makes a program smaller."""
    parts = []
    if memory.devices > 1:
        saved = (memory.streams + memory.training) * (1 - 1 / memory.devices)
        if memory.are_sums:
            saved += memory.answers * (1 - 1 / memory.devices)
        parts.append(f"train on one device (devices=1), which needs {gib(saved)} less")
    if memory.states or not memory.are_sums:
        parts.append("let fewer clients take part in a round (participation)")
    parts.append(
        f"train a part of the {program.model.size:,} parameters (fedtailor.models.lora or"
        " frozen)"
    )
    return ", or ".join(parts)


def free_memory(devices: Sequence[Any]) -> float:
    """How much memory a program may use on each device.

    Returns:
        The number of free bytes on the device that has the fewest, over all processes;
        infinite if the backend does not count them (CPUs).
    """
    counts = [device.memory_stats() or {} for device in devices]
    free = min(
        count.get("bytes_limit", math.inf) - count.get("bytes_in_use", 0)
        for count in counts
    )
    if jax.process_count() == 1:
        return free
    # All processes must choose the same chunk: they run one program together.
    return float(process_allgather(np.asarray(free)).min())


def _interleave(rows: Sequence[Any]) -> Any:
    """The rows of several requests (trees of arrays [r, ...]) as one cohort: row 0 of
    every request, then row 1 of every request, ..., so that every device gets equally many
    rows of each request.
    """

    def interleave(*leaves: Array | np.ndarray) -> Array | np.ndarray:
        on_host = all(isinstance(leaf, np.ndarray) for leaf in leaves)
        stack = np.stack if on_host else jnp.stack
        return stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])

    return jax.tree.map(interleave, *rows)


def _separate(
    outputs: Outputs, sums: Any, slots: int, requests: int
) -> tuple[list[Outputs], list[Any]]:
    """The outputs and sums of each of several requests: the opposite of `_interleave`.

    Args:
        outputs: of a program with rows for `slots` requests.
        sums: each has a block of streams for each slot; None = there are none.
        slots: the number of requests that there are rows for.
        requests: the number of requests.
    """

    def rows_of(number: int, leaf: Array) -> Array:
        return leaf.reshape(-1, slots, *leaf.shape[1:])[:, number]

    def block_of(number: int, total: Array) -> Array:
        return total.reshape(slots, -1, *total.shape[1:])[number]

    every = range(requests)
    return (
        [jax.tree.map(partial(rows_of, number), outputs) for number in every],
        [jax.tree.map(partial(block_of, number), sums) for number in every],
    )


def _is_integer(value: ArrayLike) -> bool:
    """Whether a scalar of a message is a count or a flag, which stays an integer."""
    return np.asarray(value).dtype.kind in "iub"
