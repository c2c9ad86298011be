"""`unlearn`, which retrains a run without one of its clients.

Retraining (exact unlearning: Cao and Yang 2015) needs no argument about what weights
remember. Everything that was learned from data is learned again, including the
preprocessing of a table.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedtailor._base.choice import check_choice, require
from fedtailor.deployment.data import CLIENTS
from fedtailor.deployment.opening import OpenedRun
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import Run
from fedtailor.engine.runs.run import Store, executor_of, run_on
from fedtailor.engine.storage.run_files import ROWS
from fedtailor.engine.training import Training
from fedtailor.engine.training.callbacks import as_callbacks


def unlearn(
    run: OpenedRun,
    client: str,
    directory: Path | str,
    *,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    progress: Callable[[Training, bool], bool | None] | None = None,
) -> Run:
    """Retrain a run, with the same settings, without one of its clients.

    The new training starts from the beginning and reads no row of the client, and the new
    directory does not name it. The old directory and the data are not changed; their
    owner has to remove them.

    Args:
        run: the run with the client (`fedtailor.open`).
        client: name of the client.
        directory: the new run directory, which must be empty or not exist.
        settings: devices and other settings of the executor.
        progress: see `fedtailor.run`.

    Raises:
        ValueError: there is no such client, the data are not found, or the method cannot
            train without it.

    Example:
        >>> _ = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=2, directory="runs/all"
        ... )
        >>> kept = ft.open("runs/all", federation=federation)
        >>> len(ft.unlearn(kept, federation.names[3], "runs/without").federation)
        19
    """
    path = Path(directory)
    check_choice(client, run.names, f"client of {run.path} called")
    empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    require(
        empty,
        f"{path} is not empty; name a new directory for the run without the client",
    )
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
    # Only methods of rounds have a spec; others are refused here.
    spec = run.spec
    rounds = int(run.stored.summary["asked_rounds"])
    store = Store(
        path,
        keep_rows=(run.path / ROWS).exists(),
        keep_models=run.keeps_models,
        origin=origin,
    )
    return run_on(
        executor_of(federation, bound_model, settings, path),
        replace(spec, model=bound_model, rounds=rounds),
        callbacks=as_callbacks((), progress),
        store=store,
    )
