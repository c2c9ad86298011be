"""The end of a comparison: what each client should use, from runs written by hand."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedtailor._base.digests import with_digest
from fedtailor.algorithms.find import find_algorithm
from fedtailor.engine.storage.run_files import SUMMARY
from fedtailor.lab.baselines import CHOSEN, baseline_names, find_baseline
from fedtailor.lab.report.comparison import (
    client_spread_table,
    tables,
    trained_baselines_table,
)
from fedtailor.lab.report.document import as_dict, print_verdict
from fedtailor.lab.report.page.contents import verdict_sections
from fedtailor.lab.results import test_values
from fedtailor.lab.results.decision import decide
from fedtailor.lab.results.experiment import COMPARISON_INDEX, StoredExperiment
from fedtailor.lab.results.judging import simplest_first
from fedtailor.lab.results.units import unit_of
from fedtailor.lab.results.verdict import NO_DIFFERENCE_SHOWN, Candidate
from fedtailor.lab.results.verdict_text import (
    answer_of,
    better_warnings,
    candidates_of,
    next_of,
    sharing_sentences,
    subject_of,
    summary_of,
    worse_warnings,
)
from fedtailor.lab.results.words import (
    BASELINE_WORDS,
    WORDS,
    Nouns,
    nouns_of,
    sentence_of,
    use_of,
)
from fedtailor.statistics.decision import Splits
from fedtailor.statistics.decision.intervals import Interval
from lab.report.results import NAME, write_manifest
from lab.results import test_decision
from lab.results.test_decision import SEEDS, build, make_run

BASELINES = {
    # name: (whether it needs pooled data, whether it is linear)
    "trees-alone": (False, False),
    "trees-pooled": (True, False),
}


def with_baselines(results, likes, arguments=None, *, keep=False):
    """An experiment with baselines that do as well as a method of the tests of
    decisions does.

    Args:
        results: the result directory.
        likes: name of a baseline -> that method.
        arguments: of the scenario.
        keep: whether the runs keep their models.
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
            if keep and not pooled:
                write_manifest(results / run, name, seed)
                summary = json.loads((results / run / SUMMARY).read_text())
                summary |= {CHOSEN: {"rounds": 3}}
                (results / run / SUMMARY).write_text(json.dumps(with_digest(summary)))
            content["baselines"].append(
                {
                    "scenario": "shift",
                    "name": name,
                    "title": f"{name} title",
                    "needs_pooled_data": pooled,
                    "is_linear": linear,
                    "is_alone": name.endswith("alone"),
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
    assert (pooled[0], pooled[-1]) == ("trees-pooled title", "yes")
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
            assert abs(gain) < 1e-9
    assert len(verdict.table().rows) == 3


def test_an_area_of_one_class_is_not_called_a_lack_of_rows(tmp_path):
    verdict = decide(build(tmp_path), "shift").verdict
    without = dataclasses.replace(verdict.clients[0], value=math.nan, low=math.nan)
    none = dataclasses.replace(without, test_rows=0)
    rows = dataclasses.replace(verdict, clients=[without, none]).table().rows
    assert [row[2].text for row in rows] == ["not defined", "no test rows"]


TABLE = {
    "path": "a/ill.csv",
    "client": "hospital",
    "target": "age",
    "positive": [">60"],
    "folds": 5,
}
"""Arguments of a scenario."""


def test_the_answer_comes_first_then_evidence_candidates_and_clients(tmp_path, capsys):
    experiment = with_baselines(tmp_path, {"trees-alone": "other"}, TABLE)
    decision = decide(experiment, "shift")
    print_verdict(decision.verdict, decision.warnings)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "Use LOCAL to predict age (>60) for all 3 hospitals: each hospital trains alone,"
        " on its own rows; nothing is sent.",
        "Why: best on validation rows, and simplest of 3 within one standard error.",
        "SHARED against training alone: -1.7 points in 2 splits, too few to conclude.",
    ]
    assert lines[4] == (
        "ill.csv: test accuracy, % (higher is better; always answering the most frequent"
        " class: 25.0); mean over 3 hospitals, 2 of 5 folds"
    )
    shown = "\n".join(lines[5:])
    places = [shown.index(word) for word in ("candidate ", "hospital ", "Caveat: ")]
    assert places == sorted(places)
    # Titles, sentences and notes are wrapped; the lines of tables fit a terminal.
    tables = [line for line in lines if "%)" in line or "(+" in line or "(-" in line]
    assert len(tables) > 5 and max(map(len, tables)) <= 80
    evidence = " ".join([decision.verdict.answer, *decision.verdict.evidence])
    assert "client" not in evidence


@pytest.mark.parametrize(
    ("seeds", "arguments", "told"),
    [
        (range(5), {"folds": 5}, "5 folds, so that every row is tested"),
        (range(10), {"folds": 5}, "5 folds, 2 times, so that every row is tested"),
        (range(2), {"folds": 5}, "2 of 5 folds"),
        # Seeds 4 and 9 test the last fold of two divisions.
        ((0, 1, 2, 4, 9), {"folds": 5}, "5 splits, each tested on one of 5 folds"),
        (range(7), {"folds": 5}, "7 splits, each tested on one of 5 folds"),
        ((0,), {"split": "part"}, "one split, 1 seed"),
        (range(3), {"time": "day"}, "one split, 3 seeds"),
        ((0,), {}, "1 random split"),
        (range(3), {}, "3 random splits"),
    ],
)
def test_the_line_of_evidence_ends_with_the_splits(seeds, arguments, told):
    scenario = SimpleNamespace(arguments=arguments)
    index = SimpleNamespace(seeds=seeds, scenarios={"shift": scenario})
    experiment = SimpleNamespace(index=index, baselines={"shift": []})
    nouns = Nouns("site", "sites")
    line = subject_of(experiment, "shift", 3, nouns, "accuracy")
    assert line.endswith(f"mean over 3 sites, {told}")


def test_the_table_says_of_every_gain_how_sure_it_is(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "other"})
    verdict = decide(experiment, "shift").verdict
    table, short = verdict.table(), verdict.first_screen()
    entries = {entry.client: entry for entry in verdict.clients}
    words = set()
    for row, below, line in zip(table.rows, table.below, short.rows, strict=True):
        entry = entries[row[0]]
        gain, low, high = (100 * value for value in entry.over_baseline)
        word = "better" if low > 0 else "worse" if high < 0 else NO_DIFFERENCE_SHOWN
        gain, low, high = (unit_of("accuracy").signed(it) for it in (gain, low, high))
        assert row[-1].text == f"{gain} ({low} to {high})" and below[-1] == word
        assert below[:2] == [f"{entry.test_rows} tested", entry.method]
        assert below[2] == f"{100 * entry.low:.1f} to {100 * entry.high:.1f}"
        gain, low, high = (unit_of("accuracy").signed(100 * it) for it in entry.gain)
        value = f"{100 * entry.value:.1f}"
        words.add(line[-1])
        assert line[0] == entry.client and line[-1] == entry.word
        assert [cell.text for cell in line[1:-1]] == [
            str(entry.test_rows),
            value,
            f"{gain} ({low} to {high})",
        ]
    assert words == {"better", "worse", NO_DIFFERENCE_SHOWN}
    gains = [row[3].mean for row in table.rows]
    assert gains == sorted(gains, reverse=True)
    told = f"{table.rows[0][0]} ({table.below[0][0]})"
    assert any(line.startswith(f"| {told} |") for line in table.markdown().split("\n"))


