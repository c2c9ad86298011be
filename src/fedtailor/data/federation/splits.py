"""Division of each client's rows into train, validation and test; unseen clients.

Every random choice is keyed by (seed, client name, position among the client's rows).
So a client's splits depend neither on the order of the clients nor on other clients.
"""

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.federation.checks import (
    SPLITS,
    check_finite,
    check_seed,
    short_repr,
)
from fedtailor.data.federation.federation import Ragged
from fedtailor.protocol import client_ids, draw_bits

Unseen = int | float | Sequence[str]
"""Clients that never train: a count, a fraction, or their names."""

Splits = tuple[Ragged, Ragged, Ragged]
"""The train, validation and test rows of each client."""


def check_fractions(test: float, val: float) -> None:
    """Check the fractions of test and validation rows.

    Raises:
        ValueError: a fraction is not a number in [0, 1), or no rows are left for
            training.
    """
    for name, fraction in (("test", test), ("val", val)):
        if not isinstance(fraction, Real) or isinstance(fraction, bool):
            raise ValueError(
                f"{name} is {short_repr(fraction)}; it is a fraction of each client's rows,"
                " such as 0.2"
            )
    if not (0 <= test < 1 and 0 <= val < 1 and test + val < 1):
        raise ValueError(
            f"test is {test} and val is {val}; they are fractions, 0 or more, with a"
            " sum below 1"
        )


def draw_splits(
    rows: Ragged,
    y: NDArray[Any],
    names: Sequence[str],
    *,
    test: float,
    val: float,
    seed: int,
) -> Splits:
    """Divide each client's rows into (train, val, test), stratified by class.

    A client with enough rows has at least one row in each split whose fraction is not
    0. A client with a single row trains on it, and a client with two rows also has a
    test row. Each class is divided by the fractions, up to rounding. Targets that are
    not labels are divided without stratification.

    Args:
        rows: each client's rows in the pool.
        y: the pool's labels [N] or targets [N, ...].
        names: names of the clients [m].
        test: fraction of a client's rows for testing, in [0, 1).
        val: fraction of a client's rows for validation, in [0, 1).
        seed: random seed.

    Returns:
        Each client's train, validation and test rows.

    Raises:
        ValueError: the fractions leave no rows for training.
    """
    check_fractions(test, val)
    check_seed(seed)
    ids = client_ids(names)
    strata = _strata(y)
    # Draw the test rows first, so that they do not depend on `val`.
    test_sizes = split_sizes(rows.sizes, test, rows.sizes)
    rest, test_rows = divide(rows, test_sizes, strata, ids, seed, "test split")
    val_sizes = split_sizes(rows.sizes, val, rest.sizes)
    train_rows, val_rows = divide(rest, val_sizes, strata, ids, seed, "val split")
    return train_rows, val_rows, test_rows


def follow_splits(
    rows: Ragged,
    split: NDArray[Any],
    y: NDArray[Any],
    names: Sequence[str],
    *,
    val: float,
    seed: int,
) -> Splits:
    """Divide each client's rows into the splits that an array names.

    Args:
        rows: each client's rows in the pool.
        split: [N] "train", "val" or "test", for each row of the pool.
        y: the pool's labels [N] or targets [N, ...].
        names: names of the clients [m].
        val: fraction of each client's training rows that are moved to the validation
            split. It must be 0 if a row is marked "val".
        seed: random seed.

    Returns:
        Each client's train, validation and test rows.

    Raises:
        ValueError: `split` has another entry, or a row is marked "val" and `val` is not
            0.
    """
    check_fractions(0, val)
    check_seed(seed)
    words = split.astype(str)
    unknown = ~np.isin(words, SPLITS)
    if unknown.any():
        row = int(np.argmax(unknown))
        raise ValueError(
            f"row {row} has split {str(words[row])!r}; the splits are 'train', 'val'"
            " and 'test'"
        )
    train, vals, tests = (rows.where(words[rows.rows] == word) for word in SPLITS)
    if val == 0:
        return train, vals, tests
    if len(vals.rows):
        raise ValueError(
            f"the split column marks validation rows, and val is {val}; leave val at 0"
        )
    counts = split_sizes(train.sizes, val, train.sizes)
    train, vals = divide(
        train, counts, _strata(y), client_ids(names), seed, "val split"
    )
    return train, vals, tests


