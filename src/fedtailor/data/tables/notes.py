"""Notes for the user, in sentences, on how a table was processed."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from fedtailor._base.printable import join_names
from fedtailor.data.tables.decorrelation import MAX_DECORRELATED_INPUTS, Decorrelation
from fedtailor.data.tables.encoding import ColumnEncoding
from fedtailor.data.tables.kinds import ParsedColumn
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.splitting import Rows, Splits, names_without_test_rows


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
    missing_cells = {
        encoding.name: columns[encoding.name].values.null_count()
        for encoding in encodings
    }

    def filled(encoding: ColumnEncoding) -> str:
        """A column, its number of missing cells, and their value: "age 12 (47.5)"."""
        missing = missing_cells[encoding.name]
        return f"{encoding.name} {missing:,} ({encoding.fill_text})"

    def categories(encoding: ColumnEncoding) -> str:
        """A column and its number of categories: "ward (7 and other)"."""
        other = " and other" if encoding.other else ""
        return f"{encoding.name} ({len(encoding.categories)}{other})"

    with_missing = [encoding for encoding in encodings if missing_cells[encoding.name]]
    rule = "filled with the training rows' mean or most frequent value"
    sentences = [
        (
            f"Missing cells are {rule}, and an input says that they were missing",
            [filled(encoding) for encoding in with_missing if encoding.indicator],
        ),
        (
            f"Missing cells of columns without any in the training rows are {rule}",
            [filled(encoding) for encoding in with_missing if not encoding.indicator],
        ),
        (
            "Categories have one input each",
            [categories(one) for one in encodings if one.kind == "category"],
        ),
        (
            "Units stand after the numbers of",
            [f"{one.name} ({one.unit})" for one in encodings if one.unit],
        ),
        ("Dates count in days", [one.name for one in encodings if one.kind == "date"]),
    ]
    return [f"{text}: {join_names(names, 20)}." for text, names in sentences if names]


def empty_notes(
    columns: Mapping[str, ParsedColumn],
    owners: Int[NDArray, " rows"],
    names: tuple[str, ...],
) -> list[str]:
    """A sentence on columns that some clients do not have.

    Args:
        columns: the inputs.
        owners: the client number of each row.
        names: names of the clients.
    """
    lacking = []
    for name, column in columns.items():
        if not column.values.null_count():
            continue
        present = np.bincount(owners, column.values.is_not_null(), len(names))
        empty = [names[client] for client in np.flatnonzero(present == 0)]
        if empty:
            lacking.append(f"{name} ({join_names(empty, 4)})")
    if not lacking:
        return []
    return [f"Missing in all rows of a client: {join_names(lacking, 20)}."]


def role_notes(options: TableOptions) -> list[str]:
    """A sentence for each column that is not an input, as it divides the rows."""
    what = {
        "event": "says whether the event was seen",
        "split": "says which rows are the test",
        "time": "orders a client's rows (the last are its test)",
        "group": "says which rows stay together",
        "weight": "says how much a row counts",
    }
    return [
        f"Column {column!r} {what[role]}, and is not an input."
        for role, column in options.roles.items()
        if role in what
    ]


def class_weight_note(weights: Sequence[float], classes: Sequence[object]) -> str:
    """A sentence on the weights of classes, and what they do to probabilities."""
    each = [
        f"{name} {weight:.3g}" for name, weight in zip(classes, weights, strict=True)
    ]
    return (
        f"In training, rows count by their class: {join_names(each, 6)}. Probabilities of"
        " classes that count more are too high; metrics count all rows as without."
    )


def decorrelation_notes(
    decorrelation: Decorrelation | None, inputs: int, preprocessing: str
) -> list[str]:
    """A sentence on the decorrelation of a regression's inputs."""
    if preprocessing == "federated":
        return ["The inputs stay correlated, as in a federation of machines."]
    if decorrelation is not None:
        return [
            "The inputs are decorrelated, so that gradient steps fit them as least"
            " squares does."
        ]
    if inputs > MAX_DECORRELATED_INPUTS:
        return [
            f"The inputs stay correlated: they are {inputs:,}, more than {MAX_DECORRELATED_INPUTS}."
        ]
    return []


def split_notes(splits: Splits, rows: Rows, options: TableOptions) -> list[str]:
    """Sentences on clients without test rows, and on clients with a single class."""
    notes = []
    one_row = [
        name
        for name, size in zip(rows.names, rows.of_client.sizes, strict=True)
        if size == 1
    ]
    if one_row:
        notes.append(
            f"Clients of a single row train and are not tested: {join_names(one_row)}."
        )
    # The other sentences are obvious for clients of a single row.
    several_rows = set(rows.names) - set(one_row)
    without_test = [
        name
        for name in names_without_test_rows(splits, rows.names)
        if name in several_rows
    ]
    if without_test and (options.test > 0 or options.split or options.folds):
        notes.append(f"Clients without a test row: {join_names(without_test)}.")
    is_classification = rows.y.dtype.kind in "iu"
    if is_classification:
        one_class = [
            name
            for name, is_one in zip(rows.names, _has_single_class(rows), strict=True)
            if is_one and name in several_rows
        ]
        if one_class:
            notes.append(
                f"Clients with rows of a single class: {join_names(one_class)}."
            )
    return notes


def _has_single_class(rows: Rows) -> Bool[NDArray, " clients"]:
    """Whether all rows of a client have the same class, for each client.

    They do if the smallest of their class numbers equals the largest.
    """
    classes = rows.y[rows.of_client.rows]  # one client after the other
    first_rows = rows.of_client.offsets[:-1]  # of each client
    smallest = np.minimum.reduceat(classes, first_rows)
    largest = np.maximum.reduceat(classes, first_rows)
    return smallest == largest