def test_the_eight_best_candidates_stand_beside_the_recommended_one(tmp_path):
    likes = {"trees-alone": "other", "trees-pooled": "other"}
    experiment = with_baselines(tmp_path, likes, keep=True)
    verdict = decide(experiment, "shift").verdict
    labels = [row[0] for row in verdict.candidates_table().rows]
    assert sorted(labels) == sorted(["LOCAL", "SHARED", "OTHER", "trees-alone"])
    means = [row[1].mean for row in verdict.candidates_table().rows]
    assert means == sorted(means, reverse=True)
    for row, candidate in zip(
        verdict.candidates_table().rows, verdict.candidates, strict=True
    ):
        if candidate.gain is None:
            assert row[0] == "LOCAL" and row[2] == "(recommended)"
        else:
            gain, low, high = (
                unit_of("accuracy").signed(100 * value)
                for value in (
                    candidate.gain.estimate,
                    candidate.gain.low,
                    candidate.gain.high,
                )
            )
            assert row[2].text == f"{gain} ({low} to {high})"
    gain = Interval(0.1, 0.05, 0.15, 0.001)
    better = [Candidate(f"m{k}", 0.9 - k / 100, gain) for k in range(9)]
    many = [*better, Candidate("chosen", 0.01, None)]
    table = dataclasses.replace(verdict, candidates=many).candidates_table()
    assert [row[0] for row in table.rows] == [*(f"m{k}" for k in range(7)), "chosen"]
    (warning,) = better_warnings(many, "chosen", seeds=3)
    assert warning.startswith("m0, m1, m2 and 6 more: better than chosen on test rows")
    assert better_warnings(many, "chosen", seeds=2) == []


