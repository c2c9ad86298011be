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

from fedtailor.data.tables.description import products_of
from fedtailor.data.tables.encoding import MIN_ROWS
from fedtailor.data.tables.hiding import multipliable, shown
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.remote.client.account import ClientAccount
from fedtailor.remote.client.describing import Describer
from fedtailor.remote.client.policy import Policy
from fedtailor.remote.client.promises import PROMISES
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import ClientTable
from fedtailor.remote.wire.boosting import SUMMED
from fedtailor.statistics.boosting import BoostingRows, BoostingSettings
from fedtailor.statistics.boosting.boost import boost, sum_over
from remote.identification import (
    count_vectors,
    fewest_of_a_level,
    identified,
    jacobian,
    projection,
    real_numbers,
    small_counts,
    smallest_meeting,
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


def few_meet(table):
    """Nine rows of yes and twelve that are not 0, one of them together."""
    ill = [1.0] * 9 + [0.0] * (ROWS - 9)
    lab = [0.0] * 8 + table["lab"][8:20] + [0.0] * (ROWS - 20)
    return {**table, "ill": ill, "lab": lab}


def nearly_the_same(table):
    return {**table, "lab": [2 * table["age"][0], *table["age"][1:]]}


def rare_ward(table):
    ward = list(table["ward"])
    ward[3], ward[9] = "hospice", "hospice"
    return {**table, "ward": ward}


def one_row_apart(table):
    """Eleven rows of yes, ten of which are a ward's only ones."""
    ill = [1.0] * 11 + [0.0] * (ROWS - 11)
    ward = ["surgery"] * 10 + ["eye"] * (ROWS - 10)
    return {**table, "ill": ill, "ward": ward}


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
    "one row apart": one_row_apart,
}
MORE = {
    "two of many, gaps": one_of_many(2, 6),
    "gaps": gaps_in("lab", count=7),
    "gaps that meet": gaps_that_meet,
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
    """What a client sends for federated preprocessing with `keep_correlated = false`."""
    found = client_table(table)
    train = np.arange(len(found.y))
    return [
        json.loads(found.statistics(train).to_json()),
        json.loads(found.with_inputs(train, pooled).to_json())["inputs"],
    ]


def solved(answers, table, pooled):
    return identified(lambda it: real_numbers(answers(it, pooled)), table, NUMBERS)


@pytest.mark.parametrize(("change", "far"), CASES, ids=IDS)
def test_no_cell_follows_from_all_that_a_job_sends_of_a_table(change, far, describer):
    """Before, one cell did in a column that is 0 in all rows but one and has gaps: the
    products were formed of the cells, the sums beside them of what is shown. And where one
    of two inputs that are nearly the same was left out of either answer: the difference
    of both was a cell.
    """

    def answers(it, pooled):
        return [*describer(it, pooled), *preprocess(it, pooled)[1:]]

    table = change(table_of())
    pooled = pooled_with(table, far)
    assert solved(answers, table, pooled) == []
    assert not small_counts(answers(table, pooled))


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
        rng.normal(size=8),
        rng.normal(27, 5, 20).round(1),
        rng.integers(20, 95, 40) / 1,
        rng.normal(60, 12, 200).round(),
        rng.poisson(4, 1000) / 1,
    ):
        few = shown(pl.Series(cells), "number").to_numpy() != cells
        assert few.mean() < 0.05


@pytest.mark.parametrize("turned", [None, 0, 1, 2])
def test_no_count_follows_from_three_answers_that_agree_in_few_rows(turned):
    """Before, the products of each two of three answers counted the rows in which all are
    the same (or would be, with one of them the other way round).
    """
    others = [it for it in np.ndindex(2, 2, 2) if 0 < sum(it) < 3]
    for few, is_kept in ((0, True), (1, False), (4, False), (8, True)):
        counts = [(it, 10 * (3 - sum(it)) + 7) for it in others]
        columns = nested([*counts, ((1, 1, 1), few)])
        if turned is not None:
            columns[turned] = 1 - columns[turned]
        assert all(kept_of(columns)) == is_kept


def test_no_count_follows_from_some_categories_and_two_answers_that_agree_in_few_rows():
    """Before, as only single categories were looked at: of four wards two are a group."""
    for few, is_kept in ((0, True), (1, False), (4, False), (10, True)):
        rows = list[tuple[str, float, float]]()
        for ward, ill, old in np.ndindex(4, 2, 2):
            agree = ill == old == (ward < 2)
            count = 12 * (not agree) + few * (agree and ward == 0)
            rows += [(f"w{ward}", float(ill), float(old))] * count
        ward, ill, old = zip(*rows, strict=True)
        told = [pl.Series(ward), pl.Series(ill), pl.Series(old)]
        assert all(multipliable(told, ["category", "boolean", "boolean"])) == is_kept


