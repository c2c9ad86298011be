"""The column to predict: classes or numbers.

Models see class numbers or standardised numbers; users see what they wrote.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from fedtailor.protocol import require
from fedtailor.tables.kinds import (
    LARGEST,
    MAX_CATEGORIES,
    as_numbers,
    beyond,
    category_text,
)
from fedtailor.tables.options import TableOptions, Task
from fedtailor.tables.problems import Problems, listed

MAX_CLASSES = 1000
_COMPARISON = re.compile(r"\s*(>=|<=|!=|==|>|<)\s*(\S+)\s*")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}

Label = bool | int | float | str


@dataclass(frozen=True)
class TargetEncoding:
    """How the target stands in the models.

    Attributes:
        name: the column.
        task: "classification" or "regression".
        classes: what each class is called in the user's file; empty for a regression.
        shift, scale: a regression's model predicts (target - shift) / scale.
        positive: what counts as positive, where the user named it
            (`TableOptions.positive`).
    """

    name: str
    task: Task
    classes: tuple[Label, ...] = ()
    shift: float = 0.0
    scale: float = 1.0
    positive: tuple[str, ...] = ()

    def encode(self, series: pl.Series) -> NDArray[Any]:
        """The target of further rows as the models see it.

        Returns:
            [n] class numbers, or standardised float32.

        Raises:
            ValueError: a cell is missing, no number, or of a class that training did
                not have.
        """
        if series.null_count():
            row = (series.is_null().arg_max() or 0) + 1
            raise ValueError(
                f"target column {self.name!r} is missing in row {row}; fill it in or"
                " leave the row out"
            )
        values = series
        if series.dtype == pl.String:
            numbers = as_numbers(series)
            values = series if numbers is None else numbers
        if self.task == "regression":
            return self._standardised(values)
        if self.positive:
            return _positive_rows(values, self.positive).astype(np.int32)
        # As text: the same label may be read as another type than in training.
        texts = [_label_text(label) for label in self.classes]
        codes = {text: code for code, text in enumerate(texts)}
        labels = [_label_text(_plain(value)) for value in values.to_list()]
        for row, label in enumerate(labels):
            if label not in codes:
                raise ValueError(
                    f"target column {self.name!r} is {series[row]!r} in row {row + 1};"
                    " training had no such class; the classes are"
                    f" {listed([str(label) for label in self.classes])}"
                )
        return np.array([codes[label] for label in labels], np.int32)

    def _standardised(self, values: pl.Series) -> NDArray[Any]:
        """The target of a regression in the models' unit, float32 [n]."""
        is_finite = False
        if values.dtype.is_numeric():
            values = values.cast(pl.Float64)
            is_finite = values.is_finite().all()
        require(
            is_finite,
            f"target column {self.name!r} holds more than finite numbers; mend or leave"
            " out rows",
        )
        return ((values.to_numpy() - self.shift) / self.scale).astype(np.float32)

    def decode(self, predictions: ArrayLike) -> NDArray[Any]:
        """Predictions as the user writes the target.

        Args:
            predictions: [n] class numbers, or numbers of a regression.

        Returns:
            [n] the user's labels, or numbers in the target's own unit.

        Raises:
            ValueError: a number that is no class.
        """
        given = np.asarray(predictions)
        if self.task == "regression":
            return given.astype(np.float64) * self.scale + self.shift
        count = len(self.classes)
        are_codes = not given.size or (
            given.dtype.kind in "iu" and given.min() >= 0 and given.max() < count
        )
        require(
            bool(are_codes),
            f"predictions of {self.name!r} must be class numbers 0..{count - 1}",
        )
        labels = np.array(self.classes)
        if len({type(label) for label in self.classes}) > 1:
            # NumPy would turn labels of several types into text.
            labels = np.empty(count, object)
            labels[:] = self.classes
        return labels[given]


@dataclass(frozen=True)
class Target:
    """The target of all rows of a table.

    Attributes:
        encoding: of classes complete; of a regression not yet standardised.
        values: [rows] class numbers (int64) or the target in its own unit (float64).
        notes: what was decided, in sentences.
    """

    encoding: TargetEncoding
    values: NDArray[Any]
    notes: tuple[str, ...]