def test_means_and_gains_of_the_json_have_one_unit(tmp_path):
    verdict = decide(build(tmp_path), "shift").verdict
    found = {it["name"]: it for it in verdict.as_dict()["candidates"]}
    chosen = found.pop("LOCAL")
    assert chosen["gain"] is None and found
    for candidate in found.values():
        gain, _, _ = candidate["gain"]
        assert candidate["mean"] - chosen["mean"] == pytest.approx(gain)
    for client in verdict.as_dict()["clients"]:
        assert 0 <= client["low"] <= client["expected"] <= client["high"] <= 1
    # The table shows them in the displayed unit.
    shown = {row[0]: row[1] for row in verdict.candidates_table().rows}
    assert shown["LOCAL"].mean == 100 * chosen["mean"]
    assert shown["LOCAL"].text == f"{100 * chosen['mean']:.1f}"


def test_what_is_the_same_for_all_clients_is_said_once(tmp_path):
    verdict = decide(build(tmp_path), "shift").verdict
    same = dataclasses.replace(verdict.clients[0], gain=(0.0, -0.1, 0.1))
    many = [dataclasses.replace(same, client=f"p{k}") for k in range(24)]
    verdict = dataclasses.replace(verdict, clients=many)
    assert verdict.first_screen() is None
    nouns = Nouns("person", "persons")
    assert summary_of(many, "SHARED", nouns, several=False) == (
        "For none of the 24 persons is a difference shown between SHARED and training"
        " alone."
    )
    # Lines that differ are shown, the clear ones first.
    many[7] = dataclasses.replace(same, client="worse", gain=(-0.2, -0.3, -0.1), p=0.0)
    many[8] = dataclasses.replace(
        same, client="better", gain=(0.2, 0.1, 0.3), p=0.0, p_holm=0.2
    )
    table = dataclasses.replace(verdict, clients=many).first_screen()
    assert [row[0] for row in table.rows][:2] == ["worse", "better"]
    assert len(table.rows) == 12 and table.title == "12 of 24 clients (all: --details)"
    assert summary_of(many, "SHARED", nouns, several=False) == (
        "SHARED against training alone, person by person: better for 1, worse for 1, no"
        " difference shown for 22; shown by a person's own rows alone, after correction"
        " for 24 tests: 1 of these 2."
    )
    # The verdict of whoever trains alone is what sharing would do.
    assert worse_warnings(many, "LOCAL", nouns) == []
    used = [dataclasses.replace(it, method="SHARED") for it in many]
    assert worse_warnings(used, "LOCAL", nouns)[0].startswith(
        "worse on test rows than training alone: person worse; the choice is made on"
    )


def test_methods_with_the_same_scores_are_not_given_an_interval(tmp_path):
    tests = test_values.Tests(build(tmp_path).runs["shift"], {}, Splits(0.2, folds=5))
    tests.values = dict.fromkeys(("LOCAL", "SHARED"), np.ones((5, 24)))
    assert sharing_sentences(tests, "SHARED", "LOCAL", "LOCAL", Nouns()) == [
        "SHARED against training alone: no score differs, so these test rows cannot tell"
        " them apart."
    ]
    tests.methods = list(tests.values)
    both = candidates_of(tests, "LOCAL")
    verdict = decide(build(tmp_path / "other"), "shift").verdict
    table = dataclasses.replace(verdict, candidates=both).candidates_table()
    assert str(table.rows[1][2]) == "the same scores"
    same = dataclasses.replace(verdict.clients[0], gain=(0.0, -0.1, 0.1))
    assert next_of(build(tmp_path / "next"), "shift", [same]) == ""


