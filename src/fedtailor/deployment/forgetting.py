"""`forget`: a run trained again without one of its clients, and a proof of it.

The proof says that nothing of that client is in the new run. Retraining is the one way
of forgetting that needs no argument about what weights remember (exact unlearning: Cao
and Yang 2015). Everything that was learned from data is learned again, a table's
preprocessing included.
"""

import json
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

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
    """Train a run again without one of its clients, into a new directory.

    The settings stay the same. The new directory holds `forgotten.json`: what was
    searched for in the bytes and cells of its files (the client's name, its examples,
    its states and model, the numbers of its rows), and that nothing was found. It does
    not say who was forgotten. The old directory and the data themselves stay: it is for
    their owner to remove them.

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
    # What is searched for later is collected before anything is trained: a run whose
    # data are not found ends here.
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
    """Search a directory for a client of a run, and write down what was searched for.

    Returns:
        The proof's file.

    Raises:
        ValueError: something of the client stands there, or the proof cannot be
            written.
    """
    return _prove(_traces(run, client), directory)


def _prove(traces: Traces, directory: Path) -> Path:
    left = traces.found_in(directory)
    if left:
        places = "; ".join(f"{trace['file']}: {trace['what']}" for trace in left[:5])
        raise ValueError(
            f"{directory} still holds something of the client ({places}); do not use"
            " it, and remove it"
        )
    searched_for = {
        "names": len(traces.names),
        "numbers of rows": len(traces.rows),
    }
    for what, pieces in traces.pieces.items():
        searched_for[f"pieces of {what}"] = len(pieces)
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
        with replacing(directory / PROOF) as temporary:
            temporary.write_text(json.dumps(sealed(proof), indent=1) + "\n", "utf-8")
    except OSError as error:
        raise Unusable(
            f"cannot write {directory / PROOF}: {reason(error)}; make room, and forget"
            " again"
        ) from None
    return directory / PROOF


def _without(run: OpenedRun, client: str) -> tuple[Federation, dict[str, Any] | None]:
    """The run's data without a client, and their origin.

    The origin names the clients that stay: the other one's name must not stand in the
    new run's directory. None where the data themselves know it.
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
    """What a directory must not hold: all that is this client's and nobody else's."""
    federation = run.federation
    place = federation.names.index(client)
    traces = Traces((client,))

    def rows_of(index: int) -> NDArray[Any]:
        splits = (federation.train, federation.val, federation.test)
        return np.concatenate([split[index] for split in splits])

    of_others: set[bytes] = set()
    for other in range(len(federation)):
        if other != place:
            of_others |= _pieces(federation.x[row] for row in rows_of(other))
    examples = [federation.x[row] for row in rows_of(place)]
    traces.add("its examples", examples, of_others)

    # What everybody has: the initial model, the server's state, the others' models.
    server = jax.tree.leaves(run.training.server)
    common = _pieces([np.asarray(run.training.initial(0))])
    common |= _pieces(np.asarray(leaf) for leaf in server if np.ndim(leaf))
    models = run.personal_models()
    for name, model in models.items():
        if name != client:
            common |= _pieces(_arrays(model.predictor))
    traces.add("its model", _arrays(models[client].predictor), common)

    seen = run.executor.seen
    if client in seen.names:
        mine = seen.names.index(client)
        states = [  # [m, ...] each
            np.asarray(leaf) for leaf in jax.tree.leaves(run.executor.states.rows)
        ]
        for state in states:
            common |= _pieces(row for i, row in enumerate(state) if i != mine)
        traces.add("its state", [state[mine] for state in states], common)
    if isinstance(federation, Table) and federation.rows is not None:
        lines = frozenset(federation.rows[rows_of(place)].tolist())
        traces = replace(traces, rows=lines)
        if federation.origin is not None:
            pieces = _lines(federation.origin.path, lines)
            traces.pieces["its lines in the table"] = pieces
    return traces


def _arrays(predictor: Any) -> list[Any]:
    """The arrays that a client predicts with."""
    if isinstance(predictor, Mixture):
        return [*np.asarray(predictor.models), np.asarray(predictor.weights)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(predictor)]


def _pieces(given: Iterable[NDArray[Any] | bytes]) -> set[bytes]:
    """The pieces of several arrays or lines."""
    return {piece for one in given for piece in pieces_of(one)}


def _lines(path: Path, rows: Set[int]) -> set[bytes]:
    """Pieces of the client's lines in a text file that no other line has.

    None of other files, whose rows are no lines.
    """
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return set()
    lines = path.read_bytes().splitlines()[1:]  # without the names of columns
    own = _pieces(line for number, line in enumerate(lines) if number in rows)
    others = _pieces(line for number, line in enumerate(lines) if number not in rows)
    return own - others
