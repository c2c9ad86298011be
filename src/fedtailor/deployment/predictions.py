"""Predicts the raw rows of a file."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.files import reason, translate_read_errors
from fedtailor._base.printable import join_names
from fedtailor.data.federation.files import NUMPY_ERRORS
from fedtailor.data.tables import ENDINGS, Preprocessing, TableOptions
from fedtailor.data.tables.kinds import category_text
from fedtailor.data.tables.problems import first_row
from fedtailor.data.tables.reading import read
from fedtailor.data.tables.target import label_text
from fedtailor.deployment.data import require_simulation
from fedtailor.deployment.opening import OpenedRun
from fedtailor.deployment.thresholds import log_odds
from fedtailor.engine.storage import PersonalModel
from fedtailor.lab.results.thresholds import Thresholds, share_of_log_odds
from fedtailor.models import Model
from fedtailor.models.tasks import DiscreteTime, Task
from fedtailor.models.tasks.task import Decode
from fedtailor.statistics.conformal import Calibration, require_coverage

ARRAYS = (".npy", ".npz")
BETWEEN_LABELS = " | "

_ROUNDING = 1e-5
"""Room for the rounding of a score, where outputs are of size 1; many times the error of
single precision.
"""


def predictions(
    models: Mapping[str, PersonalModel],
    path: Path,
    client: str | None,
    *,
    missing: Literal["error", "impute"] = "error",
    unknown: Literal["error", "other"] = "error",
    probabilities: bool = False,
    coverage: float | None = None,
    calibrated: bool = False,
    calibration: Calibration | None = None,
    thresholds: Thresholds | None = None,
    times: Sequence[float] = (),
    keep: Sequence[str] = (),
) -> pl.DataFrame:
    """Predict the rows of a file with personal models.

    Args:
        models: the personal models, by client.
        path: a table, or an array [n, ...] in a .npy file, or in a .npz file the inputs by
            name, if an example has several. For models of a table it has
            the table's columns, by name; for models of arrays it has columns of numbers
            in the order of the inputs.
        client: the client whose model predicts. None is allowed if the table has a
            column of clients, or if there is only one model.
        missing: see `fedtailor.data.tables.Preprocessing.transform`.
        unknown: see `fedtailor.data.tables.Preprocessing.transform`.
        probabilities: whether to return the probability of every class.
        coverage: the share of rows, such as 0.9, whose true class is to be in a set of
            classes, or whose true number in an interval.
        calibrated: whether to divide logits by the client's temperature.
        calibration: where sets, intervals and temperatures are from.
        thresholds: the probabilities from which on the second of two classes is predicted.
        times: of survival, the times at which to predict the share without the event.
        keep: columns of the rows to return, too, such as an id.

    Returns:
        The columns row (from 1; for windows the first row, and last_row), those of
        `keep`, client (if the
        table names clients), prediction (or prediction 1, 2, ... for several targets),
        and for classes the probability of
        the predicted class, and "p(LABEL)" of every class if requested. Of survival
        risk (a higher one means an earlier event), and S(TIME) at each of the times. With
        `coverage` also low and high, or set (labels, the most probable one first, with
        " | " between them). With `thresholds` also "p(LABEL)" of the second class and
        threshold.

    Raises:
        ValueError: there is no such client, or rows are not valid.
    """
    first = next(iter(models.values()))
    check_times(first.model.task, times)
    preprocessing = first.preprocessing
    choice = _Choice(probabilities, coverage, calibrated, calibration, thresholds)
    if client is None and len(models) == 1:
        client = first.name
    frame = None
    if preprocessing is None:
        require(
            client is not None, "name the client whose model predicts with --client"
        )
        inputs, row_clients = _array(path, first.model), []
    else:
        frame = read_raw_rows(path, preprocessing)
        inputs = preprocessing.transform(frame, missing=missing, unknown=unknown)
        row_clients = [] if client is not None else _row_clients(frame, preprocessing)
        if preprocessing.windowing is not None:
            found = _of_windows(models, inputs, frame, client, row_clients, choice)
            return _with_kept(found, frame, keep)
    if client is not None:
        _check_client(client, models)
        rows = np.arange(len(inputs))
        table = _predict(models[client], inputs, rows, choice, times)
        return _with_kept(table.drop("client"), frame, keep)
    names = list(dict.fromkeys(row_clients))
    for name in names:
        _check_client(name, models)
    frames = []
    for name in names:
        rows = np.flatnonzero(np.array(row_clients) == name)
        frames.append(_predict(models[name], inputs[rows], rows, choice, times))
    return _with_kept(pl.concat(frames).sort("row"), frame, keep)


def _check_client(client: str, models: Mapping[str, PersonalModel]) -> None:
    """Require that there is a model of a client."""
    near = difflib.get_close_matches(client, list(models), n=1)
    similar = f"; did you mean {near[0]!r}?" if near else ""
    require(
        client in models,
        f"there is no client with a model {client!r}{similar} (models are of"
        f" {join_names(list(models))}); a client that was not in the training gets one by"
        " `fedtailor enroll`",
    )


def _with_kept(
    table: pl.DataFrame, frame: pl.DataFrame | None, keep: Sequence[str]
) -> pl.DataFrame:
    """Add columns of the raw rows behind the numbers of the rows."""
    for place, name in enumerate(keep, 1):
        require(
            frame is not None and name in frame.columns,
            f"the rows have no column {name!r} to keep",
        )
        require(name not in table.columns, f"{name!r} is a column of predictions")
        assert frame is not None
        cells = frame[name].gather((table["row"] - 1).to_list())
        table = table.insert_column(place, cells)
    return table


def check_times(task: Task, times: Sequence[float]) -> None:
    """Check times at which the share without the event is to be predicted.

    Raises:
        ValueError: the models have no survival curves, or a time is negative.
    """
    require(
        not times or isinstance(task, DiscreteTime),
        "these models have no survival curves; times is for those of hazard discrete",
    )
    require(
        all(np.isfinite(time) and time >= 0 for time in times),
        f"times is {list(times)}; a time is a number of 0 or more",
    )


def survival_columns(
    task: Task, outputs: NDArray[Any], times: Sequence[float]
) -> dict[str, NDArray[np.float64]]:
    """The predicted shares without the event at some times, one column for each."""
    if not times:
        return {}
    assert isinstance(task, DiscreteTime)
    shares = task.survival_at(outputs, times)
    return {f"S({time:g})": shares[:, number] for number, time in enumerate(times)}


def _of_windows(
    models: Mapping[str, PersonalModel],
    inputs: NDArray[Any],
    frame: pl.DataFrame,
    client: str | None,
    row_clients: list[str],
    choice: "_Choice",
) -> pl.DataFrame:
    """Predict windows of rows; each is named by its first and its last row."""
    preprocessing = next(iter(models.values())).preprocessing
    assert preprocessing is not None
    index = preprocessing.windows(frame)
    first, last = index[:, 0], index[:, -1]
    names = [client] * len(index) if client is not None else []
    names = names or [row_clients[row] for row in first]
    frames = []
    for name in dict.fromkeys(names):
        assert name is not None
        _check_client(name, models)
        chosen = np.flatnonzero(np.array(names) == name)
        predicted = _predict(models[name], inputs[chosen], first[chosen], choice)
        ends = pl.Series("last_row", last[chosen] + 1)
        frames.append(predicted.insert_column(1, ends))
    table = pl.concat(frames).sort("row")
    return table if client is None else table.drop("client")


def read_newcomer(
    run: OpenedRun,
    path: Path,
    *,
    missing: Literal["error", "impute"] = "error",
    unknown: Literal["error", "other"] = "error",
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read a newcomer's inputs and targets from a file.

    Args:
        run: a run that was trained on a table.
        path: a file with the columns of that table.
        missing: see `fedtailor.data.tables.Preprocessing.transform`.
        unknown: see `fedtailor.data.tables.Preprocessing.transform`.

    Raises:
        ValueError: the run was trained on arrays, or rows are not valid.
    """
    if run.preprocessing is None:
        require_simulation(run.manifest, run.path)
        raise ValueError(
            f"{run.path} was made from arrays, not from a table: enroll in Python,"
            " ft.open(...).enroll(x, y, name=...)"
        )
    return run.preprocessing.transform_labelled(
        read_raw_rows(path, run.preprocessing), missing=missing, unknown=unknown
    )


