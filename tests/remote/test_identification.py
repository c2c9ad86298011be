"""No cell, and no sum over fewer than five rows, follows from the numbers that a client
sends about its table, whatever sums a coordinator sends it before: for a description, for
federated preprocessing, and from both together; nor from what is said of outcomes. What
measurements and boosting show is shown here, too, and that a policy asks first. Updates are
in `test_exposure`, sums of clients that are lost in `test_secure_sums`.
"""

import json
from functools import partial

import numpy as np
import polars as pl
import pytest

from fedtailor._base.groups import MIN_ROWS
from fedtailor.data.tables.hiding import shown
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.remote.client.account import ClientAccount
from fedtailor.remote.client.describing import Describer
from fedtailor.remote.client.policy import Policy
from fedtailor.remote.client.promises import PROMISES
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import ClientTable
from fedtailor.remote.wire.boosting import SUMMED
from fedtailor.statistics.boosting import BoostingRows, BoostingSettings
from fedtailor.statistics.boosting.bins import bins_of_values
from fedtailor.statistics.boosting.boost import boost, sum_over
from remote.identification import (
    count_vectors,
    identified,
    jacobian,
    projection,
    real_numbers,
    small_counts,
    whole_numbers,
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
    preprocessing="federated",
)
NUMBERS = ("lab", "age", "cost")
MEASURED = next(it for it in PROMISES if "losses and" in it.what)
TREES = next(it for it in PROMISES if "boost trees" in it.what)


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


def rare_ward(table):
    ward = list(table["ward"])
    ward[3], ward[9] = "hospice", "hospice"
    return {**table, "ward": ward}


