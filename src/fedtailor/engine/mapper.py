"""One exchange with a cohort: ship what the clients need, run one task on all of them, bring the outputs back."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from fedtailor.engine.cohort import AXIS, Task, deal, map_clients, run_one
from fedtailor.engine.data import Brief, build_pool
from fedtailor.engine.debug import DebugLocal
from fedtailor.engine.errors import Diverged
from fedtailor.engine.settings import Settings
from fedtailor.federation import Federation
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, Cohort, Down, client_keys

FIXED = 2**63
"""The round that keys what a client draws once for all rounds."""


@dataclass(frozen=True)
class Outputs:
    """What a task yielded: stacked outputs [c', ...] (c' >= c), who was to answer [c], and the work done."""

    values: dict[str, Any]
    report: NDArray[np.bool_]
    gradients: int
    forwards: int


class Mapper:
    """Runs client tasks on a federation's clients, which are addressed by their place in the federation."""

    def __init__(self, federation: Federation, model: Model, seed: int, settings: Settings) -> None:
        self.federation, self.model, self.seed, self.settings = federation, model, seed, settings
        self.mesh = settings.mesh()
        pool, self.start, self.size = build_pool(federation, model.dtype)
        self.everywhere, self.sharded = (NamedSharding(self.mesh, PartitionSpec(*axes)) for axes in ((), (AXIS,)))
        self._everywhere = jax.jit(lambda outputs: outputs, out_shardings=self.everywhere)
        self.pool = jax.tree.map(lambda leaf: place(leaf, self.everywhere), pool)
        self.fixed = client_keys(seed, FIXED, federation.ids)
        self._shipped: tuple[Any, Any] = (None, None)

    def order(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The order in which to list `clients` (places in the federation) in a cohort, for equal loads."""
        if self.settings.canonical or self.settings.debug:
            return np.arange(len(clients))
        return deal(self.size[clients, 0].astype(np.int64), self.mesh.size, self.settings.chunk_size() > 1)

    def padded(self, clients: int) -> int:
        """Rows of a cohort of `clients`, rounded up to whole shards."""
        return -(-clients // self.mesh.size) * self.mesh.size

    def run(
        self, task: Task, algorithm: Algorithm, cohort: Cohort, clients: NDArray[np.int64], states: Any, down: Down
    ) -> Outputs:
        """`task` on `clients` (places in the federation, in cohort order); `states` has `padded` rows.

        Raises:
            Diverged: a client's output is NaN or infinite.
        """
        count, padded = len(clients), self.padded(len(clients))
        key = client_keys(self.seed, cohort.round, cohort.ids)
        slots = (self.start[clients], self.size[clients], key, self.fixed[clients])
        report = cohort.report & np.asarray(down.reply, bool)
        to = {kind: sent.to for kind, sent in down.sent.items()}
        briefs = Brief.pack(padded, slots, cohort.round, report, to)
        values = {kind: place(sent.values, self.everywhere) for kind, sent in down.sent.items()}
        note = {name: self._note(value, count, padded) for name, value in down.note.items()}
        briefs, states, note = jax.tree.map(self._rows, (briefs, states, note))
        if self.settings.debug:
            outputs = self._one_by_one(task, algorithm, clients, values, (briefs, states, note))
        else:
            chunk = self.settings.chunk_size()
            outputs = map_clients(
                task, self._numbers(algorithm), self.model, self.mesh, chunk, self.pool, values, briefs, states, note
            )
        if not self.everywhere.is_fully_addressable:
            outputs = jax.tree.map(lambda leaf: leaf.addressable_data(0), self._everywhere(outputs))
        done = np.asarray(outputs.pop("report"))[:count]
        self._check(task, done[:, 2], clients, cohort.round)
        if self.settings.canonical:
            outputs = jax.device_put(outputs, jax.local_devices()[0])
        gradients, forwards = done[:, :2].sum(axis=0, dtype=np.int64)
        return Outputs(outputs, report, int(gradients), int(forwards))

    def _rows(self, values: Any) -> Any:
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

    def _note(self, value: Any, count: int, padded: int) -> NDArray:
        """A note's numbers [padded]; padding is zero."""
        value = np.asarray(value)
        row = np.zeros(padded, np.int32 if value.dtype.kind in "iub" else self.model.dtype)
        row[:count] = value
        return row

    def _one_by_one(
        self, task: Task, algorithm: Algorithm, clients: NDArray[np.int64], values: Any, stacked: Any
    ) -> dict[str, Any]:
        outputs = []
        for place, client in enumerate(clients):
            row = jax.tree.map(lambda leaf, place=place: jnp.asarray(leaf[place]), stacked)

            def local(*arguments: Any, name: str = self.federation.names[client]) -> DebugLocal:
                return DebugLocal(*arguments, name=name)

            with jax.disable_jit():
                outputs.append(run_one(task, algorithm, self.model, self.pool, values, row, local))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)

    def _check(self, task: Task, finite: NDArray[np.int32], clients: NDArray[np.int64], round: int) -> None:
        if not finite.all():
            doing = {"client": "training", "probe": "the probe"}.get(task, "the personal model")
            raise Diverged(self.federation.names[clients[int(np.argmin(finite))]], round, doing=doing)


def place(values: Any, sharding: Sharding) -> Any:
    """An array where it belongs, of one process or of several that all hold it."""
    if getattr(values, "sharding", None) == sharding:  # JAX, too, would move nothing, but take its time
        return values
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    host = np.asarray(values)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
