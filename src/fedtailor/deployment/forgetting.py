"""`forget`: a run trained again without one of its clients, and a proof that nothing of
that client is in it.

Retraining is the one way of forgetting that needs no argument about what weights
remember (exact unlearning: Cao and Yang 2015). Everything that was learned from data is
learned again, a table's preprocessing included.
"""

import json
from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedtailor._files import reason, replacing
from fedtailor._version import __version__
from fedtailor.deployment.data import CLIENTS, only_clients
from fedtailor.deployment.opening import OpenedRun
from fedtailor.deployment.traces import Traces, files_of, pieces_of
from fedtailor.executors import Settings
from fedtailor.federation import Federation
from fedtailor.protocol import Mixture, check_choice, require
from fedtailor.runs import Run
from fedtailor.runs import run as train
from fedtailor.storage import Unusable
from fedtailor.storage.digests import file_digest, sealed
from fedtailor.storage.run_files import ROWS
from fedtailor.tables import Table, from_table
from fedtailor.training import Training

PROOF = "forgotten.json"
"""The proof, in the new run's directory."""


def forget(
    run: OpenedRun,
    client: str,
    directory: Path | str,
    *,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    progress: Callable[[Training, bool], bool | None] | None = None,
) -> Run:
    """Train a run again without one of its clients, with the same settings, into a new
    directory.

    The new directory holds `forgotten.json`: what was searched for in the bytes and
    cells of its files (the client's name, its examples, its states and model, the
    numbers of its rows), and that nothing was found. It does not say who was forgotten.
    The old directory and the data themselves stay: it is for their owner to remove
    them.

    Args:
        run: the run with the client (`fedtailor.open`).
        client: by name.
        directory: new or empty.
        settings: devices and the like.
        progress: as of `fedtailor.run`.

    Raises:
        ValueError: there is no such client, or its data are not found; the method
            cannot train without it; or something of it stands in the new directory
            (which then must not be used).
    """
    path = Path(directory)
    check_choice(client, run.names, f"client of {run.path} called")
    empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    require(
        empty,
        f"{path} is not empty; name a new directory for the run without the client",
    )
    traces = _traces(run, client)
    federation, origin = _without(run, client)
    manifest, model = run.manifest["run"], run.model
    outputs = federation.classes or int(np.prod(federation.y.shape[1:], dtype=int))
    done = train(
        run.algorithm,
        federation,
        model.architecture.bind(
            federation.input_shape, outputs, loss=model.loss, dtype=model.dtype
        ),
        int(run.stored.summary.get("asked_rounds", run.stored.summary["rounds"])),
        seed=manifest["seed"],
        evaluate_every=manifest["evaluate_every"],
        metrics=manifest.get("metrics", ()),
        **run.travel,
        settings=settings,
        progress=progress,
        directory=path,
        keep_rows=(run.path / ROWS).exists(),
        keep_models=run.keeps_models,
        origin=origin,
    )
    _prove(traces, path)
    return done


def prove(run: OpenedRun, client: str, directory: Path) -> Path:
    """Search a directory for a client of a run, and write down what was searched for;
    the proof's file.

    Raises:
        ValueError: something of the client stands there, or the proof cannot be
            written.
    """
    return _prove(_traces(run, client), directory)


def _prove(traces: Traces, directory: Path) -> Path:
    traces_left = traces.found_in(directory)
    if traces_left:
        places = "; ".join(f"{one['file']}: {one['what']}" for one in traces_left[:5])
        raise ValueError(
            f"{directory} still holds something of the client ({places}); do not use"
            " it, and remove it"
        )
    proof = {
        "format": "fedtailor proof of forgetting 1",
        "fedtailor": __version__,
        "searched for": {
            "names": len(traces.names),
            "numbers of rows": len(traces.rows),
            **{
                f"pieces of {what}": len(pieces)
                for what, pieces in traces.pieces.items()
            },
        },
        "found": 0,
        "files": {
            path.relative_to(directory).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": file_digest(path),
            }
            for path in files_of(directory)
            if not path.name.startswith(".")
        },
    }
    try:
        with replacing(directory / PROOF) as temporary:
            temporary.write_text(json.dumps(sealed(proof), indent=1) + "\n", "utf-8")
    except OSError as error:
        raise Unusable(
            f"cannot write {directory / PROOF}: {reason(error)}; make room, and forget"
            " again"
        ) from None
    return directory / PROOF


