"""Trains a baseline on one split, and stores what it makes of the rows as a run does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import polars as pl
from jaxtyping import Array
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.accounting import Ledger
from fedtailor.data.federation import Client, Federation, Split
from fedtailor.data.tables import Preprocessing
from fedtailor.engine.storage import PersonalModel, RunDirectory
from fedtailor.engine.storage.manifest import origin_settings, versions
from fedtailor.engine.storage.run_files import (
    CLIENTS,
    LEDGER,
    METRICS,
    ROWS,
    VALIDATION,
    clients,
)
from fedtailor.engine.training import Metrics
from fedtailor.engine.training.metrics import Evaluation, select_metrics
from fedtailor.lab.baselines.baseline import Baseline, KeptModels, Predict, Problem
from fedtailor.models import Model
from fedtailor.models.metrics import Metric
from fedtailor.models.metrics.rows import WEIGHT, row_scores, rows_frame
from fedtailor.models.tasks import Survival
from fedtailor.protocol.plain import to_plain
from fedtailor.statistics.conformal import LEAST_ROWS, TEMPERATURE, fit_temperature

_BLOCK = 128
"""Rows that one program scores."""
NAME_IN_MANIFEST = "baseline"
"""The key of a manifest's `[algorithm]` that says that its run is one of a baseline."""
CHOSEN = "chosen"
"""The key of a summary that holds what a baseline chose on validation rows."""


def evaluate(
    baseline: Baseline,
    federation: Federation,
    model: Model,
    directory: Path,
    *,
    seed: int = 0,
    metrics: Sequence[str | Metric] = (),
) -> None:
    """Train a baseline and write its run directory, unless that is finished.

    The directory has the files of a run, without checkpoints: manifest.toml,
    clients.parquet, metrics.parquet (round 1), ledger.parquet (empty), rows.parquet and
    summary.json; and the models, if the baseline keeps them, with validation.parquet and
    the preprocessing of a table.

    Args:
        baseline: what is trained.
        federation: the clients and their inputs [n, d]. Unseen clients are left out.
        model: a model of these data; says what is predicted, and how it is measured.
        directory: the run directory.
        seed: seed of everything random.
        metrics: what to measure in addition to the loss and the accuracy.

    Raises:
        ValueError: the baseline cannot be trained on these data, or the directory
            cannot be written.
    """
    store = RunDirectory(directory)
    if store.finished_summary(1) is not None:
        return
    require(
        len(model.input_shape) == 1
        and (
            model.classification
            or model.outputs == 1
            or isinstance(model.task, Survival)
        ),
        "baselines take rows of a table, with classes, one number or a time to an event",
    )
    started = perf_counter()
    names = metrics or federation.default_metrics
    measured, judged_by = select_metrics(names, model)
    seen = [client for client in federation if not client.unseen]
    problem = Problem(
        [_inputs(federation, client.train) for client in seen],
        [client.train.y for client in seen],
        federation.classes,
        seed,
        [_inputs(federation, client.val) for client in seen],
        [client.val.y for client in seen],
        model.task,
        [client.name for client in seen],
        _weights(federation, seen, "train"),
        _weights(federation, seen, "val"),
    )
    predict = baseline.fit(problem)
    kept = baseline.keep(predict, model) if baseline.keeps_models else None
    # A baseline is measured as methods are: client by client, with the same metrics.
    scored: dict[str, list[_Scores]] = {"val": [], "test": []}
    for split, scores in scored.items():
        for position, client in enumerate(seen):
            rows = getattr(client, split)
            outputs = _outputs(model, predict, federation, position, rows)
            weights = _weights(federation, [client], split)
            weight = np.ones(len(rows.y)) if not weights else weights[0]
            scores.append(_score(model, measured, outputs, rows.y, weight))
    evaluations: list[Evaluation] = []
    for split, scores in scored.items():
        evaluations += _evaluations(federation, seen, split, scores, measured)
    rows = _rows(model, federation, seen, scored["test"], "test")
    origin = federation.origin_in(directory)
    content: dict[str, Any] = {
        "run": {
            "seed": seed,
            "evaluate_every": 1,
            "participation": {"fraction": 1.0},
            **({"metrics": [_name(metric) for metric in names]} if names else {}),
        },
        "algorithm": {
            "name": baseline.name,
            "title": baseline.title_for(federation.classes),
            NAME_IN_MANIFEST: True,
        },
        "model": to_plain(model if kept is None else kept.model),
        "data": dict(federation.description),
        **({} if origin is None else {"origin": origin_settings(origin)}),
        "versions": {**versions(), "scikit-learn": _scikit_learn_version()},
    }
    store.open(content, resume=True)
    try:
        store.write_table(CLIENTS, clients(federation))
        store.write_table(METRICS, Metrics(evaluations).frame(federation.names))
        store.write_table(LEDGER, Ledger().frame())
        store.write_table(ROWS, rows)
        if kept is not None:
            if federation.preprocessing is not None:
                store.write_preprocessing(federation.preprocessing)
            store.write_models(_personal(federation, seen, kept))
            store.write_table(VALIDATION, _validation(model, federation, seen, scored))
        store.write_summary(
            {
                "algorithm": baseline.name,
                "metric": judged_by.name,
                "rounds": 1,
                "seed": seed,
                "seconds": perf_counter() - started,
                **({} if kept is None else {CHOSEN: kept.chosen}),
            }
        )
    finally:
        store.close()


