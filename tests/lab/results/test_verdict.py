"""The end of a comparison: what each client should use, from runs written by hand."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedtailor.engine.storage.digests import with_digest
from fedtailor.lab.report.comparison import (
    client_spread_table,
    tables,
    trained_baselines_table,
)
from fedtailor.lab.report.document import as_dict
from fedtailor.lab.report.page.contents import verdict_sections
from fedtailor.lab.results import test_values
from fedtailor.lab.results.decision import decide
from fedtailor.lab.results.experiment import COMPARISON_INDEX, StoredExperiment
from fedtailor.lab.results.judging import simplest_first
from fedtailor.lab.results.units import unit_of
from fedtailor.lab.results.verdict_text import headline_of, hurt_sentences
from fedtailor.lab.results.words import WORDS, sentence_of, use_of
from fedtailor.statistics.decision import Splits
from fedtailor.statistics.decision.intervals import Interval
from lab.report.results import NAME
from lab.results.test_decision import SEEDS, build, make_run

BASELINES = {
    # name: (whether it needs pooled data, whether it is linear)
    "trees-alone": (False, False),
    "trees-pooled": (True, False),
}


def with_baselines(results, likes, arguments=None):
    """An experiment with baselines that do as well as a method of the tests of
    decisions does.

    Args:
        results: the result directory.
        likes: name of a baseline -> that method.
        arguments: of the scenario.
    """
    build(results)
    path = results / NAME / COMPARISON_INDEX
    content = json.loads(path.read_text())
    content["baselines"] = []
    for name, like in likes.items():
        pooled, linear = BASELINES[name]
        for seed in SEEDS:
            run = f"runs/{name}-{seed}"
            make_run(results / run, like, seed)
            content["baselines"].append(
                {
                    "scenario": "shift",
                    "name": name,
                    "title": f"{name} title",
                    "needs_pooled_data": pooled,
                    "is_linear": linear,
                    "seed": seed,
                    "run": run,
                }
            )
    if arguments is not None:
        content["scenarios"]["shift"] |= {"use": "table", "arguments": arguments}
    path.write_text(json.dumps(with_digest(content)))
    return StoredExperiment.read(results, NAME)


def test_all_baselines_are_listed_beside_the_methods(tmp_path):
    """This one does as well as a method does."""
    likes = {"trees-alone": "local", "trees-pooled": "local"}
    experiment = with_baselines(tmp_path, likes)
    table = trained_baselines_table(experiment, "shift")
    spread = client_spread_table(experiment, "shift")
    (own,) = [row for row in spread.rows if row[0] == "LOCAL"]
    alone, pooled = table.rows
    assert (alone[0], alone[-1]) == ("trees-alone title", "-")
    assert (pooled[0], pooled[-1]) == ("trees-pooled title", "all rows")
    assert [cell.text for cell in alone[1:-1]] == [cell.text for cell in own[1:5]]
    assert "shift-baselines" in tables(experiment)


def test_every_client_has_a_line_with_all_figures(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "local"})
    verdict = decide(experiment, "shift").verdict
    assert verdict.recommendation.method in ("LOCAL", "SHARED", "OTHER")
    assert {entry.client for entry in verdict.clients} == {"gains", "loses", "same"}
    for entry in verdict.clients:
        assert entry.low < entry.value < entry.high
        assert entry.test_rows == 60
        assert entry.baseline == "trees-alone title"
        gain, low, high = entry.over_baseline
        assert low <= gain <= high
        if entry.method == "LOCAL":
            assert entry.gain is None and abs(gain) < 1e-9
    assert len(verdict.table().rows) == 3
    (short,) = verdict.table(most=1).rows
    worst = min(verdict.clients, key=lambda entry: entry.value)
    assert short[0] == worst.client
    assert "The 1 of 3 clients with the worst expected" in verdict.table(1).title


def test_the_table_says_of_every_gain_how_sure_it_is(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "other"})
    verdict = decide(experiment, "shift").verdict
    table = verdict.table()
    words = set()
    for entry, row, below in zip(verdict.clients, table.rows, table.below, strict=True):
        gain, low, high = (100 * value for value in entry.over_baseline)
        word = "better" if low > 0 else "worse" if high < 0 else "unclear"
        words.add(word)
        gain, low, high = (unit_of("accuracy").signed(it) for it in (gain, low, high))
        assert row[-1].text == f"{gain} {word}"
        assert below[-1] == f"{low} to {high}"
        assert below[:2] == [f"{entry.test_rows} tested", entry.method]
        assert below[2] == f"{100 * entry.low:.1f} to {100 * entry.high:.1f}"
    assert len(words) > 1
    told = f"{verdict.clients[0].client} ({below[0]})"
    assert any(line.startswith(f"| {told} |") for line in table.markdown().split("\n"))


def test_an_area_of_one_class_is_not_called_a_lack_of_rows(tmp_path):
    verdict = decide(build(tmp_path), "shift").verdict
    without = dataclasses.replace(verdict.clients[0], value=math.nan, low=math.nan)
    none = dataclasses.replace(without, test_rows=0)
    rows = dataclasses.replace(verdict, clients=[without, none]).table().rows
    assert [row[2].text for row in rows] == ["not defined", "no test rows"]


def test_the_first_line_names_target_unit_and_splits(tmp_path):
    arguments = {
        "path": "a/ill.csv",
        "client": "site",
        "target": "age",
        "positive": [">60"],
        "folds": 5,
    }
    experiment = with_baselines(tmp_path, {"trees-alone": "other"}, arguments)
    verdict = decide(experiment, "shift").verdict
    assert verdict.subject == (
        "ill.csv: predicting age (>60) for 3 clients (site), judged by accuracy (higher"
        " is better; 25.0 for always answering the most frequent class) on rows that no"
        f" training saw ({len(SEEDS)} of 5 folds)"
    )
    assert verdict.table().columns[0] == "site"


def test_the_best_baseline_is_named_once(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "other"})
    verdict = decide(experiment, "shift").verdict
    assert verdict.methods[-1] == (
        "Best baseline, of those that need no pooled rows, by validation data:"
        " trees-alone title."
    )


def test_clients_that_are_worse_off_are_counted_beside_the_mean(tmp_path):
    """In the tests of decisions SHARED is better for one client and worse for one."""
    verdict = decide(build(tmp_path), "shift").verdict
    assert {entry.method for entry in verdict.clients} == {"LOCAL"}
    hurt = verdict.hurt
    assert hurt.base == "LOCAL" and hurt.clients == 3
    assert (hurt.worse, hurt.shown) == (1, 1)
    said = (
        f"By these figures 1 of 3 clients would do better alone than by {hurt.method}"
    )
    assert verdict.footnotes[0].startswith(said)
    assert verdict.as_dict()["hurt"]["worse"] == 1


def test_the_table_shows_the_clients_whose_own_method_the_first_line_names(tmp_path):
    """Also where it is too short for all, as 12 lines are for 40 clients."""
    experiment = build(tmp_path)
    verdict = decide(experiment, "shift").verdict
    best = max(verdict.clients, key=lambda entry: entry.value).client
    chosen = dataclasses.replace(verdict.recommendation, of_client={best: "SHARED"})
    short = dataclasses.replace(verdict, recommendation=chosen).table(most=1)
    assert [row[0] for row in short.rows] == [best]
    assert "with a method of their own, then the worst expected" in short.title
    runs = {label: seeds for label, seeds in experiment.runs["shift"].items() if seeds}
    tests = test_values.Tests(runs, {})
    (first, *_) = headline_of(
        chosen, tests, "LOCAL", runs, shared="SHARED", is_behind=False
    )
    assert first.startswith(f"Use LOCAL, but SHARED for {best}. LOCAL: ")


def test_a_client_that_its_method_hurts_is_named(tmp_path):
    verdict = decide(build(tmp_path), "shift").verdict
    clients = [
        dataclasses.replace(entry, gain=gain)
        for entry, gain in zip(
            verdict.clients,
            [(-0.2, -0.3, -0.1), (0.1, -0.1, 0.3), None],
            strict=True,
        )
    ]
    said = hurt_sentences(verdict.hurt, clients)
    assert said[-1].startswith(
        "Worse by what the table tells them to use than alone:"
        f" {clients[0].client}. Methods are chosen by validation rows"
    )
    assert len(hurt_sentences(verdict.hurt, clients[1:])) == 1


def test_all_means_on_a_page_are_one(tmp_path):
    """Where a client has no value in one of the seeds: the table's mean was that over
    seeds, which no test is of.
    """
    experiment = build(tmp_path)
    run = experiment.runs["shift"]["LOCAL"][0]
    worst = run.scores().sort("value")["client"][0]
    run.__dict__["metrics"] = run.metrics.filter(pl.col("client") != worst)
    decision = decide(experiment, "shift")
    spread = client_spread_table(experiment, "shift")
    (row,) = [row for row in spread.rows if row[0] == "LOCAL"]
    assert row[1].mean == pytest.approx(100 * decision.winner.means["LOCAL"])
    text = " ".join(decision.conclusions)
    assert ", not 7" not in text and " against " not in text


def test_the_method_to_use_is_told_from_the_one_with_the_best_test_mean(tmp_path):
    decision = decide(build(tmp_path), "shift")
    winner = dataclasses.replace(decision.winner, leader="OTHER")
    text = " ".join(dataclasses.replace(decision, winner=winner).conclusions)
    assert "the method to use is LOCAL all the same: it is chosen on validation" in text
    assert "all the same" not in " ".join(decision.conclusions)
    # Training alone is recommended, and sharing is spoken of by one method everywhere.
    shared = decision.verdict.shared
    assert shared == decision.verdict.hurt.method != "LOCAL"
    assert f" by {shared} over training alone" in " ".join(decision.verdict.headline)


def test_a_baseline_that_could_not_be_trained_is_told(tmp_path):
    with_baselines(tmp_path, {"trees-alone": "local"})
    path = tmp_path / NAME / COMPARISON_INDEX
    content = json.loads(path.read_text())
    content["skipped"] = [
        {
            "scenario": "shift",
            "algorithm": title,
            "seed": None,
            "parameters": {},
            "why": "trees take too long",
            "runs": 0,
        }
        for title in ("trees, alone", "trees, pooled")
    ]
    path.write_text(json.dumps(with_digest(content)))
    verdict = decide(StoredExperiment.read(tmp_path, NAME), "shift").verdict
    assert verdict.warnings[0] == (
        "could not be trained beside the methods: trees, alone, trees, pooled: trees take"
        " too long"
    )


def test_of_methods_that_are_as_good_the_simplest_is_named_with_a_sentence(tmp_path):
    verdict = decide(build(tmp_path), "shift").verdict
    (use,) = (line for line in verdict.headline if line.startswith("Use "))
    assert use == (
        f"Use LOCAL: {WORDS['local'].sentence}. On validation data it is the best, and the"
        " simplest of those that tie with it within a standard error (SHARED, OTHER)."
    )
    # Two seeds tell nothing of other seeds.
    assert any("2 splits cannot tell whether" in line for line in verdict.headline)
    assert all(entry.baseline == "" for entry in verdict.clients)


def test_a_baseline_that_is_ahead_is_in_the_first_line(tmp_path, monkeypatch):
    """A baseline that is right wherever any method is not."""
    from lab.results import test_decision

    best = {client: 1.0 for client in test_decision.CLIENTS_OF}
    monkeypatch.setitem(test_decision.SHARE, "perfect", best)
    experiment = with_baselines(tmp_path, {"trees-alone": "perfect"})
    verdict = decide(experiment, "shift").verdict
    assert verdict.headline[0].startswith(
        "Ahead of every federated method in 2 splits, too few to tell of others:"
        " trees-alone title (a yardstick, of which no model is made), 100.0 against 70.0 of LOCAL, +30.0"
        " points of accuracy (95 %: "
    )
    assert verdict.headline[1].startswith("Of the federated methods use LOCAL: each")
    pooled = with_baselines(tmp_path / "pooled", {"trees-pooled": "perfect"})
    verdict = decide(pooled, "shift").verdict
    assert "Ahead" not in verdict.headline[0], "it needs pooled data"
    assert all(entry.baseline == "" for entry in verdict.clients)


def test_what_would_settle_it_depends_on_the_split(tmp_path):
    cases = {
        "three": ({"path": "a.csv"}, "--seeds 0 1 2"),
    }
    for name, (arguments, advice) in cases.items():
        experiment = with_baselines(tmp_path / name, {}, arguments)
        verdict = decide(experiment, "shift").verdict
        judged = [entry for entry in verdict.clients if entry.gain is not None]
        text = " ".join(verdict.footnotes)
        assert (advice in text) == bool(
            [entry for entry in judged if entry.verdict == "cannot tell"]
        )


def test_the_page_has_the_table_before_all_else(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "local"}, {"path": "a.csv"})
    decision = decide(experiment, "shift")
    first, second = verdict_sections(decision.verdict, decision.warnings)
    assert first.title == "Decision" and len(first.tables[0].rows) == 3
    assert first.paragraphs[0].startswith("a.csv: 3 clients,") and not first.warnings
    assert second.warnings == decision.warnings


def test_a_gain_of_an_error_is_said_without_a_sign(tmp_path):
    """Positive gains are better, and a lower error is: "+0.1 RMSE" would mislead."""
    tests = test_values.Tests(build(tmp_path).runs["shift"], {})
    tests.unit = unit_of("rmse")
    for gain, text in (
        ((0.02, 0.01, 0.03), "RMSE lower by 0.020 (95 %: 0.010 to 0.030)"),
        ((-0.02, -0.03, 0.01), "RMSE higher by 0.020 (95 %: -0.010 to 0.030)"),
    ):
        assert tests.gain_text(Interval(*gain, p=0.5)) == text


@pytest.mark.parametrize(
    ("arguments", "seeds", "test", "val"),
    [
        ({}, 3, Splits(0.2), Splits(0.1)),
        ({"test": 0.3, "val": 0.2}, 3, Splits(0.3), Splits(0.2)),
        ({"folds": 4}, 8, Splits(0.25, folds=4), Splits(0.1)),
        ({"split": "part"}, 3, None, None),
        ({"time": "day"}, 3, None, None),
        ({}, 2, None, None),
    ],
)
def test_how_seeds_divide_rows_anew(arguments, seeds, test, val):
    scenario = SimpleNamespace(use="table", arguments=arguments)
    index = SimpleNamespace(seeds=range(seeds), scenarios={"own": scenario})
    experiment = SimpleNamespace(index=index)
    assert test_values.splits_of(experiment, "own") == test
    assert test_values.splits_of(experiment, "own", "val") == val
    scenario.use = "digits-rotated"
    assert test_values.splits_of(experiment, "own") is None


def test_these_clients_and_clients_like_these_are_named_apart(tmp_path):
    """Of eight clients two gain much, and all of them by all splits."""
    experiment = build(tmp_path)
    runs = {label: seeds for label, seeds in experiment.runs["shift"].items() if seeds}
    chosen = decide(experiment, "shift").verdict.recommendation
    tests = test_values.Tests(runs, {}, Splits(0.2, folds=5))
    gains = np.array([0.3, 0.2, *[0.001] * 6])
    base = np.random.default_rng(0).normal(0.7, 0.01, (10, 8))
    noise = np.random.default_rng(1).normal(0, 0.01, (10, 8))
    tests.values = {"LOCAL": base, "SHARED": base + gains + noise}
    tests.methods = list(tests.values)

    def said():
        options = {"shared": "SHARED", "is_behind": False}
        return headline_of(chosen, tests, "LOCAL", runs, **options)[1]

    pattern = (
        r"Sharing helps these clients on average: \+6\.\d points of accuracy \(95 %:"
        r" \+5\.\d to \+[67]\.\d\) by SHARED over training alone\. For clients like these"
        r" it is open \(95 %: -\d\.\d to \+1\d\.\d\)\."
    )
    assert re.fullmatch(pattern, said()), said()
    tests.splits = None
    cannot = "The test rows cannot tell whether sharing helps clients like these on"
    assert said().startswith(cannot) and "For clients" not in said()


def test_training_alone_is_simple_only_with_many_rows_for_each_input(tmp_path):
    runs = build(tmp_path).runs["shift"]
    few, many = ({name: (5, rows) for name in "abc"} for rows in (19, 20))
    assert simplest_first(runs, many)[0] == "LOCAL"
    assert simplest_first(runs, few)[-1] == "LOCAL"
    assert simplest_first(runs, few)[:-1] == simplest_first(runs, many)[1:]


def test_json_has_no_nan(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "local"})
    decision = decide(experiment, "shift")
    text = json.dumps(as_dict(experiment, {}, [decision]), allow_nan=False)
    assert '"verdict": {"subject"' in text


def test_infinite_intervals_are_said_in_words(tmp_path):
    verdict = decide(build(tmp_path), "shift").verdict
    entry = dataclasses.replace(
        verdict.clients[0],
        low=-math.inf,
        high=math.inf,
        gain=(0.1, -math.inf, math.inf),
    )
    changed = dataclasses.replace(verdict, clients=[entry])
    table = changed.table()
    assert table.below[0][2] == "one row" and table.below[0][3] == ""
    assert str(table.rows[0][3]) == "too few rows"


@pytest.mark.parametrize("method", [*WORDS, "fedprox", "scaffold", "ifca", "nobody's"])
def test_every_method_has_words(method):
    assert 0 < len(use_of(method)) < 25
    assert sentence_of(method) and not sentence_of(method).endswith(".")
