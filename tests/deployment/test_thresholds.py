"""Thresholds of models in use: from validation rows only, measured on test rows."""

import re
import shutil

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.cli.main import main
from fedtailor.deployment.calibration import calibration_at
from fedtailor.deployment.opening import models_at, open_run
from fedtailor.deployment.predictions import predictions
from fedtailor.deployment.thresholds import thresholds_at, thresholds_of
from fedtailor.lab.report.page import contents
from fedtailor.lab.results.decision import Decision
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.thresholds import (
    RULES,
    threshold_table,
    thresholds_of_stored,
)


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    """A run on a table with a rare class and weights: one client of 800 rows, one of 60."""
    folder = tmp_path_factory.mktemp("rare")
    rng = np.random.default_rng(0)
    site = np.repeat(["a", "b"], [800, 60])
    x = rng.normal(size=len(site))
    ill = x + rng.normal(size=len(site)) > 0.9
    frame = pl.DataFrame(
        {
            "site": site,
            "x": x.round(3),
            "count": rng.integers(0, 3, len(site)),
            "ill": np.where(ill, "yes", "no"),
        }
    )
    frame.write_csv(folder / "table.csv")
    options = {"client": "site", "target": "ill", "positive": "yes", "weight": "count"}
    ft.run(
        ft.FedAvg(sgd=ft.SGD(lr=0.2, epochs=2)),
        ft.tables.from_table(folder / "table.csv", **options, test=0.3, val=0.4),
        ft.models.logistic(),
        5,
        keep_rows=True,
        directory=folder / "run",
    )
    return folder / "run"


def truth_and_odds(run, split):
    """By client: truth, log-odds of "yes" and weights, from the data and the models."""
    federation, found = run.federation, {}
    for number, name in enumerate(run.names):
        rows = getattr(federation, split)[number]
        outputs = run.personal(name).outputs(federation.x[rows])
        weights = federation.weights[rows]
        found[name] = federation.y[rows], outputs[:, 1] - outputs[:, 0], weights
    return found


def test_a_threshold_has_the_stated_share_of_its_validation_rows(rare):
    run = open_run(rare)
    found = thresholds_of(run, "specificity=0.9")
    assert found.label == "yes"
    rows = truth_and_odds(run, "val")
    assert found.of("a").is_own
    assert found.of("b") == found.of("of nobody") == found.pooled
    pooled = [np.concatenate(parts) for parts in zip(*rows.values(), strict=True)]
    for chosen, (truth, odds, weights) in (
        (found.of("a"), rows["a"]),
        (found.pooled, pooled),
    ):
        counted = weights > 0
        assert chosen.positives == truth[counted].sum()
        assert chosen.negatives == (1 - truth[counted]).sum()
        negative = truth == 0

        def specificity(cut, negative=negative, odds=odds, weights=weights):
            return np.average((odds < cut)[negative], weights=weights[negative])

        assert specificity(chosen.log_odds) >= 0.9
        # The next lower row that counts is a negative one too many.
        below = odds[counted & (odds < chosen.log_odds)].max()
        assert specificity(below - 1e-6) < 0.9


def test_thresholds_are_measured_on_test_rows(rare):
    run = open_run(rare)
    found = thresholds_of(run, "f1")
    truth, odds, weights = truth_and_odds(run, "test")["a"]
    hit = odds >= found.of("a").log_odds
    on_test = found.measured(["a"])
    measured = on_test.measures
    for interval, rows, right in (
        (measured.sensitivity, truth == 1, hit),
        (measured.specificity, truth == 0, ~hit),
    ):
        expected = np.average(right[rows], weights=weights[rows])
        np.testing.assert_allclose(interval.estimate, expected, rtol=1e-6)
        assert interval.low < expected < interval.high
    expected = np.average(1 / (1 + np.exp(-odds)), weights=weights)
    np.testing.assert_allclose(on_test.probability, expected, rtol=1e-5)
    np.testing.assert_allclose(
        on_test.share, np.average(truth, weights=weights), rtol=1e-6
    )


@pytest.mark.parametrize("rule", ["f1", "specificity=0.8", "sensitivity=0.8"])
def test_test_rows_do_not_choose(rare, rule, monkeypatch):
    run, other = open_run(rare), open_run(rare)
    rows, baseline = run.test_rows
    flipped = rows.with_columns(~pl.col("correct"), -pl.col("log_odds"))
    monkeypatch.setitem(other.__dict__, "test_rows", (flipped, baseline))
    expected, found = thresholds_of(run, rule), thresholds_of(other, rule)
    assert found.of("a") == expected.of("a")
    assert found.of("b") == expected.of("b")
    assert found.measured(["a"]) != expected.measured(["a"])


