"""How all clients of a cohort run: one client's function mapped over the cohort,
sharded over the devices.

The arrays of a program have one row for each client on their leading axis: first the
clients of the cohort, in an order that balances the devices, then rows of padding. All
clients run the same program; results of padding, and of clients that are not asked to
answer, are ignored.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Shaped
from numpy.typing import NDArray

from fedtailor.engine.client.pool import Pool
from fedtailor.engine.client.tasks import Outputs, all_finite, client_task
from fedtailor.engine.client.trainer import DeviceTrainer
from fedtailor.engine.executors.packing import PackedInputs
from fedtailor.models import Model
from fedtailor.models.frozen_arrays import placed
from fedtailor.protocol import (
    PRIVATE_STEPS,
    Algorithm,
    BatchMetric,
    ClientState,
    ClientTask,
    Inbox,
    Pipeline,
    along_axis,
    receive,
)

AXIS = "clients"
"""The axis of the mesh of devices."""


class AddedSum(NamedTuple):
    """Weighted sums over the clients of a program of one array that each of them sends.

    Attributes:
        kind: of the message.
        place: if each client sends several arrays of this kind, which of them; None = it
            sends one.
        streams: the number of sums, s.
        shape: of the array.
        dtype: of the sums.
    """

    kind: str
    place: int | None
    streams: int
    shape: tuple[int, ...]
    dtype: str


class Program(NamedTuple):
    """What a program is compiled for: the static arguments of `map_clients`.

    Attributes:
        task: what the clients do.
        model: what is trained.
        metrics: what the task "evaluate" measures.
        mesh: the devices; its one axis is `AXIS`.
        chunk: the number of clients that a device trains at the same time.
        mode: `Downlink.mode`.
        own_examples: whether each device has the examples of its own clients only.
        sums: the sums of the clients' messages that take the place of the messages
            themselves; None = the messages are returned.
    """

    task: ClientTask
    model: Model
    metrics: tuple[BatchMetric, ...]
    mesh: Mesh
    chunk: int
    mode: str = ""
    own_examples: bool = False
    sums: tuple[AddedSum, ...] | None = None


class ClientInputs(NamedTuple):
    """The inputs of one client; or of all clients of a program, with a leading axis r.

    Attributes:
        packed: where its examples are among those of all clients, its random keys, the
            round, whether it answers, and the indices of the streams that it receives.
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


class SharedInputs(NamedTuple):
    """The inputs that are the same for all clients; every device holds all of them, except
    for the examples where `Program.own_examples` is set.

    Attributes:
        algorithm: the method whose functions the clients run.
        pipelines: the transforms of messages.
        pool: the examples of all clients.
        streams: kind of message ("model", "control", ...) -> the s different arrays of
            this kind that the server sends, its streams [s, ...].
        frozen: the arrays of the model that no training changes.
    """

    algorithm: Algorithm
    pipelines: Pipelines
    pool: Pool
    streams: dict[str, Array]
    frozen: tuple[Array, ...] = ()


@partial(jax.jit, static_argnames="program")
def map_clients(
    program: Program, shared: SharedInputs, clients: ClientInputs
) -> Outputs:
    """Run `run_client` for all clients of a cohort.

    One program serves every round, seed, learning rate, number of epochs and
    distribution of client sizes, if the shapes are the same.

    Args:
        program: the function that is compiled.
        shared: the inputs that all clients share.
        clients: the inputs of the clients; every leaf is [r, ...], where r is a multiple
            of the number of devices.

    Returns:
        The outputs of `run_client`, stacked: every leaf is [r, ...] and sharded over the
        mesh. With `Program.sums` the messages that are added up are missing, and "sums"
        are the sums [s, ...], in their order and on every device.
    """
    replicated, sharded = PartitionSpec(), PartitionSpec(AXIS)
    pool: Any = replicated
    if program.own_examples:
        # A block of each array for each device.
        blocks = {"x": sharded, "y": sharded, "rows": sharded}
        pool = replace(shared.pool, normalization=replicated, **blocks)
    shared_specs = SharedInputs(
        algorithm=cast(Any, replicated),
        pipelines=cast(Any, replicated),
        pool=pool,
        streams=cast(Any, replicated),
        frozen=cast(Any, replicated),
    )

    # Without `check_vma`, which refuses a loop whose carry starts as a constant (a sum at
    # zero) and then differs between devices (the sum over a client's batches).
    @partial(
        jax.shard_map,
        mesh=program.mesh,
        in_specs=(shared_specs, sharded),
        out_specs=(sharded, replicated),
        check_vma=False,
    )
    def map_shard(
        shared: SharedInputs, clients: ClientInputs
    ) -> tuple[Outputs, tuple[Array, ...]]:
        """Run the clients of one device, and add up what those of all devices send."""
        run = partial(_run_client_of, program, shared)
        # One client at a time is a plain loop: under vmap, matrix products become
        # batched ones, which are slower even for a batch of one.
        if program.sums is None:
            batch_size = None if program.chunk == 1 else program.chunk
            return jax.lax.map(run, clients, batch_size=batch_size), ()
        outputs, sums = _map_and_add(run, program.sums, program.chunk, clients)
        return outputs, jax.lax.psum(sums, AXIS)

    outputs, sums = map_shard(shared, clients)
    return outputs if program.sums is None else {**outputs, "sums": sums}