def divide(
    rows: Ragged,
    counts: NDArray[np.int64],
    strata: NDArray[np.int64],
    ids: NDArray[np.uint64],
    seed: int,
    purpose: str,
) -> tuple[Ragged, Ragged]:
    """Take a stratified random sample of each client's rows.

    This is systematic sampling. A client's rows are sorted by stratum, in a random
    order within each stratum, and every (n / count)-th row is taken from a random start
    on. So the number of rows is exact, and the number from each stratum is exact up to
    1.

    Args:
        rows: each client's rows in the pool.
        counts: [m] number of rows to take.
        strata: [N] the stratum of each row of the pool, numbered from 0.
        ids: [m] ids of the clients.
        seed: random seed.
        purpose: a name for this choice, which makes it independent of other choices
            with the same seed.

    Returns:
        The remaining rows, and the sampled rows.
    """
    if not counts.any():
        return rows, Ragged.empty(len(rows))
    owners, sizes = rows.owners, rows.sizes
    position = rows.positions
    start = draw_bits(seed, purpose, 0, ids)
    counters = np.repeat(start, sizes) + position.astype(np.uint64)
    shuffle = draw_bits(seed, purpose, 1, counters)
    client_and_stratum = owners * (strata.max(initial=0) + 1) + strata[rows.rows]
    order = _lexsort(client_and_stratum, shuffle)
    # Row p of n is sampled if floor((p * count + phase) / n) increases after it, which
    # happens `count` times.
    count, size = counts[owners], sizes[owners]
    phases = start % np.maximum(sizes, 1).astype(np.uint64)
    phase = phases.astype(np.int64)[owners]
    before = (position * count + phase) // size
    after = ((position + 1) * count + phase) // size
    is_sampled = np.zeros(len(rows.rows), np.bool_)
    is_sampled[order] = after > before
    return rows.where(~is_sampled), rows.where(is_sampled)


def choose_unseen(unseen: Unseen, names: Sequence[str], seed: int) -> NDArray[np.bool_]:
    """Choose the clients that never train.

    Args:
        unseen: a count, a fraction, or names.
        names: names of all clients [m].
        seed: random seed.

    Returns:
        [m] True for the clients that never train.

    Raises:
        ValueError: a name is unknown, or no client would be left for training.
    """
    check_seed(seed)
    # An array of shape () is a single number, although its type is iterable.
    if isinstance(unseen, Iterable) and not (
        isinstance(unseen, np.ndarray) and unseen.ndim == 0
    ):
        entries = [unseen] if isinstance(unseen, str) else unseen
        unseen_names = {str(name) for name in entries}
        missing = unseen_names - set(names)
        if missing:
            raise ValueError(
                f"unseen names client {min(missing)!r}, which does not exist; the first"
                f" is {names[0]!r}"
            )
        return np.array([name in unseen_names for name in names])
    check_finite(unseen, "unseen")
    is_count = isinstance(unseen, Integral)
    count = int(unseen) if is_count else round(float(unseen) * len(names))
    if unseen < 0 or count >= max(len(names), 1):
        raise ValueError(
            f"unseen is {unseen} of {len(names)} clients; give a count or a fraction"
            " that leaves clients to train"
        )
    # Each client's name gives a random number, and those with the smallest numbers are
    # unseen. So the choice does not depend on the order of the clients.
    random_bits = draw_bits(seed, "unseen", 0, client_ids(names))
    is_unseen = np.zeros(len(names), np.bool_)
    is_unseen[np.argsort(random_bits)[:count]] = True
    return is_unseen


def _strata(y: NDArray[Any]) -> NDArray[np.int64]:
    """The stratum of each row [N]: its label, or 0 if the targets are not labels."""
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
        return np.zeros(len(y), np.int64)
    return y.astype(np.int64) - int(y.min())


def _lexsort(
    primary: NDArray[np.int64], secondary: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Sort by a primary key and then by random bits, several times faster than NumPy.

    Both are combined to one 64-bit key: `primary` in the upper bits, and as many of the
    random bits as fit below.
    """
    bits = int(primary.max(initial=0)).bit_length()
    if bits == 0:
        return np.argsort(secondary, kind="stable")
    upper = primary.astype(np.uint64) << np.uint64(64 - bits)
    lower = secondary >> np.uint64(bits)
    return np.argsort(upper | lower, kind="stable")


def split_sizes(
    sizes: NDArray[np.int64], fraction: float, available: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The number of each client's rows in a split.

    Args:
        sizes: [m] number of rows of each client.
        fraction: fraction of these rows that the split gets, rounded, but at least one.
        available: [m] number of rows that are not yet in another split. One of them is
            left for training.
    """
    if fraction == 0:
        return np.zeros_like(sizes)
    counts = np.maximum(np.floor(sizes * fraction + 0.5), 1).astype(np.int64)
    return np.clip(counts, 0, np.maximum(available - 1, 0))
