"""`forget`, which retrains a run without one of its clients, and proves it.

The proof states that the new run contains no traces of the client. Retraining (exact
unlearning: Cao and Yang 2015) needs no argument about what weights remember. Everything
that was learned from data is learned again, including the preprocessing of a table.

Traces of a client are its name, and data that are its own and nobody else's: its
examples, its personal model, its state, and the numbers and lines of its rows in a
table. Arrays and lines are searched for in chunks of a few bytes (`CHUNK_BYTES`), so
that a part of an array is found as well. Files are searched byte by byte, and those of
known formats also by their texts: the cells of Parquet files, and keys and values
(see `fedtailor.deployment.traces`).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor._files import atomic_write, file_digest, reason
from fedtailor._version import __version__
from fedtailor.deployment.data import CLIENTS
from fedtailor.deployment.opening import OpenedRun
from fedtailor.deployment.traces import Traces, chunks_of, files_of, identifying_chunks
from fedtailor.executors import DeviceExecutor, Settings
from fedtailor.federation import Federation
from fedtailor.protocol import Mixture, check_choice, require
from fedtailor.runs import Run
from fedtailor.runs.run import Store, executor_of, run_on
from fedtailor.storage import PersonalModel, Unusable
from fedtailor.storage.digests import with_digest
from fedtailor.storage.run_files import ROWS
from fedtailor.training import Training
from fedtailor.training.callbacks import as_callbacks

PROOF = "forgotten.json"
"""File of the proof, in the new run directory."""


def forget(
    run: OpenedRun,
    client: str,
    directory: Path | str,
    *,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    progress: Callable[[Training, bool], bool | None] | None = None,
) -> Run:
    """Retrain a run, with the same settings, without one of its clients.

    The new directory holds the proof, `forgotten.json`. It lists what was searched for
    in all files, in their bytes and in the cells of tables (the client's name, examples,
    states and model, and its row numbers), and states that nothing was found. It does
    not name the client. The old directory and the data are not changed; their owner has
    to remove them.

    Args:
        run: the run with the client (`fedtailor.open`).
        client: name of the client.
        directory: the new run directory, which must be empty or not exist.
        settings: devices and other settings of the executor.
        progress: see `fedtailor.run`.

    Raises:
        ValueError: there is no such client, its data are not found, the method cannot
            train without it, or the new directory contains traces of it (and must then
            not be used).

    Example:
        >>> _ = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=2, directory="runs/all"
        ... )
        >>> kept = ft.open("runs/all", federation=federation)
        >>> len(ft.forget(kept, federation.names[3], "runs/without").federation)
        19
    """
    path = Path(directory)
    check_choice(client, run.names, f"client of {run.path} called")
    empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    require(
        empty,
        f"{path} is not empty; name a new directory for the run without the client",
    )
    # Collect the traces before training, as this fails if the data are not found.
    traces = _traces(run, client)
    remaining = [name for name in run.names if name != client]
    federation = run.federation.only(remaining)
    # The remaining clients are named, so that the new directory does not hold the name of
    # the other. A table records its own origin.
    origin = run.manifest.get("origin")
    if origin is not None:
        origin = {**origin, CLIENTS: remaining}
    model = run.model
    outputs = model.task.outputs(federation.classes, federation.y.shape[1:])
    # The inputs of a table may differ without the client, so the model is bound again.
    bound_model = model.architecture.bind(
        federation.input_shape, outputs, loss=model.loss, dtype=model.dtype
    )
    rounds = int(run.stored.summary["asked_rounds"])
    store = Store(
        path,
        keep_rows=(run.path / ROWS).exists(),
        keep_models=run.keeps_models,
        origin=origin,
    )
    retrained = run_on(
        executor_of(federation, bound_model, settings, path),
        replace(run.spec, model=bound_model, rounds=rounds),
        callbacks=as_callbacks((), progress),
        store=store,
    )
    _write_proof(traces, path)
    return retrained


def prove(run: OpenedRun, client: str, directory: Path) -> Path:
    """Search a directory for traces of a run's client, and write the proof.

    Returns:
        The file of the proof.

    Raises:
        ValueError: the directory contains traces, or the proof cannot be written.
    """
    return _write_proof(_traces(run, client), directory)


def _write_proof(traces: Traces, directory: Path) -> Path:
    found = traces.found_in(directory)
    if found:
        places = "; ".join(f"{trace['file']}: {trace['what']}" for trace in found[:5])
        raise ValueError(
            f"{directory} still holds something of the client ({places}); do not use"
            " it, and remove it"
        )
    searched_for = {
        "names": len(traces.names),
        "numbers of rows": len(traces.rows),
    }
    for what, chunks in traces.chunks.items():
        searched_for[f"pieces of {what}"] = len(chunks)
    # The digests say which files were searched; hidden ones (the lock) are no results.
    files = {}
    for path in files_of(directory):
        if not path.name.startswith("."):
            name = path.relative_to(directory).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    proof = {
        "format": "fedtailor proof of forgetting 1",
        "fedtailor": __version__,
        "searched for": searched_for,
        "found": 0,
        "files": files,
    }
    try:
        with atomic_write(directory / PROOF) as temporary:
            temporary.write_text(
                json.dumps(with_digest(proof), indent=1) + "\n", "utf-8"
            )
    except OSError as error:
        raise Unusable(
            f"cannot write {directory / PROOF}: {reason(error)}; make room, and forget"
            " again"
        ) from None
    return directory / PROOF


def _traces(run: OpenedRun, client: str) -> Traces:
    """Collect all traces that belong to this client only."""
    models = run.personal_models()
    shared = _shared_chunks(run, models, client)
    chunks = {
        "its examples": _example_traces(run.federation, client),
        "its model": _model_traces(models[client], shared),
    }
    if client in run.executor.seen.names:
        chunks["its state"] = _state_traces(run.executor, client, shared)
    table, row_numbers = run.federation, frozenset[int]()
    if table.rows is not None:
        own_rows = _rows_of(table, table.names.index(client))
        row_numbers = frozenset(table.rows[own_rows].tolist())
        if table.file is not None:
            lines = _table_line_traces(table.file, row_numbers)
            chunks["its lines in the table"] = lines
    return Traces(names=(client,), chunks=chunks, rows=row_numbers)


def _example_traces(federation: Federation, client: str) -> set[bytes]:
    """Chunks of a client's inputs that no other client has."""

    def examples_of(index: int) -> list[NDArray[Any]]:
        return [federation.x[row] for row in _rows_of(federation, index)]

    of_others: set[bytes] = set()
    for index, name in enumerate(federation.names):
        if name != client:
            of_others |= _chunks(examples_of(index))
    own_examples = examples_of(federation.names.index(client))
    return identifying_chunks(own_examples, of_others)


