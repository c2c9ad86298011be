"""The columns of a table that are no inputs.

They say who has a row, what is predicted, the split, and the time.
"""

from dataclasses import replace

import numpy as np
import polars as pl
from jaxtyping import Int
from numpy.typing import NDArray

from fedtailor.tables.kinds import category_text, recognise
from fedtailor.tables.options import TableOptions
from fedtailor.tables.problems import Problems
from fedtailor.tables.splitting import is_split_column
from fedtailor.tables.target import Target, read_target

SPLIT_COLUMN = "split"
"""A column of this name may give the split without being asked for.

It does if it says train, val or test.
"""


def find_split_column(
    frame: pl.DataFrame, options: TableOptions, notes: list[str]
) -> tuple[TableOptions, list[str]]:
    """Let a column called `split` that says train, val and test give the split.

    Another rule, or another use of the column, that is asked for goes before.
    """
    other_rule = any(
        rule is not None for rule in (options.split, options.time, options.folds)
    )
    used = {*options.drop, *(options.features or ()), *options.roles.values()}
    if other_rule or SPLIT_COLUMN in used or SPLIT_COLUMN not in frame.columns:
        return options, notes
    if not is_split_column(frame[SPLIT_COLUMN]):
        return options, notes
    notes.append("Column 'split' gives the split (drop it to draw one at random).")
    return replace(options, split=SPLIT_COLUMN), notes


def rows_of_clients(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> tuple[pl.DataFrame, Int[NDArray, " kept"]]:
    """The rows of the clients that are asked for, and their numbers."""
    if options.clients is None:
        return frame, np.arange(frame.height)
    names = category_text(frame[options.client])
    strange = sorted(set(options.clients) - set(names.unique()))
    if strange:
        problems.add(
            f"client column {options.client!r} never holds {strange[0]!r}, which"
            " clients asks for"
        )
    keep = names.is_in(list(options.clients)).fill_null(False)
    return frame.filter(keep), keep.arg_true().to_numpy().astype(np.int64)


def labelled_rows(
    frame: pl.DataFrame,
    rows: Int[NDArray, " rows"],
    options: TableOptions,
    notes: list[str],
) -> tuple[pl.DataFrame, Int[NDArray, " kept"]]:
    """The rows with a client and a target, and their numbers.

    All rows, unless the options say to leave others out.
    """
    if not options.skip_unlabelled:
        return frame, rows
    keep = frame[options.client].is_not_null() & frame[options.target].is_not_null()
    if not keep.all():
        notes.append(
            f"{int((~keep).sum()):,} rows without a target or a client are left out."
        )
    return frame.filter(keep), rows[keep.arg_true().to_numpy()]


def target_of(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> Target | None:
    """The column to predict, read; None, and a problem, where cells are missing."""
    series = frame[options.target]
    gaps = series.is_null()
    if gaps.any():
        first = (gaps.arg_max() or 0) + 1
        client = frame[options.client][first - 1]
        problems.add(
            f"target column {options.target!r} is missing in {int(gaps.sum()):,} of"
            f" {len(gaps):,} rows, first in row {first} (client {client!r}); fill it"
            " in, or leave these rows out with skip-unlabelled"
        )
        return None
    return read_target(series, options, problems)


def with_times(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> pl.DataFrame:
    """The frame with its time column as numbers.

    A time that is missing or none is a problem.
    """
    if options.time is None:
        return frame
    try:
        parsed = recognise(frame[options.time])
    except ValueError as error:
        problems.add(str(error))
        return frame
    if parsed.kind not in ("number", "date"):
        problems.add(
            f"time column {options.time!r} holds {parsed.kind} values, neither numbers"
            " nor dates"
        )
    elif parsed.values.null_count():
        first = (parsed.values.is_null().arg_max() or 0) + 1
        problems.add(
            f"time column {options.time!r} is missing in {parsed.values.null_count():,}"
            f" rows, first in row {first}; fill it in or remove these rows"
        )
    return frame.with_columns(parsed.values.alias(options.time))
