"""Sentences that tell the user what was done with a table."""

from collections.abc import Mapping

import numpy as np

from fedtailor.tables.decorrelation import MOST_INPUTS, Decorrelation
from fedtailor.tables.encoding import ColumnEncoding
from fedtailor.tables.kinds import Parsed
from fedtailor.tables.options import TableOptions
from fedtailor.tables.problems import listed
from fedtailor.tables.splitting import Rows, Splits, untested


def about_dropped(dropped: Mapping[str, str]) -> list[str]:
    """One sentence for each reason for which columns are left out."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in dropped.items():
        shown = repr(name) if name else "without a name"
        by_reason.setdefault(reason, []).append(shown)
    notes = []
    for reason, names in by_reason.items():
        if len(names) == 1:
            notes.append(f"Column {names[0]} is left out: {reason}.")
        else:
            notes.append(f"Columns {listed(names)} are left out: {reason}.")
    return notes


def about_columns(
    encodings: tuple[ColumnEncoding, ...], columns: Mapping[str, Parsed]
) -> list[str]:
    """Sentences on missing cells, categories and dates."""
    indicated, filled, texts, dates = [], [], [], []
    for encoding in encodings:
        missing = columns[encoding.name].values.null_count()
        if missing:
            fill = repr(encoding.fill)
            if isinstance(encoding.fill, float):
                fill = f"{encoding.fill:.6g}"
            gaps = indicated if encoding.indicator else filled
            gaps.append(f"{encoding.name} {missing:,} ({fill})")
        if encoding.kind == "category":
            other = " and other" if encoding.other else ""
            texts.append(f"{encoding.name} ({len(encoding.categories)}{other})")
        if encoding.kind == "date":
            dates.append(encoding.name)
    how = "filled with the training rows' median or most frequent value"
    sentences = {
        f"Missing cells are {how}, and an input says that they were missing": indicated,
        f"Missing cells of columns without any in the training rows are {how}": filled,
        "Categories have one input each": texts,
        "Dates count in days": dates,
    }
    return [
        f"{sentence}: {listed(names, 20)}."
        for sentence, names in sentences.items()
        if names
    ]


def about_decorrelation(decorrelation: Decorrelation | None, inputs: int) -> list[str]:
    """A sentence on whether the inputs of a regression are decorrelated."""
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


def about_splits(splits: Splits, rows: Rows, options: TableOptions) -> list[str]:
    """Sentences on clients that cannot be tested, or that have one class only."""
    notes = []
    sizes = zip(rows.names, rows.of_client.sizes, strict=True)
    single = [name for name, size in sizes if size == 1]
    if single:
        notes.append(
            f"Clients of a single row train and are not tested: {listed(single)}."
        )
    others = set(rows.names) - set(single)
    without_test = [name for name in untested(splits, rows.names) if name in others]
    if without_test and (options.test > 0 or options.split or options.folds):
        notes.append(f"Clients without a test row: {listed(without_test)}.")
    if rows.y.dtype.kind in "iu":
        y, starts = rows.y[rows.of_client.rows], rows.of_client.offsets[:-1]
        same = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
        one_class = [
            name
            for name, is_same in zip(rows.names, same, strict=True)
            if is_same and name in others
        ]
        if one_class:
            notes.append(f"Clients with rows of a single class: {listed(one_class)}.")
    return notes