def read_raw_rows(path: Path, preprocessing: Preprocessing) -> pl.DataFrame:
    """Read a file of raw rows with the options of the table used in training.

    Raises:
        ValueError: the file cannot be read as a table.
    """
    options = TableOptions(
        client=preprocessing.client,
        missing=preprocessing.missing,
        decimal="," if preprocessing.decimal == "," else ".",
        thousands=preprocessing.thousands,
        fold_case=preprocessing.fold_case,
    )
    columns = [column.name for column in preprocessing.columns]
    return read(path, options, columns).frame


def _row_clients(frame: pl.DataFrame, preprocessing: Preprocessing) -> list[str]:
    """The client of each row, from the column of clients."""
    name = preprocessing.client
    require(
        name in frame.columns,
        "name the client whose model predicts with --client, or add the column"
        f" {name!r}",
    )
    column = frame[name]
    require(
        not column.null_count(),
        f"the column {name!r} is empty in row {first_row(column.is_null())}",
    )
    return category_text(column).to_list()


def _array(path: Path, model: Model) -> NDArray[Any]:
    """Read inputs [n, *input_shape] for models that were trained on arrays."""
    shape = model.input_shape
    if path.name.lower().endswith(ARRAYS):
        require(path.is_file(), f"there is no file {path}; check the path")
        try:
            with translate_read_errors(path), path.open("rb") as file:
                array = np.load(file, allow_pickle=False)
                if isinstance(array, np.lib.npyio.NpzFile):
                    array = dict(array)
        except NUMPY_ERRORS as error:
            raise ValueError(f"{path} holds no array: {reason(error)}") from None
        if isinstance(array, dict):
            inputs = model.architecture.inputs
            require(
                inputs is not None,
                f"{path} has several arrays, and these models take one; give it as .npy",
            )
            assert inputs is not None
            return inputs.pack(array)
        require(
            isinstance(array, np.ndarray) and array.dtype.kind in "biuf",
            f"{path} holds no array of numbers",
        )
        return array
    require(
        path.name.lower().endswith(ENDINGS),
        f"{path} is neither a table ({', '.join(ENDINGS)}) nor an array"
        f" ({', '.join(ARRAYS)})",
    )
    frame = read(path, TableOptions()).frame
    width = int(np.prod(shape, dtype=int))
    require(
        frame.width == width,
        f"{path} has {frame.width} columns; these models were trained on arrays, not on"
        f" a table, and take {width} numbers a row, in the order of their inputs",
    )
    columns = []
    for series in frame:
        # The type of a column whose cells are all empty is arbitrary.
        is_empty = series.null_count() == len(series)
        require(
            is_empty or series.dtype.is_numeric(),
            f"column {series.name!r} of {path} holds other cells than numbers; these"
            " models take numbers only",
        )
        columns.append(series.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    return np.stack(columns, axis=1).astype(np.float32).reshape(-1, *shape)


@dataclass(frozen=True)
class _Choice:
    """What is written next to predictions; see `predictions`."""

    probabilities: bool
    coverage: float | None
    calibrated: bool
    calibration: Calibration | None
    thresholds: Thresholds | None

    def __post_init__(self) -> None:
        if self.coverage is not None:
            require_coverage(self.coverage)
        require(
            self.calibration is not None
            or (self.coverage is None and not self.calibrated),
            "sets, intervals and temperatures need a calibration",
        )
        require(
            self.thresholds is None or self.coverage is None,
            "a threshold may predict a class that is not the most probable one, with which"
            " every set begins; leave out --threshold or --coverage",
        )

    def threshold(self, client: str) -> float | None:
        """The largest score that is taken in; None if nothing is asked."""
        if self.coverage is None or self.calibration is None:
            return None
        return self.calibration.threshold(client, self.coverage).value

    def temperature(self, client: str) -> float:
        """The client's temperature; 1 if it has none or it is not asked for."""
        if not self.calibrated or self.calibration is None:
            return 1.0
        known = self.calibration.clients.get(client)
        return 1.0 if known is None else known.temperature or 1.0


def _predict(
    model: PersonalModel,
    inputs: NDArray[Any],
    rows: NDArray[np.int64],
    choice: _Choice,
    times: Sequence[float] = (),
) -> pl.DataFrame:
    """Predict inputs with one model; `rows` are their row indices, from 0."""
    columns: dict[str, Any] = {"row": rows + 1, "client": [model.name] * len(rows)}
    out = model.outputs(inputs)

    def decode(values: NDArray[Any]) -> Sequence[Any] | NDArray[Any]:
        if model.preprocessing is not None:
            values = model.preprocessing.decode(values)
        # Booleans are written as in CSV files.
        is_bool = values.dtype.kind == "b"
        return [label_text(value) for value in values.tolist()] if is_bool else values

    threshold = choice.threshold(model.name)
    task = model.model.task
    require(
        task.predicts_classes or not choice.calibrated,
        "these models predict no classes: there are no probabilities to calibrate",
    )
    columns |= task.prediction_columns(
        out / choice.temperature(model.name) if choice.calibrated else out,
        decode,
        probabilities=choice.probabilities,
    )
    if choice.thresholds is not None:
        columns |= _columns_of_threshold(
            choice.thresholds.of(model.name).log_odds,
            out,
            choice.temperature(model.name),
            decode,
            columns,
        )
    columns |= survival_columns(task, out, times)
    if threshold is not None:
        columns |= columns_of_threshold(
            task, out, threshold, decode, columns.get("prediction")
        )
        target = None if model.preprocessing is None else model.preprocessing.target
        if target is not None and target.never_negative:
            columns["low"] = np.maximum(columns["low"], 0)
    return pl.DataFrame(columns)


def _columns_of_threshold(
    threshold: float,
    outputs: NDArray[Any],
    temperature: float,
    decode: Decode,
    columns: Mapping[str, Any],
) -> dict[str, Any]:
    """The classes that a threshold predicts, with their probabilities, the probability of
    the second class, and the threshold.

    Args:
        threshold: the log-odds from which on the second class is predicted.
        outputs: of the model, before a temperature.
        temperature: the divisor of the log-odds of the written probabilities.
        decode: converts class numbers to labels.
        columns: those of predictions without a threshold.
    """
    odds = log_odds(outputs)
    share = share_of_log_odds(odds / temperature)
    predicted = (odds >= threshold).astype(np.int64)
    name = f"p({list(decode(np.arange(2)))[1]})"
    return {
        "prediction": decode(predicted),
        "probability": np.where(predicted == 1, share, 1 - share),
        name: columns.get(name, share),
        "threshold": np.full(
            len(share), share_of_log_odds(np.float64(threshold / temperature))
        ),
    }


def columns_of_threshold(
    task: Task, outputs: NDArray[Any], threshold: float, decode: Decode, prediction: Any
) -> dict[str, Any]:
    """The set of classes of each row, or the ends of its interval.

    Args:
        task: what is predicted.
        outputs: of the model, before a temperature.
        threshold: the largest score that is taken in.
        decode: converts class numbers to labels.
        prediction: the predicted numbers, in the unit of the threshold.
    """
    # A threshold is the score of a validation row, rounded to single precision by another
    # program. Without room for rounding, rows with exactly its score, of which there are
    # many where inputs are categories, would be left out by chance.
    if task.predicts_classes:
        labels = list(decode(np.arange(outputs.shape[-1])))
        sizes = np.where(np.isfinite(outputs), np.abs(outputs), 0).max(axis=-1)
        room = _ROUNDING * (1 + sizes)
        return {"set": _sets(task.probabilities(outputs), threshold + room, labels)}
    half = threshold + _ROUNDING * (threshold + 0.05 * np.abs(prediction))
    return {"low": prediction - half, "high": prediction + half}


def _sets(
    probs: NDArray[Any], thresholds: NDArray[Any], labels: Sequence[Any]
) -> list[str]:
    """The classes of each row whose score is at most the row's threshold, and the most
    probable one in any case, by falling probability.
    """
    sets = []
    for row, threshold in zip(np.asarray(probs, np.float64), thresholds, strict=True):
        order = np.argsort(-row, kind="stable")
        taken = [
            str(labels[index])
            for place, index in enumerate(order)
            if place == 0 or 1 - row[index] <= threshold
        ]
        sets.append(BETWEEN_LABELS.join(taken))
    return sets
