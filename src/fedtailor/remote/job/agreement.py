"""Which pooled statistics a client accepts: those that can hold its own sums.

The pooled statistics decide how a table becomes inputs. The coordinator sends them, and
could invent them. They are possible if there are rows of other clients with which this
client's rows give them. For n rows of this client with mean m and squares s (the sum of
squared deviations from the mean), and pooled N, M and S, the other N - n rows have the
squares

    S - s - n N / (N - n) (M - m)^2,

which cannot be negative (Chan, Golub and LeVeque 1979, Updating Formulae).
"""

import math

from fedtailor._base.choice import require
from fedtailor._base.groups import MIN_ROWS
from fedtailor.data.tables.kinds import MAX_MAGNITUDE, Kind
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import MAX_INPUT, Statistics

MAX_ROWS = 10**12
"""The most rows of all clients together.

With fewer, the pooled mean is at most `MAX_INPUT` pooled standard deviations away from a
client's own, as the pooled variance holds this distance. With any number it could be so
far away that all of a column's cells look the same next to a gap.
"""

_ROUNDING = 1e-12
"""Relative error of pooled sums: a few times 2^-53 for each of 2,000 clients."""

_TINY = 1e-290
"""Absolute error of sums whose terms are too small for a normal float64."""


def check_column_sums(pooled: Statistics, own: Statistics, schema: Schema) -> None:
    """Check that pooled statistics of columns can hold a client's own.

    Args:
        pooled: the pooled statistics.
        own: the statistics that this client has sent.
        schema: columns of the job.

    Raises:
        ValueError: they cannot; names the column.
    """
    for name, sums in pooled.columns.items():
        try:
            is_listed = schema.columns[name] is not None
            _check_sums(sums, own.columns[name], schema.kinds[name], is_listed)
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None
    if pooled.target is not None and own.target is not None:
        try:
            is_number = schema.task == "regression"
            kind: Kind = "number" if is_number else "category"
            _check_sums(pooled.target, own.target, kind, not is_number)
        except ValueError as error:
            raise ValueError(f"the target: {error}") from None


def check_own_sums(own: Statistics, schema: Schema) -> None:
    """Check that statistics can be those that a client has sent of its table.

    Args:
        own: the statistics.
        schema: columns of the job.

    Raises:
        ValueError: they cannot; names the column.
    """
    # Those of all clients are checked against one without rows.
    columns = {
        name: ColumnSums(categories=dict.fromkeys(listed or (), 0))
        for name, listed in schema.columns.items()
    }
    outcomes = dict.fromkeys(schema.outcomes or (), 0)
    target = None if own.target is None else ColumnSums(categories=outcomes)
    check_column_sums(own, Statistics(columns=columns, target=target), schema)
    for name, sums in own.columns.items():
        _check_size(repr(name), sums)
    if own.target is not None:
        _check_size("the target", own.target)


def _check_size(what: str, sums: ColumnSums) -> None:
    """Check that those of others can be added to sums.

    Raises:
        ValueError: they cannot.
    """
    require(
        abs(sums.mean) <= MAX_MAGNITUDE
        and math.sqrt(sums.squares / max(sums.count, 1)) <= 2 * MAX_MAGNITUDE,
        f"its sums of {what} are of numbers beyond {MAX_MAGNITUDE:g}",
    )