def read_target(
    series: pl.Series, options: TableOptions, problems: Problems
) -> Target | None:
    """Read a complete (no cell is missing), cleaned column.

    None if there are problems.
    """
    name = series.name
    if series.dtype == pl.String:
        numbers = as_numbers(series)
        series = series if numbers is None else numbers
    if not (series.dtype in (pl.String, pl.Boolean) or series.dtype.is_numeric()):
        problems.add(
            f"target column {name!r} holds {series.dtype}; it must hold numbers, text"
            " or booleans"
        )
        return None
    if series.dtype.is_float() and series.is_infinite().any():
        row = (series.is_infinite().arg_max() or 0) + 1
        problems.add(
            f"target column {name!r} holds infinite numbers, first in row {row};"
            " replace or remove them"
        )
        return None
    if series.dtype.is_float() and (too_large := beyond(series)) is not None:
        problems.add(
            f"target column {name!r} holds numbers beyond {LARGEST:g}, first in row"
            f" {too_large}, which cannot be standardised; mend or remove them"
        )
        return None
    if options.positive:
        return _one_against_rest(series, options, problems)
    task, notes = _task(series, options.task)
    if task == "regression":
        return _regression(series, notes, problems)
    return _classes(series, options, notes, problems)


def _task(series: pl.Series, wanted: Task | None) -> tuple[Task, tuple[str, ...]]:
    """Classification or regression, and a sentence where it was guessed."""
    name = series.name
    if wanted is not None:
        return wanted, ()
    if not series.dtype.is_numeric():
        return "classification", ()
    if series.dtype.is_float() and not (series == series.round()).all():
        note = f"The target {name!r} holds decimal numbers: a regression."
        return "regression", (note,)
    distinct = series.n_unique()
    if distinct <= MAX_CATEGORIES:
        note = (
            f"The target {name!r} holds {distinct} different whole numbers: classes"
            " (say task regression if they are quantities, or name the positive ones"
            " with positive)."
        )
        return "classification", (note,)
    note = (
        f"The target {name!r} holds {distinct:,} different whole numbers: a regression"
        " (say task classification if they are classes)."
    )
    return "regression", (note,)


def _regression(
    series: pl.Series, notes: tuple[str, ...], problems: Problems
) -> Target | None:
    if not series.dtype.is_numeric():
        example = ""
        if series.dtype == pl.String:
            is_text = series.cast(pl.Float64, strict=False).is_null()
            if is_text.any():
                example = f", such as {series.filter(is_text)[0]!r}"
        problems.add(
            f"target column {series.name!r} holds {series.dtype}{example}, not numbers;"
            " say task classification"
        )
        return None
    values = series.cast(pl.Float64).to_numpy()
    if len(values) and values.min() == values.max():
        problems.add(
            f"target column {series.name!r} is {values[0]:g} in all rows; there is"
            " nothing to predict"
        )
        return None
    return Target(TargetEncoding(series.name, "regression"), values, notes)


def _classes(
    series: pl.Series, options: TableOptions, notes: tuple[str, ...], problems: Problems
) -> Target | None:
    name, classes = series.name, series.unique().sort()
    if len(classes) < 2:
        problems.add(
            f"target column {name!r} holds one class only, {classes[0]!r}; there is"
            " nothing to tell apart"
        )
        return None
    if len(classes) > MAX_CLASSES or len(classes) > len(series) / 2:
        also = ", or say task regression" if series.dtype.is_numeric() else ""
        problems.add(
            f"target column {name!r} has {len(classes):,} different values in"
            f" {len(series):,} rows, too many for classes; name another column{also}"
        )
        return None
    labels = [_plain(label) for label in classes.to_list()]
    numbers = pl.Series(range(len(classes)), dtype=pl.Int64)
    codes = series.replace_strict(classes, numbers, return_dtype=pl.Int64).to_numpy()
    counts = np.bincount(codes)
    rare = [label for label, count in zip(labels, counts, strict=True) if count < 3]
    if rare:
        note = (
            f"Classes of fewer than three rows: {listed(rare)}; no test can judge them."
        )
        notes = (*notes, note)
    encoding = TargetEncoding(name, "classification", tuple(labels))
    return Target(encoding, codes, notes)