def _shared_chunks(
    run: OpenedRun, models: Mapping[str, PersonalModel], client: str
) -> set[bytes]:
    """Chunks of the initial model, the server's state and the others' models."""
    server_arrays = [
        np.asarray(leaf)
        for leaf in jax.tree.leaves(run.training.server)
        if np.ndim(leaf)
    ]
    chunks = _chunks([np.asarray(run.training.initial(0)), *server_arrays])
    for name, model in models.items():
        if name != client:
            chunks |= _chunks(_arrays(model.predictor))
    return chunks


def _model_traces(model: PersonalModel, shared: Set[bytes]) -> set[bytes]:
    """Chunks of a client's model that are not shared with others."""
    return identifying_chunks(_arrays(model.predictor), shared)


def _state_traces(
    executor: DeviceExecutor, client: str, shared: Set[bytes]
) -> set[bytes]:
    """Chunks of the state that a client keeps between rounds, and no other has."""
    row = executor.seen.names.index(client)
    # [m, ...] each
    states = [np.asarray(leaf) for leaf in jax.tree.leaves(executor.states.rows)]
    of_others = _chunks(np.delete(state, row, axis=0) for state in states)
    return identifying_chunks([state[row] for state in states], shared | of_others)


def _table_line_traces(path: Path, rows: Set[int]) -> set[bytes]:
    """Chunks of the client's lines in a text file that no other line contains.

    Files of other formats have no lines, and give none.
    """
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return set()
    lines = path.read_bytes().splitlines()[1:]  # without the header
    own_chunks = _chunks(line for number, line in enumerate(lines) if number in rows)
    other_chunks = _chunks(
        line for number, line in enumerate(lines) if number not in rows
    )
    return own_chunks - other_chunks


def _rows_of(federation: Federation, index: int) -> NDArray[Any]:
    """The rows of a client in all splits, as indices into `federation.x`."""
    splits = (federation.train, federation.val, federation.test)
    return np.concatenate([split[index] for split in splits])


def _arrays(predictor: Any) -> list[Any]:
    """The arrays that a client predicts with."""
    if isinstance(predictor, Mixture):
        return [*np.asarray(predictor.models), np.asarray(predictor.weights)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(predictor)]


def _chunks(arrays: Iterable[NDArray[Any] | bytes]) -> set[bytes]:
    """The chunks of several arrays or lines."""
    return {chunk for one in arrays for chunk in chunks_of(one)}
