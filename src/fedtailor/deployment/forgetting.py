"""`forget`, which retrains a run without one of its clients, and proves it.

The proof states that the new run contains no traces of the client. Retraining (exact
unlearning: Cao and Yang 2015) needs no argument about what weights remember. Everything
that was learned from data is learned again, including the preprocessing of a table.
"""

import json
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor._files import atomic_write, reason
from fedtailor._version import __version__
from fedtailor.deployment.data import CLIENTS, only_clients
from fedtailor.deployment.opening import OpenedRun
from fedtailor.deployment.traces import Traces, chunks_of, files_of
from fedtailor.executors import Settings
from fedtailor.federation import Federation
from fedtailor.protocol import Mixture, check_choice, require
from fedtailor.runs import Run
from fedtailor.runs import run as train
from fedtailor.storage import Unusable
from fedtailor.storage.digests import file_digest, with_digest
from fedtailor.storage.run_files import ROWS
from fedtailor.tables import Table, from_table
from fedtailor.training import Training

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
    in the bytes and cells of all files (the client's name, examples, states and model,
    and its row numbers), and states that nothing was found. It does not name the
    client. The old directory and the data are not changed; their owner has to remove
    them.

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
    federation, origin = _federation_without(run, client)
    manifest, model = run.manifest["run"], run.model
    outputs = federation.classes or int(np.prod(federation.y.shape[1:], dtype=int))
    retrained = train(
        run.algorithm,
        federation,
        model.architecture.bind(
            federation.input_shape, outputs, loss=model.loss, dtype=model.dtype
        ),
        int(run.stored.summary.get("asked_rounds", run.stored.summary["rounds"])),
        seed=manifest["seed"],
        evaluate_every=manifest["evaluate_every"],
        metrics=manifest.get("metrics", ()),
        **run.round_settings,
        settings=settings,
        progress=progress,
        directory=path,
        keep_rows=(run.path / ROWS).exists(),
        keep_models=run.keeps_models,
        origin=origin,
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


def _federation_without(
    run: OpenedRun, client: str
) -> tuple[Federation, dict[str, Any] | None]:
    """Make the run's data without a client, and their origin.

    The origin names the remaining clients, so that the new run directory does not hold
    the name of the other. It is None for a table, which records its own origin.
    """
    federation, origin = run.federation, run.manifest.get("origin")
    names = [name for name in run.names if name != client]
    if isinstance(federation, Table) and federation.origin is not None:
        unseen = tuple(
            name for name in names if federation.unseen[federation.names.index(name)]
        )
        options = dict(federation.origin.options)
        options |= {"clients": tuple(names), "unseen": unseen or 0}
        path, seed = federation.origin.path, federation.origin.seed
        table = from_table(path, seed=seed, **options)
        return replace(table, name=federation.name), None
    if origin is not None:
        origin = {**origin, CLIENTS: names}
    return only_clients(federation, names), origin


def _traces(run: OpenedRun, client: str) -> Traces:
    """Collect all traces that belong to this client only."""
    federation = run.federation
    client_index = federation.names.index(client)
    traces = Traces((client,))

    def rows_of(index: int) -> NDArray[Any]:
        splits = (federation.train, federation.val, federation.test)
        return np.concatenate([split[index] for split in splits])

    of_others: set[bytes] = set()
    for other in range(len(federation)):
        if other != client_index:
            of_others |= _chunks(federation.x[row] for row in rows_of(other))
    examples = [federation.x[row] for row in rows_of(client_index)]
    traces.add("its examples", examples, of_others)

    # Data that are not the client's: initial model, server state, the others' models.
    server = jax.tree.leaves(run.training.server)
    common = _chunks([np.asarray(run.training.initial(0))])
    common |= _chunks(np.asarray(leaf) for leaf in server if np.ndim(leaf))
    models = run.personal_models()
    for name, model in models.items():
        if name != client:
            common |= _chunks(_arrays(model.predictor))
    traces.add("its model", _arrays(models[client].predictor), common)

    seen = run.executor.seen
    if client in seen.names:
        row = seen.names.index(client)
        states = [  # [m, ...] each
            np.asarray(leaf) for leaf in jax.tree.leaves(run.executor.states.rows)
        ]
        for state in states:
            common |= _chunks(np.delete(state, row, axis=0))
        traces.add("its state", [state[row] for state in states], common)
    if isinstance(federation, Table) and federation.rows is not None:
        lines = frozenset(federation.rows[rows_of(client_index)].tolist())
        traces = replace(traces, rows=lines)
        if federation.origin is not None:
            chunks = _lines(federation.origin.path, lines)
            traces.chunks["its lines in the table"] = chunks
    return traces


def _arrays(predictor: Any) -> list[Any]:
    """The arrays that a client predicts with."""
    if isinstance(predictor, Mixture):
        return [*np.asarray(predictor.models), np.asarray(predictor.weights)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(predictor)]


def _chunks(arrays: Iterable[NDArray[Any] | bytes]) -> set[bytes]:
    """The chunks of several arrays or lines."""
    return {chunk for one in arrays for chunk in chunks_of(one)}


def _lines(path: Path, rows: Set[int]) -> set[bytes]:
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
