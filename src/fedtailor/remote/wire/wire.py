"""The arrays of requests and answers, by name.

In a request:

stream/KIND    [n, ...] the distinct streams of a kind that the client receives
index/KIND     [k] for each row of its inbox, the index of the stream in stream/KIND; -1
               stands for no stream
scalar/NAME    () a number for this client
known/...      digests of streams in the client's cache (see `vector_cache`)
initial        [d] the model that its state starts from, in a later phase of a schedule

In an answer:

update/KIND    its update
scores/...     sums of losses and of correct predictions over its validation and test
               rows, and their counts
work           [2] how many gradients and forward passes of single examples it computed
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from fedtailor.engine.client.pool import Pool
from fedtailor.engine.executors.map_clients import (
    ClientInputs,
    Pipelines,
    SharedInputs,
    run_client,
)
from fedtailor.engine.executors.packing import PackedInputs
from fedtailor.models import Model
from fedtailor.protocol import (
    Algorithm,
    ClientRows,
    Downlink,
    Exchange,
    Streams,
)
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.refusals import Refusal, refuse_unless
from fedtailor.remote.wire.request_size import MAX_INBOX, check_size
from fedtailor.remote.wire.vector_cache import INITIAL, STREAM, vector_digest

UPDATE = "update/"
"""Prefix of the names of a client's messages."""

WORK = "work"
WORK_SPEC = ArraySpec((2,), "int64", 0, 2**40)


def downlink_arrays(
    downlink: Downlink, dtype: str, clients: int
) -> list[dict[str, np.ndarray]]:
    """The arrays of the requests to a cohort.

    Args:
        downlink: what the server sends to the cohort.
        dtype: type of scalars that are not integers.
        clients: number of clients in the cohort.

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
        For each client, the digests of the rows of each array, by the array's name.
    """
    requests: list[dict[str, list[bytes]]] = [{} for _ in range(clients)]
    for kind, sent in downlink.streams.items():
        # Each stream is hashed once, not once for every client that receives it.
        digests = [vector_digest(row) for row in np.asarray(sent.values)]
        for client, of_client in enumerate(requests):
            rows = _received(sent.recipients[client])
            of_client[STREAM + kind] = [digests[row] for row in rows]
    return requests


def common_arrays(
    arrays: Mapping[str, np.ndarray], to_each: Collection[str]
) -> dict[str, np.ndarray]:
    """The arrays of a request that all clients of a round receive alike.

    Args:
        arrays: the arrays of a request.
        to_each: see `Algorithm.sent_to_each`.
    """
    return {
        name: array
        for name, array in sorted(arrays.items())
        if name != INITIAL and name.partition("/")[2] not in to_each
    }


def asked_of_all(request: Request, to_each: Collection[str]) -> str:
    """The digest of what all clients of a round are asked.

    Args:
        request: the request to one of them, with all vectors.
        to_each: see `Algorithm.sent_to_each`.
    """
    said = {name: getattr(request, name) for name in ("round", "run", "algorithm")}
    return common_digest(said, common_arrays(request.arrays, to_each))


def common_digest(
    settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray], before: str = ""
) -> str:
    """SHA-256 of what all clients of a sum are asked.

    Args:
        settings: what the request says about the method.
        arrays: arrays that all clients are sent.
        before: the digest of what they were asked before, if the answer depends on it.
    """
    said = json.dumps([before, settings, len(arrays)], sort_keys=True)
    digest = hashlib.sha256(said.encode())
    for name, array in sorted(arrays.items()):
        of_array = json.dumps([name, array.dtype.str, array.shape])
        digest.update(f"\0{of_array}\0".encode() + array.tobytes())
    return digest.hexdigest()


def _received(recipients: Int[NDArray, " k"]) -> Int[NDArray, " n"]:
    """The distinct streams of an inbox, in ascending order; -1 stands for no stream."""
    return np.unique(recipients[recipients >= 0])


