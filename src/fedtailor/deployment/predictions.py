"""Predictions for a file of raw rows."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._files import reading
from fedtailor.deployment.opening import OpenedRun
from fedtailor.protocol import check_choice, require
from fedtailor.storage import PersonalModel
from fedtailor.tables import ENDINGS, Preprocessing, TableOptions
from fedtailor.tables.kinds import category_text
from fedtailor.tables.reading import read

ARRAYS = ".npy"


def predictions(
    models: Mapping[str, PersonalModel],
    path: Path,
    client: str | None,
    *,
    missing: Literal["error", "impute"] = "error",
    unknown: Literal["error", "other"] = "error",
    probabilities: bool = False,
) -> pl.DataFrame:
    """What personal models make of the rows of a file.

    Args:
        models: by client.
        path: a table (of models that were trained on one: with their columns, by name;
            else columns of numbers in the order of the inputs), or an array [n, ...] in
            a .npy file.
        client: whose model; None: the rows' column of clients says it, or there is one
            model only.
        missing: see `fedtailor.tables.Preprocessing.transform`.
        unknown: likewise.
        probabilities: give the probability of every class, too.

    Returns:
        row (counted from 1), client where the rows name it, prediction (or prediction
        1, 2, ... of several targets), and for classes the probability of the predicted
        one, and of each as "p(LABEL)" if asked for.

    Raises:
        ValueError: there is no such client, or all that is wrong with the rows.
    """
    first = next(iter(models.values()))
    preprocessing = first.preprocessing
    if client is None and len(models) == 1:
        client = first.name
    if preprocessing is None:
        require(
            client is not None, "name the client whose model predicts with --client"
        )
        inputs, owners = _array(path, first.model.input_shape), []
    else:
        frame = read_rows(path, preprocessing)
        inputs = preprocessing.transform(frame, missing=missing, unknown=unknown)
        owners = [] if client is not None else _owners(frame, preprocessing)
    if client is not None:
        check_choice(client, models, "client with a model")
        rows = np.arange(len(inputs))
        return _of_client(models[client], inputs, rows, probabilities).drop("client")
    names = list(dict.fromkeys(owners))
    for name in names:
        check_choice(name, models, "client with a model")
    frames = []
    for name in names:
        rows = np.flatnonzero(np.array(owners) == name)
        frames.append(_of_client(models[name], inputs[rows], rows, probabilities))
    return pl.concat(frames).sort("row")


def labelled_rows(
    run: OpenedRun,
    path: Path,
    *,
    missing: Literal["error", "impute"] = "error",
    unknown: Literal["error", "other"] = "error",
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A newcomer's inputs and targets, from a file with the columns of a run's table.

    Args:
        run: was made from a table.
        path: the file.
        missing: see `fedtailor.tables.Preprocessing.transform`.
        unknown: likewise.

    Raises:
        ValueError: the run was made from arrays, or all that is wrong with the rows.
    """
    if run.preprocessing is None:
        raise ValueError(
            f"{run.path} was made from arrays, not from a table: enroll in Python,"
            " ft.open(...).enroll(x, y, name=...)"
        )
    return run.preprocessing.transform_labelled(
        read_rows(path, run.preprocessing), missing=missing, unknown=unknown
    )


def read_rows(path: Path, preprocessing: Preprocessing) -> pl.DataFrame:
    """A file of raw rows, read as the table that models were trained on was.

    Raises:
        ValueError: it cannot be read as a table.
    """
    options = replace(TableOptions(), missing=preprocessing.missing)
    if preprocessing.decimal == ",":
        options = replace(options, decimal=",")
    return read(path, options).frame


def _owners(frame: pl.DataFrame, preprocessing: Preprocessing) -> list[str]:
    """The client of each row."""
    name = preprocessing.client
    require(
        name in frame.columns,
        "name the client whose model predicts with --client, or add the column"
        f" {name!r}",
    )
    column = frame[name]
    require(
        not column.null_count(),
        f"the column {name!r} is empty in row {(column.is_null().arg_max() or 0) + 1}",
    )
    return category_text(column).to_list()


def _array(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Inputs [n, *shape] of models that were trained on arrays."""
    if path.name.lower().endswith(ARRAYS):
        require(path.is_file(), f"there is no file {path}; check the path")
        try:
            with reading(path):
                return np.load(path, allow_pickle=False)
        except (EOFError, ValueError) as error:
            raise ValueError(f"{path} holds no array: {error}") from None
    require(
        path.name.lower().endswith(ENDINGS),
        f"{path} is neither a table ({', '.join(ENDINGS)}) nor an array (.npy)",
    )
    frame = read(path, TableOptions()).frame
    wanted = int(np.prod(shape, dtype=int))
    require(
        frame.width == wanted,
        f"{path} has {frame.width} columns; these models were trained on arrays, not on"
        f" a table, and take {wanted} numbers a row, in the order of their inputs",
    )
    columns = []
    for series in frame:
        # A column without any cell has no type of its own.
        is_empty = series.null_count() == len(series)
        require(
            is_empty or series.dtype.is_numeric(),
            f"column {series.name!r} of {path} holds other cells than numbers; these"
            " models take numbers only",
        )
        columns.append(series.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    return np.stack(columns, axis=1).astype(np.float32).reshape(-1, *shape)


def _of_client(
    model: PersonalModel,
    inputs: NDArray[Any],
    rows: NDArray[np.int64],
    probabilities: bool,
) -> pl.DataFrame:
    """The predictions of one model for some rows (counted from 0)."""
    columns: dict[str, Any] = {"row": rows + 1, "client": [model.name] * len(rows)}
    out = model.outputs(inputs)

    def decoded(values: NDArray[Any]) -> NDArray[Any]:
        if model.preprocessing is None:
            return values
        return model.preprocessing.decode(values)

    if not model.model.classification:
        require(
            not probabilities,
            "these models predict no classes: there are no probabilities",
        )
        targets = decoded(out.reshape(len(out), -1)).T  # [targets, rows]
        names = ["prediction"]
        if len(targets) > 1:
            names = [f"prediction {number + 1}" for number in range(len(targets))]
        return pl.DataFrame(columns | dict(zip(names, targets, strict=True)))
    classes = out.argmax(axis=-1)
    shares = model.probabilities_of(out)  # [rows, classes]
    columns["prediction"] = [_plain(label) for label in decoded(classes).tolist()]
    columns["probability"] = shares[np.arange(len(classes)), classes]
    if probabilities:
        labels = decoded(np.arange(model.model.outputs))
        for number, label in enumerate(labels):
            columns[f"p({label})"] = shares[:, number]
    return pl.DataFrame(columns)


def _plain(label: Any) -> Any:
    """A label as a column of one type holds it.

    true and false are as a file writes them.
    """
    return str(label).lower() if isinstance(label, bool) else label