def _personal(
    federation: Federation, seen: Sequence[Client], kept: KeptModels
) -> Iterator[PersonalModel]:
    """The models of all clients; those that did not train have the shared one."""
    vectors = {
        client.name: vector for client, vector in zip(seen, kept.vectors, strict=True)
    }
    preprocessing = federation.preprocessing
    assert preprocessing is None or isinstance(preprocessing, Preprocessing)
    for name in federation.names:
        vector = vectors.get(name, kept.shared)
        if vector is None:
            continue
        yield PersonalModel(
            name,
            vector,
            kept.model,
            federation.shift,
            federation.scale,
            preprocessing,
        )


def _validation(
    model: Model,
    federation: Federation,
    seen: Sequence[Client],
    scored: Mapping[str, Sequence["_Scores"]],
) -> pl.DataFrame:
    """The outcome of every validation row, and the temperatures of classes."""
    frame = _rows(model, federation, seen, scored["val"], "val")
    if not model.classification:
        return frame
    found = {}
    for client, scores in zip(seen, scored["val"], strict=True):
        labels, enough = client.val.y, len(client.val.y) >= LEAST_ROWS
        found[client.name] = (
            fit_temperature(scores.outputs, labels) if enough else np.nan
        )
    values = [found[name] for name in frame["client"]]
    return frame.with_columns(pl.Series(TEMPERATURE, values, pl.Float64))


def _scikit_learn_version() -> str:
    from importlib.metadata import version

    return version("scikit-learn")


def _name(metric: str | Metric) -> str:
    return metric if isinstance(metric, str) else metric.name


def _inputs(federation: Federation, split: Split) -> NDArray[np.float64]:
    """A split's inputs, normalised as a model's are."""
    x = np.asarray(split.x, np.float64)
    return (x - np.asarray(federation.shift)) * np.asarray(federation.scale)


def _weights(
    federation: Federation, clients: Sequence[Client], split: str
) -> list[NDArray[np.float64]]:
    """The weights of the clients' rows in a split [n_c]; empty = all count the same."""
    weights, rows = federation.weights_of(split), getattr(federation, split)
    if weights is None:
        return []
    return [
        weights[rows.offsets[one.index] : rows.offsets[one.index + 1]]
        for one in clients
    ]


def _outputs(
    model: Model, predict: Predict, federation: Federation, position: int, split: Split
) -> NDArray[Any]:
    """What the baseline predicts for a split of a client, as a model's outputs."""
    found = predict(position, _inputs(federation, split))
    # A client may have no row in a split.
    return found.reshape(len(split.y), model.outputs).astype(np.float32)