def test_classes_follow_the_threshold_and_probabilities_stay(rare):
    table = rare.parent / "table.csv"
    models = models_at(rare)
    asked = {"probabilities": True}
    usual = predictions(models, table, None, **asked)
    thresholds = thresholds_at(rare, "sensitivity=0.9")
    found = predictions(models, table, None, **asked, thresholds=thresholds)
    assert found.columns == [*usual.columns, "threshold"]
    np.testing.assert_array_equal(found["p(yes)"], usual["p(yes)"])
    is_ill = found["prediction"] == "yes"
    np.testing.assert_array_equal(is_ill, found["p(yes)"] >= found["threshold"])
    assert (is_ill != (usual["prediction"] == "yes")).any()
    expected = pl.select(
        pl.when(is_ill).then(found["p(yes)"]).otherwise(found["p(no)"])
    ).to_series()
    np.testing.assert_allclose(found["probability"], expected, atol=1e-6)
    by_client = found.group_by("client").agg(pl.col("threshold").n_unique())
    assert by_client["threshold"].to_list() == [1, 1]
    assert found["threshold"].n_unique() == 2


def test_temperatures_move_thresholds_with_the_probabilities(rare):
    table, models = rare.parent / "table.csv", models_at(rare)
    thresholds = thresholds_at(rare, "f1")
    plain = predictions(models, table, None, thresholds=thresholds)
    calibration = calibration_at(rare)
    assert calibration.clients["a"].temperature is not None
    found = predictions(
        models,
        table,
        None,
        thresholds=thresholds,
        calibrated=True,
        calibration=calibration,
    )
    assert found["prediction"].equals(plain["prediction"])
    is_ill = found["p(yes)"] >= found["threshold"]
    assert is_ill.equals(found["prediction"] == "yes", check_names=False)
    assert not np.allclose(found["p(yes)"], plain["p(yes)"], atol=1e-3)