@pytest.mark.parametrize("curve", ["steps", "crossing", "square", "answer"])
def test_no_sum_over_few_rows_follows_from_two_numbers_on_a_curve(curve):
    """Before, of two numbers whose difference is 0 in some rows, 1 in about as many, and 2 in
    three: its sum and the sum of its squares say that there are three. So does a column of
    squares say by how much it is off, if it is so in few rows.
    """
    rng, rows = np.random.default_rng(0), 200
    one = rng.normal(60, 12, rows).round(2)
    answer = np.arange(rows) % 2.0
    for few, is_kept in ((3, False), (40, True)):
        off = np.where(np.arange(rows) < few, 1.0 + rng.random(rows) * (few > 4), 0.0)
        other = {
            "steps": one + answer + off,
            "crossing": np.where(answer == 0, one, 100 - one) + 3.7 * off,
            "square": one**2 + 37.5 * off,
            "answer": answer,
        }[curve]
        this = one if curve != "answer" else 7.5 * answer + rng.normal(size=rows) * off
        told = [pl.Series(this), pl.Series(other)]
        kinds = ["number", "boolean" if curve == "answer" else "number"]
        assert all(multipliable(told, kinds)) == is_kept


def test_no_count_follows_from_numbers_of_few_levels_and_an_answer():
    """Before, a score and an answer that is yes up to 1, and in few rows of 2: histogram and
    sum of products have one solution. (Where the sum is the smallest one that there is.)
    """
    for few, is_kept in ((0, True), (1, False), (4, False), (6, True)):
        counts = [(0.0, 1.0, 9), (1.0, 1.0, 9), (2.0, 1.0, few)]
        counts += [(2.0, 0.0, 12 - few), (3.0, 0.0, 9), (4.0, 0.0, 9)]
        score, answer = nested([((n, yes), rows) for n, yes, rows in counts])
        assert 0 < fewest_of_a_level(score, answer) == (few or 9)
        told = [pl.Series(score), pl.Series(answer)]
        assert all(multipliable(told, ["number", "boolean"])) == is_kept


def test_no_count_follows_from_two_numbers_of_few_levels_that_rise_together():
    """Before, as no one curve of the second degree has all other rows."""
    for few, is_kept in ((0, True), (3, False), (8, True)):
        rows = [((it, it), 20) for it in range(5)]
        rows += [((it + 1, it), few) for it in range(4)]
        assert all(kept_of(nested(rows), "number")) == is_kept


def test_no_count_follows_from_many_categories_that_lack_a_number_each():
    """Before, as numbers beside categories of more than six groups were not looked at."""
    for few, is_kept in ((0, True), (2, False), (9, True)):
        rows = [(ward, n, 9) for ward in range(7) for n in range(3) if ward % 3 != n]
        rows += [(2, 2, few)]
        ward, score = zip(*[it[:2] for it in rows for _ in range(it[2])], strict=True)
        told = [pl.Series([f"w{it}" for it in ward]), pl.Series(score) / 1]
        assert all(multipliable(told, ["category", "number"])) == is_kept


@pytest.mark.parametrize("kind", ["number", "boolean"])
def test_no_sum_over_few_rows_follows_from_a_product_of_two_columns(kind):
    """Before, of a price, visits and a cost that is their product but in few rows (or of
    a price and who pays it): the sum of products is that of costs, but for these rows.
    """
    rng, rows = np.random.default_rng(0), 200
    price = rng.normal(60, 12, rows).round(2)
    other = rng.integers(1, 6, rows) if kind == "number" else rng.random(rows) < 0.5
    for few, is_kept in ((0, True), (1, False), (4, False), (40, True)):
        cost = price * other + (np.arange(rows) < few) * rng.normal(9, 2, rows)
        told = [
            shown(pl.Series(price), "number"),
            shown(pl.Series(other / 1), kind),
            shown(pl.Series(cost), "number"),
        ]
        assert all(multipliable(told, ["number", kind, "number"])) == is_kept


def test_columns_of_more_than_50_categories_are_in_no_product():
    for categories, is_kept in ((50, True), (51, False)):
        ward = pl.Series(np.repeat([f"w{it}" for it in range(categories)], 6))
        assert multipliable([ward], ["category"]) == [is_kept]


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


