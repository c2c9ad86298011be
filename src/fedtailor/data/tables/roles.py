"""Columns with a role other than input: client, target, split and time."""

from dataclasses import replace

import numpy as np
import polars as pl
from jaxtyping import Float, Int
from numpy.typing import NDArray

from fedtailor.data.tables.kinds import as_numbers, category_text, parse_times
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import Problems, first_row
from fedtailor.data.tables.splitting import is_split_column
from fedtailor.data.tables.target import Target, read_survival, read_target

SPLIT_COLUMN = "split"
"""A column of this name defines the splits by default, if its cells are split names."""


def find_split_column(
    frame: pl.DataFrame, options: TableOptions, notes: list[str]
) -> tuple[TableOptions, list[str]]:
    """Use a column called "split" that contains names of splits.

    The column is not used if the options define the splits, or use it otherwise.

    Returns:
        The options, and the notes.
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
    """Select the rows of `options.clients`; also returns their row numbers."""
    if options.clients is None:
        return frame, np.arange(frame.height)
    names = category_text(frame[options.client])
    unknown = sorted(set(options.clients) - set(names.unique()))
    if unknown:
        problems.add(
            f"client column {options.client!r} never holds {unknown[0]!r}, which"
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
    """Remove rows without client or target, if `options.skip_unlabelled` is True.

    Returns:
        The remaining rows, and their row numbers.
    """
    if not options.skip_unlabelled:
        return frame, rows
    keep = frame[options.client].is_not_null() & frame[options.target].is_not_null()
    if options.event is not None:
        keep &= frame[options.event].is_not_null()
    if not keep.all():
        notes.append(
            f"{int((~keep).sum()):,} rows without a target or a client are left out."
        )
    return frame.filter(keep), rows[keep.arg_true().to_numpy()]


def target_of(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> Target | None:
    """Read the target column; None if there are problems."""
    series = frame[options.target]
    is_missing = series.is_null()
    if is_missing.any():
        first = first_row(is_missing)
        client = frame[options.client][first - 1]
        problems.add(
            f"target column {options.target!r} is missing in {int(is_missing.sum()):,} of"
            f" {len(series):,} rows, first in row {first} (client {client!r}); fill it"
            " in, or leave these rows out with skip-unlabelled"
        )
        return None
    if options.event is not None:
        return read_survival(series, frame[options.event], options, problems)
    return read_target(series, options, problems)


def weights_of(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> Float[NDArray, " rows"] | None:
    """Read the weights of the rows; None if there are none, or problems."""
    if options.weight is None:
        return None
    series, where = frame[options.weight], f"weight column {options.weight!r}"
    numbers = as_numbers(series) if series.dtype == pl.String else series
    if numbers is None or not (numbers.dtype.is_numeric() or numbers.dtype == pl.Null):
        cells = series.drop_nulls()
        # Of text the cells that are no numbers; none where all are codes such as 007.
        if series.dtype == pl.String:
            wrong_cells = cells.filter(cells.cast(pl.Float64, strict=False).is_null())
            cells = wrong_cells if len(wrong_cells) else cells
        problems.add(
            f"{where} holds {cells.first()!r}, not only numbers; name a column of numbers,"
            " 0 or more"
        )
        return None
    values = numbers.cast(pl.Float64)
    wrong = {
        "missing": (values.is_null(), "fill it in"),
        "below 0": ((values < 0).fill_null(False), "a weight is 0 or more"),
        "not finite": ((~values.is_finite()).fill_null(False), "give finite numbers"),
    }
    for what, (mask, advice) in wrong.items():
        if mask.any():
            problems.add(
                f"{where} is {what} in {int(mask.sum()):,} of {len(values):,} rows, first"
                f" in row {first_row(mask)}; {advice}"
            )
            return None
    if not values.sum():
        problems.add(f"{where} is 0 in all rows; no row would count")
        return None
    return values.to_numpy()


def balanced_weights(
    y: Int[NDArray, " train"], weights: Float[NDArray, " train"], classes: int
) -> tuple[float, ...]:
    """The weights of classes for which training rows of all classes count the same
    together: N / (k N_c), as scikit-learn's "balanced" of all rows.

    Args:
        y: the classes of the training rows of seen clients.
        weights: their weights.
        classes: the number of classes. One without a row has weight 1.
    """
    totals = np.bincount(y, weights, minlength=classes)
    present = totals > 0
    shares = totals[present].sum() / (present.sum() * totals[present])
    found = np.ones(classes)
    found[present] = shares
    return tuple(found.tolist())


def with_times(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> pl.DataFrame:
    """Convert the time column to numbers. Missing or invalid times are problems."""
    if options.time is None:
        return frame
    try:
        parsed = parse_times(frame[options.time])
    except ValueError as error:
        problems.add(str(error))
        return frame
    if parsed.values.null_count():
        first = first_row(parsed.values.is_null())
        problems.add(
            f"time column {options.time!r} is missing in {parsed.values.null_count():,}"
            f" rows, first in row {first}; fill it in or remove these rows"
        )
    return frame.with_columns(parsed.values.alias(options.time))
