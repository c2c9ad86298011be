"""How all clients of a cohort run: one client's function mapped over the cohort, sharded over the devices."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int
from numpy.typing import NDArray

from fedtailor.client.pool import Pool
from fedtailor.client.tasks import all_finite, client_task
from fedtailor.client.trainer import DeviceTrainer
from fedtailor.executors.packing import PackedInputs
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, BatchMetric, Inbox, Pipeline, Task, receive

AXIS = "clients"

Pipelines = tuple[Pipeline, Pipeline]
"""What is applied to messages up, and what was applied to messages down."""


@partial(jax.jit, static_argnames=("task", "model", "mesh", "chunk", "metrics"))
def map_clients(
    task: Task,
    algorithm: Algorithm,
    pipelines: Pipelines,
    model: Model,
    mesh: Mesh,
    chunk: int,
    pool: Pool,
    values: dict[str, Array],
    inputs: PackedInputs,
    states: Any,
    scalars: dict[str, Array],
    metrics: tuple[BatchMetric, ...] = (),
) -> dict[str, Any]:
    """`client_task` for all clients of a cohort [c] (c a multiple of the mesh's devices), outputs stacked [c, ...].

    Streams (`values`) exist once on every device; each client gathers its own rows. One program serves every round,
    seed, learning rate, number of epochs and distribution of client sizes of the same shapes.
    """
    everywhere, clients = PartitionSpec(), PartitionSpec(AXIS)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(everywhere, everywhere, everywhere, everywhere, clients),
        out_specs=clients,
        check_vma=False,
    )
    def shard(algorithm: Algorithm, pipelines: Pipelines, pool: Pool, values: dict[str, Array], rows: Any) -> Any:
        one = partial(run_one, task, algorithm, pipelines, model, pool, values, metrics=metrics)
        return jax.lax.map(one, rows) if chunk == 1 else jax.lax.map(one, rows, batch_size=chunk)

    return shard(algorithm, pipelines, pool, values, (inputs, states, scalars))


def run_one(
    task: Task,
    algorithm: Algorithm,
    pipelines: Pipelines,
    model: Model,
    pool: Pool,
    values: dict[str, Array],
    row: tuple[PackedInputs, Any, dict[str, Array]],
    trainer: Callable[..., DeviceTrainer] = DeviceTrainer,
    metrics: tuple[BatchMetric, ...] = (),
) -> dict[str, Any]:
    """One client of `map_clients`: its outputs and done [3]: two numbers of work, whether all is finite."""
    inputs, state, scalars = row
    local = trainer(model, pool, inputs.address, inputs.round)
    received = {kind: places >= 0 for kind, places in inputs.recipients.items()}
    received_values = {kind: _receive(values[kind], places) for kind, places in inputs.recipients.items()}
    inbox = Inbox(received_values, received, scalars, inputs.reply)
    uplink, received_through = pipelines
    out = client_task(task, algorithm, uplink, state, receive(received_through, inbox), local, metrics)
    return {**out, "done": jnp.append(local.work, all_finite(out).astype(jnp.int32))}


def _receive(values: Array, places: Int[Array, " k"]) -> Array:
    rows = values[jnp.maximum(places, 0)]
    return jnp.where((places >= 0).reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.zeros((), rows.dtype))


def balanced_order(work: NDArray[np.int64], devices: int, by_work: bool) -> NDArray[np.int64]:
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
