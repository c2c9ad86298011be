"""Each client's train, validation and test rows; who is held out of training.

Every choice is keyed by (seed, client name, position among the client's rows), so
neither the order in which clients are listed nor the presence of others changes what a
client trains and tests on.
"""

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation.checks import SPLITS, check_finite, check_seed, shown
from fedtailor.federation.federation import Ragged
from fedtailor.protocol import client_ids, draw_bits

Unseen = int | float | Sequence[str]
"""Clients that never train: how many, which fraction, or their names."""


def check_fractions(test: float, val: float) -> None:
    """Check the fractions of a split.

    Raises:
        ValueError: one is no number in [0, 1), or together they leave nothing for
            training.
    """
    for what, fraction in (("test", test), ("val", val)):
        if not isinstance(fraction, Real) or isinstance(fraction, bool):
            raise ValueError(
                f"{what} is {shown(fraction)}; it is a fraction of each client's rows,"
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
) -> tuple[Ragged, Ragged, Ragged]:
    """Divide each client's rows into (train, val, test), stratified by class.

    A client with enough rows has at least one in each split that is asked for; training
    goes first, then test. Of each class a split gets its share, rounded up or down;
    targets that are no labels are split without strata.

    Args:
        rows: each client's rows of the pool.
        y: the pool's labels [N] or targets [N, ...].
        names: of the clients [m].
        test: fraction of a client's rows, in [0, 1).
        val: the same.
        seed: of the splits.

    Returns:
        Each client's training, validation and test rows.

    Raises:
        ValueError: fractions that leave nothing for training.
    """
    check_fractions(test, val)
    check_seed(seed)
    ids = client_ids(names)
    strata = _strata(y)
    # Test rows first, so that they are the same whatever fraction is kept for
    # validation.
    test_sizes = _share(rows.sizes, test, rows.sizes)
    rest, test_rows = divide(rows, test_sizes, strata, ids, seed, "test split")
    val_sizes = _share(rows.sizes, val, rest.sizes)
    train_rows, val_rows = divide(rest, val_sizes, strata, ids, seed, "val split")
    return train_rows, val_rows, test_rows


def follow_splits(
    rows: Ragged,
    given: NDArray[Any],
    y: NDArray[Any],
    names: Sequence[str],
    *,
    val: float,
    seed: int,
) -> tuple[Ragged, Ragged, Ragged]:
    """Divide each client's rows as marked.

    Args:
        rows: each client's rows of the pool.
        given: [N] "train", "val" or "test", for every row of the pool.
        y: the pool's labels [N] or targets [N, ...].
        names: of the clients [m].
        val: fraction of each client's rows that is taken from its training rows, where
            no row is marked "val".
        seed: of the validation rows.

    Returns:
        Each client's training, validation and test rows.

    Raises:
        ValueError: another word, or validation rows both given and asked for.
    """
    check_fractions(0, val)
    check_seed(seed)
    words = given.astype(str)
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
    counts = _share(train.sizes, val, train.sizes)
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
    """Take some rows from each client, in proportion from every stratum.

    Systematic sampling: the client's rows are ordered by stratum and at random within
    each; every (n / count)-th is taken, from a random start. So the total is exact and
    each stratum within one of its share.

    Args:
        rows: each client's rows of the pool.
        counts: [m] how many to take.
        strata: [N] the stratum of every row of the pool, from 0 on.
        ids: [m] of the clients.
        seed: of the choice.
        purpose: names the choice: others of the same seed are independent of it.

    Returns:
        The rows that are left, and those that were taken.
    """
    if not counts.any():
        return rows, Ragged.empty(len(rows))
    owners, sizes = rows.owners, rows.sizes
    # [total] the position of each entry among its client's rows.
    position = np.arange(len(rows.rows)) - np.repeat(rows.offsets[:-1], sizes)
    start = draw_bits(seed, purpose, 0, ids)
    counters = np.repeat(start, sizes) + position.astype(np.uint64)
    shuffle = draw_bits(seed, purpose, 1, counters)
    client_and_stratum = owners * (strata.max(initial=0) + 1) + strata[rows.rows]
    order = _order(client_and_stratum, shuffle)
    # The p-th of n rows is taken where floor((p count + phase) / n) rises by one:
    # `count` times in all.
    count, size = counts[owners], sizes[owners]
    phases = start % np.maximum(sizes, 1).astype(np.uint64)
    phase = phases.astype(np.int64)[owners]
    before = (position * count + phase) // size
    after = ((position + 1) * count + phase) // size
    taken = np.zeros(len(rows.rows), np.bool_)
    taken[order] = after > before
    return rows.where(~taken), rows.where(taken)


def choose_unseen(unseen: Unseen, names: Sequence[str], seed: int) -> NDArray[np.bool_]:
    """Choose the clients that never train.

    Args:
        unseen: how many, which fraction, or their names.
        names: of all clients [m].
        seed: of a random choice.

    Returns:
        [m] who never trains.

    Raises:
        ValueError: an unknown name, or nobody would be left to train.
    """
    check_seed(seed)
    # An array without axes is a single number.
    if isinstance(unseen, Iterable) and not (
        isinstance(unseen, np.ndarray) and unseen.ndim == 0
    ):
        given = [unseen] if isinstance(unseen, str) else unseen
        chosen_names = {str(name) for name in given}
        missing = chosen_names - set(names)
        if missing:
            raise ValueError(
                f"unseen names client {min(missing)!r}, which is not there; the first"
                f" is {names[0]!r}"
            )
        return np.array([name in chosen_names for name in names])
    check_finite(unseen, "unseen")
    is_count = isinstance(unseen, Integral)
    count = int(unseen) if is_count else round(float(unseen) * len(names))
    if unseen < 0 or count >= max(len(names), 1):
        raise ValueError(
            f"unseen is {unseen} of {len(names)} clients; give a count or a fraction"
            " that leaves somebody to train"
        )
    # Each client draws a number by its name; the smallest ones are unseen, in whatever
    # order clients are listed.
    drawn = draw_bits(seed, "unseen", 0, client_ids(names))
    chosen = np.zeros(len(names), np.bool_)
    chosen[np.argsort(drawn)[:count]] = True
    return chosen


def _strata(y: NDArray[Any]) -> NDArray[np.int64]:
    """A number from 0 on for every row [N]: its class, where the targets are labels."""
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
        return np.zeros(len(y), np.int64)
    return y.astype(np.int64) - int(y.min())


def _order(first: NDArray[np.int64], then: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Sort by `first`, then by the random `then`.

    One 64-bit key of both sorts several times faster than lexsort.
    """
    bits = int(first.max(initial=0)).bit_length()
    if bits == 0:
        return np.argsort(then, kind="stable")
    # `first` in the upper bits; of the random numbers as many upper bits as there is
    # room for.
    upper = first.astype(np.uint64) << np.uint64(64 - bits)
    lower = then >> np.uint64(bits)
    return np.argsort(upper | lower, kind="stable")


def _share(
    sizes: NDArray[np.int64], fraction: float, left: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many rows of each client a split gets.

    The share is rounded, at least one, but leaves one to train on.
    """
    if fraction == 0:
        return np.zeros_like(sizes)
    wanted = np.maximum(np.floor(sizes * fraction + 0.5), 1).astype(np.int64)
    return np.clip(wanted, 0, np.maximum(left - 1, 0))
