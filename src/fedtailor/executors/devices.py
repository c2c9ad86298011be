"""The devices: the examples that are stored on them, and the programs that run there for
the clients of exchanges. (`map_clients` explains streams, addresses and rows.)
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
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

from fedtailor.client.pool import build_pool
from fedtailor.client.tasks import Outputs
from fedtailor.executors.map_clients import AXIS, Pipelines, map_clients
from fedtailor.executors.packing import PackedInputs
from fedtailor.executors.settings import Settings
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, BatchMetric, ClientState, Exchange

MEMORY_SHARE = 0.9
"""The fraction of the free memory that a program may use."""
MAX_CHUNK = 1024
"""The most clients that a device trains at once."""
UNPLANNED_CHUNK = 32
"""Clients trained at once on accelerators that do not report their memory."""

Rows = tuple[PackedInputs, ClientState, dict[str, NDArray[Any]]]
"""A cohort as programs take it: inputs, states and scalars of its clients, stacked."""


@dataclass(frozen=True)
class ExchangeRequest:
    """An exchange as programs take it: arrays with one row for each client, in an order
    that balances the devices.

    Attributes:
        federation: whose clients they are, as a position among the federations of the
            `Devices`.
        exchange: what is asked of them.
        model: what is trained.
        clients: [c] the position in that federation of each row's client.
        order: [c] the position in the cohort of each row's client.
        sizes: [c, 3] samples in train, val and test, by rows.
        row_count: rows of the program: c and those of padding, which follow.
        keys: raw keys by rows: those for this round [c, 2], and those for what is drawn
            once for all rounds [c, 2].
        reporting: [c] who is to answer, by rows.
        states: states by rows; every leaf is [row_count, ...].
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

    @cached_property
    def program(self) -> Hashable:
        """A key that is equal for requests that one call of a compiled program can
        answer together.

        Such requests have the same task, hyper-parameters (to the bit, as they are passed
        once), model and number of rows, and states and messages of equal shapes and
        types.
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
            exchange.metrics,
            (structure, bits),
            self.model,
            self.row_count,
            (state_structure, state_shapes),
            streams,
            scalars,
        )


class Devices:
    """The examples of one federation, or of several that take equal models, and the
    programs that run on them.

    Attributes:
        pool: all examples, on every device.
        start: for each federation, where in `pool.rows` the splits of its clients begin
            [m, 3].
        chunks: program -> clients trained at once on one device, where the free memory
            decides.
    """

    def __init__(
        self, federations: Sequence[Federation], dtype: str, settings: Settings
    ) -> None:
        self.dtype = dtype
        self.settings = settings
        self.mesh = settings.mesh()
        self.everywhere = NamedSharding(self.mesh, PartitionSpec())
        self.sharded = NamedSharding(self.mesh, PartitionSpec(AXIS))
        # Brings shards of several processes to all devices.
        self._gather = jax.jit(lambda outputs: outputs, out_shardings=self.everywhere)
        self._separate = jax.jit(
            _separate, static_argnames="requests", out_shardings=self.sharded
        )
        pool, self.start = build_pool(federations, dtype)
        self.pool = jax.tree.map(lambda leaf: place(leaf, self.everywhere), pool)
        # The last exchange's hyper-parameters on the devices, and the host's objects
        # that they are copies of. Nearly all exchanges have the same ones.
        self._last_parts: tuple[Any, ...] = (None, None, None)
        self._last_numbers: Any = None
        self.chunks: dict[Hashable, int] = {}
        self._counts_memory = free_memory(self.mesh.local_devices) < math.inf

    def run(self, requests: Sequence[ExchangeRequest]) -> list[Outputs]:
        """Run one program for the clients of all requests, which have equal `program`s.

        They become one cohort, in which the clients of all requests alternate.

        Returns:
            For each request what its clients yield, stacked by rows; see `run_one`.
        """
        # What equal programs share is taken from the first request: task,
        # hyper-parameters, model.
        first = requests[0].exchange
        values, rows = self.inputs(requests)
        cohort = rows[0] if len(requests) == 1 else _interleave(rows)
        sharded_rows = jax.tree.map(self._shard_rows, cohort)
        arguments = (first.task, *self._numbers(first), requests[0].model, self.mesh)
        inputs = (self.pool, values, *sharded_rows)
        chunk = self._chunk(arguments, inputs, first.metrics)
        outputs = map_clients(*arguments, chunk, *inputs, first.metrics)
        parts = [outputs]
        if len(requests) > 1:
            parts = self._separate(outputs, requests=len(requests))
        return [self._to_server(part) for part in parts]

    def inputs(
        self, requests: Sequence[ExchangeRequest]
    ) -> tuple[dict[str, Array], list[Rows]]:
        """What `map_clients` takes besides the pool.

        Returns:
            kind -> the streams of all requests one after another, on every device; and
            for each request the rows of its clients.
        """
        # The streams of all requests are concatenated. So the numbers of a request's
        # streams are shifted by the count of streams before its own.
        values = {}
        offsets: list[dict[str, int]] = [{} for _ in requests]
        for kind in requests[0].exchange.downlink.streams:
            parts = []
            count = 0
            for request, offset in zip(requests, offsets, strict=True):
                streams = request.exchange.downlink.streams[kind].values
                parts.append(place(streams, self.everywhere))
                offset[kind] = count
                count += len(streams)
            values[kind] = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
        return values, list(map(self._pack, requests, offsets))

    def _pack(self, request: ExchangeRequest, offset: dict[str, int]) -> Rows:
        """A request's rows for the program.

        Args:
            request: the clients, and what they are sent.
            offset: kind -> the number of the request's first stream among those of all
                requests.
        """
        downlink = request.exchange.downlink
        addresses = (
            self.start[request.federation][request.clients],
            request.sizes,
            *request.keys,
        )
        recipients = {}
        for kind, sent in downlink.streams.items():
            streams = np.where(sent.recipients >= 0, sent.recipients + offset[kind], -1)
            recipients[kind] = streams[request.order]
        round = request.exchange.cohort.round
        inputs = PackedInputs.pack(
            request.row_count, addresses, round, request.reporting, recipients
        )
        scalars = {
            name: self._scalar(value, request)
            for name, value in downlink.scalars.items()
        }
        return inputs, request.states, scalars

    def _scalar(self, value: ArrayLike, request: ExchangeRequest) -> NDArray:
        """A number for each client, in the rows of a request; padding is zero."""
        value = np.asarray(value)
        row = np.zeros(
            request.row_count, np.int32 if _is_integer(value) else self.dtype
        )
        row[: len(request.order)] = value if value.ndim == 0 else value[request.order]
        return row

    def _shard_rows(self, values: ArrayLike) -> ArrayLike:
        """Rows of the cohort as an argument of the program. It shards arrays of the host
        itself, unless some devices are of other processes.
        """
        if isinstance(values, np.ndarray) and self.sharded.is_fully_addressable:
            return values
        return place(values, self.sharded)

    def _numbers(self, exchange: Exchange) -> tuple[Algorithm, Pipelines]:
        """The algorithm and the pipelines with their numbers (hyper-parameters) on every
        device, where they stay from round to round.
        """
        parts = exchange.algorithm, exchange.uplink, exchange.received_through
        # By identity: to compare hyper-parameters, arrays would have to be compared.
        pairs = zip(parts, self._last_parts, strict=True)
        if any(part is not last for part, last in pairs):
            self._last_parts = parts
            pipelines = Pipelines(exchange.uplink, exchange.received_through)
            numbers = (exchange.algorithm, pipelines)
            if self.everywhere.is_fully_addressable:
                numbers = jax.device_put(numbers, self.everywhere)
            self._last_numbers = numbers
        return self._last_numbers

    def _chunk(
        self, arguments: tuple, inputs: tuple, metrics: tuple[BatchMetric, ...]
    ) -> int:
        """Clients trained at once on one device: as many as its free memory holds by
        the compiler's own account.

        On CPUs one at a time: what one client touches stays in the cache, and its
        products fill the core.
        """
        if self.settings.chunk is not None:
            return self.settings.chunk
        if not self._counts_memory:
            return UNPLANNED_CHUNK if self.settings.several_at_once else 1
        # A compiled program is determined by all arguments, arrays by their shapes and
        # types.
        leaves, structure = jax.tree.flatten((arguments[1:3], inputs))
        shapes = ((np.shape(leaf), leaf.dtype) for leaf in leaves)
        program = (*arguments[:1], *arguments[3:], metrics, structure, *shapes)
        if program not in self.chunks:
            self.chunks[program] = self._largest_chunk(arguments, inputs, metrics)
        return self.chunks[program]

    def _largest_chunk(
        self, arguments: tuple, inputs: tuple, metrics: tuple[BatchMetric, ...]
    ) -> int:
        """Clients trained at once that the free memory holds, by compiling the program
        for fewer and fewer.
        """
        usable = MEMORY_SHARE * free_memory(self.mesh.local_devices)
        _, _, packed, *_ = inputs
        rows = len(packed.numbers) // self.mesh.size
        chunk = min(max(rows, 1), MAX_CHUNK)
        while chunk > 1:
            planned = (
                map_clients.lower(*arguments, chunk, *inputs, metrics)
                .compile()
                .memory_analysis()
            )
            # A backend that keeps an account of its memory plans with it.
            assert planned is not None
            # The outputs twice: the server works on what it makes of them.
            needed = planned.temp_size_in_bytes + 2 * planned.output_size_in_bytes
            if needed <= usable:
                break
            # Memory grows about in proportion to the chunk. Chunks of one size: another
            # one for the rest would be a program of its own.
            fits = int(chunk * usable / needed)
            largest = min(max(fits, 1), chunk - 1)
            chunks = math.ceil(rows / largest)
            chunk = math.ceil(rows / chunks)
        return chunk

    def _to_server(self, outputs: Outputs) -> Outputs:
        """The outputs where the server works on them."""
        # Of several processes each runs the server's side, on all clients' answers.
        if not self.everywhere.is_fully_addressable:
            outputs = jax.tree.map(
                lambda leaf: leaf.addressable_data(0), self._gather(outputs)
            )
        # On one device sums are taken in the order of the clients, on several ones in an
        # order that depends on how many there are.
        if self.settings.canonical:
            outputs = jax.device_put(outputs, jax.local_devices()[0])
        return outputs


def place(values: ArrayLike, sharding: Sharding) -> Array:
    """Put an array on devices; of several processes, each holds all of it."""
    # JAX would move nothing either, but it takes its time to find that out.
    if isinstance(values, Array) and values.sharding == sharding:
        return values
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    host = np.asarray(values)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def free_memory(devices: Sequence[Any]) -> float:
    """How much memory a program may use on each device.

    Returns:
        Bytes that are free on the fullest of `devices`, of all processes; infinite
        where the backend does not count them (CPUs).
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


def _interleave(rows: Sequence[Rows]) -> Rows:
    """The rows of several requests as one cohort: row 0 of every request, then row 1 of
    every request, ..., so that every device gets equally many rows of each request.
    """

    def interleave(*leaves: Array | np.ndarray) -> Array | np.ndarray:
        on_host = all(isinstance(leaf, np.ndarray) for leaf in leaves)
        stack = np.stack if on_host else jnp.stack
        return stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])

    return jax.tree.map(interleave, *rows)


def _separate(outputs: Outputs, requests: int) -> list[Outputs]:
    """The outputs of each of several requests: the opposite of `_interleave`."""

    def of_request(number: int, leaf: Array) -> Array:
        return leaf.reshape(-1, requests, *leaf.shape[1:])[:, number]

    return [
        jax.tree.map(partial(of_request, number), outputs) for number in range(requests)
    ]


def _is_integer(value: ArrayLike) -> bool:
    """Whether a scalar of a message is a count or a flag, which stays an integer."""
    return np.asarray(value).dtype.kind in "iub"
