"""Each client's train, validation and test rows; who is held out of training.

Every choice is keyed by (seed, client name, place among the client's rows), so neither the order in which clients are
listed nor the presence of others changes what a client trains and tests on.
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
    """Raise ValueError unless both fractions, and what they leave for training, make sense."""
    for what, fraction in (("test", test), ("val", val)):
        if not isinstance(fraction, Real) or isinstance(fraction, bool):
            raise ValueError(f"{what} is {shown(fraction)}; it is a fraction of each client's rows, such as 0.2")
    if not (0 <= test < 1 and 0 <= val < 1 and test + val < 1):
        raise ValueError(f"test is {test} and val is {val}; they are fractions, 0 or more, with a sum below 1")


def draw_splits(
    rows: Ragged, y: NDArray[Any], names: Sequence[str], *, test: float, val: float, seed: int
) -> tuple[Ragged, Ragged, Ragged]:
    """Divide each client's rows into (train, val, test), stratified by class.

    A client with enough rows has at least one in each split that is asked for; training goes first, then test. Of each
    class a split gets its share, rounded up or down; targets that are no labels are split without strata.

    Args:
        rows: each client's rows of the pool.
        y: the pool's labels [N] or targets [N, ...].
        names: of the clients [m].
        test: fraction of a client's rows, in [0, 1).
        val: the same.
        seed: of the splits.

    Raises:
        ValueError: fractions that leave nothing for training.
    """
    check_fractions(test, val)
    check_seed(seed)
    ids, strata = client_ids(names), _strata(y)
    rest, test_rows = divide(rows, _share(rows.sizes, test, rows.sizes), strata, ids, seed, "test split")
    train_rows, val_rows = divide(rest, _share(rows.sizes, val, rest.sizes), strata, ids, seed, "val split")
    return train_rows, val_rows, test_rows


def follow_splits(
    rows: Ragged, given: NDArray[Any], y: NDArray[Any], names: Sequence[str], *, val: float, seed: int
) -> tuple[Ragged, Ragged, Ragged]:
    """(train, val, test) as `given` says for every row of the pool [N]: "train", "val" or "test".

    Where no row is marked "val", the fraction `val` of each client's rows is taken from its training rows.

    Raises:
        ValueError: another word, or validation rows both given and asked for.
    """
    check_fractions(0, val)
    check_seed(seed)
    words = given.astype(str)
    unknown = ~np.isin(words, SPLITS)
    if unknown.any():
        row = int(np.argmax(unknown))
        raise ValueError(f"row {row} has split {str(words[row])!r}; the splits are 'train', 'val' and 'test'")
    train, vals, tests = (rows.where(words[rows.rows] == word) for word in SPLITS)
    if val == 0:
        return train, vals, tests
    if len(vals.rows):
        raise ValueError(f"the split column marks validation rows, and val is {val}; leave val at 0")
    counts = _share(train.sizes, val, train.sizes)
    train, vals = divide(train, counts, _strata(y), client_ids(names), seed, "val split")
    return train, vals, tests


def divide(
    rows: Ragged, counts: NDArray[np.int64], strata: NDArray[np.int64], ids: NDArray[np.uint64], seed: int, purpose: str
) -> tuple[Ragged, Ragged]:
    """Take `counts[i]` rows from each client, in proportion from every stratum: (what is left, what was taken).

    Systematic sampling: the client's rows stand in a line, stratum after stratum and in random order within each;
    every (n / count)-th is taken, from a random start. So the total is exact and each stratum within one of its share.
    """
    if not counts.any():
        return rows, Ragged.empty(len(rows))
    owners, sizes = rows.owners, rows.sizes
    place = np.arange(len(rows.rows)) - np.repeat(rows.offsets[:-1], sizes)
    start = draw_bits(seed, purpose, 0, ids)
    shuffle = draw_bits(seed, purpose, 1, np.repeat(start, sizes) + place.astype(np.uint64))
    line = _order(owners * (strata.max(initial=0) + 1) + strata[rows.rows], shuffle)
    count, size = counts[owners], sizes[owners]
    phase = (start % np.maximum(sizes, 1).astype(np.uint64)).astype(np.int64)[owners]
    taken = np.zeros(len(rows.rows), np.bool_)
    taken[line] = ((place + 1) * count + phase) // size > (place * count + phase) // size
    return rows.where(~taken), rows.where(taken)


def choose_unseen(unseen: Unseen, names: Sequence[str], seed: int) -> NDArray[np.bool_]:
    """Which clients [m] never train.

    Raises:
        ValueError: an unknown name, or nobody would be left to train.
    """
    check_seed(seed)
    if isinstance(unseen, Iterable) and not (isinstance(unseen, np.ndarray) and unseen.ndim == 0):
        held = {unseen} if isinstance(unseen, str) else {str(name) for name in unseen}
        missing = held - set(names)
        if missing:
            raise ValueError(f"unseen names client {min(missing)!r}, which is not there; the first is {names[0]!r}")
        return np.array([name in held for name in names])
    check_finite(unseen, "unseen")
    count = int(unseen) if isinstance(unseen, Integral) else round(float(unseen) * len(names))
    if unseen < 0 or count >= max(len(names), 1):
        raise ValueError(
            f"unseen is {unseen} of {len(names)} clients; give a count or a fraction that leaves somebody to train"
        )
    chosen = np.zeros(len(names), np.bool_)
    chosen[np.argsort(draw_bits(seed, "unseen", 0, client_ids(names)))[:count]] = True
    return chosen


def _strata(y: NDArray[Any]) -> NDArray[np.int64]:
    """A number from 0 on for every row [N]: its class, where the targets are labels."""
    if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
        return np.zeros(len(y), np.int64)
    return y.astype(np.int64) - int(y.min())


def _order(first: NDArray[np.int64], then: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Sort by `first`, then by the random `then`: one 64-bit key of both sorts several times faster than lexsort."""
    bits = int(first.max(initial=0)).bit_length()
    key = (first.astype(np.uint64) << np.uint64(64 - bits)) | (then >> np.uint64(bits)) if bits else then
    return np.argsort(key, kind="stable")


def _share(sizes: NDArray[np.int64], fraction: float, left: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many rows of each client a split gets: rounded, at least one, but leaving one to train on."""
    if fraction == 0:
        return np.zeros_like(sizes)
    wanted = np.maximum(np.floor(sizes * fraction + 0.5), 1).astype(np.int64)
    return np.clip(wanted, 0, np.maximum(left - 1, 0))
