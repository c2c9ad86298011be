"""The devices: the examples that lie on them, and the programs that run there for the clients of an exchange."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from fedtailor.engine.cohort import AXIS, Task, map_clients, run_one
from fedtailor.engine.data import Brief, build_pool
from fedtailor.engine.debug import DebugLocal
from fedtailor.engine.settings import Settings
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, Down

USABLE = 0.9
"""The share of the free memory that a program may plan with."""
MOST = 1024
"""The largest number of clients at once that is tried."""
UNPLANNED = 32
"""Clients at once on accelerators that keep no account of their memory."""


@dataclass(frozen=True)
class Call:
    """What one training asks of a cohort of c clients.

    Attributes:
        federation: whose clients they are: a place among the federations of the `Devices`.
        task, algorithm, model: what they do.
        clients: [c] their places in that federation.
        sizes: [c, 3] their samples in train, val and test.
        rows: c rounded up to whole shards.
        keys: [c, 2] and [c, 2] raw keys of this round, and of all rounds.
        round: the round.
        report: [c] who is to answer.
        states: their states, `rows` of them.
        down: what the server sends.
    """

    federation: int
    task: Task
    algorithm: Algorithm
    model: Model
    clients: NDArray[np.int64]
    sizes: NDArray[np.int32]
    rows: int
    keys: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    round: int
    report: NDArray[np.bool_]
    states: Any
    down: Down

    @cached_property
    def program(self) -> Any:
        """Equal for calls that one program can serve at once."""
        sent = self.down.sent.items()
        numbers, structure = jax.tree.flatten(self.algorithm)
        state, form = jax.tree.flatten(self.states)
        return (
            *(self.task, structure, tuple(np.asarray(number).tobytes() for number in numbers), self.model, self.rows),
            *(form, tuple((leaf.shape, leaf.dtype) for leaf in state)),
            *((kind, it.to.shape[1], it.values.shape[1:], it.values.dtype) for kind, it in sent),
            *((name, np.asarray(value).dtype.kind in "iub") for name, value in self.down.note.items()),
        )


class Devices:
    """Runs client tasks on the clients of one federation, or of several that take equal models.

    Attributes:
        pool: all examples, on every device; federation f's begin at the places start[f] [m, 3] of its rows.
        chunks: program -> clients trained at once on one device, where the free memory decides.
    """

    def __init__(self, federations: Sequence[Federation], dtype: str, settings: Settings) -> None:
        self.federations, self.dtype, self.settings = federations, dtype, settings
        self.mesh = settings.mesh()
        self.everywhere, self.sharded = (NamedSharding(self.mesh, PartitionSpec(*axes)) for axes in ((), (AXIS,)))
        self._gather = jax.jit(lambda outputs: outputs, out_shardings=self.everywhere)
        self._parted = jax.jit(_parted, static_argnames="calls", out_shardings=self.sharded)
        pool, self.start = build_pool(federations, dtype)
        self.pool = jax.tree.map(lambda leaf: place(leaf, self.everywhere), pool)
        self._shipped: tuple[Any, Any] = (None, None)
        self.chunks: dict[Any, int] = {}
        self._counts_memory = free_memory(self.mesh.local_devices) < math.inf

    def run(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """What the clients of each call yield, stacked [c', ...], c' >= c; "report" is [c', 3] (see `run_one`).

        All calls have equal `program`s: they become one cohort, in which the clients of all calls take turns.
        """
        first = calls[0]
        sent = {kind: [call.down.sent[kind].values for call in calls] for kind in first.down.sent}
        values = {kind: self._streams(parts) for kind, parts in sent.items()}
        ahead = {kind: np.cumsum([0, *map(len, parts)]) for kind, parts in sent.items()}
        rows = [self._told(call, {kind: int(ahead[kind][n]) for kind in ahead}) for n, call in enumerate(calls)]
        stacked = jax.tree.map(self._dealt, rows[0] if len(calls) == 1 else _interleaved(rows))
        if self.settings.debug:
            outputs = self._one_by_one(first, values, stacked)
        else:
            arguments = (first.task, self._numbers(first.algorithm), first.model, self.mesh)
            inputs = (self.pool, values, *stacked)
            outputs = map_clients(*arguments, self._chunk(arguments, inputs), *inputs)
        parts = [outputs] if len(calls) == 1 else self._parted(outputs, calls=len(calls))
        return [self._home(part) for part in parts]

    def _streams(self, parts: Sequence[Any]) -> Any:
        """The streams of one kind of all calls, on every device."""
        placed = [place(part, self.everywhere) for part in parts]
        return placed[0] if len(parts) == 1 else jnp.concatenate(placed)

    def _told(self, call: Call, ahead: dict[str, int]) -> tuple[Brief, Any, dict[str, NDArray]]:
        """A call's rows for the program; `ahead`: how many streams of each kind other calls have put first."""
        down = call.down
        slots = (self.start[call.federation][call.clients], call.sizes, *call.keys)
        to = {kind: np.where(sent.to >= 0, sent.to + ahead[kind], -1) for kind, sent in down.sent.items()}
        briefs = Brief.pack(call.rows, slots, call.round, call.report, to)
        return briefs, call.states, {name: self._note(value, call) for name, value in down.note.items()}

    def _note(self, value: Any, call: Call) -> NDArray:
        """A note's numbers, in the rows of a call; padding is zero."""
        value = np.asarray(value)
        row = np.zeros(call.rows, np.int32 if value.dtype.kind in "iub" else self.dtype)
        row[: len(call.clients)] = value
        return row

    def _dealt(self, values: Any) -> Any:
        """Rows of the cohort for the program, which deals host arrays to the devices of this process itself."""
        here = isinstance(values, np.ndarray) and self.sharded.is_fully_addressable
        return values if here else place(values, self.sharded)

    def _numbers(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with its numbers on every device, where they stay from round to round."""
        if not self.everywhere.is_fully_addressable:
            return algorithm
        if self._shipped[0] is not algorithm:
            self._shipped = (algorithm, jax.device_put(algorithm, self.everywhere))
        return self._shipped[1]

    def _chunk(self, arguments: tuple, inputs: tuple) -> int:
        """Clients trained at once on one device: as many as its free memory holds by the compiler's own account.

        On CPUs one at a time: what one client touches stays in the cache, and its products fill the core.
        """
        if self.settings.chunk is not None or not self._counts_memory:
            return self.settings.chunk or (UNPLANNED if self.settings.several_at_once else 1)
        leaves, structure = jax.tree.flatten((arguments[1], inputs))
        program = (*arguments[:1], *arguments[2:], structure, *((np.shape(leaf), leaf.dtype) for leaf in leaves))
        if program not in self.chunks:
            free = free_memory(self.mesh.local_devices)
            rows = len(inputs[2].numbers) // self.mesh.size
            chunk = min(max(rows, 1), MOST)
            while chunk > 1:
                planned = map_clients.lower(*arguments, chunk, *inputs).compile().memory_analysis()
                assert planned is not None  # by a backend that keeps an account of its memory
                # the outputs twice: the server works on what it makes of them
                needed = planned.temp_size_in_bytes + 2 * planned.output_size_in_bytes
                if needed <= USABLE * free:
                    break
                most = min(max(int(chunk * USABLE * free / needed), 1), chunk - 1)
                chunk = math.ceil(rows / math.ceil(rows / most))  # equal chunks: one for the rest needs its own program
            self.chunks[program] = chunk
        return self.chunks[program]

    def _one_by_one(self, call: Call, values: Any, stacked: Any) -> dict[str, Any]:
        outputs = []
        for row, client in enumerate(call.clients):
            own = jax.tree.map(lambda leaf, row=row: jnp.asarray(leaf[row]), stacked)
            local = partial(DebugLocal, name=self.federations[call.federation].names[client])
            with jax.disable_jit():
                outputs.append(run_one(call.task, call.algorithm, call.model, self.pool, values, own, local))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)

    def _home(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """The outputs where the server works on them."""
        if not self.everywhere.is_fully_addressable:
            outputs = jax.tree.map(lambda leaf: leaf.addressable_data(0), self._gather(outputs))
        return jax.device_put(outputs, jax.local_devices()[0]) if self.settings.canonical else outputs


def place(values: Any, sharding: Sharding) -> Any:
    """An array where it belongs, of one process or of several that all hold it."""
    if getattr(values, "sharding", None) == sharding:  # JAX, too, would move nothing, but take its time
        return values
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    host = np.asarray(values)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def free_memory(devices: Sequence[Any]) -> float:
    """Bytes that are free on the fullest of `devices`, of all processes; infinite where nobody counts them (CPUs)."""
    counts = [device.memory_stats() or {} for device in devices]
    free = min(count.get("bytes_limit", math.inf) - count.get("bytes_in_use", 0) for count in counts)
    return float(process_allgather(np.asarray(free)).min()) if jax.process_count() > 1 else free


def _interleaved(rows: Sequence[Any]) -> Any:
    """Row r of every call next to each other: every device gets its share of each, longest first where each has so."""

    def together(*leaves: Any) -> Any:
        stack = np.stack if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp.stack
        return stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])

    return jax.tree.map(together, *rows)


def _parted(outputs: Any, calls: int) -> list[Any]:
    """The outputs of each of `calls` interleaved calls."""
    return [
        jax.tree.map(lambda leaf, n=n: leaf.reshape(-1, calls, *leaf.shape[1:])[:, n], outputs) for n in range(calls)
    ]
