"""The target column: labels are encoded as class numbers, numbers are standardized."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.printable import join_names
from fedtailor.data.tables.kinds import (
    MAX_CATEGORIES,
    MAX_MAGNITUDE,
    as_numbers,
    category_text,
    parse_as,
)
from fedtailor.data.tables.options import TableOptions, TableTask
from fedtailor.data.tables.problems import Problems, first_row

MAX_CLASSES = 1000
_COMPARISON_PATTERN = re.compile(r"\s*(>=|<=|!=|==|>|<)\s*(\S+)\s*")
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
    """The encoding of the target.

    Attributes:
        name: name of the column.
        task: "classification", "regression" or "survival".
        classes: the user's label of each class; empty for a regression. All have one
            type: if some were text and others numbers (0 and ">0"), all are text.
        shift, scale: a regression's model predicts (target - shift) / scale.
        positive: the positive labels or a comparison, if the user has set
            `TableOptions.positive`; of survival, the labels of the event.
        event: of survival, the column that says whether the event was seen; "" otherwise.
        never_negative: whether no target that trained a regression is below 0, such as a
            length of stay; intervals then begin at 0 at least.
    """

    name: str
    task: Literal["classification", "regression", "survival"]
    classes: tuple[Label, ...] = ()
    shift: float = 0.0
    scale: float = 1.0
    positive: tuple[str, ...] = ()
    event: str = ""
    never_negative: bool = False

    def __post_init__(self) -> None:
        # Predictions are one column, and a column has one type.
        object.__setattr__(self, "classes", _of_one_type(self.classes))

    def encode(self, series: pl.Series) -> NDArray[Any]:
        """Encode the targets of further rows.

        Returns:
            [n] class numbers, or standardized targets in float32.

        Raises:
            ValueError: a cell is missing or not a number, or its class did not occur in
                training.
        """
        if series.null_count():
            row = first_row(series.is_null())
            raise ValueError(
                f"target column {self.name!r} is missing in row {row}; fill it in or"
                " leave the row out"
            )
        values = series
        if series.dtype == pl.String:
            numbers = as_numbers(series)
            values = series if numbers is None else numbers
        if self.task == "regression":
            return self._standardize(values)
        if self.positive:
            return positive_rows(values, self.positive).astype(np.int32)
        # Compare text: the type of the column may differ from that in training.
        texts = [label_text(_to_label(label)) for label in self.classes]
        codes = {text: code for code, text in enumerate(texts)}
        labels = [label_text(_to_label(value)) for value in values.to_list()]
        for row, label in enumerate(labels):
            if label not in codes:
                raise ValueError(
                    f"target column {self.name!r} is {series[row]!r} in row {row + 1};"
                    " training had no such class; the classes are"
                    f" {join_names([str(label) for label in self.classes])}"
                    f"{see('errors#a-class-that-training-did-not-have')}"
                )
        return np.array([codes[label] for label in labels], np.int32)

    def encode_survival(self, time: pl.Series, event: pl.Series) -> NDArray[Any]:
        """Encode times and events of further rows, [n, 2] float32.

        Raises:
            ValueError: a cell is missing, or no time or no event.
        """
        problems = Problems("the rows")
        values = _read_times(time, problems)
        seen = _read_events(event, self.positive, problems)
        problems.raise_if_any()
        assert values is not None and seen is not None
        return np.stack([values, seen], axis=1).astype(np.float32)

    def _standardize(self, values: pl.Series) -> NDArray[Any]:
        """Standardize the targets of a regression, float32 [n]."""
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
        """Convert predictions to the user's labels, or to the target's unit.

        Args:
            predictions: [n] class numbers, or predictions of a regression.

        Returns:
            [n] labels, or numbers in the target's unit.

        Raises:
            ValueError: an entry is not a class number.
        """
        values = np.asarray(predictions)
        if self.task == "survival":
            return values.astype(np.float64)
        if self.task == "regression":
            return values.astype(np.float64) * self.scale + self.shift
        count = len(self.classes)
        are_classes = not values.size or (
            values.dtype.kind in "iu" and values.min() >= 0 and values.max() < count
        )
        require(
            bool(are_classes),
            f"predictions of {self.name!r} must be class numbers 0..{count - 1}",
        )
        return np.array(self.classes)[values]


@dataclass(frozen=True)
class Target:
    """The target of all rows of a table.

    Attributes:
        encoding: the encoding, without shift and scale for a regression.
        values: [rows] class numbers (int64), or targets in their original unit
            (float64).
        notes: notes on what was detected, in sentences.
    """

    encoding: TargetEncoding
    values: NDArray[Any]
    notes: tuple[str, ...]


def read_target(
    series: pl.Series, options: TableOptions, problems: Problems
) -> Target | None:
    """Read a clean target column without missing cells; None if it has problems."""
    name = series.name
    if series.dtype == pl.String:
        numbers = as_numbers(series)
        if numbers is None and options.task == "regression":
            numbers = series.cast(pl.Float64, strict=False)  # perhaps 0507
            numbers = None if numbers.null_count() else numbers
        series = series if numbers is None else numbers
    if not (series.dtype in (pl.String, pl.Boolean) or series.dtype.is_numeric()):
        problems.add(
            f"target column {name!r} holds {series.dtype}; it must hold numbers, text"
            " or booleans"
        )
        return None
    if series.dtype.is_float() and (is_infinite := series.is_infinite()).any():
        problems.add(
            f"target column {name!r} holds infinite numbers, first in row"
            f" {first_row(is_infinite)}; replace or remove them"
        )
        return None
    if series.dtype.is_float() and (too_large := series.abs() > MAX_MAGNITUDE).any():
        problems.add(
            f"target column {name!r} holds numbers beyond {MAX_MAGNITUDE:g}, first in row"
            f" {first_row(too_large)}, which cannot be standardised; mend or remove them"
        )
        return None
    if options.positive:
        return _read_positive(series, options, problems)
    task, notes = _infer_task(series, options.task)
    if task == "regression":
        return _read_regression(series, notes, problems)
    return _read_classes(series, options, notes, problems)


def read_survival(
    time: pl.Series, event: pl.Series, options: TableOptions, problems: Problems
) -> Target | None:
    """Read the times and the events of survival; None if they have problems."""
    times = _read_times(time, problems)
    seen = _read_events(event, options.positive, problems)
    if times is None or seen is None:
        return None
    if not seen.any():
        problems.add(
            f"event column {event.name!r} says of no row that the event was seen; name the"
            " labels that do with positive"
        )
        return None
    note = (
        f"The event of {event.name!r} was seen in {int(seen.sum()):,} of {len(seen):,}"
        f" rows, up to {time.name} {times[seen].max():g}; the others are censored."
    )
    encoding = TargetEncoding(
        time.name, "survival", positive=options.positive, event=event.name
    )
    return Target(encoding, np.stack([times, seen], axis=1), (note,))


def _read_times(series: pl.Series, problems: Problems) -> NDArray[Any] | None:
    """Times of 0 or more, float64 [n]; None if some are not."""
    numbers = series
    if series.dtype == pl.String:
        numbers = series.cast(pl.Float64, strict=False)
    if numbers.null_count() > series.null_count() or not numbers.dtype.is_numeric():
        problems.add(
            f"target column {series.name!r} holds {series.dtype}; with event it must hold"
            " numbers, the times"
        )
        return None
    values = numbers.cast(pl.Float64)
    wrong = ~(values.is_finite() & (values >= 0)).fill_null(False)
    if wrong.any():
        problems.add(
            f"target column {series.name!r} is {series.filter(wrong)[0]!r} in row"
            f" {first_row(wrong)}; a time is a number of 0 or more"
        )
        return None
    return values.to_numpy()


def _read_events(
    series: pl.Series, positive: Sequence[str], problems: Problems
) -> NDArray[np.bool_] | None:
    """Whether the event was seen; None if the column does not say so."""
    if series.null_count():
        problems.add(
            f"event column {series.name!r} is missing in row"
            f" {first_row(series.is_null())}; fill it in or leave the row out"
        )
        return None
    numbers = as_numbers(series) if series.dtype == pl.String else None
    values = series if numbers is None else numbers
    if positive:
        try:
            return positive_rows(values, positive)
        except ValueError as error:
            problems.add(str(error))
            return None
    seen, bad = parse_as(values, "boolean", None)
    if bad.any():
        problems.add(
            f"event column {series.name!r} is {series.filter(bad)[0]!r} in row"
            f" {first_row(bad)}, which says neither yes (1, true) nor no (0, false); name"
            " the labels of the event with positive"
        )
        return None
    return seen.to_numpy().astype(bool)


def _infer_task(
    series: pl.Series, requested: TableTask | None
) -> tuple[TableTask, tuple[str, ...]]:
    """The task, and a note if it was inferred from the values."""
    name = series.name
    if requested is not None:
        return requested, ()
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


def _read_regression(
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


def _read_classes(
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
    labels = [_to_label(label) for label in classes.to_list()]
    numbers = pl.Series(range(len(classes)), dtype=pl.Int64)
    codes = series.replace_strict(classes, numbers, return_dtype=pl.Int64).to_numpy()
    counts = np.bincount(codes)
    small = [label for label, count in zip(labels, counts, strict=True) if count < 3]
    if small:
        note = (
            f"Classes of fewer than three rows: {join_names(small)}; no test can judge"
            " them."
        )
        notes = (*notes, note)
    encoding = TargetEncoding(name, "classification", tuple(labels))
    return Target(encoding, codes, notes)


def _read_positive(
    series: pl.Series, options: TableOptions, problems: Problems
) -> Target | None:
    """Read a target with two classes: `options.positive`, and the rest."""
    name = series.name
    if options.task == "regression":
        problems.add(
            "positive is for classes, and task is regression; leave one of them out"
        )
        return None
    # `positive` is either one comparison, such as ">0", or labels.
    comparison = _parse_comparison(options.positive)
    try:
        is_positive = positive_rows(series, options.positive)
    except ValueError as error:
        problems.add(str(error))
        return None
    if not comparison:
        present = _label_texts(series).unique().sort().to_list()
        labels = _positive_labels(series, options.positive)
        unknown = [label for label in labels if label not in present]
        if unknown:
            problems.add(
                f"positive names {unknown[0]!r}, which target column {name!r} never"
                f" holds; it holds {join_names(present)}"
            )
            return None
    if is_positive.all() or not is_positive.any():
        quantity = "all" if is_positive.all() else "no"
        problems.add(
            f"{quantity} rows of target column {name!r} are positive"
            f" ({', '.join(options.positive)}); name other labels with positive"
        )
        return None
    classes = _class_labels(
        series, is_positive, options.positive, comparison is not None
    )
    positives = int(is_positive.sum())
    note = (
        f"The target {name!r} is positive ({classes[1]}) in {positives:,} of"
        f" {len(series):,} rows."
    )
    encoding = TargetEncoding(
        name, "classification", classes, positive=options.positive
    )
    return Target(encoding, is_positive.astype(np.int64), (note,))


def is_comparison(positive: Sequence[str]) -> bool:
    """Whether the positive rows are those of a comparison, such as ">0"."""
    return _parse_comparison(positive) is not None


def _parse_comparison(positive: Sequence[str]) -> re.Match[str] | None:
    """The operator and the number of a comparison, such as ">0"; None for labels."""
    return _COMPARISON_PATTERN.fullmatch(positive[0]) if len(positive) == 1 else None


def positive_rows(series: pl.Series, positive: Sequence[str]) -> NDArray[np.bool_]:
    """A mask of the positive rows.

    Raises:
        ValueError: `positive` is a comparison, and a side of it is not numeric.
    """
    comparison = _parse_comparison(positive)
    if comparison is None:
        labels = _positive_labels(series, positive)
        return _label_texts(series).is_in(labels).to_numpy()
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
    """Convert labels to text, in the form of the labels in `positive`."""
    text = category_text(series)
    return text.str.to_lowercase() if series.dtype == pl.Boolean else text


def _positive_labels(series: pl.Series, positive: Sequence[str]) -> list[str]:
    if series.dtype == pl.Boolean:
        return [label.lower() for label in positive]
    return list(positive)


def label_text(label: Label) -> str:
    """Convert a label to text as CSV files have it: booleans in lower case."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def _of_one_type(labels: Sequence[Label]) -> tuple[Label, ...]:
    """Labels of one type: decimal numbers if all are numbers, otherwise text."""
    types = {type(label) for label in labels}
    if len(types) < 2:
        return tuple(labels)
    if types == {int, float}:
        return tuple(float(label) for label in labels)
    return tuple(label_text(label) for label in labels)


def _class_labels(
    series: pl.Series,
    is_positive: NDArray[np.bool_],
    positive: Sequence[str],
    comparison: bool,
) -> tuple[Label, Label]:
    """The labels of the rest and of the positive class.

    If all rows of a class have the same label, it is that label, otherwise the rule.
    """
    rule = positive[0].strip() if comparison else " or ".join(positive)
    names: list[Label] = []
    for mask, name in ((~is_positive, f"not {rule}"), (is_positive, rule)):
        labels = series.filter(pl.Series(mask)).unique()
        names.append(_to_label(labels[0]) if len(labels) == 1 else name)
    return names[0], names[1]


def _to_label(label: Any) -> Label:
    """Convert a float that is an integer to int; other labels are unchanged."""
    if isinstance(label, float) and label.is_integer():
        return int(label)
    return label
