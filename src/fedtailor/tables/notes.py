"""Notes for the user, in sentences, on how a table was processed."""

from collections.abc import Mapping

import numpy as np

from fedtailor.tables.decorrelation import MOST_INPUTS, Decorrelation
from fedtailor.tables.encoding import ColumnEncoding
from fedtailor.tables.kinds import ParsedColumn
from fedtailor.tables.options import TableOptions
from fedtailor.tables.problems import join_names
from fedtailor.tables.splitting import Rows, Splits, untested


def dropped_notes(dropped: Mapping[str, str]) -> list[str]:
    """One sentence per reason for leaving out columns."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in dropped.items():
        text = repr(name) if name else "without a name"
        by_reason.setdefault(reason, []).append(text)
    notes = []
    for reason, names in by_reason.items():
        if len(names) == 1:
            notes.append(f"Column {names[0]} is left out: {reason}.")
        else:
            notes.append(f"Columns {join_names(names)} are left out: {reason}.")
    return notes


def column_notes(
    encodings: tuple[ColumnEncoding, ...], columns: Mapping[str, ParsedColumn]
) -> list[str]:
    """Sentences on missing cells, categories and dates."""
    with_indicator, without_indicator, categories, dates = [], [], [], []
    for encoding in encodings:
        missing = columns[encoding.name].values.null_count()
        if missing:
            fill = repr(encoding.fill)
            if isinstance(encoding.fill, float):
                fill = f"{encoding.fill:.6g}"
            columns_filled = with_indicator if encoding.indicator else without_indicator
            columns_filled.append(f"{encoding.name} {missing:,} ({fill})")
        if encoding.kind == "category":
            other = " and other" if encoding.other else ""
            categories.append(f"{encoding.name} ({len(encoding.categories)}{other})")
        if encoding.kind == "date":
            dates.append(encoding.name)
    rule = "filled with the training rows' median or most frequent value"
    sentences = {
        f"Missing cells are {rule}, and an input says that they were missing": (
            with_indicator
        ),
        f"Missing cells of columns without any in the training rows are {rule}": (
            without_indicator
        ),
        "Categories have one input each": categories,
        "Dates count in days": dates,
    }
    return [
        f"{sentence}: {join_names(names, 20)}."
        for sentence, names in sentences.items()
        if names
    ]


def decorrelation_notes(decorrelation: Decorrelation | None, inputs: int) -> list[str]:
    """A sentence on the decorrelation of a regression's inputs."""
    if decorrelation is not None:
        return [
            "The inputs are decorrelated, so that gradient steps fit them as least"
            " squares does."
        ]
    if inputs > MOST_INPUTS:
        return [
            f"The inputs stay correlated: they are {inputs:,}, more than {MOST_INPUTS}."
        ]
    return []


def split_notes(splits: Splits, rows: Rows, options: TableOptions) -> list[str]:
    """Sentences on clients without test rows, and on clients with a single class."""
    notes = []
    sizes = zip(rows.names, rows.of_client.sizes, strict=True)
    single = [name for name, size in sizes if size == 1]
    if single:
        notes.append(
            f"Clients of a single row train and are not tested: {join_names(single)}."
        )
    others = set(rows.names) - set(single)
    without_test = [name for name in untested(splits, rows.names) if name in others]
    if without_test and (options.test > 0 or options.split or options.folds):
        notes.append(f"Clients without a test row: {join_names(without_test)}.")
    if rows.y.dtype.kind in "iu":
        y, starts = rows.y[rows.of_client.rows], rows.of_client.offsets[:-1]
        is_single = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
        one_class = [
            name
            for name, single_class in zip(rows.names, is_single, strict=True)
            if single_class and name in others
        ]
        if one_class:
            notes.append(
                f"Clients with rows of a single class: {join_names(one_class)}."
            )
    return notes
