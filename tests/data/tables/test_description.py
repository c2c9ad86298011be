"""A description says what the rows say, and hides what few rows have."""

import itertools
from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from scipy import stats

from fedtailor.data.tables.describing import describe_table
from fedtailor.data.tables.description import (
    BINS,
    QUANTILES,
    describe_columns,
    edges_of,
    even_edges,
    histogram_of,
    is_exact,
    quantile,
    without_few,
)
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.lab.report.description import bars, description_tables, sentences
from fedtailor.statistics.diagnosis.drift import chi_squared_p, drifts

KINDS = {"age": "number", "dose": "number", "ward": "category", "ill": "boolean"}


def columns(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    return {
        "age": pl.Series(age),
        "dose": pl.Series(age / 10 + rng.normal(0, 1, rows)),
        "ward": pl.Series(rng.choice(["surgery", "medicine"], rows)),
        "ill": pl.Series(rng.random(rows) < 0.3).cast(pl.Float64),
    }


def owners(rows=400, clients=4):
    return {
        f"c{i}": np.arange(i * rows // clients, (i + 1) * rows // clients)
        for i in range(clients)
    }


def test_sums_over_clients_are_those_of_all_rows():
    data = columns()
    description = describe_columns(data, KINDS, owners())
    total = description.total("age")
    assert total.mean == pytest.approx(float(data["age"].mean()), rel=1e-12)
    assert total.deviation == pytest.approx(float(data["age"].std(ddof=0)), rel=1e-12)
    assert description.histogram("age").sum() == 400
    (strongest, *_) = description.correlations
    assert {strongest.first, strongest.second} == {"age", "dose"}
    expected = np.corrcoef(data["age"], data["dose"])[0, 1]
    assert strongest.r == pytest.approx(expected, abs=1e-6)
    assert strongest.low < expected < strongest.high


def test_quantiles_lie_within_a_bin_of_the_true_ones():
    data = columns(4000)
    description = describe_columns(data, KINDS, owners(4000))
    edges, counts = description.edges["age"], description.histogram("age")
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        value, sign = quantile(edges, counts, level)
        true = float(data["age"].quantile(level, "linear"))
        assert sign == "" and abs(value - true) < edges[1] - edges[0]
    assert quantile(edges, counts, 0.001)[1] == "<"
    assert quantile(edges, counts, 0.999)[1] == ">"


def test_no_bin_of_few_rows_is_shown_and_no_row_is_lost():
    rng = np.random.default_rng(1)
    for counts in itertools.chain(
        ([0, 3, 0, 2, 9], [4, 1], [1, 1, 1, 1, 1], [9, 0, 0, 4], [6, 4, 0, 4, 6]),
        rng.integers(0, 7, (200, 8)).tolist(),
    ):
        shown = without_few(np.array(counts), 5)
        assert shown.sum() == sum(counts)
        assert sum(counts) < 5 or not ((shown > 0) & (shown < 5)).any()
        for edge in range(len(counts) - 1):
            off = abs(shown[: edge + 1].sum() - sum(counts[: edge + 1]))
            assert off <= 8 * (not is_exact(shown, edge, 5))
    np.testing.assert_array_equal(without_few(np.array([3, 1, 2]), 1), [3, 1, 2])


@pytest.mark.parametrize(
    ("bins", "most", "empty"), [(4, 18, ()), (5, 13, ()), (5, 20, (2,))]
)
def test_no_count_of_few_rows_follows_from_the_bins_that_are_shown(bins, most, empty):
    """All tables of so many bins and rows that look alike, and all sets of their bins.

    A coordinator that chooses edges close to each other can know that a bin is empty.
    """
    every = itertools.product(range(most + 1), repeat=bins)
    alike = defaultdict(list)
    for counts in every:
        if 5 <= sum(counts) <= most and not any(counts[place] for place in empty):
            alike[tuple(without_few(np.array(counts)).tolist())].append(counts)
    sets = np.array(list(itertools.product((0, 1), repeat=bins))).T
    for shown, tables in alike.items():
        rows = np.array(tables) @ sets
        follows = rows.min(axis=0) == rows.max(axis=0)
        # Before, a gap between two bins showed that nobody is in it. Empty bins are known.
        known = set(empty)
        asks = [not known.issuperset(np.flatnonzero(it)) for it in sets.T]
        assert not (follows & (rows[0] < 5) & asks).any(), shown


@pytest.mark.parametrize("few", [1, 4])
def test_whether_anybody_has_a_number_does_not_follow(few):
    """Of edges close around a day, empty bins said before that nobody was born then."""
    days = np.random.default_rng(0).choice(np.arange(-9000, 9000), 200, replace=False)
    days = days[days != 100] + 0.0
    edges = even_edges(100 - 0.5, 100 + 0.5)
    # Whoever was born that day was born after it in the other table.
    before = np.flatnonzero(days > 101)[:few]
    there = days.copy()
    there[before] = 100.0
    assert len(edges) == BINS - 1 and edges[0] > 99 and edges[-1] < 101
    shown = [histogram_of(pl.Series(table), edges) for table in (days, there)]
    assert shown[0] == shown[1]


def test_a_cell_that_is_alone_is_not_to_be_seen():
    """A client with one outlier, or one missing cell, shows the same without it."""
    values = pl.Series([1.0] * 40 + [2.0] * 40 + [1e6])
    edges = edges_of(ColumnSums.of(values[:80], "number"), "number")
    assert len(edges) == BINS - 1
    shown = histogram_of(values, edges)
    assert shown[-1] == 0 and sum(shown) == 81
    missing = pl.Series([1.0] * 40 + [2.0] * 40 + [None])
    assert sum(histogram_of(missing, edges)) == 81
    assert edges_of(ColumnSums(missing=5), "number") is None


def test_drift_is_found_where_it_is_and_only_there():
    data = columns(2000)
    shifted = data["age"].to_numpy().copy()
    shifted[:500] += 8
    lacking = [
        None if row >= 1500 and row % 3 == 0 else v for row, v in enumerate(data["ill"])
    ]
    data |= {"age": pl.Series(shifted), "ill": pl.Series(lacking, dtype=pl.Float64)}
    description = describe_columns(data, KINDS, owners(2000))
    found = {
        (entry.column, entry.client) for entry in drifts(description) if entry.differs
    }
    assert {("age", "c0"), ("ill", "c3")} <= found
    assert not {column for column, _ in found} & {"ward"}
    largest = drifts(description)[0]
    assert largest.moved > largest.by_chance
    assert any("age (c0" in line for line in sentences(description))
    assert "drift" in description_tables(description)


def test_clients_from_one_place_differ_in_five_of_a_hundred_descriptions():
    differ = sum(
        any(
            entry.differs
            for entry in drifts(describe_columns(columns(400, seed), KINDS, owners()))
        )
        for seed in range(60)
    )
    assert differ <= stats.binom.ppf(0.999, 60, 0.05)


def test_the_test_of_two_tables_is_scipys():
    table = np.array([[30, 50, 20], [40, 30, 45]])
    expected = stats.chi2_contingency(table, correction=False).pvalue
    assert chi_squared_p(table) == pytest.approx(expected, rel=1e-12)
    assert chi_squared_p(np.array([[3, 0], [2, 0]])) == 1.0
    # cells of few rows are put together
    table = np.array([[60, 1, 3, 1], [75, 2, 0, 9]])
    together = np.array([[60, 5], [75, 11]])
    expected = stats.chi2_contingency(together, correction=False).pvalue
    assert chi_squared_p(table) == pytest.approx(expected, rel=1e-12)


def test_one_client_has_nothing_to_differ_from(tmp_path):
    pl.DataFrame(columns()).with_columns(note=pl.lit("x")).write_csv(tmp_path / "t.csv")
    description, _ = describe_table(tmp_path / "t.csv")
    assert description.clients == ("all rows",) and "drift" not in description_tables(
        description
    )
    with pytest.raises(ValueError, match="one client only"):
        drifts(description)
    with pytest.raises(ValueError, match="nowhere"):
        describe_table(tmp_path / "t.csv", client="nowhere")


def own_table():
    """A table without a missing cell; of two hospitals with four rows each."""
    rng, rows = np.random.default_rng(5), 208
    site = np.array(["a"] * 100 + ["b"] * 100 + ["c"] * 4 + ["d"] * 4)
    died = (rng.random(rows) < 0.3).astype(int)
    died[:100] = np.arange(100) < 3  # few rows of hospital a
    kind = rng.choice(["common", "rare"], rows, p=[0.97, 0.03])
    age = rng.normal(60, 10, rows)
    return pl.DataFrame({"site": site, "died": died, "kind": kind, "age": age})


def test_nothing_is_hidden_of_ones_own_table():
    frame = own_table()
    description, _ = describe_table(frame, client="site")
    shown = description_tables(description)
    rows = {row[0]: row for row in shown["columns"].rows}
    assert all(row[3].mean == 0 for row in rows.values())
    assert all(row[2].mean == 0 for row in shown["clients"].rows)
    total = description.total("died")
    assert total.mean == pytest.approx(frame["died"].mean(), rel=1e-12)
    rare = int((frame["kind"] == "rare").sum())
    assert description.total("kind").categories["rare"] == rare
    numbers = {row[0]: row for row in shown["numbers"].rows}
    assert [cell.mean for cell in numbers["age"][4:]] == pytest.approx(
        [frame["age"].quantile(level, "linear") for level in QUANTILES]
    )
    expected = np.corrcoef(frame["age"], frame["died"])[0, 1]
    assert description.correlations[0].r == pytest.approx(expected, abs=1e-6)
    assert not describe_table(frame, client="site", least=5)[0].correlations
    assert not any(
        "hidden" in line or "fewer" in line for line in sentences(description)
    )


def test_correlations_are_those_of_all_rows_whatever_a_client_has():
    """Of a client whose products are 0, of one of equal cells, and of missing ones."""
    data = {
        "x": pl.Series([1.0, 1, -1, -1, 3, 4, 5, 7, 2, 2, 2, 9]),
        "y": pl.Series([1.0, -1, 1, -1, 4, 4, 6, 7, 1, 2, 4, 5]),
        "z": pl.Series([2.0, 0, 2, 1, 5, None, 8, 9, None, None, None, None]),
    }
    kinds = dict.fromkeys(data, "number")
    owners = {"a": np.arange(4), "b": np.arange(4, 8), "c": np.arange(8, 11)}
    owners["d"] = np.arange(11, 12)
    found = {
        (entry.first, entry.second): entry.r
        for entry in describe_columns(data, kinds, owners).correlations
    }
    x, y = data["x"].to_numpy(), data["y"].to_numpy()
    # A missing cell is the client's mean; a client without any cell does not count.
    z = data["z"].fill_null(22 / 3).to_numpy()[:8]
    expected = {
        ("x", "y"): np.corrcoef(x, y)[0, 1],
        ("x", "z"): np.corrcoef(x[:8], z)[0, 1],
        ("y", "z"): np.corrcoef(y[:8], z)[0, 1],
    }
    assert found == pytest.approx(expected, abs=1e-10)


def test_columns_that_do_not_vary_where_both_are_known_have_no_correlation():
    data = {
        "x": pl.Series([0.1, 0.1, 0.1, 0.7, 0.9]),
        "y": pl.Series([1.0, 2.0, 4.0, None, None]),
    }
    owners = {"a": np.arange(3), "b": np.arange(3, 5)}
    kinds = dict.fromkeys(data, "number")
    assert describe_columns(data, kinds, owners).correlations == ()


def test_zeros_and_ones_have_a_share_and_no_quantiles():
    frame = own_table()
    frame = frame.with_columns(
        low=frame["died"].cast(pl.String), half=frame["died"] / 1
    )
    description, _ = describe_table(frame, client="site")
    shown = description_tables(description)
    assert [row[0] for row in shown["numbers"].rows] == ["age"]
    shares = {row[0]: row[1] for row in shown["categories"].rows}
    percent = f"{100 * frame['died'].mean():.1f} %"
    for name in ("died", "low", "half"):
        assert f"yes {percent}" in shares[name]


def test_bars():
    assert bars([0, 1, 8]) == " ▁█" and bars([0, 0]) == ""


def test_spellings_that_differ_in_capitals_are_named_and_can_be_folded():
    frame = pl.DataFrame(
        {"site": ["Basel", "BASEL", "Bern"] * 4, "x": range(12), "y": ["no", "No"] * 6}
    )
    description, notes = describe_table(frame, client="site")
    assert len(description.clients) == 3
    # Truth values are read in any spelling.
    assert ["'site' (BASEL / Basel); say --fold-case" in it for it in notes] == [True]
    folded, notes = describe_table(frame, client="site", fold_case=True)
    assert (len(folded.clients), notes) == (2, ())
