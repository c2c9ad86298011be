"""Each client's train, validation and test rows.

They are drawn at random, or given by a column, by time, by groups of rows, or by folds.
Random choices are those of `fedtailor.federation.splits`: keyed by the seed, the
client's name and the place among the client's rows, so that other clients and their
order change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int
from numpy.typing import NDArray

from fedtailor.federation import Ragged
from fedtailor.federation.splits import draw_splits, follow_splits
from fedtailor.protocol import client_ids, draw_bits
from fedtailor.tables.options import TableOptions
from fedtailor.tables.problems import Problems, listed

Splits = tuple[Ragged, Ragged, Ragged]
"""Train, validation and test rows of each client."""

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
    """Whose rows they are.

    Attributes:
        of_client: the rows of each client.
        owners: the client of each row.
        names: of the clients.
        y: class numbers, or targets of a regression, of each row.
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
    """Train, validation and test rows as the options say (see `TableOptions`).

    Args:
        frame: the cleaned table, for the columns that splits, times and groups stand
            in.
        rows: the clients' rows.
        options: one rule at most of split, time and folds, and perhaps a group.
        problems: what is wrong with those columns is added here; the splits then hold
            nothing of use.
        seed: of random splits; with folds it says which part is the test.
    """
    # Where there are groups, whole groups are drawn instead of rows.
    pool, group_of_row = rows, None
    if options.group is not None:
        pool, group_of_row = _pool_of_groups(frame[options.group], rows)
    if options.split is not None:
        column = frame[options.split]
        return _given(column, options, rows, pool, group_of_row, problems, seed)
    if options.time is not None:
        return _latest(frame[options.time], rows, options)
    if options.folds is not None:
        splits = _fold(pool, options, seed)
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


def is_split_column(series: pl.Series) -> bool:
    """Whether half of the cells or more say train, validation or test.

    What the others say is then a mistake: an input that tells which rows are the test
    would be a leak.
    """
    if series.dtype != pl.String:
        return False
    says = series.str.to_lowercase().is_in(list(SPLIT_WORDS)).fill_null(False)
    return int(says.sum()) * 2 >= len(says) > 0


def _pool_of_groups(
    groups: pl.Series, rows: Rows
) -> tuple[Rows, Int[NDArray, " rows"]]:
    """Groups in the place of rows, and the group of each row.

    A group belongs to the client with most of its rows; those with other clients follow
    it, so that nobody trains on a group that somebody tests on. Its class is its most
    frequent one.
    """
    # A row without a group is a group of its own.
    texts = groups.cast(pl.String)
    missing = texts.is_null().to_numpy()
    codes = texts.rank("dense").fill_null(0).cast(pl.Int64).to_numpy() - 1
    codes = np.where(missing, codes.max(initial=-1) + np.cumsum(missing), codes)
    count = int(codes.max()) + 1
    owners = most_frequent(codes, rows.owners, count)
    labels = np.zeros(count)
    if rows.y.dtype.kind in "iu":
        labels = most_frequent(codes, rows.y, count)
    sizes = np.bincount(owners, minlength=len(rows.names))
    of_client = Ragged.cut(np.argsort(owners, kind="stable"), sizes)
    return Rows(of_client, owners, rows.names, labels), codes


def most_frequent(
    groups: Int[NDArray, " rows"], values: Int[NDArray, " rows"], count: int
) -> Int[NDArray, " groups"]:
    """The most frequent value of each group, of equally frequent ones the smallest."""
    pairs, counts = np.unique(np.stack([groups, values]), axis=1, return_counts=True)
    group, value = pairs[:, np.lexsort((-pairs[1], counts, pairs[0]))]
    result = np.zeros(count, np.int64)
    # Of several assignments to one place the last one stays.
    result[group] = value
    return result


def _expand(splits: Splits, rows: Rows, group_of_row: Int[NDArray, " rows"]) -> Splits:
    """The splits of rows that follow from splits of groups."""
    # The split of each group, as a number, and then that of each row.
    part = np.zeros(int(group_of_row.max()) + 1, np.int8)
    for number, split in enumerate(splits):
        part[split.rows] = number
    of_row = part[group_of_row]
    train, val, test = (
        rows.of_client.where(of_row[rows.of_client.rows] == number)
        for number in range(3)
    )
    return train, val, test


