"""`Preprocessing`: converts raw rows of a table to a model's inputs.

It is fitted to the training rows of a table, and stored with the models as JSON. It
finds the columns of further rows by their names.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float32, Float64, Int
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.printable import join_names
from fedtailor.data.tables.decorrelation import Decorrelation
from fedtailor.data.tables.encoding import ColumnEncoding
from fedtailor.data.tables.kinds import category_text, parse_as, parse_times
from fedtailor.data.tables.numerals import without_marks
from fedtailor.data.tables.problems import (
    Problems,
    describe_rows,
    no_such_column,
)
from fedtailor.data.tables.reading import as_frame, clean, mixed_series
from fedtailor.data.tables.target import TargetEncoding
from fedtailor.data.tables.windows import Windowing, windows_to_predict
from fedtailor.protocol.plain import ConfigError, parse

_FORMAT = "fedtailor preprocessing 1"
_TYPES: dict[str, Any] = {
    "columns": tuple[ColumnEncoding, ...],
    "target": TargetEncoding,
    "client": str,
    "ignored": dict[str, str],
    "missing": tuple[str, ...],
    "decimal": str,
    "thousands": str | None,
    "fold_case": bool,
    "windowing": Windowing | None,
}
"""Of what a file holds; JSON has lists instead of tuples."""
_EXAMPLES = 3


def role_reason(role: str) -> str:
    """Why a column with a role, such as "weight", is no input."""
    return f"the {role} column"


@dataclass(frozen=True)
class Preprocessing:
    """Converts rows of a table to inputs, and predictions to the user's labels.

    Attributes:
        columns: encodings of the input columns, in the order of the model's inputs.
        target: encoding of the target column.
        client: name of the client column.
        ignored: the reason for each column of the table that is not an input. Rows may
            have these columns.
        missing: the user's words for missing cells.
        decimal: decimal sign of numbers that are stored as text.
        thousands: their thousands mark, if the user has named it.
        fold_case: whether text is read in lower case, with single spaces.
        decorrelation: a linear map that is applied to the encoded columns; None = no
            map.
        windowing: how rows become windows, which are the model's inputs; None = rows are.

    Example:
        >>> table = ft.tables.from_table(frame, client="hospital", target="ill")
        >>> table.preprocessing.transform(frame.head(2)).shape
        (2, 1)
    """

    columns: tuple[ColumnEncoding, ...]
    target: TargetEncoding
    client: str
    ignored: Mapping[str, str]
    missing: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str | None = None
    fold_case: bool = False
    decorrelation: Decorrelation | None = None
    windowing: Windowing | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def weight(self) -> str | None:
        """The column that says how much rows count in training; None = all the same."""
        roles = (
            name for name, why in self.ignored.items() if why == role_reason("weight")
        )
        return next(roles, None)

    @property
    def unmixing(self) -> Float64[NDArray, "inputs inputs"] | None:
        """What leads from deviations of decorrelated inputs to those of the columns."""
        return None if self.decorrelation is None else self.decorrelation.inverse

    @property
    def target_shift(self) -> float:
        """The shift of a regression's targets, scale * prediction + shift."""
        return self.target.shift

    @property
    def target_scale(self) -> float:
        """The scale of a regression's targets, scale * prediction + shift."""
        return self.target.scale

    def transform(
        self,
        rows: Any,
        *,
        missing: Literal["error", "impute"] = "error",
        unknown: Literal["error", "other"] = "error",
    ) -> Float32[NDArray, "examples ..."]:
        """Convert raw rows to the model's inputs.

        With a `windowing` these are windows [windows, rows, inputs] (`windows`).

        Missing cells of a column that had missing cells in training are imputed in the
        same way (mean or most frequent value, and an indicator input). Further columns
        are not looked at.

        Args:
            rows: a polars or pandas frame, one row as a dict, or a list of dicts.
            missing: what to do with missing cells of a column that had none in
                training: "error", or "impute" the mean or most frequent value.
            unknown: what to do with unknown categories of a column without an input
                "other": "error", or "other" to set all of its inputs to 0.

        Raises:
            ValueError: the rows cannot be converted. The message lists all problems by
                column.
        """
        problems = Problems("the rows")
        frame = self._frame(rows, problems)
        problems.raise_if_any()
        out = np.empty((frame.height, len(self.inputs)), np.float32)
        start = 0
        for column in self.columns:
            end = start + len(column.inputs)
            values, bad = self._parse(frame[column.name], column, problems)
            is_missing = values.is_null() & ~bad
            if missing == "error" and not column.indicator and is_missing.any():
                problems.add(
                    f"column {column.name!r} is missing in {_row_text(is_missing)}, and in"
                    " training it never was; fill it in, or ask for missing='impute',"
                    f" which puts {column.fill_text} there"
                )
            is_unknown = column.unknown(values)
            if unknown == "error" and is_unknown.any():
                problems.add(
                    f"column {column.name!r} is {values.filter(is_unknown)[0]!r} in"
                    f" {_row_text(is_unknown)}, which no training row was; training had"
                    f" {join_names(column.categories)}; or ask for unknown='other'"
                )
            column.encode(values, out[:, start:end])
            is_infinite = pl.Series(~np.isfinite(out[:, start]))
            if is_infinite.any():
                problems.add(
                    f"column {column.name!r} is {values.filter(is_infinite)[0]:g} in"
                    f" {_row_text(is_infinite)}, which is too far from what training had;"
                    " mend it"
                )
            start = end
        problems.raise_if_any()
        if self.decorrelation is not None:
            self.decorrelation.apply(out)
        if self.windowing is None:
            return out
        return out[self.windows(rows)]

    def windows(self, rows: Any) -> Int[NDArray, "windows window"]:
        """The rows of each window of raw rows, which follow each other in time.

        They share no rows. None crosses a gap, or, where the rows have that column,
        another client.

        Raises:
            ValueError: the rows have no times, or too few rows follow each other.
        """
        windowing = self.windowing
        if windowing is None:
            raise ValueError("these models take rows, not windows")
        frame = clean(
            _as_frame(rows, Problems("the rows")),
            self.missing,
            fold_case=self.fold_case,
        )
        name = windowing.time
        if name not in frame.columns:
            raise ValueError(
                f"the rows have no column {name!r}, which orders them; add it"
            )
        parsed = parse_times(frame[name])
        if parsed.values.null_count():
            raise ValueError(
                f"time column {name!r} must hold a number or a date in every row"
            )
        times, owners = parsed.values.to_numpy(), np.zeros(frame.height, np.int64)
        if self.client in frame.columns:
            clients = category_text(frame[self.client]).fill_null("")
            owners = clients.rank("dense").to_numpy().astype(np.int64)
        return windows_to_predict(times, windowing, owners)

    def transform_labelled(
        self,
        rows: Any,
        *,
        missing: Literal["error", "impute"] = "error",
        unknown: Literal["error", "other"] = "error",
    ) -> tuple[Float32[NDArray, "examples ..."], NDArray[Any]]:
        """Convert raw rows to inputs and targets, as in training.

        Args:
            rows: rows as for `transform`, with the target column.
            missing: see `transform`.
            unknown: see `transform`.

        Raises:
            ValueError: the inputs or the target cannot be converted.
        """
        x = self.transform(rows, missing=missing, unknown=unknown)
        frame = clean(
            _as_frame(rows, Problems("the rows")),
            self.missing,
            fold_case=self.fold_case,
        )
        if self.target.name not in frame.columns:
            raise ValueError(
                f"the rows have no column {self.target.name!r}, which is the target;"
                " add it"
            )
        if self.target.task == "survival":
            if self.target.event not in frame.columns:
                raise ValueError(
                    f"the rows have no column {self.target.event!r}, which says whether the"
                    " event was seen; add it"
                )
            columns = frame[self.target.name], frame[self.target.event]
            return x, self.target.encode_survival(*columns)
        y = self.target.encode(frame[self.target.name])
        if self.windowing is None:
            return x, y
        index = self.windows(rows)
        # A window is of one class, as in training.
        of_one = (y[index] == y[index[:, -1:]]).all(axis=1)
        if self.target.task == "regression":
            of_one[:] = True
        return x[of_one], y[index[of_one, -1]]

    def decode(self, predictions: ArrayLike) -> NDArray[Any]:
        """Convert class numbers to labels, or predictions to the target's unit.

        Args:
            predictions: [rows] class numbers, or the predictions of a regression.

        Raises:
            ValueError: an entry is not a class number.
        """
        return self.target.decode(predictions)

    def to_json(self) -> str:
        """Convert to JSON. `from_json` reads it without loss."""
        content = {"format": _FORMAT, **dataclasses.asdict(self)}
        content["ignored"] = dict(self.ignored)
        # Older versions can read JSON without this key.
        for name in ("decorrelation", "windowing", "thousands"):
            if getattr(self, name) is None:
                del content[name]
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Preprocessing":
        """Read the output of `to_json`.

        Raises:
            ValueError: the text is something else, or damaged.
        """
        try:
            content = json.loads(text)
            if content.pop("format", None) != _FORMAT:
                raise ValueError(
                    "this JSON holds no preprocessing; give what Preprocessing.to_json"
                    " wrote"
                )
            stored = content.pop("decorrelation", None)
            for name, kind in _TYPES.items():
                if name in content:
                    content[name] = parse(kind, content[name], (name,))
            content["decorrelation"] = _decorrelation(stored, content["columns"])
            return cls(**content)
        except (
            *(json.JSONDecodeError, RecursionError),
            *(KeyError, TypeError, AttributeError, ConfigError),
        ) as error:
            raise ValueError(
                f"this is not a preprocessing, or a damaged one ({error}); write it again"
            ) from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON to a file, and return its path."""
        path = Path(path)
        path.write_text(self.to_json(), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Preprocessing":
        """Read a file that `save` wrote.

        Raises:
            ValueError: the file cannot be read, or holds something else.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def _frame(self, rows: Any, problems: Problems) -> pl.DataFrame:
        """Clean the rows, and check that they have the input columns."""
        frame = _as_frame(rows, problems)
        if problems.found:
            return frame
        frame = clean(frame, self.missing, fold_case=self.fold_case)
        names = [column.name for column in self.columns]
        for name in names:
            if name not in frame.columns:
                problems.add(no_such_column("the model's inputs", name, frame.columns))
        if not frame.height:
            problems.add("there are none; give one at least")
        return frame

    def _parse(
        self, series: pl.Series, column: ColumnEncoding, problems: Problems
    ) -> tuple[pl.Series, pl.Series]:
        """Parse the cells as the column's kind.

        Returns:
            The values, with null for missing and invalid cells, and a mask of the
            invalid cells.
        """
        is_text = column.kind == "number" and series.dtype == pl.String
        if is_text and (self.decimal == "," or self.thousands is not None):
            series = without_marks(series, self.decimal, self.thousands)
        values, bad = parse_as(series, column.kind, column.date_format, column.unit)
        if bad.any():
            problems.add(
                f"column {column.name!r} holds {series.filter(bad)[0]!r} in"
                f" {_row_text(bad)}, which is not a {column.kind} as in training; mend it,"
                " or leave the cell empty"
            )
        return values, bad


