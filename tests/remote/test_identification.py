"""No cell, and no sum over fewer than five rows, follows from the numbers that a client
sends about its table, whatever sums a coordinator sends it before.
"""

import json

import numpy as np
import polars as pl
import pytest

from fedtailor.remote.client.account import ClientAccount
from fedtailor.remote.client.describing import Describer
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import ClientTable
from remote.identification import (
    identified,
    real_numbers,
    small_counts,
)

ROWS = 24
KINDS = {
    "lab": "number",
    "age": "number",
    "ill": "boolean",
    "ward": "category",
}
SCHEMA = Schema(
    target="cost",
    classes=None,
    columns=dict.fromkeys(KINDS),
    kinds=KINDS,
    federated=True,
    decorrelate=True,
)
NUMBERS = ("lab", "age", "cost")


def table_of(seed=0, rows=ROWS):
    """A client's table: numbers, yes and no, categories."""
    rng = np.random.default_rng(seed)
    return {
        "lab": rng.normal(5, 1, rows).tolist(),
        "age": rng.uniform(20, 90, rows).tolist(),
        "ill": [float(row % 2) for row in range(rows)],
        "ward": ["surgery" if row % 4 < 2 else "eye" for row in range(rows)],
        "cost": rng.uniform(100, 900, rows).tolist(),
    }


def one_of_many(few, gaps):
    """A laboratory value that is 0 in all rows but a few, and missing in others."""

    def change(table):
        lab = [0.0] * ROWS
        lab[:few] = [49.634 + 7.1 * row for row in range(few)]
        lab[ROWS - gaps :] = [None] * gaps
        return {**table, "lab": lab}

    return change


def gaps_in(*columns, count=3):
    def change(table):
        changed = {name: [*table[name][:-count], *[None] * count] for name in columns}
        return {**table, **changed}

    return change


def few_meet(table):
    """Nine rows of yes and twelve that are not 0, one of them together."""
    ill = [1.0] * 9 + [0.0] * (ROWS - 9)
    lab = [0.0] * 8 + table["lab"][8:20] + [0.0] * (ROWS - 20)
    return {**table, "ill": ill, "lab": lab}


def few_differ(table):
    """Two columns of whole numbers that are the same in all rows but one."""
    age = [float(row % 3) for row in range(ROWS)]
    lab = [*age[:-1], 17.0]
    return {**table, "age": age, "lab": lab}


def nearly_the_same(table):
    return {**table, "lab": [2 * table["age"][0], *table["age"][1:]]}


def rare_ward(table):
    ward = list(table["ward"])
    ward[3], ward[9] = "hospice", "hospice"
    return {**table, "ward": ward}


def gaps_that_meet(table):
    """Two columns lack eight cells each, two of them in the same rows."""
    lab, age = list(table["lab"]), list(table["age"])
    lab[:8], age[6:14] = [None] * 8, [None] * 8
    return {**table, "lab": lab, "age": age}


CHANGES = {
    "one of many, gaps": one_of_many(1, 6),
    "four of many, few gaps": one_of_many(4, 3),
    "few gaps": gaps_in("lab", "age"),
    "few meet": few_meet,
    "few differ": few_differ,
    "gaps that meet": gaps_that_meet,
}
MORE = {
    "two of many, gaps": one_of_many(2, 6),
    "gaps": gaps_in("lab", count=7),
    "nearly the same": nearly_the_same,
    "rare ward": rare_ward,
}
CASES = [
    *((change, 0.0) for change in CHANGES.values()),
    *(pytest.param(change, 0.0, marks=pytest.mark.slow) for change in MORE.values()),
    pytest.param(MORE["gaps"], 2e4, marks=pytest.mark.slow),
]
IDS = [*CHANGES, *MORE, "gaps, far"]


def client_table(table):
    """A table as a client reads it."""
    cells = {
        name: pl.Series(
            table[name], dtype=pl.String if kind == "category" else pl.Float64
        )
        for name, kind in KINDS.items()
    }
    frame = pl.DataFrame(cells)
    return ClientTable(SCHEMA, None, frame, np.array(table["cost"]))


def statistics_of(table):
    found = client_table(table)
    return found.statistics(np.arange(len(found.y)))


def pooled_with(table, far=0.0):
    """The sums of a client and of others, whose columns lie elsewhere."""
    own = statistics_of(table)
    others = statistics_of(table_of(seed=7, rows=60))
    pooled = own + others
    if far:
        columns = {
            name: sums.model_copy(
                update={"mean": sums.mean + far * 10, "count": 10**11}
                | {"squares": sums.squares + 10**11 * (far * 10) ** 2}
            )
            if KINDS[name] == "number"
            else sums
            for name, sums in pooled.columns.items()
        }
        pooled = pooled.model_copy(update={"columns": columns})
    return pooled


@pytest.fixture
def describer(tmp_path):
    """What a client says about a table, for given pooled sums."""

    def describe(table, pooled):
        found = client_table(table)
        train = np.arange(len(found.y))
        account = ClientAccount(tmp_path)
        made = Describer(SCHEMA, found, train, tmp_path, account, lambda line: None)
        return [
            json.loads(found.statistics(train).to_json()),
            json.loads(made._counts(pooled).model_dump_json()),
        ]

    return describe


def preprocess(table, pooled):
    """What a client sends for federated preprocessing with `decorrelate = true`."""
    found = client_table(table)
    train = np.arange(len(found.y))
    return [
        json.loads(found.statistics(train).to_json()),
        json.loads(found.with_inputs(train, pooled).to_json())["inputs"],
    ]


def solved(answers, table, pooled):
    return identified(lambda it: real_numbers(answers(it, pooled)), table, NUMBERS)


@pytest.mark.parametrize(("change", "far"), CASES, ids=IDS)
def test_no_cell_follows_from_a_description(change, far, describer):
    """Before, one cell did in a column that is 0 in all rows but one and has gaps: the
    products were formed of the cells, the sums beside them of what is shown.
    """
    table = change(table_of())
    pooled = pooled_with(table, far)
    assert solved(describer, table, pooled) == []
    assert not small_counts(describer(table, pooled))


@pytest.mark.parametrize(("change", "far"), CASES, ids=IDS)
def test_no_cell_follows_from_products_of_inputs(change, far):
    """Before, gaps were a third group of rows, which switched off the rule for a value that
    few rows have.
    """
    table = change(table_of())
    pooled = pooled_with(table, far)
    assert solved(preprocess, table, pooled) == []
    assert not small_counts(preprocess(table, pooled))


def test_the_test_sees_arithmetic():
    """A difference of two sums of which one has a row more is that row."""
    table = {"x": [1.5, 2.5, 4.0, 7.0, 3.0, 8.0], "z": [float(i) for i in range(6)]}

    def sums(it):
        x = np.array(it["x"])
        return [x.sum(), x[1:].sum(), (x[2:] ** 2).sum(), x @ it["z"]]

    assert ("x", (0,)) in identified(sums, table, ("x",))
    two = lambda it: [sum(it["x"]), sum(it["x"][2:])]  # noqa: E731
    assert identified(two, table, ("x",)) == [("x", (0, 1)), ("x", (2, 3, 4, 5))]
    assert identified(lambda it: [sum(it["x"])], table, ("x",)) == []