def _given(
    column: pl.Series,
    options: TableOptions,
    rows: Rows,
    pool: Rows,
    group_of_row: Int[NDArray, " rows"] | None,
    problems: Problems,
    seed: int,
) -> Splits:
    """The splits that a column says.

    Without validation rows in it, a share of the training rows is taken.
    """
    lower = column.cast(pl.String).str.to_lowercase()
    words = lower.replace_strict(SPLIT_WORDS, default=None, return_dtype=pl.String)
    if words.null_count():
        strange = column.filter(words.is_null()).cast(pl.String).fill_null("nothing")
        first = (words.is_null().arg_max() or 0) + 1
        problems.add(
            f"column {column.name!r} gives the split, and says"
            f" {listed(strange.unique().sort().to_list())} in {len(strange):,} rows,"
            f" first in row {first}; write train, val or test, or drop it"
        )
        return rows.of_client, rows.of_client, rows.of_client
    given = words.to_numpy()
    val = 0.0 if (given == "val").any() else options.val
    if group_of_row is None:
        return follow_splits(
            rows.of_client, given, rows.y, rows.names, val=val, seed=seed
        )
    pairs = pl.DataFrame({"group": group_of_row, "word": words}).unique()
    straddling = pairs.filter(pl.col("group").is_duplicated())["group"].unique()
    if len(straddling):
        row = int(np.isin(group_of_row, straddling.to_numpy()).argmax()) + 1
        problems.add(
            f"{len(straddling):,} groups of column {options.group!r} have rows in more"
            f" than one split (first the group of row {row}); give each group one split"
        )
        return rows.of_client, rows.of_client, rows.of_client
    of_group = np.full(int(group_of_row.max()) + 1, "train", dtype="U5")
    of_group[group_of_row] = given.astype("U5")
    splits = follow_splits(
        pool.of_client, of_group, pool.y, pool.names, val=val, seed=seed
    )
    return _expand(splits, rows, group_of_row)


def _latest(times: pl.Series, rows: Rows, options: TableOptions) -> Splits:
    """Each client's last rows are its test, those before them its validation rows.

    Rows of equal times are in the order of the file.
    """
    order = np.lexsort((np.arange(len(times)), times.to_numpy(), rows.owners))
    sizes = rows.of_client.sizes
    tests = _count(sizes, options.test, sizes)
    vals = _count(sizes, options.val, sizes - tests)
    # In `order` a client's rows follow each other: the place of each among them.
    place = np.arange(len(order)) - np.repeat(rows.of_client.offsets[:-1], sizes)
    is_test = place >= np.repeat(sizes - tests, sizes)
    is_train = place < np.repeat(sizes - tests - vals, sizes)
    in_order = Ragged.cut(order, sizes)
    return (
        in_order.where(is_train),
        in_order.where(~is_train & ~is_test),
        in_order.where(is_test),
    )


def _count(
    sizes: Int[NDArray, " clients"], share: float, left: Int[NDArray, " clients"]
) -> Int[NDArray, " clients"]:
    """A share of each client's rows: at least one, but leaving one to train on."""
    if share == 0:
        return np.zeros_like(sizes)
    rounded = np.floor(sizes * share + 0.5)
    wanted = np.maximum(rounded, 1).astype(np.int64)
    return np.clip(wanted, 0, np.maximum(left - 1, 0))


def _fold(pool: Rows, options: TableOptions, seed: int) -> Splits:
    """Part `seed % folds` of each client's rows is the test.

    Of `folds` seeds in a row, one tests on each row.
    """
    assert options.folds is not None
    division, part = divmod(seed, options.folds)
    sizes, owners = pool.of_client.sizes, pool.of_client.owners
    place = np.arange(len(owners)) - np.repeat(pool.of_client.offsets[:-1], sizes)
    start = draw_bits(division, "fold", 0, client_ids(pool.names))
    counters = np.repeat(start, sizes) + place.astype(np.uint64)
    shuffle = draw_bits(division, "fold", 1, counters)
    strata = np.zeros(len(owners))
    if pool.y.dtype.kind in "iu":
        strata = pool.y[pool.of_client.rows]
    # The client's rows in a line, class after class and shuffled within each, are dealt
    # to the parts in turn.
    line = np.lexsort((shuffle, strata, owners))
    offset = (start % np.uint64(options.folds)).astype(np.int64)[owners]
    fold = np.empty(len(owners), np.int64)
    fold[line] = (place + offset) % options.folds
    # A client of one row trains on it.
    is_test = (fold == part) & (sizes[owners] > 1)
    rest = pool.of_client.where(~is_test)
    remaining = 1 - 1 / options.folds
    train, val, _ = draw_splits(
        rest,
        pool.y,
        pool.names,
        test=0,
        val=min(options.val / remaining, 0.9),
        seed=division,
    )
    return train, val, pool.of_client.where(is_test)


def untested(splits: Splits, names: Sequence[str]) -> list[str]:
    """The clients without a test row."""
    return [name for name, size in zip(names, splits[2].sizes, strict=True) if not size]
