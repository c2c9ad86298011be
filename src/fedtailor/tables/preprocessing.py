"""`Preprocessing`: turns raw rows of a table into a model's inputs.

It holds what the table's training rows taught about its columns. It is plain data,
travels with the models as JSON, and reads rows by the names of their columns.
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
from jaxtyping import Float32
from numpy.typing import ArrayLike, NDArray

from fedtailor.tables.decorrelation import Decorrelation
from fedtailor.tables.encoding import ColumnEncoding
from fedtailor.tables.kinds import parse_as
from fedtailor.tables.problems import (
    Problems,
    listed,
    no_such_column,
    rows_of,
    strange_column,
)
from fedtailor.tables.reading import as_frame, clean, mixed_series
from fedtailor.tables.target import TargetEncoding

_FORMAT = "fedtailor preprocessing 1"
_EXAMPLES = 3


@dataclass(frozen=True)
class Preprocessing:
    """How rows of a table become inputs, and predictions what the user calls them.

    Attributes:
        columns: the input columns, in the order of the model's inputs.
        target: the column to predict.
        client: the column that names the client.
        ignored: column -> why rows may have it and models do not see it.
        missing: the user's own words for missing cells.
        decimal: the decimal sign of numbers that come as text.
        decorrelation: what is done with the encoded columns of a regression; None =
            nothing.
    """

    columns: tuple[ColumnEncoding, ...]
    target: TargetEncoding
    client: str
    ignored: Mapping[str, str]
    missing: tuple[str, ...] = ()
    decimal: str = "."
    decorrelation: Decorrelation | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs, in order.

        A decorrelated one is what others do not say of its column.
        """
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def target_shift(self) -> float:
        """What a regression's predictions are shifted by, after scaling.

        0 for classes.
        """
        return self.target.shift

    @property
    def target_scale(self) -> float:
        """The unit of a regression's predictions.

        An error of 1 is so much in the target's own unit. 1 for classes.
        """
        return self.target.scale

    def transform(
        self,
        rows: Any,
        *,
        missing: Literal["error", "impute"] = "error",
        unknown: Literal["error", "other"] = "error",
    ) -> Float32[NDArray, "rows inputs"]:
        """The model's inputs for raw rows, by the names of their columns.

        Missing cells of a column that had missing cells in training are imputed as they
        were there (median or most frequent value, and an input that says so). Further
        columns may be there only if the table had them too.

        Args:
            rows: a polars or pandas frame, one row as a dict, or a list of dicts.
            missing: what to do with missing cells where training had none: refuse them,
                or impute the median or most frequent value of training.
            unknown: what to do with categories that no training row had, where none
                were rare enough to be "other": refuse them, or set all of the column's
                inputs to 0.

        Raises:
            ValueError: all that is wrong with the rows, by column.
        """
        problems = Problems("the rows")
        frame = self._frame(rows, problems)
        problems.raise_if_any()
        out = np.empty((frame.height, len(self.inputs)), np.float32)
        start = 0
        for column in self.columns:
            end = start + len(column.inputs)
            values, bad = self._parse(frame[column.name], column, problems)
            gaps = values.is_null() & ~bad
            if missing == "error" and not column.indicator and gaps.any():
                problems.add(
                    f"column {column.name!r} is missing in {_places(gaps)}, and in"
                    " training it never was; fill it in, or ask for missing='impute',"
                    f" which puts {column.fill!r} there"
                )
            strange = column.unknown(values)
            if unknown == "error" and strange.any():
                problems.add(
                    f"column {column.name!r} is {values.filter(strange)[0]!r} in"
                    f" {_places(strange)}, which no training row was; training had"
                    f" {listed(column.categories)}; or ask for unknown='other'"
                )
            column.encode(values, out[:, start:end])
            endless = pl.Series(~np.isfinite(out[:, start]))
            if endless.any():
                problems.add(
                    f"column {column.name!r} is {values.filter(endless)[0]:g} in"
                    f" {_places(endless)}, which is too far from what training had;"
                    " mend it"
                )
            start = end
        problems.raise_if_any()
        if self.decorrelation is not None:
            self.decorrelation.apply(out)
        return out

    def transform_labelled(
        self,
        rows: Any,
        *,
        missing: Literal["error", "impute"] = "error",
        unknown: Literal["error", "other"] = "error",
    ) -> tuple[Float32[NDArray, "rows inputs"], NDArray[Any]]:
        """Inputs and targets of raw rows, as models are trained on them.

        Args:
            rows: as for `transform`, with the target; likewise missing and unknown.

        Raises:
            ValueError: all that is wrong with the inputs, or what is wrong with the
                target.
        """
        x = self.transform(rows, missing=missing, unknown=unknown)
        frame = clean(_as_frame(rows, Problems("the rows")), self.missing)
        if self.target.name not in frame.columns:
            raise ValueError(
                f"the rows have no column {self.target.name!r}, which is the target;"
                " add it"
            )
        return x, self.target.encode(frame[self.target.name])

    def decode(self, predictions: ArrayLike) -> NDArray[Any]:
        """The labels of class numbers, or numbers in the target's own unit.

        Args:
            predictions: [rows] class numbers, or the predictions of a regression.

        Raises:
            ValueError: a number that is no class.
        """
        return self.target.decode(predictions)

    def to_json(self) -> str:
        """The preprocessing as JSON; `from_json` gives the same one, to the bit."""
        content = {"format": _FORMAT, **dataclasses.asdict(self)}
        content["ignored"] = dict(self.ignored)
        # Versions without decorrelation read the others.
        if self.decorrelation is None:
            del content["decorrelation"]
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Preprocessing":
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else, or damaged.
        """
        try:
            content = json.loads(text)
            if content.pop("format", None) != _FORMAT:
                raise ValueError(
                    "this JSON holds no preprocessing; give what Preprocessing.to_json"
                    " wrote"
                )
            # JSON has lists where the classes have tuples.
            columns = []
            for column in content.pop("columns"):
                column["categories"] = tuple(column["categories"])
                columns.append(ColumnEncoding(**column))
            target = content.pop("target")
            for name in ("classes", "positive"):
                target[name] = tuple(target.get(name, ()))
            content["missing"] = tuple(content["missing"])
            stored = content.pop("decorrelation", None)
            content["decorrelation"] = _decorrelation(stored, columns)
            return cls(tuple(columns), TargetEncoding(**target), **content)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"this is no preprocessing, or a damaged one ({error}); write it again"
            ) from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_json` to a file."""
        path = Path(path)
        path.write_text(self.to_json(), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Preprocessing":
        """Read a file that `save` wrote.

        Raises:
            ValueError: it cannot be read, or holds something else.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def _frame(self, rows: Any, problems: Problems) -> pl.DataFrame:
        """The input columns of the rows, cleaned."""
        frame = _as_frame(rows, problems)
        if problems.found:
            return frame
        frame = clean(frame, self.missing)
        names = [column.name for column in self.columns]
        for name in names:
            if name not in frame.columns:
                problems.add(no_such_column("the model's inputs", name, frame.columns))
        for name in frame.columns:
            if name not in names and name not in self.ignored:
                problems.add(strange_column(name, names))
        if not frame.height:
            problems.add("there are none; give one at least")
        return frame

    def _parse(
        self, series: pl.Series, column: ColumnEncoding, problems: Problems
    ) -> tuple[pl.Series, pl.Series]:
        """The cells as the column's kind.

        Returns:
            The values, null where they are missing or wrong, and which are wrong.
        """
        is_text = column.kind == "number" and series.dtype == pl.String
        if is_text and self.decimal == ",":
            series = series.str.replace(",", ".", literal=True)
        values, bad = parse_as(series, column.kind, column.date_format)
        if bad.any():
            problems.add(
                f"column {column.name!r} holds {series.filter(bad)[0]!r} in"
                f" {_places(bad)}, which is no {column.kind} as in training; mend it,"
                " or leave the cell empty"
            )
        return values, bad


def _decorrelation(
    content: Mapping[str, Any] | None, columns: Sequence[ColumnEncoding]
) -> Decorrelation | None:
    """What JSON holds of it.

    Raises:
        TypeError: it is not of these columns.
    """
    if content is None:
        return None
    width = sum(len(column.inputs) for column in columns)
    wrong = TypeError(f"the decorrelation is not of {width} inputs")
    try:
        mean = np.array(content["mean"], np.float64)
        matrix = np.array(content["matrix"], np.float64)
    except ValueError:
        raise wrong from None
    if mean.shape != (width,) or matrix.shape != (width, width):
        raise wrong
    if not np.isfinite(mean @ matrix).all():
        raise wrong
    rows = tuple(tuple(row) for row in matrix.tolist())
    return Decorrelation(tuple(mean.tolist()), rows)


def _as_frame(rows: Any, problems: Problems) -> pl.DataFrame:
    """A frame as it is; one dict, or a list of them, as a frame."""
    if isinstance(rows, Mapping):
        return _from_dicts([rows], problems)
    if isinstance(rows, Sequence) and not isinstance(rows, str):
        return _from_dicts(rows, problems)
    return as_frame(rows)


def _from_dicts(rows: Sequence[Any], problems: Problems) -> pl.DataFrame:
    """A list of dicts as a frame.

    A key that a row lacks is a problem, not a missing cell.
    """
    for row in rows:
        if not isinstance(row, Mapping):
            problems.add(
                "each row is a dict of column names and values, not"
                f" {type(row).__name__}; or give a frame"
            )
            return pl.DataFrame()
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    for name in names:
        lacking = [number for number, row in enumerate(rows, 1) if name not in row]
        if lacking:
            problems.add(
                f"column {name!r} is not given in {rows_of(lacking)}; use None for a"
                " missing cell"
            )
    if problems.found:
        return pl.DataFrame()
    columns = {name: [_plain(row[name]) for row in rows] for name in names}
    return pl.DataFrame([mixed_series(name, cells) for name, cells in columns.items()])


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as Python's own."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _places(mask: pl.Series) -> str:
    """The rows of a mask, counted from 1, in a message."""
    rows = (mask.arg_true() + 1).to_list()
    if len(rows) == 1:
        return f"row {rows[0]}"
    if len(rows) <= _EXAMPLES:
        return f"rows {listed(rows)}"
    return f"{len(rows):,} rows, first in row {rows[0]}"
