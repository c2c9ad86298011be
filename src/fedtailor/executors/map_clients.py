"""How all clients of a cohort run: one client's function mapped over the cohort,
sharded over the devices.

The server sends messages of several *kinds* ("model", "control", ...). The s different
arrays of one kind are its *streams* [s, ...]; each device stores all of them once. A client
receives k of them, as numbers in 0..s - 1 or -1 for none. Its *address* says where its
examples are in the pool of all examples, and holds its random keys. A *row* is the place of
a client on the leading axis c of a program's arrays: first come the clients of the cohort,
in an order that balances the devices, then padding. Clients that are asked to *reply*
report to the server; the others run the same program, and what they compute is ignored.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

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

ClientInputs = tuple[PackedInputs, ClientState, dict[str, Array]]
"""Of one client, or stacked over a cohort: integers, state, and scalars by name."""


class Pipelines(NamedTuple):
    """The transforms of messages in both directions.

    Attributes:
        uplink: what clients apply to their updates before they send them.
        downlink: what the server has applied to its message, and clients undo.
    """

    uplink: Pipeline
    downlink: Pipeline


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

    Each client gathers the streams that it receives. One program serves every round,
    seed, learning rate, number of epochs and distribution of client sizes of the same
    shapes.

    Args:
        task: what the clients do.
        algorithm: whose functions they run.
        pipelines: the transforms of messages.
        model: what is trained.
        mesh: the devices; its one axis is `AXIS`.
        chunk: clients trained at once on one device.
        pool: the examples of all clients.
        values: kind -> streams [s, ...].
        inputs: the clients' addresses, the round, and the numbers of the streams that
            they receive, packed into one array with a leading axis c.
        states: the clients' states; every leaf is [c, ...].
        scalars: name -> a number for each client [c].
        metrics: what "evaluate" measures.

    Returns:
        The outputs of `run_one`, stacked: every leaf is [c, ...] and sharded over the
            mesh.
    """
    # Hyper-parameters, examples and streams are on every device; only the clients are
    # divided.
    everywhere, divided = PartitionSpec(), PartitionSpec(AXIS)

    # Without `check_vma`, which refuses a loop whose carry starts as a constant (a sum at
    # zero) and then differs between devices (the sum over a client's batches).
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(everywhere, everywhere, everywhere, everywhere, divided),
        out_specs=divided,
        check_vma=False,
    )
    def run_shard(
        algorithm: Algorithm,
        pipelines: Pipelines,
        pool: Pool,
        values: dict[str, Array],
        clients: ClientInputs,
    ) -> Outputs:
        def run_client(client: ClientInputs) -> Outputs:
            return run_one(
                task,
                algorithm,
                pipelines,
                model,
                pool,
                values,
                client,
                metrics=metrics,
            )

        # One client at a time is a plain loop: under vmap, matrix products become
        # batched ones, which are slower even for a batch of one.
        batch_size = None if chunk == 1 else chunk
        return jax.lax.map(run_client, clients, batch_size=batch_size)

    return run_shard(algorithm, pipelines, pool, values, (inputs, states, scalars))


def run_one(
    task: Task,
    algorithm: Algorithm,
    pipelines: Pipelines,
    model: Model,
    pool: Pool,
    values: dict[str, Array],
    client: ClientInputs,
    trainer: Callable[..., DeviceTrainer] = DeviceTrainer,
    metrics: tuple[BatchMetric, ...] = (),
) -> Outputs:
    """What one client of `map_clients` does.

    Args:
        client: its inputs, state and scalars; all else is as for `map_clients`.
        trainer: makes its `DeviceTrainer`.

    Returns:
        The outputs of `client_task`, and "work_and_finite" [3], integers: how many
        gradients and how many forward passes of single examples were computed, and 1 if
        all other outputs are finite, else 0.
    """
    # Down: the packed numbers become an inbox, on which the server's pipeline is undone.
    # Then the client's part of the algorithm, and the pipeline up (`client_task`).
    inputs, state, scalars = client
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
    inbox = receive(pipelines.downlink, inbox)
    outputs = client_task(
        task, algorithm, pipelines.uplink, state, inbox, local, metrics
    )
    # One array of three numbers, as every output is moved to the host separately.
    is_finite = all_finite(outputs).astype(jnp.int32)
    return {**outputs, "work_and_finite": jnp.append(local.context.work, is_finite)}


def _gather(values: Array, streams: Int[Array, " k"]) -> Array:
    """The streams [k, ...] that a client receives; zeros where the number is -1."""
    received = values[jnp.maximum(streams, 0)]
    is_sent = along_axis(streams >= 0, 0, received.ndim)
    return jnp.where(is_sent, received, jnp.zeros((), received.dtype))


def balanced_order(
    work: NDArray[np.int64], devices: int, by_work: bool
) -> NDArray[np.int64]:
    """An order of clients in which contiguous shards of equal length, one for each
    device, hold about equal work.

    It is a snake draft, as teams are picked: the clients, longest first, go to devices
    0, 1, 2, then 2, 1, 0, then 0, 1, 2, and so on. Where c is no multiple of `devices`
    the last shards hold fewer clients, and padding, which follows the c clients.

    Example: work [5, 9, 1, 7, 3] on 2 devices, which take 3 and 2 clients. Longest first
    these are clients 1, 3, 0, 4, 2. They go to devices 0, 1 | 1, 0 | 0. So device 0 has
    clients 1, 4, 2 (work 13) and device 1 has clients 3, 0 (work 12). The result is
    [1, 4, 2, 3, 0] with `by_work`, else [1, 2, 4, 0, 3].

    Args:
        work: [c] what each client will do, in any unit.
        devices: the number of shards.
        by_work: whether the clients of a shard are sorted longest first, so that chunks
            waste little; else they keep their order.

    Returns:
        [c] the client of each row.
    """
    clients = len(work)
    is_balanced = devices == 1 or clients == 0 or work.min() == work.max()
    if is_balanced and not by_work:
        return np.arange(clients)
    longest_first = np.argsort(-work, kind="stable")
    if is_balanced:
        return longest_first
    rows_per_shard = -(-clients // devices)  # rounded up
    capacity = np.clip(clients - rows_per_shard * np.arange(devices), 0, rows_per_shard)
    # In every pass each device that is not full gets one client.
    pass_index = np.arange(rows_per_shard)[:, None]
    forwards = np.arange(devices)
    is_forwards = pass_index % 2 == 0
    device_at = np.where(is_forwards, forwards, forwards[::-1])  # [pass, pick]
    has_room = pass_index < capacity[device_at]
    # Pass after pass, without the full devices: [c] the device of each of
    # `longest_first`.
    device_of = device_at[has_room]
    shards = [longest_first[device_of == device] for device in range(devices)]
    if not by_work:
        shards = [np.sort(shard) for shard in shards]
    return np.concatenate(shards)