def test_what_shares_is_also_compared_with_another_method_that_trains_alone(tmp_path):
    """If the simplest that trains alone is recommended, and another one is the best."""
    tests = test_values.Tests(build(tmp_path).runs["shift"], {}, Splits(0.2, folds=5))
    values = np.linspace(0, 1, 120).reshape(5, 24)
    tests.values = {"SHARED": values + 0.1, "LOCAL": values, "TREES": values + 0.2}
    *_, last = sharing_sentences(tests, "SHARED", "LOCAL", "TREES", Nouns())
    assert last.startswith(
        "SHARED against TREES, which trains alone as well: -10.0 points"
    )
    for chosen in ("SHARED", "LOCAL"):
        said = sharing_sentences(tests, "SHARED", "LOCAL", chosen, Nouns())
        assert not any("as well" in sentence for sentence in said)


def test_clients_with_a_method_of_their_own_are_named_in_the_answer(tmp_path):
    experiment = build(tmp_path)
    verdict = decide(experiment, "shift").verdict
    best = max(verdict.clients, key=lambda entry: entry.value).client
    chosen = dataclasses.replace(verdict.recommendation, of_client={best: "SHARED"})
    short = dataclasses.replace(verdict, recommendation=chosen).first_screen(most=1)
    assert [row[0] for row in short.rows] == [best] and short.columns[1] == "use"
    runs = {label: seeds for label, seeds in experiment.runs["shift"].items() if seeds}
    answer = answer_of(chosen, runs, {}, 3, nouns_of("City"))
    assert answer.startswith(
        f"Use LOCAL for 2 of 3 cities, and SHARED for {best} (LOCAL: each city trains"
        " alone, on its own rows; nothing is sent; SHARED: "
    )


@pytest.mark.parametrize(
    ("column", "many"),
    [
        ("hospital", "hospitals"),
        ("School", "schools"),
        ("city", "cities"),
        ("branch", "branches"),
        ("day", "days"),
        ("client_id", "clients"),
        ("siteid", "clients"),
        ("wards", "clients"),
        ("x1", "clients"),
    ],
)
def test_clients_are_called_as_their_column_is(column, many):
    assert nouns_of(column).many == many
    assert nouns_of(column).counted(2) == f"2 {many}"


def test_clients_that_are_worse_off_are_counted(tmp_path):
    """In the tests of decisions SHARED is better for one client and worse for one."""
    verdict = decide(build(tmp_path), "shift").verdict
    assert {entry.method for entry in verdict.clients} == {"LOCAL"}
    hurt = verdict.hurt
    assert hurt.base == "LOCAL" and hurt.clients == 3
    assert (hurt.worse, hurt.shown) == (1, 1)
    assert verdict.as_dict()["hurt"]["worse"] == 1
    assert verdict.summary == (
        f"{verdict.shared} against training alone, client by client: better for 1, worse"
        " for 1, no difference shown for 1."
    )


def test_what_keeps_its_models_is_chosen_as_methods_are(tmp_path, monkeypatch):
    """The first line names the model that is handed over, whoever trained it."""
    best = {client: 1.0 for client in test_decision.CLIENTS_OF}
    monkeypatch.setitem(test_decision.SHARE, "perfect", best)
    likes = {"trees-alone": "perfect", "trees-pooled": "perfect"}
    decision = decide(with_baselines(tmp_path, likes, keep=True), "shift")
    verdict = decision.verdict
    assert verdict.recommendation.method == "trees-alone"
    assert verdict.answer == (
        "Use trees-alone for all 3 clients: each client boosts trees on its own rows;"
        " nothing is sent."
    )
    assert "trees-alone" in [it.label for it in verdict.candidates]
    assert "no federation" not in " ".join(it.label for it in verdict.candidates)
    # Gains of sharing are over the best that a client does alone.
    assert decision.base == "trees-alone"
    assert verdict.shared in ("LOCAL", "SHARED", "OTHER") and verdict.shared != "LOCAL"
    assert verdict.evidence[1].startswith(
        f"{verdict.shared} against training alone (trees-alone): -"
    )
    # No client is compared with what it uses.
    assert {entry.baseline for entry in verdict.clients} == {""}
    assert not any("gain over" in name for name in verdict.table().columns)
    # Of what needs pooled rows no model is made.
    pooled = with_baselines(tmp_path / "pooled", {"trees-pooled": "perfect"}, keep=True)
    verdict = decide(pooled, "shift").verdict
    assert verdict.answer.startswith("Use LOCAL")
    assert all(entry.baseline == "" for entry in verdict.clients)