def product_of(one, other, kinds):
    """The sum of products of two columns in deviations, as a description has it."""
    columns = {"one": pl.Series(one), "other": pl.Series(other)}
    sums = {name: ColumnSums.of(columns[name], kinds[name]) for name in columns}
    told = products_of(
        columns | {"y": columns["one"]}, kinds | {"y": "number"}, sums, list(columns)
    )
    return told.matrix()[0, 1]


def kept_of(columns, kind="boolean"):
    """The columns whose products are sent."""
    told = [shown(pl.Series(it), kind) for it in columns]
    return multipliable(told, [kind] * len(told))


def nested(cells):
    """Columns of yes and no: (answers, rows) of each combination."""
    rows = [answers for answers, count in cells for _ in range(count)]
    return np.array(rows, float).T


def test_no_count_follows_from_the_products_of_three_columns():
    """Before, of yes and no of which one is within another, two products with a third had
    a difference of the rows that have it, and the one, and not the other.
    """
    rng = np.random.default_rng(0)
    was_small = were_kept = 0
    for _ in range(40):
        rows = int(rng.integers(60, 200))
        a, b = rng.random((2, rows)) < rng.uniform(0.2, 0.6, (2, 1))
        c = b & (rng.random(rows) < rng.uniform(0.3, 0.95))
        few = [(it & b & ~c).sum() for it in (a, ~a)]
        is_small = any(0 < it < MIN_ROWS for it in few)
        is_kept = all(kept_of(np.array([a, b, c], float)))
        assert not (is_small and is_kept)
        was_small, were_kept = was_small + is_small, were_kept + is_kept
    assert was_small and were_kept


@pytest.mark.parametrize("few", [0, 1, 4, 9])
@pytest.mark.parametrize("is_disjoint", [False, True])
def test_no_count_follows_from_what_two_columns_leave(few, is_disjoint):
    """What one leaves of another, or two that do not meet leave of all rows, of two pairs."""
    one = [(1, 0), (0, 1), (0, 0)] if is_disjoint else [(1, 1), (0, 0), (1, 0)]
    counts = np.full((3, 3), 20)
    counts[2, 2] = few
    cells = [((*one[i], *one[j]), counts[i, j]) for i in range(3) for j in range(3)]
    assert all(kept_of(nested(cells))) == (few not in (1, 4))


def test_no_cell_follows_from_a_difference_of_numbers_that_is_0_or_1():
    """Sum and squares of two ages say that it is. Times hours that are 0 but for a few
    rows it is the cell of the row that has both; times yes and no, a count of one.
    """
    rng = np.random.default_rng(3)
    before = rng.integers(20, 95, 120).astype(float)
    for shared, is_kept in ((1, False), (12, True)):
        after, rare = before.copy(), np.zeros(120)
        after[40 - shared : 60] += 1
        for cells, kind in ((rng.normal(5, 1, 40), "number"), (1.0, "boolean")):
            rare[:40] = cells
            told = [pl.Series(it) for it in (rare, before, after)]
            kept = multipliable(told, [kind, "number", "number"])
            assert all(kept) == is_kept


def test_no_count_follows_from_two_differences_of_numbers_that_are_0_or_1():
    """Before, the product of a visit more in one pair of columns, and of one in another, was
    the count of the rows that have both; also in other units, and of a number and an answer.
    """
    rng = np.random.default_rng(0)
    ages, doses = rng.integers(20, 95, 240) / 1, rng.integers(1, 400, 240) / 1
    for few, is_kept in ((1, False), (4, False), (20, True)):
        more, later = np.zeros((2, 240))
        more[:60], later[60 - few : 100] = 1, 1
        answer = (rng.random(240) < 0.5).astype(float)
        for pair in (
            (doses, doses + later, "number"),
            (doses, 2.2 * (doses + later), "number"),
            (answer + later, answer, "boolean"),
        ):
            told = [pl.Series(it) for it in (ages, ages + more, *pair[:2])]
            kinds = ["number"] * 3 + [pair[2]]
            assert all(multipliable(told, kinds)) == is_kept


def random_columns(rng, rows):
    """Columns of which some are part of others, do not meet, or are mostly the same."""
    columns = []
    for _ in range(3):
        one = rng.random(rows) < rng.uniform(0.3, 0.7)
        chosen = rng.random(rows) < rng.choice([0.1, 0.5, 0.9])
        other = [one & chosen, one | chosen, ~one & chosen][rng.integers(3)]
        if rng.random() < 0.4:
            number = rng.integers(20, 95, rows)
            columns += [number, number + (one & chosen)]
        elif rng.random() < 0.4:
            columns += [one, one * 1 + other]
        else:
            columns += [one, other]
    return [np.asarray(it, float) for it in columns]