@dataclass(frozen=True)
class _Scores:
    """What a baseline's outputs for one client are worth.

    Attributes:
        outputs: [n, outputs].
        rows: name -> [n], see `fedtailor.models.metrics.rows.row_scores`.
        statistics: metric's name -> its sums over the rows.
    """

    outputs: NDArray[Any]
    rows: Mapping[str, NDArray[Any]]
    statistics: Mapping[str, Mapping[str, Any]]


def _score(
    model: Model,
    metrics: tuple[Metric, ...],
    outputs: NDArray[Any],
    y: NDArray[Any],
    weight: NDArray[np.float64],
) -> _Scores:
    """Scores outputs [n, ...] of rows of weights [n] in blocks of equal shape, which share
    a program.
    """
    single = weight.astype(np.float32)
    y = y.astype(np.int32 if y.dtype.kind in "iub" else np.float32)
    rows: list[dict[str, NDArray[Any]]] = []
    statistics: dict[str, dict[str, Any]] = {}
    # Without rows, a block of padding is scored for the types of the columns.
    for start in range(0, max(len(y), 1), _BLOCK):
        found, true = outputs[start : start + _BLOCK], y[start : start + _BLOCK]
        count = len(true)
        padding = [(0, _BLOCK - count)]
        sums, scores = _score_block(
            model,
            metrics,
            np.pad(found, [*padding, *[(0, 0)] * (found.ndim - 1)]),
            np.pad(true, [*padding, *[(0, 0)] * (true.ndim - 1)]),
            np.pad(single[start : start + _BLOCK], padding),
        )
        rows.append({name: np.asarray(it)[:count] for name, it in scores.items()})
        for name, statistic in sums.items():
            total = statistics.setdefault(name, {})
            for key, value in statistic.items():
                total[key] = np.asarray(total.get(key, 0) + np.asarray(value))
    joined = {}
    for name in rows[0]:
        joined[name] = np.concatenate([part[name] for part in rows])
    return _Scores(outputs, joined, statistics)


@partial(jax.jit, static_argnums=(0, 1))
def _score_block(
    model: Model, metrics: tuple[Metric, ...], outputs: Array, y: Array, weight: Array
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The sums of all metrics over a block, and the scores of its rows."""
    sums = {
        metric.name: metric.statistic(model, outputs, y, weight) for metric in metrics
    }
    return sums, row_scores(model, outputs, y, weight)


def _evaluations(
    federation: Federation,
    seen: Sequence[Client],
    split: str,
    scores: Sequence[_Scores],
    metrics: Sequence[Metric],
) -> Iterator[Evaluation]:
    """The metrics of all seen clients on one split."""
    _, scale = federation.target_units
    # An evaluation holds one metric of many clients: name -> (client, value) of all.
    values: dict[str, list[tuple[int, float]]] = {}
    for client, scored in zip(seen, scores, strict=True):
        if not len(getattr(client, split).y):
            continue
        for metric in metrics:
            statistic = metric.condense(scored.statistics[metric.name])
            for name, value in metric.values(statistic).items():
                if np.isnan(value):
                    continue
                if metric.unit == "target":
                    value *= scale
                values.setdefault(name, []).append((client.index, value))
    for name, pairs in values.items():
        indices = np.array([index for index, _ in pairs])
        numbers = np.array([value for _, value in pairs])
        yield Evaluation(1, indices, False, split, name, numbers)


def _rows(
    model: Model,
    federation: Federation,
    seen: Sequence[Client],
    scores: Sequence[_Scores],
    split: str,
) -> pl.DataFrame:
    """The outcome of every row of a split, as `fedtailor.engine.runs.row_outcomes` has it."""
    columns, numbers = [], []
    for client, found in zip(seen, scores, strict=True):
        # The targets of a model are standardised; results are in the user's own unit.
        columns_of = model.task.in_units(dict(found.rows), *federation.target_units)
        tested = getattr(federation, split)[client.index]
        if federation.weights is not None:
            weights = federation.weights[tested].astype(np.float32)
            columns_of = {**columns_of, WEIGHT: weights}
        columns.append(columns_of)
        numbers.append(tested if federation.rows is None else federation.rows[tested])
    return rows_frame([client.name for client in seen], numbers, columns)
