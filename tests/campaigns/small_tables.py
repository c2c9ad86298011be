"""Small tables of random columns, described and preprocessed by an honest coordinator or by
one that chooses the pooled sums: no cell, no sum of few cells and no count of few rows
follows from all numbers that leave together.
"""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedtailor._base.groups import MIN_ROWS
from fedtailor.data.tables.hiding import RARE, counts_of, shown
from fedtailor.data.tables.kinds import Kind
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.models.tasks.survival import outcome_cells
from fedtailor.remote.client.account import ClientAccount
from fedtailor.remote.client.describing import Describer
from fedtailor.remote.job.agreement import check_column_sums
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import ClientTable, Statistics
from remote.identification import (
    identified,
    real_numbers,
    small_counts,
    whole_numbers,
)

JACOBIANS = 0.1
"""Share of the tables whose cells are varied one by one, which takes longest."""

Table = dict[str, list[Any]]


class SmallTables:
    """Tries with tables of 8 to 40 rows.

    Args:
        folder: for files.

    Attributes:
        answered: how many tables there were, and how many had chosen sums.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._account = folder, ClientAccount(folder)
        self.answered = Counter[str]()

    def small_tables(self, rng: np.random.Generator) -> None:
        """A table that is described and preprocessed."""
        schema, table = _draw(rng)
        pooled = self._pooled(rng, schema, table)
        answer = self._answer(schema, table, pooled)
        self.answered["tables"] += 1
        assert not small_counts(answer), f"a count of few rows: {small_counts(answer)}"
        # No answer tells the table from one that differs in what is hidden.
        other = self._answer(schema, _alike(schema, table), pooled)
        assert np.allclose(real_numbers(answer), real_numbers(other), 1e-9, 1e-9)
        # Nor does one say which cells stand in one row.
        turned = {
            name: [cells[row] for row in rng.permutation(len(cells))]
            for name, cells in table.items()
        }
        other = self._answer(schema, turned, pooled)
        assert np.allclose(real_numbers(answer), real_numbers(other), 1e-9, 1e-9)
        assert whole_numbers(answer) == whole_numbers(other)
        if rng.random() > JACOBIANS:
            return
        self.answered["jacobians"] += 1
        numbers = [it for it, kind in _kinds(schema).items() if kind == "number"]
        found = identified(
            lambda it: real_numbers(self._answer(schema, it, pooled)),
            table,
            numbers,
            most=4 if len(table["cost"]) <= 12 else 2,
        )
        assert not found, f"rows {found} of {table}"

    def small_outcomes(self, rng: np.random.Generator) -> None:
        """Times and events of few rows, with times between them that isolate some."""
        rows = int(rng.integers(5, 41))
        times = rng.exponential(4.0, rows)
        if rng.random() < 0.5:
            times = np.ceil(times)
        events = np.zeros(rows)
        few = int(rng.choice([1, 2, 4, rows // 2]))
        events[rng.permutation(rows)[:few]] = 1
        grid = rng.exponential(4.0, int(rng.integers(1, 7)))
        if rng.random() < 0.6:  # around one patient
            one = times[rng.integers(rows)]
            grid = np.r_[grid[:2], one - 1e-6, one + 1e-6]
        grid = np.unique(grid[grid > 0])
        schema = _schema(
            {"age": "number"}, event="died", intervals=tuple(grid.tolist())
        )
        y = np.stack([times, events], axis=1)
        frame = pl.DataFrame({"age": rng.normal(size=rows)})
        target = ClientTable(schema, self._folder, frame, y).statistics(np.arange(rows))
        told = target.target
        assert told is not None and schema.outcomes is not None
        codes = outcome_cells(times, events, schema.intervals)
        true = np.bincount(codes, minlength=len(schema.outcomes))
        counts = [told.categories.get(it, 0) for it in schema.outcomes]
        hidden = rows - sum(counts)
        self.answered["outcomes"] += 1
        for count in (*counts, told.rare, told.missing, hidden):
            assert count == 0 or count >= MIN_ROWS, f"{count} rows of {true}"
        # Of each outcome of few rows there may be none.
        assert all(
            c == 0 for c, t in zip(counts, true, strict=True) if 0 < t < MIN_ROWS
        )

    def stop(self) -> None:
        """Nothing is kept."""

    def _pooled(
        self, rng: np.random.Generator, schema: Schema, table: Table
    ) -> Statistics:
        """Sums of this table and another one, or any that a client accepts."""
        own = _client_table(schema, table).statistics(np.arange(len(table["cost"])))
        pooled = own + own
        if rng.random() < 0.5:
            return pooled
        columns = dict(pooled.columns)
        for name, sums in own.columns.items():
            if schema.kinds[name] == "number" and sums.count:
                columns[name] = _chosen(rng, sums)
            if schema.kinds[name] != "number":
                columns[name] = sums + _others(rng, schema.kinds[name])
        chosen = pooled.model_copy(update={"columns": columns})
        check_column_sums(chosen, own, schema)
        self.answered["chosen"] += 1
        return chosen

    def _answer(self, schema: Schema, table: Table, pooled: Statistics) -> list[Any]:
        """All that leaves."""
        found = _client_table(schema, table)
        train = np.arange(len(found.y))
        made = Describer(
            schema, found, train, self._folder, self._account, logging.getLogger()
        )
        own = found.statistics(train)
        return [
            json.loads(own.to_json()),
            json.loads(made._counts(pooled, own).model_dump_json()),
        ]


def _schema(kinds: dict[str, Kind], **others: Any) -> Schema:
    return Schema(
        target="time" if others else "cost",
        classes=None,
        columns=dict.fromkeys(kinds),
        kinds=kinds,
        preprocessing="federated",
        **others,
    )


def _kinds(schema: Schema) -> dict[str, Kind]:
    return {**schema.kinds, schema.target: "number"}


def _draw(rng: np.random.Generator) -> tuple[Schema, Table]:
    """A table of a few columns, with what rows should be hidden for."""
    rows = int(rng.integers(8, 41))
    table: Table = {"cost": rng.lognormal(6, 0.5, rows).tolist()}
    kinds: dict[str, Kind] = {}
    for place in range(int(rng.integers(2, 5))):
        name, shape = f"c{place}", int(rng.integers(8))
        cells: Any = rng.normal(5, 1, rows)
        kind: Kind = "number"
        if shape == 0:  # mostly 0
            cells[rng.random(rows) < rng.uniform(0.5, 0.95)] = 0.0
        elif shape == 1 and place:  # nearly another one
            cells = np.array(table[f"c{place - 1}"], object)
            kind = kinds[f"c{place - 1}"]
            if kind == "number":
                cells[rng.integers(rows)] = 7.25
        elif shape == 2:
            cells[:] = 3.0
            cells[: int(rng.integers(3))] = 8.5
        elif shape in (3, 4):
            kind = "boolean"
            cells = (rng.random(rows) < rng.uniform(0.1, 0.9)).astype(float)
        elif shape == 5:
            kind = "category"
            cells = rng.choice(["surgery", "eye", "hospice", "ear"], rows)
        elif shape == 6:
            cells[: int(rng.integers(1, 3))] *= 1e4
        cells = list(cells.tolist())
        if rng.random() < 0.5:
            for row in rng.permutation(rows)[: int(rng.integers(1, rows // 2))]:
                cells[row] = None
        kinds[name], table[name] = kind, cells
    return _schema(kinds), table


def _series(cells: list[Any], kind: Kind) -> pl.Series:
    return pl.Series(cells, dtype=pl.String if kind == "category" else pl.Float64)


def _client_table(schema: Schema, table: Table) -> ClientTable:
    frame = pl.DataFrame(
        {name: _series(table[name], kind) for name, kind in schema.kinds.items()}
    )
    return ClientTable(schema, Path("table.csv"), frame, np.array(table["cost"]))


def _alike(schema: Schema, table: Table) -> Table:
    """Another table of which the same is told: without its small groups; rare categories
    keep a name. Numbers that few rows share stay, but the outermost are farther out.
    """
    alike = {}
    for name, kind in _kinds(schema).items():
        cells = _series(table[name], kind)
        if kind == "category":
            alike[name] = table[name]
            continue
        found = shown(cells, kind)
        alike[name] = found.to_list()
        if kind != "boolean" and (counts_of(found)[1] < MIN_ROWS).any():
            alike[name] = _farther_out(cells).to_list()
    return alike


def _farther_out(cells: pl.Series) -> pl.Series:
    """The column with its outermost cells of numbers that few rows share farther out."""
    numbers = cells.to_numpy().copy()
    distinct, rows = counts_of(cells)
    rare = np.flatnonzero(np.isin(numbers, distinct[rows < MIN_ROWS]))
    in_order = rare[np.argsort(numbers[rare], kind="stable")]
    few, width = MIN_ROWS - 1, float(np.ptp(numbers[rare]))
    numbers[in_order[:few]] -= width * np.arange(1, few + 1)
    numbers[in_order[-few:]] += width * np.arange(1, few + 1)
    return pl.Series(numbers, dtype=cells.dtype, nan_to_null=True)


def _others(rng: np.random.Generator, kind: Kind) -> ColumnSums:
    """Sums of other clients by which gaps get another answer, and categories other inputs."""
    rows, missing = int(rng.choice([5, 1000, 10**9])), int(rng.choice([0, 5, 1000]))
    if kind == "boolean":
        yes = float(rng.choice([0, rows]))
        return ColumnSums(count=rows, missing=missing, mean=yes / rows)
    names = {str(it): rows for it in rng.choice(["hospice", "ear", RARE, "none"], 2)}
    rare = int(rng.choice([0, 5]))
    count = sum(names.values()) + rare
    return ColumnSums(count=count, missing=missing, categories=names, rare=rare)


def _chosen(rng: np.random.Generator, own: ColumnSums) -> ColumnSums:
    """Pooled sums whose histogram is a narrow one anywhere, which can hold a client's."""
    count = own.count + int(rng.choice([5, 1000, 10**11]))
    apart = float(rng.normal()) * own.deviation * float(rng.choice([0.1, 1, 100]))
    least = own.squares + own.count * count / (count - own.count) * apart**2
    return ColumnSums(
        count=count,
        missing=own.missing,
        mean=own.mean + apart,
        squares=max(least, 1e-6) * (1 + 1e-6),
    )