def read_downlink(arrays: Mapping[str, np.ndarray], mode: str = "") -> Downlink:
    """Read the downlink of one client from the arrays of its request.

    The streams are padded to the number of rows of the client's inbox, so that all
    rounds use the same compiled program.

    Args:
        arrays: of the request, by name.
        mode: `Downlink.mode`.

    Raises:
        Refused: the arrays do not describe a downlink.
    """
    streams, scalars = {}, {}
    rows, size = 0, 0  # of all inboxes; bytes of all padded streams
    for name, array in arrays.items():
        part, _, kind = name.partition("/")
        if part == "scalar":
            refuse_unless(
                array.ndim == 0,
                Refusal.MALFORMED,
                f"the number {kind!r} is an array",
            )
            scalars[kind] = array[()]
        elif part == "stream":
            index = arrays.get(f"index/{kind}")
            usable = (
                index is not None
                and index.ndim == 1
                and index.dtype == np.int32
                and array.ndim >= 1
            )
            refuse_unless(
                usable,
                Refusal.MALFORMED,
                f"the streams {kind!r} come without places",
            )
            assert index is not None
            # In compiled code an index out of range raises no error.
            fits = (
                len(index) > 0
                and index.min() >= -1
                and index.max() < len(array) <= len(index)
            )
            refuse_unless(
                fits,
                Refusal.MALFORMED,
                f"the places of the streams {kind!r} do not fit them",
            )
            rows += len(index)
            refuse_unless(
                rows <= MAX_INBOX,
                Refusal.MALFORMED,
                f"a request names {rows} streams; a client takes {MAX_INBOX} at most",
            )
            size += len(index) * math.prod(array.shape[1:]) * array.itemsize
            check_size(size)
            padded = np.zeros((len(index), *array.shape[1:]), array.dtype)
            padded[: len(array)] = array
            streams[kind] = Streams(jnp.asarray(padded), index[None])
        else:
            known = name == INITIAL or (part == "index" and STREAM + kind in arrays)
            refuse_unless(
                known,
                Refusal.MALFORMED,
                f"a request holds {name!r}, which this version does not know",
            )
    return Downlink(streams, scalars, mode=mode)


def named(tree: Any, prefix: str) -> dict[str, Any]:
    """The leaves of a tree by path, such as "update/model" or "scores/val/count"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    by_path = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        by_path[f"{prefix}/{name}"] = leaf
    return by_path


def answer_shapes(
    exchange: Exchange, algorithm: Algorithm, state: Any, model: Model, pool: Pool
) -> dict[str, Any]:
    """Trace the shapes of a client's outputs, without computing the outputs.

    Args:
        exchange: only its task and the shapes of its downlink matter.
        algorithm: the method of the current phase.
        state: a client's state (of the method, of the uplink).
        model: the model to be trained.
        pool: any examples of the right shapes.

    Returns:
        For each output ("update", "scores", ...), a tree of shapes and types
        (`jax.ShapeDtypeStruct`).
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
        column = _scalars(value, model.precision.sums, len(exchange.cohort))
        row_scalars[name] = jnp.asarray(column[0])
    client = ClientInputs(PackedInputs(numbers, kinds), state, row_scalars)

    pipelines = Pipelines(exchange.uplink, exchange.received_through)
    shared = SharedInputs(algorithm, pipelines, pool, values)
    run = partial(
        run_client,
        exchange.task,
        model,
        metrics=exchange.metrics,
        mode=exchange.downlink.mode,
    )
    return jax.eval_shape(run, shared, client)


def specs_of(shapes: Any, prefix: str) -> dict[str, ArraySpec]:
    """The shapes and types of the arrays in an answer, from a tree of shapes."""
    return {
        name: ArraySpec(tuple(leaf.shape), str(np.dtype(leaf.dtype)))
        for name, leaf in named(shapes, prefix).items()
    }


def named_updates(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The messages in an answer, by kind."""
    return {
        name.removeprefix(UPDATE): array
        for name, array in arrays.items()
        if name.startswith(UPDATE)
    }


def stack(
    answers: list[Mapping[str, np.ndarray] | None],
    specs: Mapping[str, ArraySpec],
    prefix: str,
    shapes: Any,
) -> Any:
    """Stack the answers of a cohort.

    Args:
        answers: the arrays of each client's answer, by name; None for a client that did
            not answer.
        specs: shapes and types of the arrays.
        prefix: prefix of their names.
        shapes: tree of the shapes in one answer (see `answer_shapes`).

    Returns:
        A tree of `ClientRows` with the structure of `shapes`, with zeros for clients
        that did not answer.
    """
    leaves = []
    for name, leaf in named(shapes, prefix).items():
        # The answer of a client that does not report lacks these arrays.
        values = np.zeros((len(answers), *leaf.shape), specs[name].dtype)
        for client, answer in enumerate(answers):
            if answer is not None and name in answer:
                values[client] = answer[name]
        leaves.append(ClientRows(jnp.asarray(values), np.arange(len(answers))))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _scalars(value: Any, dtype: str, clients: int) -> NDArray[Any]:
    """Broadcast a scalar to the clients [c], in the type of compiled programs."""
    array = np.asarray(value)
    of_clients = np.broadcast_to(array, (clients,))
    return of_clients.astype(np.int32 if array.dtype.kind in "iub" else dtype)
