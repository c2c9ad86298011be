"""How all clients of a cohort run: one client's function mapped over the cohort,
sharded over the devices.

The server sends messages of several *kinds* ("model", "control", ...). The s different
arrays of one kind are its *streams* [s, ...]; each device stores all of them once. A client
receives k of them, given by k numbers in 0..s - 1, or -1 for none. The *address* of a client
says where its examples are in the pool of all examples, and holds its random keys.

The arrays of a program have r *rows* on their leading axis, one for each client. The rows of
the cohort come first, in an order that balances the devices, then rows of padding. Clients
that are asked to *reply* report to the server; the others run the same program, and their
results are ignored.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, Shaped
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


class Program(NamedTuple):
    """What a program is compiled for: the static arguments of `map_clients`.

    Attributes:
        task: what the clients do.
        model: what is trained.
        metrics: what the task "evaluate" measures.
        mesh: the devices; its one axis is `AXIS`.
        chunk: the number of clients that a device trains at the same time.
    """

    task: Task
    model: Model
    metrics: tuple[BatchMetric, ...]
    mesh: Mesh
    chunk: int


class ClientInputs(NamedTuple):
    """The inputs of one client; or of all clients of a program, with a leading axis r.

    Attributes:
        packed: its address, the round, and the numbers of the streams that it receives.
        state: its states of the algorithm and of the uplink.
        scalars: name -> a number that it receives.
    """

    packed: PackedInputs
    state: ClientState
    scalars: dict[str, Any]


class Pipelines(NamedTuple):
    """The transforms of messages in both directions.

    Attributes:
        uplink: what clients apply to their updates before they send them.
        downlink: what the server has applied to its message, and clients undo.
    """

    uplink: Pipeline
    downlink: Pipeline


@partial(jax.jit, static_argnames="program")
def map_clients(
    program: Program,
    algorithm: Algorithm,
    pipelines: Pipelines,
    pool: Pool,
    streams: dict[str, Array],
    clients: ClientInputs,
) -> Outputs:
    """Run `client_task` for all clients of a cohort.

    Each client gathers the streams that it receives. One program serves every round,
    seed, learning rate, number of epochs and distribution of client sizes, if the shapes
    are the same.

    Args:
        program: what is compiled into the program.
        algorithm: the method whose functions the clients run.
        pipelines: the transforms of messages.
        pool: the examples of all clients.
        streams: kind of message -> its streams [s, ...].
        clients: the inputs of the clients; every leaf is [r, ...], where r is a multiple
            of the number of devices.

    Returns:
        The outputs of `run_one`, stacked: every leaf is [r, ...] and sharded over the
        mesh.
    """
    # Hyper-parameters, examples and streams are on every device; only the clients are
    # divided among the devices.
    replicated, sharded = PartitionSpec(), PartitionSpec(AXIS)

    # Without `check_vma`, which refuses a loop whose carry starts as a constant (a sum at
    # zero) and then differs between devices (the sum over a client's batches).
    @partial(
        jax.shard_map,
        mesh=program.mesh,
        in_specs=(replicated, replicated, replicated, replicated, sharded),
        out_specs=sharded,
        check_vma=False,
    )
    def run_shard(
        algorithm: Algorithm,
        pipelines: Pipelines,
        pool: Pool,
        streams: dict[str, Array],
        clients: ClientInputs,
    ) -> Outputs:
        def run_client(client: ClientInputs) -> Outputs:
            return run_one(
                program.task,
                algorithm,
                pipelines,
                program.model,
                pool,
                streams,
                client,
                metrics=program.metrics,
            )

        # One client at a time is a plain loop: under vmap, matrix products become
        # batched ones, which are slower even for a batch of one.
        batch_size = None if program.chunk == 1 else program.chunk
        return jax.lax.map(run_client, clients, batch_size=batch_size)

    return run_shard(algorithm, pipelines, pool, streams, clients)


def run_one(
    task: Task,
    algorithm: Algorithm,
    pipelines: Pipelines,
    model: Model,
    pool: Pool,
    streams: dict[str, Array],
    client: ClientInputs,
    trainer: Callable[..., DeviceTrainer] = DeviceTrainer,
    metrics: tuple[BatchMetric, ...] = (),
) -> Outputs:
    """Run `client_task` for one client.

    Args:
        task: what the client does.
        algorithm, pipelines, pool, streams: as for `map_clients`.
        model: what is trained.
        client: the inputs of the client.
        trainer: makes the client's `DeviceTrainer`.
        metrics: what the task "evaluate" measures.

    Returns:
        The outputs of `client_task`, and "work_status" [3], integers: the number of
        gradients and of forward passes of single examples that were computed, and 1 if
        all other outputs are finite, else 0.
    """
    # The packed numbers become an inbox, from which the transforms of the downlink are
    # undone. `client_task` then runs the client's part of the algorithm and applies the
    # transforms of the uplink.
    inputs, state, scalars = client
    local = trainer(model, pool, inputs.address, inputs.round)
    inbox = Inbox(
        values={
            kind: _gather(streams[kind], numbers)
            for kind, numbers in inputs.recipients.items()
        },
        received={kind: numbers >= 0 for kind, numbers in inputs.recipients.items()},
        scalars=scalars,
        reply=inputs.reply,
    )
    inbox = receive(pipelines.downlink, inbox)
    outputs = client_task(
        task, algorithm, pipelines.uplink, state, inbox, local, metrics
    )
    # One array of three numbers, because every output is moved to the host separately.
    is_finite = all_finite(outputs).astype(jnp.int32)
    return {**outputs, "work_status": jnp.append(local.context.work, is_finite)}


def _gather(streams: Shaped[Array, "s ..."], numbers: Int[Array, " k"]) -> Array:
    """Gather the streams [k, ...] that a client receives; zeros if the number is -1."""
    received = streams[jnp.maximum(numbers, 0)]
    is_sent = along_axis(numbers >= 0, 0, received.ndim)
    return jnp.where(is_sent, received, jnp.zeros((), received.dtype))


def balanced_order(
    work: NDArray[np.int64], devices: int, longest_first: bool
) -> NDArray[np.int64]:
    """Order clients so that contiguous shards of equal length, one for each device, hold
    about equal work.

    The clients are dealt out in a snake draft: sorted by work, longest first, they go to
    devices 0, 1, 2, then 2, 1, 0, then 0, 1, 2, and so on. If c is no multiple of
    `devices`, the last shards hold fewer clients; the program pads them.

    Example: work [5, 9, 1, 7, 3] on 2 devices, which take 3 and 2 clients. Longest first
    these are clients 1, 3, 0, 4, 2. They go to devices 0, 1 | 1, 0 | 0. So device 0 has
    clients 1, 4, 2 (work 13) and device 1 has clients 3, 0 (work 12). The result is
    [1, 4, 2, 3, 0] with `longest_first`, else [1, 2, 4, 0, 3].

    Args:
        work: [c] what each client will compute, in any unit.
        devices: the number of shards.
        longest_first: whether the clients of a shard are sorted by work, so that chunks
            of clients waste little time; else they keep their order.

    Returns:
        [c] the client of each row.
    """
    clients = len(work)
    is_balanced = devices == 1 or clients == 0 or work.min() == work.max()
    if is_balanced and not longest_first:
        return np.arange(clients)
    by_work = np.argsort(-work, kind="stable")
    if is_balanced:
        return by_work
    rows_per_shard = math.ceil(clients / devices)
    unassigned = iter(by_work.tolist())
    shards: list[list[int]] = [[] for _ in range(devices)]
    for deal in range(rows_per_shard):
        forward = range(devices)
        for device in forward if deal % 2 == 0 else reversed(forward):
            # The last shards may be full earlier: there are only c rows.
            if device * rows_per_shard + deal < clients:
                shards[device].append(next(unassigned))
    ordered = shards if longest_first else map(sorted, shards)
    return np.fromiter(chain.from_iterable(ordered), np.int64, clients)