def test_the_first_line_names_nothing_that_is_not_handed_over(tmp_path, monkeypatch):
    """Of what keeps no models the decision says nothing, whatever it scores."""
    best = {client: 1.0 for client in test_decision.CLIENTS_OF}
    monkeypatch.setitem(test_decision.SHARE, "perfect", best)
    verdict = decide(
        with_baselines(tmp_path, {"trees-alone": "perfect"}), "shift"
    ).verdict
    assert verdict.answer.startswith("Use LOCAL for")
    assert "trees-alone" not in [it.label for it in verdict.candidates]


def test_every_baseline_without_pooled_rows_is_handed_over():
    for name in baseline_names():
        baseline = find_baseline(name)
        assert baseline.keeps_models != baseline.needs_pooled_data, name
        if baseline.keeps_models:
            assert baseline.about and name in BASELINE_WORDS


def test_a_choice_among_what_runs_over_machines_says_so(tmp_path):
    experiment = build(tmp_path)
    index = dataclasses.replace(experiment.index, deployable=True)
    for it, end in (
        (experiment, "standard error."),
        (StoredExperiment(tmp_path, index), "can be trained over machines."),
    ):
        why = decide(it, "shift").verdict.evidence[0]
        assert why.startswith("Why: ") and why.endswith(end), why


def test_what_would_settle_it_depends_on_the_split(tmp_path):
    experiment = with_baselines(tmp_path, {}, {"path": "a.csv"})
    verdict = decide(experiment, "shift").verdict
    assert verdict.advice.startswith(
        "To tell more: the same command with --seeds 0 1 2"
    )


def test_the_page_begins_with_the_answer_and_a_picture(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "local"}, TABLE)
    decision = decide(experiment, "shift")
    verdict = decision.verdict
    first, evidence, clients, caveats = verdict_sections(verdict, decision.warnings)
    assert first.title == "Decision" and first.paragraphs == [decision.verdict.answer]
    (picture,) = first.pictures
    assert picture.title == "What each hospital gains by SHARED, with 95 % intervals"
    assert picture.markup.count("<circle") == 3
    assert evidence.tables[0].columns[0] == "candidate"
    assert clients.title == "Hospital by hospital" and len(clients.tables[0].rows) == 3
    assert caveats.warnings == [*verdict.warnings, *decision.warnings]
    equal = [dataclasses.replace(it, gain=(0.0, -0.1, 0.1)) for it in verdict.clients]
    (first, *_) = verdict_sections(dataclasses.replace(verdict, clients=equal), [])
    assert not first.pictures


def test_these_clients_and_clients_like_these_are_named_apart(tmp_path):
    """Of eight clients two gain much, and all of them by all splits."""
    tests = test_values.Tests(build(tmp_path).runs["shift"], {}, Splits(0.2, folds=5))
    gains = np.array([0.3, 0.2, *[0.001] * 6])
    base = np.random.default_rng(0).normal(0.7, 0.01, (10, 8))
    noise = np.random.default_rng(1).normal(0, 0.01, (10, 8))
    tests.values = {"LOCAL": base, "SHARED": base + gains + noise}
    tests.methods = list(tests.values)

    def said():
        return " ".join(sharing_sentences(tests, "SHARED", "LOCAL", "SHARED", Nouns()))

    pattern = (
        r"Against training alone: \+6\.\d points \(95 %: \+5\.\d to \+[67]\.\d\), better\. For"
        r" other clients like these: no difference shown \(95 %: -\d\.\d to \+1\d\.\d\)\."
    )
    assert re.fullmatch(pattern, said()), said()
    tests.splits = None
    assert said().startswith("Against training alone: +6.")
    assert said().endswith("), no difference shown (for clients like these).")


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
    assert ", not 7" not in text and not re.search(r"\d against \d", text)


