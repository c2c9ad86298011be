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
        by_reason.setdefault(reason, []).append(
            repr(name) if name else "without a name"
        )
    notes = []
    for reason, names in by_reason.items():
        one = len(names) == 1
        notes.append(
            f"Column{'' if one else 's'} {listed(names)} {'is' if one else 'are'} left"
            f" out: {reason}."
        )
    return notes


def about_columns(
    encodings: tuple[ColumnEncoding, ...], columns: Mapping[str, Parsed]
) -> list[str]:
    """Sentences on missing cells, categories and dates."""
    gaps: dict[bool, list[str]] = {True: [], False: []}
    for encoding in encodings:
        missing = columns[encoding.name].values.null_count()
        if missing:
            fill = (
                f"{encoding.fill:.6g}"
                if isinstance(encoding.fill, float)
                else repr(encoding.fill)
            )
            gaps[encoding.indicator].append(f"{encoding.name} {missing:,} ({fill})")
    texts = [
        f"{encoding.name}"
        f" ({len(encoding.categories)}{' and other' if encoding.other else ''})"
        for encoding in encodings
        if encoding.kind == "category"
    ]
    dates = [encoding.name for encoding in encodings if encoding.kind == "date"]
    filled = "filled with the training rows' median or most frequent value"
    sentences = (
        (
            gaps[True],
            f"Missing cells are {filled}, and an input says that they were missing",
        ),
        (
            gaps[False],
            f"Missing cells of columns without any in the training rows are {filled}",
        ),
        (texts, "Categories have one input each"),
        (dates, "Dates count in days"),
    )
    return [
        f"{sentence}: {listed(names, 20)}." for names, sentence in sentences if names
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
    lone = [
        name
        for name, size in zip(rows.names, rows.of_client.sizes, strict=True)
        if size == 1
    ]
    if lone:
        notes.append(
            f"Clients of a single row train and are not tested: {listed(lone)}."
        )
    alone = set(lone)
    other = [name for name in untested(splits, rows.names) if name not in alone]
    if other and (options.test > 0 or options.split or options.folds):
        notes.append(f"Clients without a test row: {listed(other)}.")
    if rows.y.dtype.kind in "iu":
        y, starts = rows.y[rows.of_client.rows], rows.of_client.offsets[:-1]
        same = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
        single = [
            name
            for name, one in zip(rows.names, same, strict=True)
            if one and name not in alone
        ]
        if single:
            notes.append(f"Clients with rows of a single class: {listed(single)}.")
    return notes
