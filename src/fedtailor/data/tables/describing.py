"""`describe_table`: describe the columns of a user's file or data frame."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from fedtailor._base.choice import require
from fedtailor.data.tables.checks import check_clients
from fedtailor.data.tables.description import Description, describe_columns
from fedtailor.data.tables.hiding import MAX_NAMES
from fedtailor.data.tables.kinds import ParsedColumn, parse_column
from fedtailor.data.tables.options import make_options
from fedtailor.data.tables.problems import Problems, missing_columns
from fedtailor.data.tables.reading import read
from fedtailor.data.tables.suspicions import far_off_warnings, spelling_warnings

ALL = "all rows"
"""Name of the only client of a table without a column of clients."""


def describe_table(
    source: Any,
    *,
    client: str | None = None,
    drop: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    fold_case: bool = False,
    least: int = 1,
    **reading: str | None,
) -> tuple[Description, tuple[str, ...]]:
    """Describe the columns of a table by counts and sums of each client.

    Args:
        source: what `from_table` takes.
        client: the column that names the client of a row; None = one client.
        drop: columns to leave out.
        categories: columns of numbers that are codes.
        missing: further words for missing cells.
        fold_case: read text in lower case, with single spaces.
        least: counts of fewer rows are hidden, as a client of a federation of machines
            hides them from others; 1 = none.
        reading: separator, decimal, thousands, encoding and sheet of a file, as
            `TableOptions` has them.

    Returns:
        The description, and notes on what was left out, in sentences.

    Raises:
        ValueError: the file cannot be read, or a column is missing or cannot be parsed.
    """
    options = make_options(
        {
            "drop": drop,
            "categories": categories,
            "missing": missing,
            "fold_case": fold_case,
            **reading,
        }
        | ({} if client is None else {"client": client})
    )
    raw = read(source, options)
    problems, notes = Problems(raw.where), list(raw.notes)
    roles = {} if client is None else {"client": client}
    lists = {"drop": options.drop, "categories": options.categories}
    for problem in missing_columns(raw.frame.columns, roles, lists):
        problems.add(problem)
    problems.raise_if_any()
    owners = {ALL: np.arange(raw.frame.height)}
    if client is not None:
        rows = check_clients(raw.frame, options, problems)
        problems.raise_if_any()
        assert rows is not None
        owners = {
            name: rows.of_client[number] for number, name in enumerate(rows.names)
        }
    columns, texts = {}, []
    for series in raw.frame:
        if series.name == client:
            texts.append(series)
        if series.name == client or series.name in options.drop:
            continue
        parsed = _parse(series, series.name in options.categories, notes)
        if parsed is not None:
            columns[series.name] = parsed
            texts += [series] if parsed.kind == "category" else []
    warnings = spelling_warnings(texts)
    if least == 1:  # else single cells are hidden
        for name, column in columns.items():
            if column.kind == "number":
                warnings += far_off_warnings(name, column.values.to_numpy())
    for warning in warnings:
        notes.append(f"{warning[0].upper()}{warning[1:]}.")
    require(bool(columns), f"{raw.where} has no column that can be described")
    description = describe_columns(
        {name: column.values for name, column in columns.items()},
        {name: column.kind for name, column in columns.items()},
        owners,
        least,
    )
    return description, tuple(notes)


def _parse(
    series: pl.Series, is_category: bool, notes: list[str]
) -> ParsedColumn | None:
    """Parse a column; a column that cannot be described is noted."""
    try:
        parsed = parse_column(series, category=is_category)
    except ValueError as error:
        notes.append(f"Left out: {error}.")
        return None
    if parsed.kind == "category" and parsed.values.n_unique() > MAX_NAMES:
        notes.append(
            f"Left out: column {series.name!r} has {parsed.values.n_unique():,} different"
            " texts."
        )
        return None
    if parsed.kind == "number" and set(parsed.values.drop_nulls().unique()) == {0, 1}:
        # What is asked of zeros and ones is a share, no quantile.
        return replace(parsed, kind="boolean")
    return parsed