def test_the_method_to_use_is_told_from_the_one_with_the_best_test_mean(tmp_path):
    decision = decide(build(tmp_path), "shift")
    winner = dataclasses.replace(decision.winner, leader="OTHER")
    text = " ".join(dataclasses.replace(decision, winner=winner).conclusions)
    assert "the method to use is LOCAL all the same: it is chosen on validation" in text
    assert "all the same" not in " ".join(decision.conclusions)
    # Training alone is recommended, and sharing is spoken of by one method everywhere.
    shared = decision.verdict.shared
    assert shared == decision.verdict.hurt.method != "LOCAL"
    assert decision.verdict.evidence[1].startswith(f"{shared} against training alone:")


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
        "not trained, so not compared: trees, alone, trees, pooled: trees take too long"
    )


def test_methods_that_were_not_trained_are_named_with_the_first_reason(tmp_path):
    build(tmp_path)
    path = tmp_path / NAME / COMPARISON_INDEX
    content = json.loads(path.read_text())
    content["skipped"] = [
        {
            "scenario": scenario,
            "algorithm": title,
            "seed": seed,
            "parameters": {},
            "why": why,
            "runs": 1,
        }
        for scenario, title, seed, why in (
            ("shift", "DAPPER", 0, "it needs groups"),
            ("shift", "DAPPER", 1, "it needs groups of 2"),
            ("shift", "UCFL", None, "it needs groups"),
            ("other", "Ditto", None, "no rows"),
        )
    ]
    content["algorithms"] += ["DAPPER", "UCFL"]
    said = "not trained, so not compared: DAPPER, UCFL: it needs groups"
    path.write_text(json.dumps(with_digest(content)))
    content["runs"] = StoredExperiment.read(tmp_path, NAME).done
    path.write_text(json.dumps(with_digest(content)))
    verdict = decide(StoredExperiment.read(tmp_path, NAME), "shift").verdict
    assert said in verdict.warnings


def test_until_all_runs_are_done_nothing_is_recommended(tmp_path):
    """The means of methods over other seeds would be compared."""
    done = build(tmp_path).done
    path = tmp_path / NAME / COMPARISON_INDEX
    content = json.loads(path.read_text())
    for missing in (0, 1):
        content["runs"] = done + missing
        path.write_text(json.dumps(with_digest(content)))
        decision = decide(StoredExperiment.read(tmp_path, NAME), "shift")
        assert (decision.verdict is None) == (missing > 0)
        said = (
            f"unfinished: {done} of {done + 1} runs; what to use is said when all are"
        )
        assert decision.warnings[0].startswith(said) == (missing > 0)


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
    assert table.below[0][2] == "one row"
    other = dataclasses.replace(entry, client="other", value=0.25)
    short = dataclasses.replace(changed, clients=[entry, other]).first_screen()
    assert str(short.rows[0][3]) == "+10.0 (too few rows)"
    assert str(table.rows[0][3]) == "+10.0 (too few rows)"


def test_everything_that_can_be_handed_over_has_words():
    kept = {name for name in baseline_names() if find_baseline(name).keeps_models}
    assert kept == set(BASELINE_WORDS)


@pytest.mark.parametrize(
    "method", [*WORDS, *BASELINE_WORDS, "fedprox", "scaffold", "ifca", "nobody's"]
)
def test_every_method_has_words(method):
    assert 0 < len(use_of(method)) < 25
    assert sentence_of(method) and not sentence_of(method).endswith(".")


def test_no_file_that_results_name_is_run(tmp_path):
    """Before, `report` ran a Python file that a manifest named as the method."""
    file, mark = tmp_path / "notes_of_results.py", tmp_path / "has run"
    file.write_text(f"open({str(mark)!r}, 'w').close()")
    method = f"{file}:Blend"
    assert use_of(method) == method
    assert sentence_of(method) == "a method of your own"
    with pytest.raises(ValueError, match="there is no algorithm"):
        find_algorithm(method)
    assert not mark.exists()
