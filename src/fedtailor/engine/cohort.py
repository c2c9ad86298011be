"""How all clients of a cohort run: one client's function mapped over the cohort, sharded over the devices."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int
from numpy.typing import NDArray

from fedtailor.engine.data import Brief, Pool
from fedtailor.engine.local import DeviceLocal
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, Inbox

Task = Literal["probe", "client", "enroll", "personal", "evaluate"]
"""Which of the algorithm's client functions to run; "evaluate" = `personal`, then losses and hits on val and test."""

AXIS = "clients"


def client_task(task: Task, algorithm: Algorithm, state: Any, inbox: Inbox, local: DeviceLocal) -> Any:
    """One client's part: what `task` yields, for one client. A dict of pytrees."""
    if task == "probe":
        return {"up": algorithm.probe(inbox, local)}
    if task == "client":
        new, up = algorithm.client(state, inbox, local)
        return {"state": new, "up": up}
    if task == "enroll":
        return {"state": algorithm.enroll(inbox, local)}
    predictor = algorithm.personal(state, inbox, local)
    if task == "personal":
        return {"predictor": predictor}
    before = local.tally
    scores = {split: jnp.stack(local.scores(predictor, split)) for split in ("val", "test")}
    local.tally = before  # looking at a model is not work of the method
    return {"scores": scores}


def finite(tree: Any) -> Array:
    """Whether every floating-point leaf is finite (one bool)."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.stack(leaves).all() if leaves else jnp.array(True)


@partial(jax.jit, static_argnames=("task", "model", "mesh", "chunk"))
def map_clients(
    task: Task,
    algorithm: Algorithm,
    model: Model,
    mesh: Mesh,
    chunk: int,
    pool: Pool,
    values: dict[str, Array],
    briefs: Brief,
    states: Any,
    note: dict[str, Array],
) -> dict[str, Any]:
    """`client_task` for all clients of a cohort [c] (c a multiple of the mesh's devices), outputs stacked [c, ...].

    Streams (`values`) exist once on every device; each client gathers its own rows. One program serves every round,
    seed, learning rate, number of epochs and distribution of client sizes of the same shapes.
    """
    everywhere, clients = PartitionSpec(), PartitionSpec(AXIS)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(everywhere, everywhere, everywhere, clients),
        out_specs=clients,
        check_vma=False,
    )
    def shard(algorithm: Algorithm, pool: Pool, values: dict[str, Array], rows: Any) -> Any:
        one = partial(run_one, task, algorithm, model, pool, values)
        return jax.lax.map(one, rows) if chunk == 1 else jax.lax.map(one, rows, batch_size=chunk)

    return shard(algorithm, pool, values, (briefs, states, note))


def run_one(
    task: Task,
    algorithm: Algorithm,
    model: Model,
    pool: Pool,
    values: dict[str, Array],
    row: tuple[Brief, Any, dict[str, Array]],
    local_type: Callable[..., DeviceLocal] = DeviceLocal,
) -> dict[str, Any]:
    """One client of `map_clients`: its outputs and a report [3]: two numbers of work, whether all is finite."""
    brief, state, note = row
    local = local_type(model, pool, brief.slot, brief.round)
    got = {kind: places >= 0 for kind, places in brief.to.items()}
    inbox = Inbox({kind: _receive(values[kind], places) for kind, places in brief.to.items()}, got, note, brief.reply)
    out = client_task(task, algorithm, state, inbox, local)
    return {**out, "report": jnp.append(local.tally, finite(out).astype(jnp.int32))}


def _receive(values: Array, places: Int[Array, " k"]) -> Array:
    rows = values[jnp.maximum(places, 0)]
    return jnp.where((places >= 0).reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.zeros((), rows.dtype))


def deal(work: NDArray[np.int64], devices: int, by_work: bool) -> NDArray[np.int64]:
    """An order of clients [c] in which equal contiguous shards, one a device, hold about equal work.

    Longest first, dealt back and forth; padding (c rounded up to a multiple of `devices`) stays at the end. Inside a
    shard clients keep their order, or stand longest first (`by_work`), so that chunks waste little.
    """
    clients = len(work)
    if devices == 1 or clients == 0 or work.min() == work.max():
        return np.argsort(-work, kind="stable") if by_work else np.arange(clients)
    rows = -(-clients // devices)
    room = np.clip(clients - rows * np.arange(devices), 0, rows)
    turn = np.arange(rows)[:, None]
    device = np.where(turn % 2 == 0, np.arange(devices), np.arange(devices)[::-1])
    places = device[turn < room[device]]  # [c]: the device of the n-th longest client
    longest = np.argsort(-work, kind="stable")
    shards = [longest[places == d] for d in range(devices)]
    return np.concatenate(shards if by_work else [np.sort(shard) for shard in shards])