def _run_client_of(
    program: Program, shared: SharedInputs, client: ClientInputs
) -> Outputs:
    """`run_client` of a program's client."""
    return run_client(
        program.task,
        program.model,
        shared,
        client,
        metrics=program.metrics,
        mode=program.mode,
    )


one_client = jax.jit(_run_client_of, static_argnames="program")
"""The same, for the shapes of its outputs, which JAX remembers for all runs of a process. It
is never compiled.
"""


def _map_and_add(
    run: Callable[[ClientInputs], Outputs],
    sums: tuple[AddedSum, ...],
    chunk: int,
    clients: ClientInputs,
) -> tuple[Outputs, tuple[Array, ...]]:
    """Run the clients of one device, chunk by chunk, and add up what they send.

    Args:
        run: one client's outputs.
        sums: what to add up.
        chunk: the number of clients that run at the same time.
        clients: their inputs [r, ...].

    Returns:
        The outputs [r, ...] without the messages that are added up; and the sums [s, ...].
    """
    totals = tuple(
        jnp.zeros((added.streams, *added.shape), added.dtype) for added in sums
    )

    def add_client(
        totals: tuple[Array, ...], client: ClientInputs
    ) -> tuple[tuple[Array, ...], Outputs]:
        outputs = run(client)
        messages, outputs = _split(outputs)
        return _added(totals, messages, client.packed.weights, sums), outputs

    def add_chunk(
        totals: tuple[Array, ...], clients: ClientInputs
    ) -> tuple[tuple[Array, ...], Outputs]:
        messages, outputs = _split(jax.vmap(run)(clients))
        weights = jax.vmap(lambda packed: packed.weights)(clients.packed)
        return _added(totals, messages, weights, sums), outputs

    if chunk == 1:
        totals, outputs = jax.lax.scan(add_client, totals, clients)
        return outputs, totals
    rows = len(clients.packed.numbers)
    whole = rows // chunk * chunk
    parts = []
    if whole:
        chunks = jax.tree.map(
            lambda leaf: leaf[:whole].reshape(-1, chunk, *leaf.shape[1:]), clients
        )
        totals, outputs = jax.lax.scan(add_chunk, totals, chunks)
        parts.append(
            jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)
        )
    if whole < rows:
        rest = jax.tree.map(lambda leaf: leaf[whole:], clients)
        totals, outputs = add_chunk(totals, rest)
        parts.append(outputs)
    if len(parts) == 1:
        return parts[0], totals
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts), totals


def _split(outputs: Outputs) -> tuple[dict[str, Array], Outputs]:
    """Divide outputs into the messages that the server sees sums of, and the rest. What
    clients count for the accounting of privacy is no such message.
    """
    update = outputs["update"]
    kept = {kind: update[kind] for kind in update if kind == PRIVATE_STEPS}
    return update, {**outputs, "update": kept}


def _added(
    totals: tuple[Array, ...],
    messages: dict[str, Array],
    weights: Array,
    sums: tuple[AddedSum, ...],
) -> tuple[Array, ...]:
    """Sums, and what one client or a chunk of clients adds to them.

    Args:
        totals: the sums so far [s, ...].
        messages: kind -> what they send [...], or [chunk, ...].
        weights: their weights in all sums [w], or [chunk, w].
        sums: what is added up.
    """
    new, first = [], 0
    for total, added in zip(totals, sums, strict=True):
        weight = weights[..., first : first + added.streams].astype(total.dtype)
        first += added.streams
        sent = messages[added.kind]
        if added.place is not None:
            sent = sent[..., added.place, *([slice(None)] * len(added.shape))]
        # What a client without weight has made may be NaN, and 0 * NaN is NaN.
        is_used = (weight != 0).any(axis=-1)
        is_used = is_used.reshape(is_used.shape + (1,) * len(added.shape))
        sent = jnp.where(is_used, sent, 0).astype(total.dtype)
        if weight.ndim == 1:
            total = total + along_axis(weight, 0, total.ndim) * sent
        else:
            # In full precision, also on accelerators that would round to TF32.
            total = total + jnp.tensordot(
                weight, sent, (0, 0), precision=jax.lax.Precision.HIGHEST
            )
        new.append(total)
    return tuple(new)