def _check_sums(pooled: ColumnSums, own: ColumnSums, kind: Kind, listed: bool) -> None:
    """Check that pooled sums of a column can hold a client's own.

    Raises:
        ValueError: they cannot.
    """
    _check_count("cells", pooled.count, own.count)
    require(
        pooled.count + pooled.missing <= MAX_ROWS,
        f"the pooled table has more than {MAX_ROWS:,} rows",
    )
    require(
        pooled.missing >= own.missing,
        "the pooled table has fewer missing cells than this one alone",
    )
    if kind == "category":
        _check_categories(pooled, own, listed)
        return
    require(
        not pooled.categories and not pooled.rare, f"a {kind} column has categories"
    )
    if kind == "boolean":
        _check_booleans(pooled, own)
    # No client's mean is farther from the pooled one than sqrt(squares).
    root = math.sqrt(pooled.squares)
    mean_error = _ROUNDING * (abs(pooled.mean) + abs(own.mean) + root)
    error = (
        _TINY
        + _ROUNDING * pooled.squares
        + mean_error * (2 * math.sqrt(pooled.count) * root + pooled.count * mean_error)
    )
    distance = abs(pooled.mean - own.mean)
    others = pooled.count - own.count
    if others == 0:
        is_possible = distance <= mean_error and (
            abs(pooled.squares - own.squares) <= error
        )
        require(is_possible, "the pooled rows are this table's, and their sums are not")
        return
    weight = own.count * pooled.count / others
    apart = max(distance - mean_error, 0.0)
    require(
        pooled.squares >= own.squares + weight * apart * apart - error,
        "the pooled variance is smaller than this table alone makes it",
    )


def _check_categories(pooled: ColumnSums, own: ColumnSums, listed: bool) -> None:
    """Check that pooled counts of categories can hold a client's own.

    Raises:
        ValueError: they cannot.
    """
    require(pooled.mean == 0 and pooled.squares == 0, "a category column has a mean")
    require(
        pooled.count == sum(pooled.categories.values()) + pooled.rare
        and own.categories.keys() <= pooled.categories.keys(),
        "the pooled table lacks a category of this one, or counts do not add up",
    )
    _check_count("cells of rare categories", pooled.rare, own.rare)
    require(
        not listed or own.categories.keys() == pooled.categories.keys(),
        "the pooled table has other categories than the job",
    )
    for category, count in pooled.categories.items():
        _check_count("cells of a category", count, own.categories.get(category, 0))


def _check_count(what: str, pooled: int, own: int) -> None:
    """Check that a pooled count can hold a client's own.

    Raises:
        ValueError: it cannot: no client sends a count below `MIN_ROWS`, except 0.
    """
    others = pooled - own
    require(
        others == 0 or others >= MIN_ROWS,
        f"other clients cannot have sent a count of {others} {what}",
    )


def _check_booleans(pooled: ColumnSums, own: ColumnSums) -> None:
    """Check that pooled sums are those of zeros and ones.

    Raises:
        ValueError: they are not.
    """
    count = max(pooled.count, 1)
    error = _ROUNDING * count
    ones = pooled.mean * pooled.count
    others = ones - own.mean * own.count
    is_possible = (
        -error <= others <= pooled.count - own.count + error
        and abs(others - round(others)) <= error
        and abs(pooled.squares - ones * (1 - ones / count)) <= 4 * error
    )
    require(is_possible, "these are not sums of yes and no")


def check_scale(pooled: Statistics, own: Statistics, schema: Schema) -> None:
    """Check that pooled statistics give a client's rows a sensible scale.

    A client whose sums were not asked for, as it joins a run under way, is not among the
    pooled ones. Only its sums are looked at, in which few rows are hidden: a refusal does
    not say whether a single cell is far.

    Raises:
        ValueError: the rows are too far from the pooled ones; names the column.
    """
    columns = [
        (name, pooled.columns[name], sums)
        for name, sums in own.columns.items()
        if schema.kinds[name] != "category"
    ]
    if schema.task == "regression" and pooled.target and own.target:
        columns.append((schema.target, pooled.target, own.target))
    for name, of_all, sums in columns:
        if not sums.count:
            continue
        spread = sums.deviation if sums.squares > 0 else 0.0
        far = (abs(sums.mean - of_all.mean) + spread) / of_all.deviation
        require(
            far <= MAX_INPUT,
            f"{name!r} is {far:.3g} standard deviations from the pooled mean; is it in the"
            " unit of the other clients?",
        )