def test_no_count_follows_from_products_of_three_or_four_columns():
    """A search by hand, which shares nothing with what hides columns."""
    rng, found, kept_in_all = np.random.default_rng(1), 0, 0
    for _ in range(60):
        columns = random_columns(rng, rows=160)
        kinds = ["boolean" if it.max() <= 1 else "number" for it in columns]
        told = [
            shown(pl.Series(it), kind) for it, kind in zip(columns, kinds, strict=True)
        ]
        kept = multipliable(told, kinds)
        found += smallest_meeting([it.to_numpy() for it in told]) < MIN_ROWS
        kept_in_all += sum(kept)
        left = [
            it.to_numpy() for it, is_kept in zip(told, kept, strict=True) if is_kept
        ]
        assert not left or smallest_meeting(left) >= MIN_ROWS
    assert found > 10 and kept_in_all > 100


def test_common_columns_of_a_usual_table_are_multiplied():
    rng = np.random.default_rng(0)
    columns = [
        rng.integers(20, 95, 200),
        rng.normal(27, 5, 200).round(1),
        rng.lognormal(7, 0.6, 200).round(2),
        rng.poisson(4, 200),
        rng.random(200) < 0.5,
        rng.random(200) < 0.3,
    ]
    kinds = ["number"] * 4 + ["boolean"] * 2
    told = [
        shown(pl.Series(np.asarray(it, float)), kind)
        for it, kind in zip(columns, kinds, strict=True)
    ]
    assert all(multipliable(told, kinds))


@pytest.mark.parametrize("kind", ["boolean", "number"])
def test_products_do_not_have_the_rows_of_gaps_in_their_digits(kind):
    """Missing cells have the mean of the others. Before, with 37 of 100 yes, a product of
    3.35 said that two of the rows without an answer had the other yes.
    """
    rng = np.random.default_rng(0)
    one = [1.0] * 37 + [0.0] * 63
    if kind == "number":
        one = rng.integers(20, 90, 100).astype(float).tolist()
    kinds = {"one": kind, "other": "boolean"}
    half = (rng.random(100) < 0.5).astype(float).tolist()
    for few, is_sent in ((2, False), (0, True), (10, True)):
        gaps = [1.0] * few + [0.0] * (10 - few)
        sent = product_of([*one, *[None] * 10], [*half, *gaps], kinds)
        assert (sent != 0) == is_sent


def test_a_number_that_is_its_least_in_all_but_few_rows_of_a_group_is_in_no_product():
    """The product would be the number of these rows, if they have the next whole number."""
    level = [0.0] * 60 + [1.0] * 100 + [2.0] * 40
    kinds = {"one": "number", "other": "boolean"}
    for few, is_sent in ((1, False), (8, True)):
        ill = [1.0] * 30 + [0.0] * 30 + [1.0] * few + [0.0] * (140 - few)
        assert (product_of(level, ill, kinds) != 0) == is_sent


def test_two_numbers_that_are_rarely_others_than_0_together_are_in_no_product():
    """The product would be that of two cells of a row, if it is the only one."""
    rng = np.random.default_rng(0)
    kinds = {"one": "number", "other": "number"}
    for few, is_sent in ((1, False), (4, False), (6, True)):
        one, other = np.zeros((2, 80))
        one[:14] = rng.normal(5, 1, 14)
        other[14 - few : 28 - few] = rng.normal(3, 1, 14)
        assert (product_of(one, other, kinds) != 0) == is_sent


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
    federated=True,
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


def boosted_sums(table, bins, clients=4):
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
    boost(listening, 1, None, settings)
    return learned


def test_boosting_shows_targets_of_single_rows_in_bins_of_single_rows_only():
    """Though not whose they are. A policy lets no trees be boosted by default."""
    rng = np.random.default_rng(0)
    rows = 48
    age = rng.permutation(rows).astype(float).tolist()
    table = {"age": age, "cost": rng.normal(size=rows).tolist()}
    cells = [("cost", row) for row in range(rows)]

    def known(bins):
        """How much of each target is known."""
        numbers = partial(boosted_sums, bins=bins)
        # Sums of targets, rounded to single precision, are linear in them.
        return projection(jacobian(numbers, table, cells, step=0.1)).diagonal()

    assert known(bins=4).max() < 0.2  # a row of a bin of twelve, to a twelfth
    assert known(bins=48).max() > 1 - 1e-6
    assert not TREES.allows(Policy())
