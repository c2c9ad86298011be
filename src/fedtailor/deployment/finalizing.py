"""`finalize`: refits what a comparison chose on all rows, for use."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import polars as pl

from fedtailor._base.choice import check_choice, require
from fedtailor._base.documentation import see
from fedtailor._base.files import file_digest, private_folder, publish, reason
from fedtailor.data.federation import Federation
from fedtailor.data.tables import from_table
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import Run, run_on
from fedtailor.engine.runs.run import Store, executor_of
from fedtailor.engine.storage.calibration_file import write_calibration
from fedtailor.engine.storage.final_models import (
    DEFAULT_FOLDER,
    RECORD,
    RUNS,
    Expectation,
    FinalModels,
    read_final,
    write_threshold_rows,
)
from fedtailor.engine.storage.frozen_file import read_frozen
from fedtailor.engine.training import AfterRound, RunSpec, Training
from fedtailor.engine.training.binding import bind
from fedtailor.lab.baselines import (
    CHOSEN,
    evaluate,
    find_baseline,
)
from fedtailor.lab.experiments.compared_runs import KEEP_CORRELATED
from fedtailor.lab.report.comparison import slug
from fedtailor.lab.results.coverage import calibration_of_rows, predicted_kind
from fedtailor.lab.results.decision_file import decision_of
from fedtailor.lab.results.experiment import StoredExperiment, experiments
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.test_values import rows_of
from fedtailor.lab.results.thresholds import predicts_two_classes, prepared_rows
from fedtailor.lab.results.verdict import ClientVerdict, Verdict
from fedtailor.models import Architecture, Model, linear
from fedtailor.protocol import Diverged
from fedtailor.statistics.conformal import Calibration
from fedtailor.statistics.decision import expected_metrics

Follow = Callable[[str, int], AbstractContextManager[Callable[[Training, bool], Any]]]
"""From a title and a number of rounds it makes what is called after each round."""


def finalize(
    results: Path,
    name: str | None = None,
    out: Path | None = None,
    *,
    method: str | None = None,
    use: Literal["per-client", "for-all"] = "per-client",
    table: Path | None = None,
    keep_test: bool = False,
    model: Model | Architecture | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    follow: Follow | None = None,
) -> tuple[Path, FinalModels]:
    """Train the methods that a comparison recommends on all rows of its table.

    Training, validation and test rows are all trained on, with the settings that were
    chosen, for as many rounds as the runs of the comparison took (their median). The
    preprocessing is fitted to all rows, too.

    Sets and intervals of classes and numbers are from test rows of the comparison's first
    split, on which nothing was chosen: of models that the comparison trained without
    them or, with `keep_test`, of the final models, which then do not train on them.
    Thresholds of two classes are from its validation rows, of the models that the
    comparison trained without them, and measured on the same test rows.

    Args:
        results: the result directory of a comparison on a table.
        name: the experiment, if there are several.
        out: the directory to write; by default `model` in the experiment's folder,
            which replaces older models there.
        method: the label of a method for all clients, instead of the recommended ones;
            or a baseline that keeps its models, such as "trees-personal".
        use: "per-client": what the decision says about each client; "for-all": the
            method that it recommends for all.
        table: path of the table, if the file was moved.
        keep_test: do not train on the test rows of the first split.
        model: the model, or its network, if only the user's code knows it.
        settings: devices and other settings of the executor.
        follow: shows the progress of each training.

    Returns:
        The directory, and its record.

    Raises:
        ValueError: there is no finished comparison on a table, the table has changed, the
            method was not compared, or the directory holds other files or cannot be
            written. Nothing is left half-written.
    """
    experiment = _experiment(results, name)
    scenario, verdict, metric = _verdict(experiment)
    others = experiment.candidates(scenario)
    baselines = {label: list(it.runs) for label, it in others.items()}
    runs = {**experiment.runs[scenario], **baselines}
    used = _methods(verdict, runs, method, use)
    target = experiment.folder / DEFAULT_FOLDER if out is None else out
    _require_free(target, is_default=out is None)
    labels = list(dict.fromkeys([used[None], *used.values()]))
    # Baselines are trained on inputs as they are.
    tables = {
        kept: _table_of(experiment, scenario, table, keep_test, kept)
        for kept in {label in baselines for label in labels}
    }
    folders = {label: _folder_name(label, labels) for label in labels}
    of_baselines = _expected_of(
        {it: runs[it] for it in labels if it in baselines}, metric
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The final directory is as deep as the temporary one, since runs hold the path of
        # their table relative to their own.
        with private_folder(target.parent, "finalize") as temporary:
            tested = {label: runs[label][0].rows for label in labels}
            for label in labels:
                data = tables[label in baselines]
                where = temporary / RUNS / folders[label]
                if label in baselines:
                    refitted = _refit(label, runs[label], data, where)
                    rows_of_label = refitted.rows
                else:
                    trained = _train(
                        label, runs[label], data, where, model, settings, follow
                    )
                    rows_of_label = trained.row_outcomes() if keep_test else None
                if keep_test:
                    tested[label] = rows_of_label
            calibration = _calibration(runs, used, tested)
            if calibration is not None:
                write_calibration(calibration, temporary)
            threshold_rows = _threshold_rows(runs, used, tested)
            if threshold_rows is not None:
                write_threshold_rows(threshold_rows, temporary)
            first = tables[labels[0] in baselines]
            record = FinalModels(
                run=folders[used[None]],
                clients={
                    entry.client: _expectation(entry, used, folders, of_baselines)
                    for entry in verdict.clients
                },
                metric=metric,
                splits=len(experiment.index.seeds),
                rows=int(first.sizes["train"].sum()),
                digest_of=experiment.digest,
                kept=int(first.sizes["test"].sum()),
            )
            record.write(temporary)
            publish(temporary, target)
    except OSError as error:
        raise ValueError(
            f"cannot write {target}: {reason(error)}; name another directory"
        ) from None
    return target, record


def is_current(experiment: StoredExperiment) -> bool:
    """Whether the folder of a comparison holds final models of its present runs."""
    folder = experiment.folder / DEFAULT_FOLDER
    if not (folder / RECORD).is_file():
        return False
    try:
        record = read_final(folder)
    except ValueError:
        return False
    return record.digest_of == experiment.digest


def _experiment(results: Path, name: str | None) -> StoredExperiment:
    """The only experiment of a result directory, or the one with a name."""
    found = experiments(results, [] if name is None else [name])
    names = ", ".join(one.index.name for one in found)
    require(
        len(found) == 1,
        f"{results} holds several comparisons ({names}); name one of them",
    )
    return found[0]


def _verdict(experiment: StoredExperiment) -> tuple[str, Verdict, str]:
    """The scenario of a comparison on a table, its verdict, and the metric of that."""
    uses = experiment.index.scenarios
    is_table = [use.use for use in uses.values()] == ["table"]
    require(
        is_table,
        f"{experiment.index.name} compares scenarios; models are refitted on a table:"
        " fedtailor compare TABLE",
    )
    (scenario,) = uses
    decision = decision_of(experiment, scenario)
    if decision is None or decision.verdict is None:
        raise ValueError(
            f"{experiment.index.name} has no choice to refit: it needs finished runs"
            " with validation and test rows; give the same `fedtailor compare` again"
            f"{see('errors#no-choice-to-refit')}"
        )
    return scenario, decision.verdict, decision.gain_metric


def _methods(
    verdict: Verdict,
    runs: Any,
    method: str | None,
    use: Literal["per-client", "for-all"],
) -> dict[str | None, str]:
    """Client -> label of its method; None -> that of clients that come later."""
    recommendation = verdict.recommendation
    if method is not None:
        check_choice(method, [label for label in runs if runs[label]], "method")
    for_all = recommendation.method if method is None else method
    used: dict[str | None, str] = {None: for_all}
    for entry in verdict.clients:
        own = use == "per-client" and method is None
        used[entry.client] = entry.method if own else for_all
    return used


def _require_free(target: Path, *, is_default: bool) -> None:
    """Require a directory that is new or empty, or holds older final models."""
    if not target.exists():
        return
    is_empty = target.is_dir() and not any(target.iterdir())
    is_older = is_default and (target / RECORD).is_file()
    require(
        is_empty or is_older,
        f"{target} is not empty; name a new directory with --out",
    )


def _table_of(
    experiment: StoredExperiment,
    scenario: str,
    moved: Path | None,
    keep_test: bool,
    for_baselines: bool,
) -> Any:
    """The table of a comparison, all of whose rows train, or all but the test rows.

    Args:
        experiment: the comparison.
        scenario: label of the scenario.
        moved: where the table is now; None = where it was.
        keep_test: whether test rows are left out.
        for_baselines: whether inputs are left as they are.
    """
    arguments = dict(experiment.index.scenarios[scenario].arguments)
    if for_baselines:
        arguments[KEEP_CORRELATED] = True
    path = Path(arguments.pop("path")) if moved is None else moved
    arguments.pop("path", None)
    first = next(run for seeds in experiment.runs[scenario].values() for run in seeds)
    origin = first.manifest.get("origin", {})
    if moved is None and not path.is_file():
        # As typed it was relative to another directory; a run knows it from its own.
        stored = origin.get("parameters", {}).get("path", path)
        path = Path(first.path.resolve(), stored).resolve()
    require(path.is_file(), f"the table is not at {path}; say where it is with --table")
    require(
        origin.get("file") in (None, file_digest(path)),
        f"{path} is not the table that was compared on (its digest differs); compare"
        " again on the new one",
    )
    if not keep_test:
        return from_table(path, seed=first.seed, all_rows=True, **arguments)
    data = from_table(path, seed=first.seed, **{**arguments, "val": 0.0})
    require(
        data.sizes["test"].sum() > 0 and data.sizes["val"].sum() == 0,
        "the test rows can be kept back where they are drawn, and a column of the table"
        " says which rows are for validation; leave out --keep-test",
    )
    return data


def _calibration(
    runs: Mapping[str, Sequence[StoredRun]],
    used: Mapping[str | None, str],
    tested: Mapping[str, pl.DataFrame | None],
) -> Calibration | None:
    """Sets and intervals from test rows, of each client by its own method.

    Args:
        runs: label -> runs of the comparison.
        used: client -> label of its method.
        tested: label -> outcomes of test rows.

    Returns:
        None if the models predict neither classes nor one number, or no rows were kept.
    """
    parts = []
    for client, label in used.items():
        rows = tested[label]
        if client is not None and rows is not None:
            parts.append(rows.filter(pl.col("client") == client))
    first = runs[used[None]][0]
    rows = pl.concat(parts, how="diagonal") if parts else None
    kind = predicted_kind(rows, first.manifest["model"]["loss"])
    if kind is None:
        return None
    assert rows is not None
    return calibration_of_rows(rows, first.clients, kind == "classes")


def _threshold_rows(
    runs: Mapping[str, Sequence[StoredRun]],
    used: Mapping[str | None, str],
    tested: Mapping[str, pl.DataFrame | None],
) -> pl.DataFrame | None:
    """The rows that thresholds are from, of each client by its own method.

    Args:
        runs: label -> runs of the comparison.
        used: client -> label of its method.
        tested: label -> outcomes of test rows.

    Returns:
        See `write_threshold_rows`; None if two classes are not what is predicted by their
        log loss, or no rows were kept.
    """
    parts = []
    for client, label in used.items():
        first = runs[label][0]
        if client is None or not predicts_two_classes(first):
            continue
        for split, rows in (("val", first.validation), ("test", tested[label])):
            if rows is not None:
                mine = rows.filter(pl.col("client") == client)
                prepared = prepared_rows(mine, first.path)
                parts.append(prepared.with_columns(split=pl.lit(split)))
    return pl.concat(parts, how="diagonal") if parts else None


def _train(
    label: str,
    runs: Sequence[StoredRun],
    data: Any,
    directory: Path,
    given: Model | Architecture | None,
    settings: Settings,
    follow: Follow | None,
) -> Run:
    """Train a method on the rows that are to train, with the settings of its runs."""
    first = runs[0]
    rounds = round(median(run.summary["rounds"] for run in runs))
    held = read_frozen(first.path)
    spec = RunSpec.from_plain(first.manifest, rounds, model=given, held=held)
    assert isinstance(spec.model, Model)
    require(
        not held or data.input_shape == spec.model.input_shape,
        f"all rows give {_inputs(data.input_shape)}, and the frozen arrays of {label} fit"
        f" {_inputs(spec.model.input_shape)} of the comparison; leave out columns with"
        " rare categories there (--drop), so that both are equal",
    )
    # More rows may give other inputs, such as a category that was too rare.
    network = spec.model.architecture.in_precision(spec.model.dtype)
    executor = executor_of(data, network, settings, directory)
    spec = replace(
        spec, model=executor.model, until_converged=False, evaluate_every=rounds
    )
    title = f"{label}, on all rows"
    shown = nullcontext(None) if follow is None else follow(title, rounds)
    try:
        with shown as after_round:
            callbacks = [] if after_round is None else [AfterRound(after_round)]
            return run_on(executor, spec, callbacks=callbacks, store=Store(directory))
    except Diverged as error:
        raise ValueError(
            f"{first.method} diverges on all rows with the settings that were chosen"
            f" ({error}); name another method with --method"
        ) from None


def _refit(
    label: str, runs: Sequence[StoredRun], data: Federation, directory: Path
) -> StoredRun:
    """Train a baseline on the rows that are to train, with what its runs chose."""
    baseline = find_baseline(label).with_choices([run.summary[CHOSEN] for run in runs])
    asked = runs[0].manifest["run"].get("metrics", ())
    model = bind(linear(), data)
    evaluate(baseline, data, model, directory, seed=runs[0].seed, metrics=asked)
    return StoredRun(directory)


def _expected_of(
    runs: Mapping[str, Sequence[StoredRun]], metric: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """(client, label of a baseline) -> what a comparison expects of it."""
    rows = rows_of(runs) if runs else None
    if rows is None:
        return {}
    found = expected_metrics(rows, metric).iter_rows(named=True)
    return {(row["client"], row["method"]): row for row in found}


def _inputs(shape: tuple[int, ...]) -> str:
    """The number of inputs in words."""
    return f"{' x '.join(map(str, shape))} inputs"


def _folder_name(label: str, labels: Sequence[str]) -> str:
    """A folder for a method, which no other one of these has."""
    name = slug(label) or "method"
    same = [other for other in labels if (slug(other) or "method") == name]
    return name if len(same) == 1 else f"{name}-{same.index(label) + 1}"


def _expectation(
    entry: ClientVerdict,
    used: dict[str | None, str],
    folders: dict[str, str],
    of_baselines: Mapping[tuple[str, str], Mapping[str, Any]],
) -> Expectation:
    """What the comparison says of a client's method."""
    label = used[entry.client]
    known = of_baselines.get((entry.client, label))
    if known is not None:
        value, low, high = (known[name] for name in ("value", "low", "high"))
        return Expectation(folders[label], label, value, low, high)
    # The verdict has figures of the method that it recommends to the client only.
    if label != entry.method or entry.value != entry.value:
        return Expectation(folders[label], label)
    return Expectation(folders[label], label, entry.value, entry.low, entry.high)
