"""Warnings for the readers of a comparison.

Each function returns one line per problem, and an empty list if there is none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.printable import join_names
from fedtailor.data.federation.repetitions import repeated_rows
from fedtailor.statistics.decision.convergence import movement

MIN_TEST_ROWS = 10
"""Clients with fewer test rows get a warning."""
MAX_NAMES = 3
"""A warning lists this many names and counts the others."""
_MAX_BLOCKS = 32
"""The number of blocks in which inputs are compared."""
MIN_VALIDATION_ROWS = 2500
"""With fewer rows, an accuracy of 1/2 has a standard error above one point."""


def warn_small_tests(
    test_labels: Mapping[str, ArrayLike], *, classification: bool = True
) -> list[str]:
    """Warns about clients with fewer than ten test rows, or rows of a single class.

    Args:
        test_labels: client -> labels or targets of its test rows.
        classification: whether `test_labels` holds class labels.

    Example:
        >>> from fedtailor.statistics.decision import warn_small_tests
        >>> print(warn_small_tests({"north": [0, 1]})[0])
        1 client has fewer than 10 test rows in one split (north): one row ...
    """
    labels = {client: np.asarray(values) for client, values in test_labels.items()}
    without_rows = [client for client, values in labels.items() if not len(values)]
    small = [
        client for client, values in labels.items() if 0 < len(values) < MIN_TEST_ROWS
    ]
    one_class = [
        client
        for client, values in labels.items()
        if len(values) and len(np.unique(values)) == 1
    ]
    warnings = []
    if without_rows:
        warnings.append(
            f"no test rows: {join_names(without_rows, MAX_NAMES)}; nothing is known of these"
            " clients"
        )
    if small:
        consequence = (
            "one row more or less right is a tenth or more"
            if classification
            else "one odd row moves their mean"
        )
        have = "client has" if len(small) == 1 else "clients have"
        warnings.append(
            f"{len(small)} {have} fewer than {MIN_TEST_ROWS} test rows in one split"
            f" ({join_names(small, MAX_NAMES)}): {consequence}"
        )
    if classification and one_class:
        warnings.append(
            f"test rows of one class only: {join_names(one_class, MAX_NAMES)}; ROC AUC is not"
            " defined, and always answering that class is perfect"
        )
    return warnings


ExamplesByClient = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]
"""Client -> inputs [n, ...] and targets [n, ...] of its rows."""


def warn_repeated_rows(
    test: ExamplesByClient, train: ExamplesByClient | None = None
) -> list[str]:
    """Warns about test rows that occur twice in a client's test data, or in its training
    data: with the same inputs and the same target.

    Nothing is said where chance explains it, see
    `fedtailor.data.federation.repetitions.repeated_rows`.

    Args:
        test: the test rows.
        train: the training rows. With None, only repetitions among the test rows are
            looked for.

    Example:
        >>> from fedtailor.statistics.decision import warn_repeated_rows
        >>> x, y = np.zeros((2, 3)), np.zeros(2)
        >>> print(warn_repeated_rows({"north": (x, y)})[0])
        1 of 2 test rows repeat another one of their client; intervals ...
    """
    warnings = []
    groups = _repetitions(test)
    if groups is not None:
        repeated = len(groups) - len(np.unique(groups))
        warnings.append(
            f"{repeated} of {len(groups)} test rows repeat another one of their client;"
            " intervals take them for independent"
        )
    if train is None:
        return warnings
    both = {
        client: tuple(
            np.concatenate([part, of_train])
            for part, of_train in zip(examples, train[client], strict=True)
        )
        for client, examples in test.items()
        if client in train
    }
    groups = _repetitions(both)
    if groups is None:
        return warnings
    # The test rows of a client come before its training rows.
    leaks, start = {}, 0
    for client, (x, _) in both.items():
        tested = groups[start : start + len(test[client][0])]
        trained = groups[start + len(tested) : start + len(x)]
        leaks[client] = int(np.isin(tested, trained).sum())
        start += len(x)
    total = sum(leaks.values())
    if total:
        rows = sum(len(x) for x, _ in test.values())
        clients = [client for client, count in leaks.items() if count]
        warnings.append(
            f"{total} of {rows} test rows are in the training data of their client, too,"
            f" with the same target ({join_names(clients, MAX_NAMES)}); results are too good by them"
        )
    return warnings


def _repetitions(examples: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """The group of each row of all clients, see `repeated_rows`."""
    parts = [(x, y) for x, y in examples.values() if len(x)]
    if not parts:
        return None
    x = np.concatenate([x.reshape(len(x), -1) for x, _ in parts])
    y = np.concatenate([y.reshape(len(y), -1) for _, y in parts])
    owners = np.repeat(np.arange(len(parts)), [len(x) for x, _ in parts])
    # Neighbouring inputs, such as pixels, make up one column of several cells.
    blocks = np.array_split(x, min(x.shape[1], _MAX_BLOCKS), axis=1)
    columns = [
        pl.from_numpy(np.ascontiguousarray(block)).hash_rows(seed=0).to_numpy()
        for block in (*blocks, y)
    ]
    return repeated_rows(columns, owners)


def warn_few_validation_rows(rows: int) -> list[str]:
    """Warns if successive halving chose by fewer than `MIN_VALIDATION_ROWS` rows.

    Args:
        rows: number of validation rows of all clients that train.

    Example:
        >>> from fedtailor.statistics.decision import warn_few_validation_rows
        >>> print(warn_few_validation_rows(40)[0])
        halving chose by 40 validation rows in all, which determine an accuracy ...
    """
    if not 0 < rows < MIN_VALIDATION_ROWS:
        return []
    error = 50 / math.sqrt(rows)
    return [
        f"halving chose by {rows:,} validation rows in all, which determine an accuracy"
        f" to {error:.1f} points at worst (one standard error): the full grid may well"
        " choose another method or rate"
    ]


def warn_grid_edges(
    chosen: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Warns about settings at an edge of their grid: a better value may lie beyond.

    Args:
        chosen: setting -> chosen value.
        grid: setting -> candidate values. A grid with a single value, or with values
            that are not numbers, has no edge.

    Example:
        >>> from fedtailor.statistics.decision import warn_grid_edges
        >>> warn_grid_edges({"sgd.lr": 0.1}, {"sgd.lr": [0.01, 0.03, 0.1]})
        ['sgd.lr=0.1 is the largest value tried; try larger ones']
    """
    warnings = []
    for name, values in grid.items():
        numbers = sorted({float(value) for value in values if _is_number(value)})
        all_are_numbers = len(numbers) == len(set(values))
        has_bounds = all_are_numbers and len(numbers) >= 2
        value = chosen.get(name)
        if not has_bounds or not isinstance(value, int | float):
            continue
        if value == numbers[0]:
            warnings.append(
                f"{name}={value} is the smallest value tried; try smaller ones"
            )
        elif value == numbers[-1]:
            warnings.append(
                f"{name}={value} is the largest value tried; try larger ones"
            )
    return warnings


