"""Warnings for the readers of a comparison."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEW_ROWS = 10
"""Clients with fewer test rows are warned of."""
FALLING = 0.02
"""A loss still falls if its last tenth brought more than this share of its decrease."""
_NAMED = 3
"""Names that a warning lists; the others are counted."""
FEW_TO_CHOOSE_BY = 2500
"""With fewer validation rows an accuracy of 1/2 has a standard error above one point."""


def warn_small_tests(
    test_labels: Mapping[str, ArrayLike], *, classification: bool = True
) -> list[str]:
    """Warn of clients whose test rows are of one class, or fewer than ten.

    Args:
        test_labels: client -> labels or targets of its test rows.
        classification: whether they are labels.

    Returns:
        A line for each problem, none where all is well (so all functions here).
    """
    labels = {client: np.asarray(values) for client, values in test_labels.items()}
    none = [client for client, values in labels.items() if not len(values)]
    few = [client for client, values in labels.items() if 0 < len(values) < FEW_ROWS]
    single = [
        client
        for client, values in labels.items()
        if len(values) and len(np.unique(values)) == 1
    ]
    warnings = []
    if none:
        warnings.append(
            f"no test rows: {named(none)}; nothing is known of these clients"
        )
    if few:
        so = (
            "one row more or less right is a tenth or more"
            if classification
            else "one odd row moves their mean"
        )
        warnings.append(
            f"fewer than {FEW_ROWS} test rows in one split: {named(few)}; {so}"
        )
    if classification and single:
        warnings.append(
            f"test rows of one class only: {named(single)}; ROC AUC is not defined, and"
            " always answering that class is perfect"
        )
    return warnings


def warn_repeated_rows(
    test: Mapping[str, NDArray[Any]], train: Mapping[str, NDArray[Any]] | None = None
) -> list[str]:
    """Warn of test rows that occur more than once, or in any client's training data.

    Args:
        test: client -> inputs [n, ...] of its test rows.
        train: client -> inputs of its training rows; None = look at test rows only.

    Returns:
        One line for each problem.
    """
    warnings = []
    test_keys = {client: _keys(x) for client, x in test.items()}
    all_keys = [key for keys in test_keys.values() for key in keys]
    repeated = len(all_keys) - len(set(all_keys))
    if repeated:
        warnings.append(
            f"{repeated} of {len(all_keys)} test rows repeat another one; intervals"
            " take them for independent"
        )
    if train is None:
        return warnings
    train_keys = {key for x in train.values() for key in _keys(x)}
    leaked = {
        client: sum(key in train_keys for key in keys)
        for client, keys in test_keys.items()
    }
    total = sum(leaked.values())
    if total:
        clients = [client for client, count in leaked.items() if count]
        warnings.append(
            f"{total} of {len(all_keys)} test rows occur in training data too"
            f" ({named(clients)}); results are too good by them"
        )
    return warnings


def warn_few_validation_rows(rows: int) -> list[str]:
    """Warn of successive halving by few rows (see `FEW_TO_CHOOSE_BY`).

    Args:
        rows: for validation, of all clients that train.
    """
    if not 0 < rows < FEW_TO_CHOOSE_BY:
        return []
    error = 50 / math.sqrt(rows)
    return [
        f"halving chose by {rows:,} validation rows in all, by which an accuracy is"
        f" known to {error:.1f} points at worst (one standard error): the full grid may"
        " well choose another method or rate"
    ]


def warn_grid_edges(
    chosen: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    limited: Collection[str] = (),
) -> list[str]:
    """Warn of settings at the edge of their grid, beyond which a better one may lie.

    Args:
        chosen: setting -> chosen value.
        grid: setting -> the values tried. Grids of a single value, or of anything but
            numbers, have no edge.
        limited: settings whose largest value is a limit, such as a rate above which
            training diverges: choosing it calls for nothing.

    Returns:
        One line for each setting.
    """
    warnings = []
    for name, tried in grid.items():
        numbers = sorted({float(value) for value in tried if _is_number(value)})
        all_are_numbers = len(numbers) == len(set(tried))
        has_edges = all_are_numbers and len(numbers) >= 2
        value = chosen.get(name)
        if not has_edges or not isinstance(value, int | float):
            continue
        if value == numbers[0]:
            warnings.append(
                f"{name}={value} is the smallest value tried; try smaller ones"
            )
        elif value == numbers[-1] and name not in limited:
            warnings.append(
                f"{name}={value} is the largest value tried; try larger ones"
            )
    return warnings


def still_falling(rounds: ArrayLike, losses: ArrayLike) -> bool:
    """Whether a loss is still falling when training ends.

    Args:
        rounds: [r], ascending.
        losses: [r] after these rounds; of validation data.

    Returns:
        Whether the mean of its last tenth lies below that of the tenth before by more
        than 2 % of all that the loss has fallen, and nothing in the tenth before was
        lower than the end.
    """
    when = np.asarray(rounds, np.float64)
    values = np.asarray(losses, np.float64)
    if len(values) < 4 or not np.isfinite(values).all():
        return False
    span = when[-1] - when[0]
    in_last = when > when[-1] - 0.1 * span
    in_before = (when > when[-1] - 0.2 * span) & ~in_last
    last, before = values[in_last], values[in_before]
    # With few evaluations, the last two of them are compared.
    if not len(before):
        last, before = values[-1:], values[-2:-1]
    decrease = values[0] - values.min()
    recent_decrease = before.mean() - last.mean()
    is_falling = recent_decrease > FALLING * decrease > 0
    return bool(is_falling and last.mean() <= before.min())


def warn_still_falling(curves: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> list[str]:
    """Warn of methods whose validation loss was still falling in the last round.

    Args:
        curves: method -> rounds [r] and losses [r], see `still_falling`.

    Returns:
        One line that names them; empty where there is none.
    """
    falling = [
        method
        for method, (rounds, losses) in curves.items()
        if still_falling(rounds, losses)
    ]
    if not falling:
        return []
    return [
        f"validation loss was still falling: {named(falling)}; train for more rounds"
    ]


def named(names: Sequence[str]) -> str:
    """Names in a warning: "a, b, c and 4 more"."""
    listed = ", ".join(names[:_NAMED])
    others = len(names) - _NAMED
    return f"{listed} and {others} more" if others > 0 else listed


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _keys(x: NDArray[Any]) -> list[bytes]:
    """The bytes of every row, by which equal rows are found."""
    return [np.ascontiguousarray(row).tobytes() for row in np.asarray(x)]
