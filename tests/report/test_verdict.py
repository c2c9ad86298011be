"""The end of a comparison: what each client should use, from runs written by hand."""

import dataclasses
import json
import math

import pytest

from fedtailor.report.comparison import (
    client_spread_table,
    tables,
    trained_baselines_table,
)
from fedtailor.report.decision import decide
from fedtailor.report.document import as_dict
from fedtailor.report.experiment import COMPARISON_INDEX, StoredExperiment
from fedtailor.report.page.contents import verdict_sections
from fedtailor.report.words import SENTENCES, USES, sentence_of, use_of
from fedtailor.storage.digests import with_digest
from report.results import NAME
from report.test_decision import SEEDS, build, make_run

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
        assert entry.baseline == "trees-alone title"
        gain, low, high = entry.over_baseline
        assert low <= gain <= high
        if entry.method == "LOCAL":
            assert entry.gain is None and abs(gain) < 1e-9
    assert len(verdict.table().rows) == 3
    (short,) = verdict.table(most=1).rows
    worst = min(verdict.clients, key=lambda entry: entry.value)
    assert short[0] == worst.client
    assert "--details, or the page" in verdict.table(most=1).note


def test_the_table_has_the_gain_over_the_best_baseline(tmp_path):
    experiment = with_baselines(tmp_path, {"trees-alone": "other"})
    verdict = decide(experiment, "shift").verdict
    wide, narrow = verdict.table(), verdict.table(narrow=True)
    assert wide.columns[-1] == "over the best\nbaseline (95 %)"
    for entry, full, short in zip(verdict.clients, wide.rows, narrow.rows, strict=True):
        gain, low, high = (100 * value for value in entry.over_baseline)
        assert short[-1].text == f"{gain:+.1f} trees-alone title"
        expected = f"{gain:+.1f} ({low:+.1f}, {high:.1f}) trees-alone title"
        assert full[-1].text == expected
    assert any(entry.over_baseline[0] != 0 for entry in verdict.clients)


def test_clients_that_are_worse_off_are_counted_beside_the_mean(tmp_path):
    """In the tests of decisions SHARED is better for one client and worse for one."""
    verdict = decide(build(tmp_path), "shift").verdict
    assert {entry.method for entry in verdict.clients} == {"LOCAL"}
    hurt = verdict.hurt
    assert hurt.base == "LOCAL" and hurt.clients == 3
    assert (hurt.worse, hurt.shown) == (1, 1)
    said = f"Worse off: {hurt.method} is worse than LOCAL for 1 of 3 clients (shown"
    assert verdict.footnotes[0].startswith(said)
    assert verdict.as_dict()["hurt"]["worse"] == 1


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
    assert use.startswith("Use LOCAL: on validation data none is better by more than")
    assert f"LOCAL: {SENTENCES['local']}." in verdict.methods
    # Two seeds tell nothing of other seeds.
    assert any("2 splits cannot tell whether" in line for line in verdict.headline)
    assert all(entry.baseline == "" for entry in verdict.clients)


def test_a_baseline_that_is_ahead_is_in_the_first_line(tmp_path, monkeypatch):
    """A baseline that is right wherever any method is not."""
    from report import test_decision

    best = {client: 1.0 for client in test_decision.CLIENTS_OF}
    monkeypatch.setitem(test_decision.SHARE, "perfect", best)
    experiment = with_baselines(tmp_path, {"trees-alone": "perfect"})
    verdict = decide(experiment, "shift").verdict
    assert verdict.headline[0].startswith("Ahead of everything federated here, though")
    assert "trees-alone title, 100.0 against" in verdict.headline[0]
    pooled = with_baselines(tmp_path / "pooled", {"trees-pooled": "perfect"})
    verdict = decide(pooled, "shift").verdict
    assert "Ahead" not in verdict.headline[0], "it needs pooled data"
    assert all(entry.baseline == "" for entry in verdict.clients)


def test_what_would_settle_it_depends_on_the_split(tmp_path):
    cases = {
        "three": ({"path": "a.csv"}, "three seeds"),
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
    assert first.paragraphs[0].startswith("a.csv, 3 clients") and not first.warnings
    assert second.warnings == decision.warnings


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
    cells = [str(cell) for cell in changed.table().rows[0]]
    assert cells[2].endswith("(one row)") and cells[3] == "too few rows"


@pytest.mark.parametrize("method", [*USES, "fedprox", "scaffold", "ifca", "nobody's"])
def test_every_method_has_words(method):
    assert 0 < len(use_of(method)) < 25
    assert sentence_of(method) and not sentence_of(method).endswith(".")