def _one_against_rest(
    series: pl.Series, options: TableOptions, problems: Problems
) -> Target | None:
    """Two classes: what `positive` says, and the rest."""
    name = series.name
    if options.task == "regression":
        problems.add(
            "positive is for classes, and task is regression; leave one of them out"
        )
        return None
    # Either one comparison, such as ">0", or labels.
    comparison = _comparison(options.positive)
    try:
        is_positive = _positive_rows(series, options.positive)
    except ValueError as error:
        problems.add(str(error))
        return None
    if not comparison:
        present = _label_texts(series).unique().sort().to_list()
        wanted = _wanted(series, options.positive)
        strange = [label for label in wanted if label not in present]
        if strange:
            problems.add(
                f"positive names {strange[0]!r}, which target column {name!r} never"
                f" holds; it holds {listed(present)}"
            )
            return None
    if is_positive.all() or not is_positive.any():
        which = "all" if is_positive.all() else "no"
        problems.add(
            f"{which} rows of target column {name!r} are positive"
            f" ({', '.join(options.positive)}); name other labels with positive"
        )
        return None
    classes = _side_names(series, is_positive, options.positive, comparison is not None)
    positives = int(is_positive.sum())
    note = (
        f"The target {name!r} is positive ({classes[1]}) in {positives:,} of"
        f" {len(series):,} rows."
    )
    encoding = TargetEncoding(
        name, "classification", classes, positive=options.positive
    )
    return Target(encoding, is_positive.astype(np.int64), (note,))


def _comparison(positive: Sequence[str]) -> re.Match[str] | None:
    """The sign and the number of a comparison, such as ">0".

    None where labels are named.
    """
    return _COMPARISON.fullmatch(positive[0]) if len(positive) == 1 else None


def _positive_rows(series: pl.Series, positive: Sequence[str]) -> NDArray[np.bool_]:
    """Which rows count as positive.

    Raises:
        ValueError: a comparison with something else than numbers.
    """
    comparison = _comparison(positive)
    if comparison is None:
        return _label_texts(series).is_in(list(_wanted(series, positive))).to_numpy()
    try:
        limit = float(comparison[2])
    except ValueError:
        raise ValueError(
            f"positive is {positive[0]!r}; after {comparison[1]} stands a number, as in"
            " '>0'"
        ) from None
    if not series.dtype.is_numeric():
        raise ValueError(
            f"positive is {positive[0]!r}, and target column {series.name!r} holds"
            " text; name its labels"
        )
    return _OPERATORS[comparison[1]](series.cast(pl.Float64).to_numpy(), limit)


def _label_texts(series: pl.Series) -> pl.Series:
    """Labels as text, as `positive` names them."""
    text = category_text(series)
    return text.str.to_lowercase() if series.dtype == pl.Boolean else text


def _wanted(series: pl.Series, positive: Sequence[str]) -> list[str]:
    if series.dtype == pl.Boolean:
        return [label.lower() for label in positive]
    return list(positive)


def _label_text(label: Label) -> str:
    """A label as text, whatever type its column is read as.

    true, 1 and 1.0 are written in several ways.
    """
    return str(label).lower() if isinstance(label, bool) else str(label)


def _side_names(
    series: pl.Series,
    is_positive: NDArray[np.bool_],
    positive: Sequence[str],
    comparison: bool,
) -> tuple[Label, Label]:
    """What the rest and the positives are called.

    That is the label, where a side has one only; else the rule.
    """
    rule = positive[0].strip() if comparison else " or ".join(positive)
    names: list[Label] = []
    for side, other in ((~is_positive, f"not {rule}"), (is_positive, rule)):
        labels = series.filter(pl.Series(side)).unique()
        names.append(_plain(labels[0]) if len(labels) == 1 else other)
    return names[0], names[1]


def _plain(label: Any) -> Label:
    """A label as JSON holds it; whole floats as integers."""
    if isinstance(label, float) and label.is_integer():
        return int(label)
    return label
