"""The named arrays of an exchange: what a client receives, and what it answers.

In a request:

stream/KIND    [n, ...] the streams of a kind that this client receives, each once
index/KIND     [k] which of them each of its k places holds, -1 = none
scalar/NAME    () a number for this client
known/...      digests of streams that the client holds, in their place (see `held`)
initial        [d] the model that its state starts from, in a later phase of a schedule

In an answer:

update/KIND    its update
scores/...     sums of losses and of correct predictions over its validation and test
               rows, and their counts
work           [2] gradients and forward passes of single examples
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from fedtailor.client.pool import Pool
from fedtailor.executors.map_clients import Pipelines, run_one
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
    """What each client of a cohort receives.

    Args:
        downlink: to the cohort.
        dtype: of the model, and so of scalars that are no integers.
        clients: of the cohort.

    Returns:
        The arrays of each client's request, by name.
    """
    values = {kind: np.asarray(sent.values) for kind, sent in downlink.streams.items()}
    scalars = {
        name: _scalars(value, dtype, clients)
        for name, value in downlink.scalars.items()
    }
    requests = []
    for client in range(clients):
        arrays: dict[str, np.ndarray] = {
            f"scalar/{name}": column[client] for name, column in scalars.items()
        }
        for kind, sent in downlink.streams.items():
            recipients = sent.recipients[client]
            rows = _received(recipients)
            index = np.where(recipients >= 0, np.searchsorted(rows, recipients), -1)
            arrays[STREAM + kind] = values[kind][rows]
            arrays[f"index/{kind}"] = index.astype(np.int32)
        requests.append(arrays)
    return requests


def downlink_digests(downlink: Downlink, clients: int) -> list[dict[str, list[bytes]]]:
    """The digests of the streams in `downlink_arrays`.

    Returns:
        For each client, those of the rows of each array, by the array's name.
    """
    requests: list[dict[str, list[bytes]]] = [{} for _ in range(clients)]
    for kind, sent in downlink.streams.items():
        digests = [
            digest(row) for row in np.asarray(sent.values)
        ]  # of each stream once
        for client, of_client in enumerate(requests):
            rows = _received(sent.recipients[client])
            of_client[STREAM + kind] = [digests[row] for row in rows]
    return requests


def _received(recipients: Int[NDArray, " k"]) -> Int[NDArray, " n"]:
    """The streams that a client receives, each once, in order (-1 = none)."""
    return np.unique(recipients[recipients >= 0])


def read_downlink(arrays: Mapping[str, np.ndarray]) -> Downlink:
    """The downlink of a cohort of one, from the arrays of a request.

    Its streams are padded to as many as the client has places, so that all rounds use
    one compiled program.

    Raises:
        ValueError: the arrays do not describe a downlink.
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
            # An index out of range would read another row, or none, without an error.
            fits = (
                len(index) > 0
                and index.min() >= -1
                and index.max() < len(array) <= len(index)
            )
            require(fits, f"the places of the streams {kind!r} do not fit them")
            padded = np.zeros((len(index), *array.shape[1:]), array.dtype)
            padded[: len(array)] = array
            streams[kind] = Streams(jnp.asarray(padded), index[None])
        else:
            known = name == INITIAL or (part == "index" and STREAM + kind in arrays)
            require(
                known, f"a request holds {name!r}, which this version does not know"
            )
    return Downlink(streams, scalars)


def named(tree: Any, prefix: str) -> dict[str, Any]:
    """The leaves of a tree by their paths: "update/model", "scores/val/count"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    by_path = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        by_path[f"{prefix}/{name}"] = leaf
    return by_path


def answer_shapes(
    exchange: Exchange, algorithm: Algorithm, state: Any, model: Model, pool: Pool
) -> dict[str, Any]:
    """The shapes of a client's outputs ("update", "scores"), without computing them.

    Args:
        exchange: of which the task and the shapes of the downlink matter.
        algorithm: the method of the present phase.
        state: a client's state (method and uplink).
        model: what is trained.
        pool: any examples of the right form.

    Returns:
        For each output, a tree of shapes and types (`jax.ShapeDtypeStruct`).
    """
    streams, scalars = exchange.downlink.streams, exchange.downlink.scalars
    kinds = tuple((kind, sent.recipients.shape[1]) for kind, sent in streams.items())
    values = {
        kind: jnp.zeros(sent.values.shape, sent.values.dtype)
        for kind, sent in streams.items()
    }
    numbers = jnp.zeros(12 + sum(width for _, width in kinds), jnp.int32)
    row_scalars = {}
    for name, value in scalars.items():
        column = _scalars(value, model.dtype, len(exchange.cohort))
        row_scalars[name] = jnp.asarray(column[0])
    row = (PackedInputs(numbers, kinds), state, row_scalars)

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

    pipelines = Pipelines(exchange.uplink, exchange.received_through)
    return jax.eval_shape(one, algorithm, pipelines, pool, values, row)


def specs_of(shapes: Any, prefix: str) -> dict[str, ArraySpec]:
    """What the arrays of an answer must look like, from a tree of shapes."""
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
    """Stack the arrays of a cohort's answers.

    Args:
        answers: of each client, by name; None where nothing came.
        specs: of the arrays.
        prefix: of their names.
        shapes: tree of the shapes of one client's (`answer_shapes`).

    Returns:
        A tree of `ClientRows` like `shapes`, with zeros where nothing came.
    """
    leaves = []
    for name, leaf in named(shapes, prefix).items():
        # An answer that was not asked to report has no such array.
        values = np.zeros((len(answers), *leaf.shape), specs[name].dtype)
        for client, answer in enumerate(answers):
            if answer is not None and name in answer:
                values[client] = answer[name]
        leaves.append(ClientRows(jnp.asarray(values), np.arange(len(answers))))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _scalars(value: Any, dtype: str, clients: int) -> NDArray[Any]:
    """A number for each client [c], in the type that programs take."""
    array = np.asarray(value)
    of_clients = np.broadcast_to(array, (clients,))
    return of_clients.astype(np.int32 if array.dtype.kind in "iub" else dtype)