def test_labels_are_written_as_in_predictions(tmp_path, capsys):
    run = trained(tmp_path, lambda _, count: [True, True, False, False] * (count // 4))
    table = str(tmp_path / "table.csv")
    assert main(["predict", str(run), table, "--threshold", "f1"]) == 0
    output = capsys.readouterr()
    assert "p(true),threshold" in output.out
    assert "validation rows, " in output.err and "true and others" in output.err


def test_predict_prints_what_was_chosen(rare, capsys):
    table = rare.parent / "table.csv"
    assert (
        main(["predict", str(rare), str(table), "--threshold", "specificity=0.9"]) == 0
    )
    output = capsys.readouterr()
    header = "row,client,prediction,probability,p(yes),threshold"
    assert output.out.splitlines()[0] == header
    text = " ".join(output.err.split())
    assert "sensitivity, specificity, F1, mean" in text
    assert re.search(r"a specificity=0.9 \d+, \d+ 0\.\d{3} \d+, \d+ ", text)
    assert re.search(r"b specificity=0.9 \d+, \d+ 0\.\d{3} ", text)
    assert re.search(r"all 2 specificity=0.9 \d+, \d+ \d+\.\d ", text)
    assert "its own" in text and "all clients'" in text
    assert "A client with fewer than 50 validation rows of a class has the" in text


def test_all_rules_and_clients_are_in_one_table(rare):
    """That of pages, of which cards and `predict` have some lines."""
    run = open_run(rare)
    found = [thresholds_of(run, rule) for rule in RULES]
    table = threshold_table("t", found, run.names)
    assert [row[:2] for row in table.rows] == [
        [name, rule] for name in ("a", "b", "all 2") for rule in RULES
    ]
    stored = thresholds_of_stored(StoredRun(rare))
    assert threshold_table("t", stored, run.names) == table
    for row, below, rule in zip(table.rows, table.below, 3 * RULES, strict=True):
        thresholds = thresholds_of(run, rule)
        names = run.names if row[0] == "all 2" else [row[0]]
        expected = thresholds.measured(names).measures
        intervals = (expected.sensitivity, expected.specificity, expected.f1)
        for cell, ends, interval in zip(row[5:8], below[5:8], intervals, strict=True):
            assert cell.mean == 100 * interval.estimate
            assert ends == f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
        if len(names) == 1:
            odds = thresholds.of(row[0]).log_odds
            assert row[3].mean == pytest.approx(1 / (1 + np.exp(-odds)))
    some = threshold_table("t", found[:1], run.names, 1)
    assert some.rows == [table.rows[0], table.rows[6]]
    assert "1 more clients are not listed" in some.note


def test_pages_have_a_section_of_thresholds(rare, numbers, monkeypatch):
    decision = Decision("s", "accuracy")
    (section,) = contents.thresholds("s", {"fedavg": [StoredRun(rare)]}, decision)
    assert section.tables[0].title == "s: thresholds, fedavg, seed 0"
    assert len(section.tables[0].rows) == 9
    monkeypatch.setattr(contents, "MAX_THRESHOLD_CLIENTS", 1)
    (section,) = contents.thresholds("s", {"fedavg": [StoredRun(rare)]}, decision)
    assert [row[0] for row in section.tables[0].rows] == 3 * ["a"] + 3 * ["all 2"]
    # Rows of earlier versions have no log-odds.
    earlier = StoredRun(rare)
    earlier.__dict__["rows"] = earlier.rows.drop("log_odds")
    assert contents.thresholds("s", {"fedavg": [earlier]}, decision) == []
    assert contents.thresholds("s", {"fedavg": [StoredRun(numbers)]}, decision) == []


def test_cards_have_thresholds(rare, numbers):
    card = ft.model_card(open_run(rare), "a")
    assert "## Thresholds" in card
    run = open_run(rare)
    found = [thresholds_of(run, rule) for rule in RULES]
    assert threshold_table("", found, ["a"]).markdown().strip() in card
    for rule in RULES:
        assert re.search(rf"\| a \| {rule} \| \d+, \d+ \(its own\) ", card)
    assert "## Thresholds" not in ft.model_card(open_run(numbers), "a")


def trained(folder, target, *, val=0.3):
    """The folder of a run of one round."""
    rng = np.random.default_rng(0)
    count = 40
    columns = {"site": ["a", "b"] * (count // 2), "x": rng.normal(size=count)}
    columns["y"] = target(rng, count)
    pl.DataFrame(columns).write_csv(folder / "table.csv")
    table = ft.tables.from_table(
        folder / "table.csv", client="site", target="y", test=0.3, val=val
    )
    ft.run(
        ft.FedAvg(),
        table,
        ft.models.logistic(),
        1,
        keep_rows=True,
        directory=folder / "run",
    )
    return folder / "run"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    return trained(folder, lambda rng, count: rng.normal(size=count))


def refused(run, capsys, rule="f1", *more):
    """The line with which `predict --threshold` ends."""
    capsys.readouterr()
    table = str(run.parent / "table.csv")
    asked = ("predict", str(run), table, "--threshold", rule, *more)
    assert main(list(asked)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_what_else_models_predict_is_refused(numbers, tmp_path, capsys):
    assert "thresholds are for two classes" in refused(numbers, capsys)
    three = trained(tmp_path, lambda _, count: (["u", "v", "w"] * count)[:count])
    assert "a classification of 3 classes" in refused(three, capsys)


def test_rows_for_validation_are_needed(tmp_path, capsys):
    run = trained(tmp_path, lambda _, count: ["u", "u", "v", "v"] * (count // 4), val=0)
    assert "train with rows for validation (--val 0.2)" in refused(run, capsys)


@pytest.mark.parametrize("rule", ["specificity=1.5", "specificity=abc", "0.3"])
def test_other_rules_are_refused(rare, capsys, rule):
    assert "say f1, specificity=0.9 or sensitivity=0.9" in refused(rare, capsys, rule)


def test_sets_and_thresholds_do_not_go_together(rare, capsys):
    error = refused(rare, capsys, "f1", "--coverage", "0.9")
    assert "leave out --threshold or --coverage" in error


@pytest.mark.parametrize("what", ["one class", "earlier"])
def test_rows_that_choose_nothing_are_refused(rare, monkeypatch, what):
    run = open_run(rare)
    rows = run.validation_rows
    if what == "one class":
        rows = rows.filter((pl.col("prediction") == 1) != pl.col("correct"))
    else:
        rows = rows.drop("log_odds")
    monkeypatch.setitem(run.__dict__, "validation_rows", rows)
    expected = {"one class": "of one class", "earlier": "of an earlier version"}[what]
    with pytest.raises(ValueError, match=expected):
        thresholds_of(run, "f1")


def test_exports_are_refused(rare, tmp_path, capsys):
    out = tmp_path / "models"
    assert main(["export", str(rare), "--out", str(out)]) == 0
    shutil.copy(rare.parent / "table.csv", tmp_path / "table.csv")
    assert "name the run or the final models" in refused(out, capsys)
    # Their cards have them.
    assert "| a | f1 | " in next((out / "cards").glob("*-a.md")).read_text()