def run_client(
    task: ClientTask,
    model: Model,
    shared: SharedInputs,
    client: ClientInputs,
    trainer: Callable[..., DeviceTrainer] = DeviceTrainer,
    metrics: tuple[BatchMetric, ...] = (),
    mode: str = "",
) -> Outputs:
    """Run `client_task` for one client.

    Args:
        task: what the client does.
        model: what is trained.
        shared: the inputs that all clients share.
        client: the inputs of this client.
        trainer: makes the client's `DeviceTrainer`.
        metrics: what the task "evaluate" measures.
        mode: `Downlink.mode`.

    Returns:
        The outputs of `client_task`, and "work_status" [3], integers: the number of
        gradients and of forward passes of single examples that were computed, and 1 if
        all other outputs are finite, else 0.
    """
    with placed(model.frozen, shared.frozen):
        return _run_client(task, model, shared, client, trainer, metrics, mode)


def _run_client(
    task: ClientTask,
    model: Model,
    shared: SharedInputs,
    client: ClientInputs,
    trainer: Callable[..., DeviceTrainer],
    metrics: tuple[BatchMetric, ...],
    mode: str,
) -> Outputs:
    """As `run_client`, where the model's frozen arrays are inputs of the program."""
    packed, state, scalars = client
    local = trainer(model, shared.pool, packed.address, packed.round)
    values, received = {}, {}
    for kind, index in packed.stream_index.items():
        is_received = index >= 0
        values[kind] = _gather(shared.streams[kind], index, is_received)
        received[kind] = is_received
    # The transforms of the downlink are undone. `client_task` then runs the client's part
    # of the algorithm and applies the transforms of the uplink.
    inbox = Inbox(values, received, scalars, packed.reply, mode)
    inbox = receive(shared.pipelines.downlink, inbox)
    outputs = client_task(
        task, shared.algorithm, shared.pipelines.uplink, state, inbox, local, metrics
    )
    # One array of three numbers, because every output is moved to the host separately.
    is_finite = all_finite(outputs).astype(jnp.int32)
    return {**outputs, "work_status": jnp.append(local.context.work, is_finite)}


def _gather(
    streams: Shaped[Array, "s ..."],
    index: Int[Array, " k"],
    is_received: Bool[Array, " k"],
) -> Array:
    """Gather the streams [k, ...] that a client receives; zeros where it receives none."""
    # The index of a stream that is not received is negative.
    values = streams[jnp.maximum(index, 0)]
    is_received = along_axis(is_received, 0, values.ndim)
    return jnp.where(is_received, values, jnp.zeros((), values.dtype))


def balanced_order(
    work: NDArray[np.int64], num_devices: int, longest_first: bool
) -> NDArray[np.int64]:
    """Order clients so that contiguous shards of equal length, one for each device, hold
    about equal work.

    The clients are dealt out in a snake draft: sorted by work, longest first, they go to
    devices 0, 1, 2, then 2, 1, 0, then 0, 1, 2, and so on. If c is not a multiple of
    `num_devices`, the last shards hold fewer clients; the program pads them.

    Example: work [5, 9, 1, 7, 3] on 2 devices, which take 3 and 2 clients. Longest first
    these are clients 1, 3, 0, 4, 2. They go to devices 0, 1 | 1, 0 | 0. So device 0 has
    clients 1, 4, 2 (work 13) and device 1 has clients 3, 0 (work 12). The result is
    [1, 4, 2, 3, 0] with `longest_first`, else [1, 2, 4, 0, 3].

    Args:
        work: [c] what each client will compute, in any unit.
        num_devices: the number of shards.
        longest_first: whether the clients of a shard are sorted by work, so that chunks
            of clients waste little time; else they keep their order.

    Returns:
        [c] the client of each row.
    """
    num_clients = len(work)
    is_balanced = num_devices == 1 or num_clients == 0 or work.min() == work.max()
    if is_balanced and not longest_first:
        return np.arange(num_clients)
    by_work = np.argsort(-work, kind="stable")
    if is_balanced:
        return by_work
    # All shards have the same length, so the clients may run out before the last ones
    # are full.
    shard_length = math.ceil(num_clients / num_devices)
    first_rows = shard_length * np.arange(num_devices)
    shard_sizes = np.clip(num_clients - first_rows, 0, shard_length).tolist()
    unassigned = iter(by_work.tolist())
    shards: list[list[int]] = [[] for _ in range(num_devices)]
    for deal in range(shard_length):
        device_order = range(num_devices)[:: 1 if deal % 2 == 0 else -1]
        for device in device_order:
            if deal < shard_sizes[device]:
                shards[device].append(next(unassigned))
    if not longest_first:
        shards = [sorted(shard) for shard in shards]
    return np.array(list(chain.from_iterable(shards)))
