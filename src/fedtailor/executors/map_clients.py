"""How all clients of a cohort run: one client's function mapped over the cohort,
sharded over the devices.
"""

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
from fedtailor.client.tasks import Outputs, all_finite, client_task
from fedtailor.client.trainer import DeviceTrainer
from fedtailor.executors.packing import PackedInputs
from fedtailor.models import Model
from fedtailor.protocol import (
    Algorithm,
    BatchMetric,
    ClientState,
    Inbox,
    Pipeline,
    Task,
    along_axis,
    receive,
)

AXIS = "clients"
"""The axis of the mesh of devices."""

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
    states: ClientState,
    scalars: dict[str, Array],
    metrics: tuple[BatchMetric, ...] = (),
) -> Outputs:
    """`client_task` for all clients of a cohort [c], where c is a multiple of the
    mesh's devices.

    Streams (`values`) exist once on every device; each client gathers its own rows. One
    program serves every round, seed, learning rate, number of epochs and distribution
    of client sizes of the same shapes.

    Args:
        task: what the clients do.
        algorithm: whose functions they run.
        pipelines: the transforms of messages.
        model: what is trained.
        mesh: the devices; its one axis is `AXIS`.
        chunk: clients trained at once on one device.
        pool: the examples of all clients.
        values: kind -> streams [s, ...].
        inputs: addresses, round and recipients, [c, w].
        states: the clients' states; every leaf is [c, ...].
        scalars: name -> a number for each client [c].
        metrics: what "evaluate" measures.

    Returns:
        The outputs of `run_one`, stacked: every leaf is [c, ...] and sharded over the
            mesh.
    """
    # Hyper-parameters, examples and streams are on every device; only the rows of the
    # cohort are divided.
    everywhere, clients = PartitionSpec(), PartitionSpec(AXIS)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(everywhere, everywhere, everywhere, everywhere, clients),
        out_specs=clients,
        check_vma=False,
    )
    def shard(
        algorithm: Algorithm,
        pipelines: Pipelines,
        pool: Pool,
        values: dict[str, Array],
        rows: Any,
    ) -> Any:
        one = partial(
            run_one, task, algorithm, pipelines, model, pool, values, metrics=metrics
        )
        # Without a batch size `lax.map` does not vmap, whose batched products are slower
        # even for a batch of one.
        return jax.lax.map(one, rows, batch_size=None if chunk == 1 else chunk)

    return shard(algorithm, pipelines, pool, values, (inputs, states, scalars))


def run_one(
    task: Task,
    algorithm: Algorithm,
    pipelines: Pipelines,
    model: Model,
    pool: Pool,
    values: dict[str, Array],
    row: tuple[PackedInputs, ClientState, dict[str, Array]],
    trainer: Callable[..., DeviceTrainer] = DeviceTrainer,
    metrics: tuple[BatchMetric, ...] = (),
) -> Outputs:
    """One client of `map_clients`.

    Args:
        row: the client's inputs, state and scalars; all else is as for `map_clients`.
        trainer: makes the client's `DeviceTrainer`.

    Returns:
        The outputs of `client_task`, and "done" [3]: gradients, forward passes, whether
        all outputs are finite.
    """
    # Down: the packed numbers become an inbox, on which the server's pipeline is undone.
    # Then the client's part of the algorithm, and the pipeline up (`client_task`).
    inputs, state, scalars = row
    local = trainer(model, pool, inputs.address, inputs.round)
    inbox = Inbox(
        values={
            kind: _gather(values[kind], streams)
            for kind, streams in inputs.recipients.items()
        },
        received={kind: streams >= 0 for kind, streams in inputs.recipients.items()},
        scalars=scalars,
        reply=inputs.reply,
    )
    uplink, received_through = pipelines
    inbox = receive(received_through, inbox)
    out = client_task(task, algorithm, uplink, state, inbox, local, metrics)
    done = jnp.append(local.context.work, all_finite(out).astype(jnp.int32))
    return {**out, "done": done}


def _gather(values: Array, streams: Int[Array, " k"]) -> Array:
    """The streams [k, ...] that a client receives; zeros where the number is -1."""
    rows = values[jnp.maximum(streams, 0)]
    is_sent = along_axis(streams >= 0, 0, rows.ndim)
    return jnp.where(is_sent, rows, jnp.zeros((), rows.dtype))


def balanced_order(
    work: NDArray[np.int64], devices: int, by_work: bool
) -> NDArray[np.int64]:
    """An order of clients in which equal contiguous shards, one a device, hold about
    equal work.

    Clients go to the devices longest first, from the first device to the last and back
    again (as teams are picked); padding (c rounded up to a multiple of `devices`) stays
    at the end.

    Args:
        work: [c] what each client will do, in any unit.
        devices: the number of shards.
        by_work: whether clients stand longest first inside a shard, so that chunks
            waste little; else they keep their order.

    Returns:
        [c] the client of each row.
    """
    clients = len(work)
    as_given = devices == 1 or clients == 0 or work.min() == work.max()
    if as_given and not by_work:
        return np.arange(clients)
    longest_first = np.argsort(-work, kind="stable")
    if as_given:
        return longest_first
    rows = -(-clients // devices)
    # The last shards have fewer clients: the rest of their rows is padding.
    capacity = np.clip(clients - rows * np.arange(devices), 0, rows)
    # In each pass every device that has room gets one client. Every second pass goes
    # backwards, as the first client of a pass is its longest.
    number = np.arange(rows)[:, None]
    forwards = np.arange(devices)
    passes = np.where(number % 2 == 0, forwards, forwards[::-1])  # [pass, position]
    device_of = passes[number < capacity[passes]]  # [c]: of the n-th longest client
    shards = [longest_first[device_of == device] for device in range(devices)]
    return np.concatenate(shards if by_work else [np.sort(shard) for shard in shards])