def _without(run: OpenedRun, client: str) -> tuple[Federation, dict[str, Any] | None]:
    """The run's data without a client, and what the new run's directory says of where
    they came from: the names of the clients that stay, for the other one must not stand
    there."""
    federation, origin = run.federation, run.manifest.get("origin")
    kept = [name for name in run.names if name != client]
    if isinstance(federation, Table) and federation.origin is not None:
        unseen = tuple(
            name for name in kept if federation.unseen[federation.names.index(name)]
        )
        options = {
            **federation.origin.options,
            "clients": tuple(kept),
            "unseen": unseen or 0,
        }
        table = from_table(
            federation.origin.path, seed=federation.origin.seed, **options
        )
        return replace(table, name=federation.name), None
    return only_clients(federation, kept), (
        None if origin is None else {**origin, CLIENTS: kept}
    )


def _traces(run: OpenedRun, client: str) -> Traces:
    """What a directory must not hold: all that is this client's and nobody else's."""
    federation = run.federation
    place = federation.names.index(client)
    traces = Traces((client,))

    def examples(of: int) -> list[Any]:
        rows = [getattr(federation, split)[of] for split in ("train", "val", "test")]
        return [federation.x[row] for row in np.concatenate(rows)]

    others = [other for other in range(len(federation)) if other != place]
    shared = {
        piece for other in others for row in examples(other) for piece in pieces_of(row)
    }
    traces.add("its examples", examples(place), shared)

    arrays = {
        name: _arrays(model.predictor) for name, model in run.personal_models().items()
    }
    start = np.asarray(run.training.initial(0))
    common = {piece for array in [start, *_server(run)] for piece in pieces_of(array)}
    common |= {
        piece
        for name, of_other in arrays.items()
        if name != client
        for a in of_other
        for piece in pieces_of(a)
    }
    traces.add("its model", arrays[client], common)

    seen = run.executor.seen
    if client in seen.names:
        mine = seen.names.index(client)
        leaves = [
            np.asarray(leaf) for leaf in jax.tree.leaves(run.executor.states.rows)
        ]
        foreign = {
            piece
            for leaf in leaves
            for row, state in enumerate(leaf)
            if row != mine
            for piece in pieces_of(state)
        }
        traces.add("its state", [leaf[mine] for leaf in leaves], foreign | common)
    if isinstance(federation, Table) and federation.rows is not None:
        own = np.concatenate(
            [getattr(federation, split)[place] for split in ("train", "val", "test")]
        )
        traces = replace(traces, rows=frozenset(federation.rows[own].tolist()))
        if federation.origin is not None:
            traces.pieces["its lines in the table"] = _lines(
                federation.origin.path, traces.rows
            )
    return traces


def _arrays(predictor: Any) -> list[Any]:
    if isinstance(predictor, Mixture):
        return [*np.asarray(predictor.models), np.asarray(predictor.weights)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(predictor)]


def _server(run: OpenedRun) -> list[Any]:
    return [
        np.asarray(leaf)
        for leaf in jax.tree.leaves(run.training.server)
        if np.ndim(leaf)
    ]


def _lines(path: Path, rows: Set[int]) -> set[bytes]:
    """Pieces of the client's lines in a text file (none of other files, whose rows are
    no lines).
    """
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return set()
    lines = path.read_bytes().splitlines()[1:]
    foreign = {
        piece
        for number, line in enumerate(lines)
        if number not in rows
        for piece in pieces_of(line)
    }
    return {
        piece
        for number in rows
        if number < len(lines)
        for piece in pieces_of(lines[number])
    } - foreign
