"""Small tables of random columns, described and preprocessed by an honest coordinator or by
one that chooses the pooled sums: no cell, no sum of few cells and no count of few rows
follows from all numbers that leave together.
"""

import json
import logging
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedtailor.data.tables.encoding import MIN_ROWS
from fedtailor.data.tables.hiding import RARE, multipliable, shown
from fedtailor.data.tables.kinds import Kind
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.models.tasks.survival import outcome_cells
from fedtailor.remote.client.account import ClientAccount
from fedtailor.remote.client.describing import Describer
from fedtailor.remote.job.agreement import check_column_sums
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import ClientTable, Statistics
from remote.identification import (
    fewest_of_a_level,
    fewest_off_a_curve,
    identified,
    real_numbers,
    small_counts,
    smallest_agreement,
)

JACOBIANS = 0.1
"""Share of the tables whose cells are varied one by one, which takes longest."""

Table = dict[str, list[Any]]


class SmallTables:
    """Tries with tables of 8 to 40 rows.

    Args:
        folder: for files.

    Attributes:
        answered: how many tables had products, inputs and chosen sums.
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
        # No answer tells the table from the one that is shown.
        other = self._answer(schema, _shown(schema, table), pooled)
        assert np.allclose(real_numbers(answer), real_numbers(other), 1e-9, 1e-9)
        sent = _multiplied(schema, table, answer)
        self.answered["products"] += len(sent) > 1
        for columns in combinations(sent, 3):
            for signs in product((False, True), repeat=2):
                first, *others = columns
                agree = np.ones(len(first), np.bool_)
                for it, is_other in zip(others, signs, strict=True):
                    agree &= first == (it != is_other)
                rows = int(agree.sum())
                assert not 0 < rows < MIN_ROWS, f"three answers agree in {rows} rows"
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

    def small_products(self, rng: np.random.Generator) -> None:
        """Columns whose products lie near a count of few rows, or a sum over few."""
        rows = int(rng.integers(24, 201))
        few = int(rng.choice([0, 1, 2, 4, 8]))
        off = (rng.permutation(rows) < few).astype(float)
        answer = (rng.random(rows) < 0.5).astype(float)
        number = rng.normal(60, 12, rows).round(2)
        other = (
            number + answer + off,
            np.where(answer == 0, number, 100 - number) + 3.7 * off,
            number**2 + 37.5 * off,
            7.5 * answer + rng.normal(size=rows) * off,
            rng.normal(size=rows),
        )[rng.integers(5)]
        # In two wards no row has both answers, in the others each has one; but for few.
        ward = rng.integers(0, int(rng.integers(3, 6)), rows)
        first, second = rng.random((2, rows)) < 0.5
        is_same = first == second
        second ^= is_same & (first == (ward < 2))
        both = (ward == 0) & (np.cumsum(ward == 0) <= few)
        first[both] = second[both] = True
        columns = {
            "number": pl.Series(number),
            "other": pl.Series(other),
            "ward": pl.Series([f"w{it}" for it in ward]),
            "first": pl.Series(first.astype(float)),
            "second": pl.Series(second.astype(float)),
        }
        kinds: dict[str, Kind] = {
            "number": "number",
            "other": "number",
            "ward": "category",
            "first": "boolean",
            "second": "boolean",
        }
        told = {name: shown(it, kinds[name]) for name, it in columns.items()}
        kept = multipliable(list(told.values()), list(kinds.values()))
        left = {name: told[name] for name, it in zip(told, kept, strict=True) if it}
        self.answered["kept"] += len(left)
        numbers = [
            it.to_numpy() for name, it in left.items() if kinds[name] == "number"
        ]
        for one, another in combinations(numbers, 2):
            count = fewest_off_a_curve(one, another, rng)
            assert not 0 < count < MIN_ROWS, f"{count} rows are off a curve"
        groups = [
            [(it == value).to_numpy() for value in it.unique()]
            for name, it in left.items()
            if kinds[name] != "number"
        ]
        count = smallest_agreement(groups)
        assert count >= MIN_ROWS, f"groups agree in {count} rows"

    def small_scores(self, rng: np.random.Generator) -> None:
        """A score, and an answer that follows from it but for few rows."""
        levels = int(rng.integers(3, 6))
        score = np.repeat(np.arange(float(levels)), rng.integers(6, 12, levels))
        few = rng.permutation(len(score)) < rng.choice([0, 1, 2, 4, 8])
        late = (score >= rng.integers(1, levels)) ^ few
        told = [shown(pl.Series(score), "number")]
        told += [shown(pl.Series(late.astype(float)), "boolean")]
        if all(multipliable(told, ["number", "boolean"])):
            self.answered["scores"] += 1
            count = fewest_of_a_level(told[0].to_numpy(), told[1].to_numpy())
            assert count >= MIN_ROWS, f"{count} rows of a score have an answer"

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
        answer = [
            json.loads(found.statistics(train).to_json()),
            json.loads(made._counts(pooled).model_dump_json()),
        ]
        try:
            inputs = found.with_inputs(train, pooled).inputs
        except ValueError:  # too few rows, or a column without a value
            return answer
        assert inputs is not None
        return [*answer, json.loads(inputs.model_dump_json())]


def _schema(kinds: dict[str, Kind], **others: Any) -> Schema:
    return Schema(
        target="time" if others else "cost",
        classes=None,
        columns=dict.fromkeys(kinds),
        kinds=kinds,
        federated=True,
        decorrelate=True,
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


def _shown(schema: Schema, table: Table) -> Table:
    """The table without its small groups; rare categories keep a name."""
    return {
        name: table[name]
        if kind == "category"
        else shown(_series(table[name], kind), kind).to_list()
        for name, kind in _kinds(schema).items()
    }


def _multiplied(schema: Schema, table: Table, answer: list[Any]) -> list[np.ndarray]:
    """The columns of yes and no whose products with others are sent, as shown."""
    products = answer[1]["products"]
    if products is None:
        return []
    size = len(products["mean"])
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = products["products"]
    is_sent = ((matrix + matrix.T) != 0).sum(axis=0) > 1
    names = [
        name
        for name, kind in _kinds(schema).items()
        if kind != "category"
        and ColumnSums.of(_series(table[name], kind), kind).squares > 0
    ]
    if len(names) != size:
        return []
    told = [
        shown(_series(table[name], "boolean"), "boolean")
        for name, sent in zip(names, is_sent, strict=True)
        if sent and _kinds(schema)[name] == "boolean"
    ]
    return [it.to_numpy() for it in told if not it.null_count()]


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
