"""Lists the models of runs, client by client, with their metrics."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from fedtailor._base.choice import require
from fedtailor._base.digests import finite
from fedtailor.deployment.opening import require_run
from fedtailor.engine.storage.export import read_export_manifest
from fedtailor.engine.storage.final_models import RECORD, RUNS, read_final
from fedtailor.engine.storage.run_files import MANIFEST, MODELS_MANIFEST
from fedtailor.lab.results.experiment import COMPARISON_INDEX, experiments
from fedtailor.lab.results.stored import StoredRun

NOT_KEPT = "not kept"


def list_models(path: Path, client: str | None = None) -> list[dict[str, Any]]:
    """List the models of all clients of all runs in a directory.

    Args:
        path: a run directory, final models, the results of `fedtailor compare`, or one
            experiment in the results.
        client: name of the only client to list; None for all.

    Returns:
        One entry for each client of each run: run (directory), scenario and algorithm
        (labels in a comparison, else names of data and method), seed, client, unseen,
        train, val, test (numbers of rows), model ("vector", "mixture", "model and K
        neighbors", or "not kept" if it is computed from the data when needed), metric,
        its values on_val and on_test after the last round (None if not measured), and
        higher_is_better. Runs that diverged have no models and are omitted.

    Raises:
        ValueError: there is no run, or no such client.
    """
    entries: list[dict[str, Any]] = []
    for run, scenario, label in _runs(path):
        if not run.diverged:
            entries += _of_run(run, scenario, label)
    require(bool(entries), f"{path} holds no model: every run diverged")
    if client is None:
        return entries
    names = list(dict.fromkeys(entry["client"] for entry in entries))
    require(
        client in names,
        f"{path} has no model of a client {client!r}; its clients are"
        f" {', '.join(names[:20])}",
    )
    return [entry for entry in entries if entry["client"] == client]


def _runs(path: Path) -> Iterator[tuple[StoredRun, str | None, str | None]]:
    """Finished runs, each with its scenario and label in a comparison, or None."""
    require(path.is_dir(), f"there is no directory {path}; check the path")
    if (path / MANIFEST).exists():
        yield StoredRun(path), None, None
        return
    require_run(path)
    if (path / RECORD).exists():
        record = read_final(path)
        used = [record.run, *(own.run for own in record.clients.values())]
        for name in dict.fromkeys(used):
            yield StoredRun(path / RUNS / name), None, None
        return
    is_experiment = (path / COMPARISON_INDEX).exists()
    found = (
        experiments(path.parent, [path.name]) if is_experiment else experiments(path)
    )
    for experiment in found:
        for listed in experiment.index.method_runs:
            run = StoredRun(experiment.results / listed.run)
            yield run, listed.scenario, listed.algorithm


def _of_run(
    run: StoredRun, scenario: str | None, label: str | None
) -> Iterator[dict[str, Any]]:
    """One entry for each client of a run."""
    kinds, val, test = _kinds(run), _last(run, "val"), _last(run, "test")
    for client in run.clients.iter_rows(named=True):
        name = client["client"]
        yield finite(
            {
                "run": str(run.path),
                "scenario": scenario or run.manifest["data"]["name"],
                "algorithm": label or run.method,
                "seed": run.seed,
                "client": name,
                "unseen": client["unseen"],
                "train": client["train"],
                "val": client["val"],
                "test": client["test"],
                "model": kinds.get(name, NOT_KEPT),
                "metric": run.metric,
                "on_val": val.get(name),
                "on_test": test.get(name),
                "higher_is_better": run.unit.higher_is_better,
            }
        )


def _kinds(run: StoredRun) -> dict[str, str]:
    """The kind of each client's model, if the run stored the models."""
    if not (run.path / MODELS_MANIFEST).exists():
        return {}
    clients = read_export_manifest(run.path, MODELS_MANIFEST)["clients"]
    return {name: entry["kind"] for name, entry in clients.items()}


def _last(run: StoredRun, split: str) -> dict[str, float]:
    """The run's main metric for each client, after the last round."""
    measured = run.metrics.filter(
        (pl.col("split") == split) & (pl.col("metric") == run.metric)
    )
    measured = measured.filter(pl.col("round") == pl.col("round").max())
    return dict(measured.select("client", "value").iter_rows())
