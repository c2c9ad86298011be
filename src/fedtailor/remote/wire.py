"""What travels in an exchange, as named arrays: a client's share of a downlink, its
answer, and what that must be.

stream/KIND    [n, ...] the streams of a kind that this client receives, each once
index/KIND     [k] which of them stands in each of its places, -1 = nothing
scalar/NAME    () a number for this client
known/...      digests of streams that the client holds, in their place (see `held`)
initial        [d] the model that its state starts from, in a later phase of a schedule
update/KIND    what it sends up
scores/...     sums of losses and of correct predictions over its validation and test rows, and their counts
work           [2] gradients and forward passes of single examples
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.client.pool import Pool
from fedtailor.executors.map_clients import run_one
from fedtailor.executors.packing import PackedInputs
from fedtailor.models import Model
from fedtailor.protocol import (
    Algorithm,
    ClientRows,
    Downlink,
    Exchange,
    Streams,
    require,
)
from fedtailor.remote.held import INITIAL, STREAM, digest
from fedtailor.remote.messages import ArraySpec

WORK = "work"
WORK_SPEC = ArraySpec((2,), "int64")


def downlink_arrays(
    downlink: Downlink, dtype: str, clients: int
) -> list[dict[str, np.ndarray]]:
    """For each client of a cohort, what it receives."""
    values = {kind: np.asarray(sent.values) for kind, sent in downlink.streams.items()}
    scalars = {
        name: _scalars(value, dtype, clients)
        for name, value in downlink.scalars.items()
    }
    found = []
    for client in range(clients):
        arrays: dict[str, np.ndarray] = {
            f"scalar/{name}": column[client] for name, column in scalars.items()
        }
        for kind, sent in downlink.streams.items():
            recipients = sent.recipients[client]
            rows = np.unique(recipients[recipients >= 0])
            arrays[STREAM + kind] = values[kind][rows]
            arrays[f"index/{kind}"] = np.where(
                recipients >= 0, np.searchsorted(rows, recipients), -1
            ).astype(np.int32)
        found.append(arrays)
    return found


def downlink_digests(downlink: Downlink, clients: int) -> list[dict[str, list[bytes]]]:
    """The digests of the streams in `downlink_arrays`: for each client, by the array's
    name.
    """
    rows = {
        kind: [digest(row) for row in np.asarray(sent.values)]
        for kind, sent in downlink.streams.items()
    }
    return [
        {
            STREAM + kind: [
                rows[kind][row]
                for row in np.unique(sent.recipients[client])
                if row >= 0
            ]
            for kind, sent in downlink.streams.items()
        }
        for client in range(clients)
    ]


def read_downlink(arrays: Mapping[str, np.ndarray]) -> Downlink:
    """The downlink of a cohort of one, from what that client received.

    Its streams are padded to as many as it has places, so that rounds share compiled
    programs.

    Raises:
        ValueError: the arrays do not describe one.
    """
    streams, scalars = {}, {}
    for name, array in arrays.items():
        part, _, kind = name.partition("/")
        if part == "scalar":
            require(array.ndim == 0, f"the number {kind!r} is an array")
            scalars[kind] = array[()]
        elif part == "stream":
            index = arrays.get(f"index/{kind}")
            usable = (
                index is not None
                and index.ndim == 1
                and index.dtype == np.int32
                and array.ndim >= 1
            )
            require(usable, f"the streams {kind!r} come without places")
            assert index is not None
            fits = (
                len(index) > 0
                and index.min() >= -1
                and index.max() < len(array) <= len(index)
            )
            require(fits, f"the places of the streams {kind!r} do not fit them")
            padding = np.zeros((len(index) - len(array), *array.shape[1:]), array.dtype)
            streams[kind] = Streams(
                jnp.asarray(np.concatenate([array, padding])), index[None]
            )
        else:
            known = name == INITIAL or (part == "index" and STREAM + kind in arrays)
            require(
                known, f"a request holds {name!r}, which this version does not know"
            )
    return Downlink(streams, scalars)


def named(tree: Any, prefix: str) -> dict[str, Any]:
    """The leaves of a tree by their paths: "update/model", "scores/val/count"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}": leaf
        for path, leaf in leaves
    }


def answer_shapes(
    exchange: Exchange, algorithm: Algorithm, state: Any, model: Model, pool: Pool
) -> dict[str, Any]:
    """The shapes of what one client of an exchange yields ("update", "scores"), without
    computing it.

    Args:
        exchange: of which the task and the shapes of the downlink matter.
        algorithm: the method of the present phase.
        state: a client's state (method and uplink).
        model: what is trained.
        pool: any examples of the right form.
    """
    streams, scalars = exchange.downlink.streams, exchange.downlink.scalars
    kinds = tuple((kind, sent.recipients.shape[1]) for kind, sent in streams.items())
    values = {
        kind: jnp.zeros(sent.values.shape, sent.values.dtype)
        for kind, sent in streams.items()
    }
    numbers = jnp.zeros(12 + sum(width for _, width in kinds), jnp.int32)
    row = (
        PackedInputs(numbers, kinds),
        state,
        {
            name: jnp.asarray(_scalars(value, model.dtype, len(exchange.cohort))[0])
            for name, value in scalars.items()
        },
    )

    def one(
        algorithm: Any, pipelines: Any, pool: Any, values: Any, row: Any
    ) -> dict[str, Any]:
        return run_one(
            exchange.task,
            algorithm,
            pipelines,
            model,
            pool,
            values,
            row,
            metrics=exchange.metrics,
        )

    return jax.eval_shape(
        one, algorithm, (exchange.uplink, exchange.received_through), pool, values, row
    )


def specs_of(shapes: Any, prefix: str) -> dict[str, ArraySpec]:
    """What the arrays of an answer must be."""
    return {
        name: ArraySpec(tuple(leaf.shape), str(np.dtype(leaf.dtype)))
        for name, leaf in named(shapes, prefix).items()
    }


def stack(
    answers: list[Mapping[str, np.ndarray] | None],
    specs: Mapping[str, ArraySpec],
    prefix: str,
    shapes: Any,
) -> Any:
    """What the clients of a cohort sent, as a tree of `ClientRows` like `shapes`; zeros
    where nothing came.
    """
    rows = np.arange(len(answers))
    shapes_of = {
        name: tuple(leaf.shape) for name, leaf in named(shapes, prefix).items()
    }

    def column(name: str) -> ClientRows:
        spec = specs[name]
        nothing = np.zeros(shapes_of[name], spec.dtype)
        parts = [
            nothing if answer is None else answer.get(name, nothing)
            for answer in answers
        ]
        values = (
            np.stack(parts) if parts else np.zeros((0, *shapes_of[name]), spec.dtype)
        )
        return ClientRows(jnp.asarray(values), rows)

    structure = jax.tree.structure(shapes)
    return jax.tree.unflatten(
        structure, [column(name) for name in named(shapes, prefix)]
    )


def _scalars(value: Any, dtype: str, clients: int) -> NDArray[Any]:
    """A number for each client, as programs take it."""
    array = np.asarray(value)
    return np.broadcast_to(array, (clients,)).astype(
        np.int32 if array.dtype.kind in "iub" else dtype
    )
