"""`read_design`: read a table as the inputs and the target of a regression, in the units
of its columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from fedtailor._base.choice import require
from fedtailor._base.printable import join_names
from fedtailor.data.tables.checks import check_clients, check_columns
from fedtailor.data.tables.kinds import MAX_CATEGORIES, parse_column
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import Problems
from fedtailor.data.tables.reading import read
from fedtailor.data.tables.target import read_survival, read_target


@dataclass(frozen=True)
class Design:
    """The rows of a table without missing cells.

    Attributes:
        names: of the inputs; "column=level" for a category.
        x: inputs, without a column of ones.
        y: numbers; 1 of the second of two classes and 0 of the first; or times.
        seen: of survival, 1 where the event was seen and 0 where not.
        clients: names of the clients.
        owner: the number of each row's client.
        notes: what was left out and how columns were read, in sentences.
    """

    names: tuple[str, ...]
    x: Float[np.ndarray, "n p"]
    y: Float[np.ndarray, " n"]
    seen: Float[np.ndarray, " n"] | None
    clients: tuple[str, ...]
    owner: Int[np.ndarray, " n"]
    notes: tuple[str, ...]


def read_design(source: Any, options: TableOptions) -> Design:
    """Read the rows in which no used column is missing, as statistical software does.

    Categories become one input for each level but the most frequent, with which the
    others are compared; dates are days since 1970.

    Args:
        source: what `from_table` takes.
        options: roles of columns; whether classes are read (`task`), times to an event
            (`event`) or numbers.

    Raises:
        ValueError: the file cannot be read, or a column has problems.
    """
    raw = read(source, options)
    problems, notes = Problems(raw.where), list(raw.notes)
    check_columns(raw.frame, options, problems)
    problems.raise_if_any()
    inputs = _inputs(raw.frame.columns, options)
    require(bool(inputs), f"{raw.where} has no column that is an input")
    roles = [options.client, options.target]
    roles += [] if options.event is None else [options.event]
    frame = _complete_rows(raw.frame.select(*roles, *inputs), raw.where, notes)
    rows = check_clients(frame, options, problems)
    target, seen = _target(frame, options, problems, notes)
    names, columns, compared = list[str](), list[pl.Series](), list[str]()
    for name in inputs:
        try:
            parsed = parse_column(frame[name], category=name in options.categories)
        except ValueError as error:
            problems.add(str(error))
            continue
        if parsed.kind != "category":
            names.append(name)
            columns.append(parsed.values)
            continue
        # The most frequent level first; of two, the first by name.
        counts = parsed.values.value_counts().sort(
            ["count", name], descending=[True, False]
        )
        levels = counts[name].to_list()
        if len(levels) > MAX_CATEGORIES:
            problems.add(
                f"column {name!r} has {len(levels):,} different texts, more than"
                f" {MAX_CATEGORIES}; leave it out with drop"
            )
        compared.append(f"{name} {levels[0]}")
        for level in sorted(levels[1:]) or levels:
            names.append(f"{name}={level}")
            columns.append((parsed.values == level).cast(pl.Float64))
    problems.raise_if_any()
    assert rows is not None
    if compared:
        notes.append(
            f"Categories are compared with the most frequent: {', '.join(compared)}."
        )
    return Design(
        tuple(names),
        np.stack([column.to_numpy() for column in columns], axis=1),
        target,
        seen,
        rows.names,
        rows.owners,
        tuple(notes),
    )


def _inputs(columns: Sequence[str], options: TableOptions) -> list[str]:
    """The columns that are asked for, or all without another role."""
    other = {*options.roles.values(), *options.drop}
    if options.features is None:
        return [name for name in columns if name not in other]
    return [
        name
        for name in columns
        if any(
            name == feature or name.startswith(f"{feature}[")
            for feature in options.features
        )
    ]


def _complete_rows(frame: pl.DataFrame, where: str, notes: list[str]) -> pl.DataFrame:
    """The rows without a missing cell."""
    complete = frame.drop_nulls()
    missing = frame.height - complete.height
    if not missing:
        return frame
    gaps = {series.name: series.null_count() for series in frame if series.null_count()}
    of_columns = join_names([f"{name} {count:,}" for name, count in gaps.items()])
    require(
        complete.height > 0,
        f"{where}: each row has a missing cell (missing by column: {of_columns}); leave"
        " columns out with drop",
    )
    notes.append(
        f"{missing:,} of {frame.height:,} rows are left out, as a cell is missing"
        f" ({of_columns})."
    )
    return complete


def _target(
    frame: pl.DataFrame, options: TableOptions, problems: Problems, notes: list[str]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"] | None]:
    """The target as numbers, and whether events were seen; problems are added."""
    name = options.target
    if options.event is not None:
        read_times = read_survival(frame[name], frame[options.event], options, problems)
        problems.raise_if_any()
        assert read_times is not None
        notes.extend(read_times.notes)
        return read_times.values[:, 0], read_times.values[:, 1].astype(np.float64)
    if options.task == "regression" and not frame[name].dtype.is_numeric():
        problems.add(
            f"target column {name!r} holds {frame[name].dtype} such as"
            f" {frame[name][0]!r}, not numbers; the logistic model is for two classes"
        )
        problems.raise_if_any()
    target = read_target(frame[name], options, problems)
    problems.raise_if_any()
    assert target is not None
    notes.extend(target.notes)
    classes = target.encoding.classes
    if options.task == "classification":
        require(
            len(classes) == 2,
            f"target column {name!r} holds {len(classes)} classes"
            f" ({join_names(classes)}); say which are positive with positive",
        )
        notes.append(f"Odds are those of {name} {classes[1]} against {classes[0]}.")
    return target.values.astype(np.float64), None