def _decorrelation(
    content: Mapping[str, Any] | None, columns: Sequence[ColumnEncoding]
) -> Decorrelation | None:
    """Read a decorrelation from JSON.

    Raises:
        TypeError: it does not fit the columns, or is damaged.
    """
    if content is None:
        return None
    width = sum(len(column.inputs) for column in columns)
    error = TypeError(f"the decorrelation is not of {width} inputs")
    try:
        mean = np.array(content["mean"], np.float64)
        matrix = np.array(content["matrix"], np.float64)
    except ValueError:
        raise error from None
    fits = mean.shape == (width,) and matrix.shape == (width, width)
    if not fits or not np.isfinite(mean @ matrix).all():
        raise error
    rows = tuple(tuple(row) for row in matrix.tolist())
    return Decorrelation(tuple(mean.tolist()), rows)


def _as_frame(rows: Any, problems: Problems) -> pl.DataFrame:
    """Convert a dict, a list of dicts, or a data frame to a polars frame."""
    if isinstance(rows, Mapping):
        return _from_dicts([rows], problems)
    if isinstance(rows, Sequence) and not isinstance(rows, str):
        return _from_dicts(rows, problems)
    return as_frame(rows)


def _from_dicts(rows: Sequence[Any], problems: Problems) -> pl.DataFrame:
    """Convert dicts to a frame. Missing keys are problems, not missing cells."""
    for row in rows:
        if not isinstance(row, Mapping):
            problems.add(
                "each row is a dict of column names and values, not"
                f" {type(row).__name__}; or give a frame"
            )
            return pl.DataFrame()
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    for name in names:
        without = [number for number, row in enumerate(rows, 1) if name not in row]
        if without:
            problems.add(
                f"column {name!r} is not given in {describe_rows(without)}; use None for a"
                " missing cell"
            )
    if problems.found:
        return pl.DataFrame()
    columns = {name: [_to_python(row[name]) for row in rows] for name in names}
    return pl.DataFrame([mixed_series(name, cells) for name, cells in columns.items()])


def _to_python(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers, and arrays to lists."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _row_text(mask: pl.Series) -> str:
    """The rows for which a mask is True, counted from 1, as text for a message."""
    rows = (mask.arg_true() + 1).to_list()
    if len(rows) == 1:
        return f"row {rows[0]}"
    if len(rows) <= _EXAMPLES:
        return f"rows {join_names(rows)}"
    return f"{len(rows):,} rows, first in row {rows[0]}"