CHANGES = {
    "one of many, gaps": one_of_many(1, 6),
    "four of many, few gaps": one_of_many(4, 3),
    "few gaps": gaps_in("lab", "age"),
}
MORE = {
    "two of many, gaps": one_of_many(2, 6),
    "gaps": gaps_in("lab", count=7),
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
        sums = found.statistics(train)
        return [
            json.loads(sums.to_json()),
            json.loads(made._counts(pooled, sums).model_dump_json()),
        ]

    return describe


def solved(answers, table, pooled):
    return identified(lambda it: real_numbers(answers(it, pooled)), table, NUMBERS)


@pytest.mark.parametrize(("change", "far"), CASES, ids=IDS)
def test_no_cell_follows_from_all_that_a_job_sends_of_a_table(change, far, describer):
    table = change(table_of())
    pooled = pooled_with(table, far)
    assert solved(describer, table, pooled) == []
    assert not small_counts(describer(table, pooled))


@pytest.mark.parametrize("change", [*CHANGES.values(), *MORE.values()])
def test_nothing_is_sent_of_two_columns_together(change, describer):
    """Whichever cells stand in one row: before, sums of products said that, and cells of
    few rows followed from them in ever new ways.
    """
    table = change(table_of())
    rng = np.random.default_rng(1)
    turned = {
        name: [it[row] for row in rng.permutation(ROWS)] for name, it in table.items()
    }
    pooled = pooled_with(table)
    one, other = describer(table, pooled), describer(turned, pooled)
    np.testing.assert_allclose(real_numbers(one), real_numbers(other), rtol=1e-10)
    assert whole_numbers(one) == whole_numbers(other)


@pytest.mark.parametrize("levels", [(0, 1, 2), (0, 1, 2, 5)])
def test_no_count_of_few_rows_follows_from_the_sums_of_a_few_whole_numbers(levels):
    """Before, three rows of 1 and two of 2 were told beside many of 0: of three levels the
    numbers of rows follow from count, mean and squares.
    """
    rng = np.random.default_rng(0)
    for _ in range(30):
        rows = [30, *rng.integers(0, 9, len(levels) - 1)]
        cells = pl.Series(np.repeat(levels, rows), dtype=pl.Float64)
        told = ColumnSums.of(cells, "number")
        total = told.mean * told.count
        squares = told.squares + told.count * told.mean**2
        found = count_vectors(levels, told.count, round(total), round(squares))
        assert found
        for place in range(len(levels)):
            of_level = {it[place] for it in found}
            assert len(of_level) > 1 or not 0 < of_level.pop() < MIN_ROWS


@pytest.mark.parametrize("step", [1, 0.25])
def test_no_row_of_a_few_whole_numbers_of_a_small_range_follows_from_the_sums(step):
    """Before, of five different ones the rows did now and then."""
    rng = np.random.default_rng(0)
    was_unique = 0
    for last, few in ((6, 5), (8, 5), (10, 6), (15, 7)):
        for _ in range(8):
            rare = rng.choice(np.arange(1, last + 1), few, replace=False)
            cells = np.r_[np.zeros(30), rare]
            told = ColumnSums.of(pl.Series(cells * step), "number")
            total = told.mean * told.count / step
            squares = (told.squares + told.count * told.mean**2) / step**2
            for sums, is_told in (
                ((total, squares), True),
                ((cells.sum(), (cells**2).sum()), False),
            ):
                whole = [round(float(it)) for it in sums]
                found = np.array(count_vectors(range(last + 1), 30 + few, *whole, 200))
                is_same = (found == found[0]).all(0)
                unique = (is_same & (found[0] > 0) & (found[0] < MIN_ROWS)).any()
                assert not (unique and is_told)
                was_unique += unique
    assert was_unique


def whole_numbers_of_small_ranges():
    """Columns of which few other ones have the same sums, in a few rows or beside others."""
    rng = np.random.default_rng(0)
    yield from ([*range(1, 9)], [0] * 12 + [*range(1, 9)], [0] * 100 + [*range(1, 9)])
    yield [0, 1, 4, 5, 5, 6, 7, 7, 9, 9, 10, 10, 10, 11, 11]
    yield [4**power for power in range(10)]
    for rows in (9, 15, 20, 30):
        yield rng.poisson(5, rows)
        yield rng.permutation(rows)
        yield np.where(rng.random(rows) < 0.4, 0, rng.integers(1, 12, rows))


@pytest.mark.parametrize("unit", [1, 0.1, 2.20462])
def test_no_row_follows_from_the_sums_of_whole_numbers_of_a_small_range(unit):
    """Before, 1 to 8 visits, one row each, were known from their number and squares: the
    rule that there are eight such numbers or none leaves no others. Now each number that is
    told is that of five rows, and a column that is told as it is tells the same.
    """
    for cells in whole_numbers_of_small_ranges():
        column = pl.Series(np.asarray(cells, float) * unit)
        told = shown(column, "number")
        _, rows = np.unique(told.drop_nulls().to_numpy(), return_counts=True)
        assert (rows >= MIN_ROWS).all(), (cells, told)
        assert shown(told, "number").equals(told)


def test_two_results_that_are_one_number_make_a_small_range_no_larger():
    """Before, 0.1 * 3 beside 0.3 made numbers of one decimal as good as any, so that they
    were told; or a column ended in a division by zero.
    """
    for more in ([0.3], [0.3, 0.1 * 7], []):
        cells = pl.Series([*(0.1 * number for number in range(1, 9)), *more])
        assert shown(cells, "number").n_unique() <= 2
    calculated = pl.Series([57.33, 57.330000000000005, *np.arange(50, 85.2, 0.1)])
    assert len(shown(calculated, "number")) == len(calculated)
    assert shown(pl.Series([1.0] * 9 + [1 + 2e-16] * 4), "number").n_unique() == 1


def test_numbers_that_could_be_many_others_are_told_as_they_are():
    rng = np.random.default_rng(0)
    for cells in (
        rng.normal(size=21),
        rng.normal(27, 5, 30).round(2),
        rng.integers(20, 95, 40) / 1,
        rng.normal(60, 12, 200).round(),
        rng.poisson(4, 1000) / 1,
    ):
        changed = shown(pl.Series(cells), "number").to_numpy() != cells
        inner = np.argsort(cells)[MIN_ROWS - 1 : 1 - MIN_ROWS]  # without the outermost
        assert changed[inner].mean() < 0.05


@pytest.mark.parametrize("beside", [[0.0] * 50, [0.0] * 5 + [9.5] * 40, [None] * 30])
@pytest.mark.parametrize(
    "rare", [[30, 31, 33, 34, 35], [100, 101, 102, 103, 104], [0.5, 3, 7, 11, 12, 15]]
)
def test_few_rare_numbers_are_not_told_whatever_their_steps_are(beside, rare):
    """Before, they were beside a frequent number far away, or if no two were one unit
    apart: then their sum and squares often have one solution.
    """
    told = shown(pl.Series([*map(float, rare), *beside]), "number")
    assert not set(rare) & set(told.drop_nulls().to_list())
    assert told.drop_nulls().is_in([0.0, 9.5]).all()


def test_no_cell_is_nearly_told_by_being_far_from_all_others():
    """Before, a cost of a million among a thousand usual ones was told to 27."""
    rng = np.random.default_rng(0)
    for rows, few in ((8, 1), (40, 1), (1000, 1), (1000, 4)):
        cells = rng.lognormal(6, 0.5, rows)
        usual = cells[few:].max()
        cells[:few] = 1e6 * rng.uniform(0.9, 1.1, few)
        told = ColumnSums.of(pl.Series(cells), "number")
        assert told.mean + np.sqrt(told.squares) < 20 * usual


def test_the_test_sees_arithmetic():
    """A difference of two sums of which one has a row more is that row."""
    table = {"x": [1.5, 2.5, 4.0, 7.0, 3.0, 8.0], "z": [float(i) for i in range(6)]}

    def sums(it):
        x = np.array(it["x"])
        return [x.sum(), x[1:].sum(), (x[2:] ** 2).sum(), x @ it["z"]]

    assert (0,) in identified(sums, table, ("x",))
    two = lambda it: [sum(it["x"]), sum(it["x"][2:])]  # noqa: E731
    assert identified(two, table, ("x",)) == [(0, 1), (2, 3, 4, 5)]
    assert identified(lambda it: [sum(it["x"])], table, ("x",)) == []
    product = lambda it: [sum(it["x"]), it["x"][3] * it["z"][3]]  # noqa: E731
    assert identified(product, table, ("x", "z")) == [(3,)]


def test_what_only_seems_to_follow_is_not_found():
    """Before, the step of the differences was as long as a cell that is far from all others
    made it, so that squares were no lines: the largest of the others, which that cell
    becomes, seemed to follow. Nor does the largest of two that are the same to the last digit:
    to one side it is the largest, to the other it is not.
    """

    def sums(it):
        x = np.array(it["x"])
        x[0] = np.clip(x[0], x[1:].min(), x[1:].max())
        return [x.mean(), ((x - x.mean()) ** 2).sum(), ((x - 4.9) ** 2).sum()]

    for far in (1.0, 46673.0):
        table = {"x": [far, 6.38, 6.35, 2.29, 4.37, 5.63, 5.36, 4.56, 4.43, 4.85]}
        assert identified(sums, table, ("x",), most=1) == []
    largest = lambda it: [sum(it["x"]), max(it["x"])]  # noqa: E731
    assert identified(largest, {"x": [2.0, 3.0, 5.0]}, ("x",)) == [(2,), (0, 1)]
    assert identified(largest, {"x": [2.0, 5.0, 5.0]}, ("x",), most=1) == []


TIMED = Schema(
    target="time",
    classes=None,
    columns=dict.fromkeys(("lab", "age")),
    kinds={"lab": "number", "age": "number"},
    preprocessing="federated",
    event="died",
    intervals=(1.0, 2.0, 4.0, 8.0),
)


def test_no_time_follows_from_what_is_said_of_outcomes():
    """Times leave as counts of intervals, in which small ones are hidden."""
    rng = np.random.default_rng(3)
    table = table_of(3)
    table["time"] = rng.exponential(4.0, ROWS).tolist()
    died = (rng.random(ROWS) < 0.6).astype(float)

    def answer(it):
        frame = pl.DataFrame({name: it[name] for name in ("lab", "age")})
        y = np.stack([it["time"], died], axis=1)
        found = ClientTable(TIMED, None, frame, y)
        return json.loads(found.statistics(np.arange(ROWS)).to_json())

    assert identified(lambda it: real_numbers(answer(it)), table, ("lab", "time")) == []
    assert not small_counts(answer(table))


VALIDATED = 24


def losses_of(models):
    """The sums of losses of a linear model that a client measures on a few rows."""

    def numbers(table):
        x = np.stack([table["age"], table["lab"], np.ones(VALIDATED)], axis=1)
        return [float(((x @ model - table["cost"]) ** 2).sum()) for model in models]

    return numbers


def test_losses_of_linear_models_show_their_sums_of_products_and_no_more():
    """However many are measured. Of other models, made for it, they show cells, such as
    of one whose loss is that of the rows beyond a threshold: so none leave by default, and
    none where a policy says that nothing of one client alone does.
    """
    rng = np.random.default_rng(0)
    names = ("age", "lab", "cost")
    table = {name: rng.normal(size=VALIDATED).tolist() for name in names}
    models = rng.normal(size=(38, 3))
    assert identified(losses_of(models), table, names) == []

    def beyond(it):
        return [
            float(np.logaddexp(0, 30 * (np.array(it["age"]) - cut)).sum())
            for cut in np.linspace(-2, 2, 38)
        ]

    assert identified(beyond, table, ("age",))
    for policy in (Policy(), Policy(measurements=True)):
        assert not MEASURED.allows(policy)
    assert MEASURED.allows(Policy(measurements=True, secure_aggregation_only=False))


def boosted_sums(table, bins, clients=4, agreed=False):
    """Every sum over clients that a boosting of numbers asks for."""
    x, y = np.array(table["age"])[:, None], np.array(table["cost"])
    parts = [
        BoostingRows(x[own], y[own], None, x[:0], y[:0])
        for own in np.split(np.arange(len(y)), clients)
    ]
    ask, learned = sum_over(parts), []

    def listening(request):
        answer = ask(request)
        if request.kind in SUMMED:
            learned.extend(np.asarray(answer, float).reshape(-1).tolist())
        return answer

    settings = BoostingSettings(
        trees=2, most_leaves=3, least_rows=6, most_bins=bins, chooses=False
    )
    ends = bins_of_values(x, bins)
    boost(listening, 1, None, settings, thresholds=None if agreed else ends)
    return learned


def test_boosting_shows_targets_of_single_rows_in_bins_of_single_rows_only():
    """A policy lets no trees be boosted by default."""
    rng = np.random.default_rng(0)
    rows = 48
    age = rng.permutation(rows).astype(float).tolist()
    table = {"age": age, "cost": rng.normal(size=rows).tolist()}
    cells = [("cost", row) for row in range(rows)]

    def known(bins, agreed=False):
        """How much of each target is known."""
        numbers = partial(boosted_sums, bins=bins, agreed=agreed)
        # Sums of targets, rounded to single precision, are linear in them.
        return projection(jacobian(numbers, table, cells, step=0.1)).diagonal()

    assert known(bins=4).max() < 0.2  # a row of a bin of twelve, to a twelfth
    assert known(bins=48).max() > 1 - 1e-6
    # Clients agree on no bins of single rows, whatever a job says.
    assert known(bins=48, agreed=True).max() < 0.2
    assert not TREES.allows(Policy())
