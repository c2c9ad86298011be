"""What a reader of a comparison must know before believing it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEW_ROWS = 10
"""Fewer test rows than this say little of a client."""
FALLING = 0.02
"""A curve still falls if its last tenth brought more than this share of all it has fallen."""
_NAMED = 3
"""Names that a warning lists; the others are counted."""


def warn_small_tests(test_labels: Mapping[str, ArrayLike], *, classification: bool = True) -> list[str]:
    """Clients whose test rows are of one class, or fewer than ten.

    Args:
        test_labels: client -> labels or targets of its test rows.
        classification: whether they are labels.
    """
    labels = {client: np.asarray(values) for client, values in test_labels.items()}
    none = [client for client, values in labels.items() if not len(values)]
    few = [client for client, values in labels.items() if 0 < len(values) < FEW_ROWS]
    single = [client for client, values in labels.items() if len(values) and len(np.unique(values)) == 1]
    found = []
    if none:
        found.append(f"no test rows: {_named(none)}; nothing is known of these clients")
    if few:
        found.append(f"fewer than {FEW_ROWS} test rows: {_named(few)}; one row more or less right is a tenth or more")
    if classification and single:
        found.append(f"test rows of one class only: {_named(single)}; ROC AUC is not defined, and always answering "
                     "that class is perfect")  # fmt: skip
    return found


def warn_repeated_rows(test: Mapping[str, NDArray[Any]], train: Mapping[str, NDArray[Any]] | None = None) -> list[str]:
    """Test rows that occur more than once, or in training data too, of whatever client.

    Args:
        test: client -> inputs [n, ...] of its test rows.
        train: client -> inputs of its training rows.
    """
    found = []
    keys = {client: _keys(x) for client, x in test.items()}
    every = [key for rows in keys.values() for key in rows]
    repeated = len(every) - len(set(every))
    if repeated:
        found.append(f"{repeated} of {len(every)} test rows repeat another one; intervals take them for independent")
    if train is not None:
        seen = {key for x in train.values() for key in _keys(x)}
        leaked = {client: sum(key in seen for key in rows) for client, rows in keys.items()}
        total = sum(leaked.values())
        if total:
            clients = [client for client, count in leaked.items() if count]
            found.append(f"{total} of {len(every)} test rows occur in training data too ({_named(clients)}); results "
                         "are too good by them")  # fmt: skip
    return found


def warn_grid_edges(chosen: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[str]:
    """Settings chosen from the edge of their grid, beyond which a better one may lie.

    Args:
        chosen: setting -> chosen value.
        grid: setting -> the values tried. Grids of a single value, or of anything but numbers, have no edge.
    """
    found = []
    for name, tried in grid.items():
        numbers = sorted({float(v) for v in tried if isinstance(v, int | float) and not isinstance(v, bool)})
        value = chosen.get(name)
        if len(numbers) < 2 or len(numbers) < len(set(tried)) or not isinstance(value, int | float):
            continue
        edge = "smallest" if value == numbers[0] else "largest" if value == numbers[-1] else None
        if edge is not None:
            found.append(
                f"{name}={value} is the {edge} value tried; try {'smaller' if edge == 'smallest' else 'larger'} ones"
            )
    return found


def still_falling(rounds: ArrayLike, losses: ArrayLike) -> bool:
    """Whether a loss is still on its way down when training ends: the mean of its last tenth lies below that of the
    tenth before by more than 2 % of all that it has fallen, and nothing before was lower than the end.

    Args:
        rounds: [r], ascending.
        losses: [r] after these rounds; of validation data.
    """
    at, values = np.asarray(rounds, np.float64), np.asarray(losses, np.float64)
    if len(values) < 4 or not np.isfinite(values).all():
        return False
    span = at[-1] - at[0]
    last = values[at > at[-1] - 0.1 * span]
    before = values[(at > at[-1] - 0.2 * span) & (at <= at[-1] - 0.1 * span)]
    if not len(before):  # few evaluations: the last two of them
        last, before = values[-1:], values[-2:-1]
    fallen = values[0] - values.min()
    return bool(before.mean() - last.mean() > FALLING * fallen > 0 and last.mean() <= before.min())


def warn_still_falling(curves: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> list[str]:
    """Methods whose validation loss was still falling in the last round; `curves`: method -> (rounds, losses)."""
    falling = [method for method, (rounds, losses) in curves.items() if still_falling(rounds, losses)]
    return [f"validation loss was still falling: {_named(falling)}; train for more rounds"] if falling else []


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _keys(x: NDArray[Any]) -> list[bytes]:
    return [np.ascontiguousarray(row).tobytes() for row in np.asarray(x)]
