"""Grids of hyper-parameters: all combinations of lists of values."""

import math
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from fedtailor.protocol.plain import ConfigError, KeyPath

MAX_COMBINATIONS = 10_000
"""The largest number of combinations of a grid. Each of them is a run."""


def combinations(lists: Mapping[str, Any], place: KeyPath) -> list[dict[str, Any]]:
    """All combinations of the values in a (nested) table of lists, as nested dicts.

    Raises:
        ConfigError: a value is not a list or is empty, or there are too many
            combinations.
    """
    flat = list(_leaves(lists, place))
    count = math.prod(len(values) for _, values in flat)
    if count > MAX_COMBINATIONS:
        advice = f"at most {MAX_COMBINATIONS:,} are possible: shorten its lists"
        raise ConfigError(place, f"{place[-1]} has {count:,} combinations; {advice}")
    paths = [path for path, _ in flat]
    products = product(*(values for _, values in flat))
    return [nested(zip(paths, values, strict=True)) for values in products]


def _leaves(
    lists: Mapping[str, Any], place: KeyPath
) -> Iterable[tuple[KeyPath, list[Any]]]:
    """The lists in a nested table, with their key paths."""
    for name, values in lists.items():
        if isinstance(values, Mapping):
            for path, leaf in _leaves(values, (*place, name)):
                yield (name, *path), leaf
        elif isinstance(values, list) and values:
            yield (name,), values
        else:
            raise ConfigError(
                (*place, name),
                f"{name} is {values!r}; it must be a list of values, such as [0.1,"
                " 1.0]",
            )


def nested(settings: Iterable[tuple[KeyPath, Any]]) -> dict[str, Any]:
    """Build nested dicts from values and their key paths."""
    tree: dict[str, Any] = {}
    for path, value in settings:
        table = tree
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return tree
