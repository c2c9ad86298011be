"""Division of each client's rows into train, validation and test.

Rows are divided at random, or by a column, by time, by groups of rows, or into folds.
Random choices are keyed by the seed, the client's name and the position among the
client's rows, as in `fedtailor.data.federation.splits`. So they do not depend on other
clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int
from numpy.typing import NDArray

from fedtailor._base.printable import join_names
from fedtailor.data.federation import Ragged
from fedtailor.data.federation.splits import (
    Splits,
    draw_splits,
    follow_splits,
    split_sizes,
)
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import Problems, first_row
from fedtailor.protocol import client_ids, draw_bits

SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Rows:
    """The clients and targets of a table's rows.

    Attributes:
        of_client: the rows of each client.
        owners: the client number of each row.
        names: the clients' names.
        y: the class number or regression target of each row.
    """

    of_client: Ragged
    owners: Int[NDArray, " rows"]
    names: tuple[str, ...]
    y: NDArray[Any]


def split_rows(
    frame: pl.DataFrame,
    rows: Rows,
    options: TableOptions,
    problems: Problems,
    seed: int,
) -> Splits:
    """Divide the rows as the options say (see `TableOptions`).

    Args:
        frame: the cleaned table, with the columns of splits, times and groups.
        rows: the clients' rows.
        options: at most one of split, time and folds, and optionally a group.
        problems: problems with these columns are added here. The returned splits are
            then invalid.
        seed: random seed; with folds it selects the fold of the test rows.
    """
    # If there is a group column, whole groups are divided instead of rows.
    pool, group_of_row = rows, None
    if options.group is not None:
        pool, group_of_row = _rows_of_groups(frame[options.group], rows)
    if options.split is not None:
        column = frame[options.split]
        return _split_by_column(
            column, options, rows, pool, group_of_row, problems, seed
        )
    if options.time is not None:
        return _split_by_time(frame[options.time], rows, options)
    if options.folds is not None:
        splits = _split_by_fold(pool, options, seed)
    else:
        splits = draw_splits(
            pool.of_client,
            pool.y,
            pool.names,
            test=options.test,
            val=options.val,
            seed=seed,
        )
    return splits if group_of_row is None else _expand(splits, rows, group_of_row)


def everything_trains(rows: Rows) -> Splits:
    """The splits of a table whose rows all train."""
    nothing = Ragged.empty(len(rows.names))
    return rows.of_client, nothing, nothing


def is_split_column(series: pl.Series) -> bool:
    """Whether at least half of the cells are names of splits.

    The other cells are then mistakes. Such a column must not become an input.
    """
    if series.dtype != pl.String:
        return False
    is_name = series.str.to_lowercase().is_in(list(SPLIT_WORDS)).fill_null(False)
    return int(is_name.sum()) * 2 >= len(is_name) > 0


def _rows_of_groups(
    groups: pl.Series, rows: Rows
) -> tuple[Rows, Int[NDArray, " rows"]]:
    """Represent each group by one row, so that groups can be divided like rows.

    A group belongs to the client with most of its rows, and its class is the most
    frequent one. Its rows of other clients are in the same split, so that no client
    trains on a group on which another client tests.

    Returns:
        The clients' groups, and the group number of each row.
    """
    # A row without a group is a separate group.
    texts = groups.cast(pl.String)
    missing = texts.is_null().to_numpy()
    codes = texts.rank("dense").fill_null(0).cast(pl.Int64).to_numpy() - 1
    codes = np.where(missing, codes.max(initial=-1) + np.cumsum(missing), codes)
    count = int(codes.max()) + 1
    owners = most_frequent(codes, rows.owners, count)
    labels = np.zeros(count)
    if rows.y.dtype.kind in "iu":
        labels = most_frequent(codes, rows.y, count)
    of_client = Ragged.from_owners(owners, len(rows.names))
    return Rows(of_client, owners, rows.names, labels), codes


def most_frequent(
    groups: Int[NDArray, " rows"], values: Int[NDArray, " rows"], count: int
) -> Int[NDArray, " groups"]:
    """The most frequent value of each group; the smallest one if there are several."""
    pairs, counts = np.unique(np.stack([groups, values]), axis=1, return_counts=True)
    group, value = pairs[:, np.lexsort((-pairs[1], counts, pairs[0]))]
    result = np.zeros(count, np.int64)
    # If an index occurs several times, the last assignment counts.
    result[group] = value
    return result


def _expand(splits: Splits, rows: Rows, group_of_row: Int[NDArray, " rows"]) -> Splits:
    """Convert splits of groups to splits of rows."""
    split_of_group = np.zeros(int(group_of_row.max()) + 1, np.int8)
    for number, split in enumerate(splits):
        split_of_group[split.rows] = number
    split_of_row = split_of_group[group_of_row]
    train, val, test = (
        rows.of_client.where(split_of_row[rows.of_client.rows] == number)
        for number in range(3)
    )
    return train, val, test


def _split_by_column(
    column: pl.Series,
    options: TableOptions,
    rows: Rows,
    pool: Rows,
    group_of_row: Int[NDArray, " rows"] | None,
    problems: Problems,
    seed: int,
) -> Splits:
    """Divide the rows by a column that names the splits.

    If no row is a validation row, validation rows are drawn from the training rows.

    Args:
        column: the column.
        options: the options.
        rows: the clients' rows.
        pool: the clients' groups, or `rows` if there are no groups.
        group_of_row: the group number of each row, or None.
        problems: problems are added here.
        seed: random seed.
    """
    lower = column.cast(pl.String).str.to_lowercase()
    words = lower.replace_strict(SPLIT_WORDS, default=None, return_dtype=pl.String)
    if words.null_count():
        unknown = column.filter(words.is_null()).cast(pl.String).fill_null("nothing")
        problems.add(
            f"column {column.name!r} gives the split, and says"
            f" {join_names(unknown.unique().sort().to_list())} in {len(unknown):,} rows,"
            f" first in row {first_row(words.is_null())}; write train, val or test, or drop it"
        )
        return rows.of_client, rows.of_client, rows.of_client
    split_of_row = words.to_numpy()
    val = 0.0 if (split_of_row == "val").any() else options.val
    if group_of_row is None:
        return follow_splits(
            rows.of_client, split_of_row, rows.y, rows.names, val=val, seed=seed
        )
    pairs = pl.DataFrame({"group": group_of_row, "word": words}).unique()
    inconsistent = pairs.filter(pl.col("group").is_duplicated())["group"].unique()
    if len(inconsistent):
        row = int(np.isin(group_of_row, inconsistent.to_numpy()).argmax()) + 1
        problems.add(
            f"{len(inconsistent):,} groups of column {options.group!r} have rows in more"
            f" than one split (first the group of row {row}); give each group one split"
        )
        return rows.of_client, rows.of_client, rows.of_client
    split_of_group = np.full(int(group_of_row.max()) + 1, "train", dtype="U5")
    split_of_group[group_of_row] = split_of_row.astype("U5")
    splits = follow_splits(
        pool.of_client, split_of_group, pool.y, pool.names, val=val, seed=seed
    )
    return _expand(splits, rows, group_of_row)


def _split_by_time(times: pl.Series, rows: Rows, options: TableOptions) -> Splits:
    """Each client's last rows are test rows, and the rows before them validation rows.

    Rows of equal times are in the order of the table.
    """
    if options.window is not None and rows.y.dtype.kind in "iu":
        return _split_classes_by_time(times, rows, options)
    order = np.lexsort((np.arange(len(times)), times.to_numpy(), rows.owners))
    sizes = rows.of_client.sizes
    tests = split_sizes(sizes, options.test, sizes)
    vals = split_sizes(sizes, options.val, sizes - tests)
    sorted_rows = Ragged.cut(order, sizes)
    positions = sorted_rows.positions
    is_test = positions >= np.repeat(sizes - tests, sizes)
    is_train = positions < np.repeat(sizes - tests - vals, sizes)
    return (
        sorted_rows.where(is_train),
        sorted_rows.where(~is_train & ~is_test),
        sorted_rows.where(is_test),
    )


def _split_classes_by_time(
    times: pl.Series, rows: Rows, options: TableOptions
) -> Splits:
    """As `_split_by_time`, within each class of a client: people do one thing after
    another, and their last rows alone would be of one class.
    """
    strata = pl.DataFrame({"owner": rows.owners, "class": rows.y})
    ranks = strata.select(pl.struct("owner", "class").rank("dense")).to_series()
    codes = ranks.to_numpy().astype(np.int64) - 1
    count = int(codes.max()) + 1
    parts = Rows(
        Ragged.from_owners(codes, count),
        codes,
        tuple(map(str, range(count))),
        np.zeros(len(codes)),
    )
    of_class = _split_by_time(times, parts, options)
    splits = []
    for part in of_class:
        chosen = np.sort(part.rows)
        of_client = Ragged.from_owners(rows.owners[chosen], len(rows.names))
        splits.append(Ragged.cut(chosen[of_client.rows], of_client.sizes))
    return splits[0], splits[1], splits[2]


def _split_by_fold(pool: Rows, options: TableOptions, seed: int) -> Splits:
    """Test on fold `seed % folds` of each client's rows.

    Seeds with the same `seed // folds` have the same folds, so each row is a test row
    for one of these seeds. Validation rows are drawn again for each seed.
    """
    assert options.folds is not None
    division, test_fold = divmod(seed, options.folds)
    sizes, owners = pool.of_client.sizes, pool.of_client.owners
    positions = pool.of_client.positions
    start = draw_bits(division, "fold", 0, client_ids(pool.names))
    counters = np.repeat(start, sizes) + positions.astype(np.uint64)
    shuffle = draw_bits(division, "fold", 1, counters)
    strata = np.zeros(len(owners))
    if pool.y.dtype.kind in "iu":
        strata = pool.y[pool.of_client.rows]
    # Sort each client's rows by class, in a random order within a class, and deal them
    # to the folds like cards.
    order = np.lexsort((shuffle, strata, owners))
    offset = (start % np.uint64(options.folds)).astype(np.int64)[owners]
    fold = np.empty(len(owners), np.int64)
    fold[order] = (positions + offset) % options.folds
    # A client with a single row trains on it.
    is_test = (fold == test_fold) & (sizes[owners] > 1)
    rest = pool.of_client.where(~is_test)
    remaining = 1 - 1 / options.folds
    train, val, _ = draw_splits(
        rest,
        pool.y,
        pool.names,
        test=0,
        val=min(options.val / remaining, 0.9),
        seed=seed,
    )
    return train, val, pool.of_client.where(is_test)


def names_without_test_rows(splits: Splits, names: Sequence[str]) -> list[str]:
    """Names of the clients without test rows."""
    return [name for name, size in zip(names, splits[2].sizes, strict=True) if not size]