def warn_still_falling(curves: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> list[str]:
    """Warns about methods whose validation loss was still falling in the last round.

    The rule is that of a training until it has converged
    (`fedtailor.statistics.decision.movement`).

    Args:
        curves: method -> rounds [r] and losses [r].

    Example:
        >>> from fedtailor.statistics.decision import warn_still_falling
        >>> falling = [1 / number for number in range(1, 31)]
        >>> print(warn_still_falling({"fedavg": (range(1, 31), falling)})[0])
        validation loss was still falling: fedavg; train for more rounds
    """
    falling = [
        method
        for method, (rounds, losses) in curves.items()
        if movement(rounds, losses) == "falling"
    ]
    if not falling:
        return []
    return [
        f"validation loss was still falling: {join_names(falling, MAX_NAMES)}; train for more"
        " rounds"
    ]


Curve = tuple[ArrayLike, ArrayLike]
"""Rounds [r] and losses [r]."""


def warn_not_still(curves: Mapping[str, Sequence[Curve]], rounds: int) -> list[str]:
    """Warns about methods whose validation loss fell or rose at the end of training.

    Of a loss that wavers without direction nothing is said, as more rounds change nothing.

    Args:
        curves: method -> the validation loss of each run.
        rounds: the most rounds.

    Example:
        >>> from fedtailor.statistics.decision import warn_not_still
        >>> rising = (range(1, 31), [1 + abs(number - 9) / 9 for number in range(1, 31)])
        >>> print(warn_not_still({"fedavg": [rising]}, 30)[0])
        validation loss rises at the end (overfitting): fedavg (lowest after 9 ...
    """
    falling, rising, enough = [], [], 1
    for method, runs in curves.items():
        moves = [movement(*curve) for curve in runs]
        if "rising" in moves:
            numbers, losses = runs[moves.index("rising")]
            lowest = np.asarray(numbers)[int(np.argmin(losses))]
            rising.append(f"{method} (lowest after {lowest:.0f} rounds)")
            enough = max(enough, round(float(lowest)))
        elif "falling" in moves or "unknown" in moves:
            falling.append(method)
    warnings = []
    if falling:
        warnings.append(
            f"training had not converged after {rounds} rounds:"
            f" {join_names(falling, MAX_NAMES)}; use more (--rounds)"
        )
    if rising:
        warnings.append(
            f"validation loss rises at the end (overfitting): {join_names(rising, MAX_NAMES)};"
            f" use fewer rounds (--rounds {enough})"
        )
    return warnings


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
