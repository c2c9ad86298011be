"""The decision at the end of a comparison, from run directories written by hand."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedtailor._base.digests import with_digest
from fedtailor.aggregation.accounting import Ledger
from fedtailor.cli import main
from fedtailor.engine.storage.comparison_index import MethodRun
from fedtailor.engine.storage.run_files import (
    BASELINE,
    CLIENTS,
    LEDGER,
    METRICS,
    ROWS,
    SUMMARY,
)
from fedtailor.lab.report.comparison import BASELINE_ROW, other_metrics_table, tables
from fedtailor.lab.report.document import as_dict, markdown
from fedtailor.lab.report.overview import paragraphs
from fedtailor.lab.report.page.contents import client_table
from fedtailor.lab.results.decision import decide, is_worse_at_the_end
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.units import unit_of
from lab.report.results import NAME, write_index, write_manifest

CLIENTS_OF = {"gains": 60, "loses": 60, "same": 60}
SEEDS = (0, 1)
SHARE = {  # of test rows that are right
    "local": {"gains": 0.5, "loses": 0.9, "same": 0.7},
    "shared": {"gains": 0.95, "loses": 0.4, "same": 0.7},
    "other": {"gains": 0.6, "loses": 0.8, "same": 0.7},
    "early": {"gains": 0.5, "loses": 0.5, "same": 0.5},
}


def outcomes(method, client, seed):
    """Of each test row whether it is right: the shares above, of rows that differ from
    seed to seed.
    """
    rng = np.random.default_rng([seed, list(CLIENTS_OF).index(client)])
    return (
        rng.permutation(CLIENTS_OF[client]) < SHARE[method][client] * CLIENTS_OF[client]
    )


def make_run(
    path,
    method,
    seed,
    *,
    rows=True,
    metric="accuracy",
    splits=("val", "test"),
    rows_of_seeds_differ=False,
):
    """The files of a finished run that a decision reads."""
    first_row = 60 * seed if rows_of_seeds_differ else 0
    path.mkdir(parents=True)
    names = list(CLIENTS_OF)
    right = {name: outcomes(method, name, seed) for name in names}
    curve = [(round, 2.0 - round / 20) for round in range(17)]  # falls to the end
    lines = [
        (round, name, False, "val", "loss", loss)
        for round, loss in curve
        for name in names
    ]
    for split in splits:
        lines += [
            (3, name, False, split, metric, float(right[name].mean())) for name in names
        ]
    schema = ["round", "client", "unseen", "split", "metric", "value"]
    pl.DataFrame(lines, schema=schema, orient="row").write_parquet(path / METRICS)
    sizes = {"train": [40] * 3, "val": [60] * 3, "test": [60] * 3}
    pl.DataFrame(
        {"client": names, "group": [None] * 3, "unseen": [False] * 3, **sizes}
    ).write_parquet(path / CLIENTS)
    if rows:
        parts = [
            pl.DataFrame(
                {
                    "client": [name] * 60,
                    "row": first_row + np.arange(60),
                    "loss": np.where(right[name], 0.1, 2.0),
                    "correct": right[name],
                }
            )
            for name in names
        ]
        pl.concat(parts).write_parquet(path / ROWS)
        nothing = [(0, name, False, "test", metric, 0.25) for name in names]
        pl.DataFrame(nothing, schema=schema, orient="row").write_parquet(
            path / BASELINE
        )
    Ledger().frame().write_parquet(path / LEDGER)
    write_manifest(path, method, seed)
    (path / SUMMARY).write_text(
        json.dumps(
            with_digest(
                {
                    "metric": metric,
                    "warnings": ["rows repeat"],
                    "seconds_per_round": 0.1,
                }
            )
        )
    )


def build(results, methods=("local", "shared", "other"), **options):
    """An experiment of one scenario; methods' rows are called as they are, in
    capitals.
    """
    cells = []
    for method in methods:
        for seed in SEEDS:
            make_run(results / f"runs/{method}-{seed}", method, seed, **options)
            cells.append(
                MethodRun("shift", method.upper(), seed, f"runs/{method}-{seed}")
            )
    candidates = [
        {
            "scenario": "shift",
            "algorithm": "LOCAL",
            "parameters": {"lr": lr},
            "seed": 0,
            "run": "",
            "val": lr,
            "chosen": lr == 0.1,
        }
        | {"algorithm": method}
        for method in ("LOCAL", "OTHER")
        for lr in (0.01, 0.1)
    ]
    write_index(
        results,
        cells,
        algorithms=[method.upper() for method in methods],
        published={},
        sweeps={},
        metrics=["mean", "worst"],
        candidates=candidates,
        seeds=list(SEEDS),
        runs=len(cells) + sum(not candidate["chosen"] for candidate in candidates),
    )
    return StoredExperiment.read(results, NAME)


def test_clients_that_gain_and_clients_that_lose_are_told_apart(tmp_path):
    decision = decide(build(tmp_path), "shift")
    verdict = {
        (client, method): word
        for client, method, word in decision.gains.select(
            "client", "method", "verdict"
        ).iter_rows()
    }
    assert (verdict["gains", "SHARED"], verdict["loses", "SHARED"]) == (
        "helps",
        "hurts",
    )
    assert verdict["same", "SHARED"] == verdict["same", "OTHER"] == "cannot tell"
    gain = decision.gains.filter(
        (pl.col("client") == "gains") & (pl.col("method") == "SHARED")
    )
    assert gain["gain"].item() == pytest.approx(0.45) and gain["low"].item() > 0.2
    text = " ".join(decision.conclusions)
    assert "No difference that these data can show, over 3 clients and 2 seeds" in text
    assert (
        "On average no difference is shown between sharing and training alone, for"
        " clients like these (tested over all methods at once" in text
    )  # of three clients
    assert (
        "SHARED against training alone: better for 1 of 3 clients (1 after correction),"
        " worse for 1 (1 after correction), no difference shown for 1; mean gain in"
        in text
    )
    assert "in brackets after Holm's correction for all 6 lines" in text
    expected = decision.gains.sort("gain")["expected"]
    assert expected.is_sorted() and expected.max() < gain["gain"].item()
    assert "accuracy, %: -1.7 (95 % interval " in text  # (0.45 - 0.5 + 0) / 3
    # choosing per client: 0.95, 0.9, 0.7 against 0.7 on average of the best single one
    assert decision.choice.value == pytest.approx(
        0.85
    ) and decision.choice.single_value == pytest.approx(0.7)


def test_a_client_has_as_many_test_rows_in_every_table(tmp_path):
    experiment = build(tmp_path, rows_of_seeds_differ=True)
    decision = decide(experiment, "shift")
    clients = client_table("shift", experiment.runs["shift"], decision)
    place = clients.columns.index("test\nrows")
    assert {row[0]: row[place].text for row in clients.rows} == dict.fromkeys(
        CLIENTS_OF, "60"
    )
    assert {row[0]: row[2].text for row in decision.table.rows} == dict.fromkeys(
        CLIENTS_OF, "60"
    )
    assert set(decision.gains["test_rows"]) == {120}  # of both seeds


def test_r2_of_what_learns_nothing_is_not_that_of_a_method(tmp_path):
    experiment = build(tmp_path, ("local",))
    for run in experiment.runs["shift"]["LOCAL"]:
        target = np.arange(180.0)
        columns = {"target": target, "squared_error": np.ones(180)}
        run.rows.with_columns(**columns).write_parquet(run.path / ROWS)
    table = other_metrics_table(StoredExperiment.read(tmp_path, NAME), "shift")
    assert table.columns[-1] == "R2 of\nall rows"
    local, nothing = table.rows
    assert local[-1].mean == pytest.approx(1 - 180 / (180 * (180**2 - 1) / 12))
    assert nothing[0] == BASELINE_ROW and nothing[-1] == "-"


def test_warnings_say_what_to_know(tmp_path):
    warnings = decide(build(tmp_path), "shift").warnings
    assert warnings[0] == "rows repeat"
    assert any("still falling: LOCAL, SHARED, OTHER" in warning for warning in warnings)
    assert [warning for warning in warnings if "value tried" in warning] == [
        # one line for both
        "LOCAL, OTHER: lr=0.1 is the largest value tried; try larger ones"
    ]


def test_what_has_no_room_to_be_better_gets_no_warning(tmp_path, monkeypatch):
    """Settings that score as well as those at the edge, and methods without a mistake."""
    experiment = build(tmp_path)
    tied = [replace(one, val=0.5) for one in experiment.index.candidates]
    warnings = decide(index_of(experiment, candidates=tied), "shift").warnings
    assert not any("value tried" in warning for warning in warnings)
    assert any("still falling: LOCAL" in warning for warning in warnings)
    monkeypatch.setitem(SHARE, "other", dict.fromkeys(CLIENTS_OF, 1.0))
    warnings = decide(build(tmp_path / "perfect"), "shift").warnings
    assert any("still falling: LOCAL, SHARED;" in warning for warning in warnings)
    assert not any("no validation data" in warning for warning in warnings)
    assert "LOCAL: lr=0.1 is the largest value tried; try larger ones" in warnings


def test_settings_that_a_method_refuses_did_not_diverge(tmp_path):
    experiment = build(tmp_path)
    common = {"scenario": "shift", "algorithm": "OTHER"}
    candidates = [
        common
        | {"parameters": {"lr": lr}, "seed": 0, "run": "", "val": val, "chosen": False}
        for lr, val in ((0.1, 0.5), (7.0, None), (9.0, None))
    ]
    refused = {"parameters": {"lr": 9.0}, "seed": None, "why": "too large", "runs": 0}
    write_index(
        tmp_path,
        experiment.index.method_runs,
        algorithms=["LOCAL", "SHARED", "OTHER"],
        published={},
        sweeps={},
        candidates=candidates,
        skipped=[common | refused],
        seeds=list(SEEDS),
    )
    (row,) = tables(StoredExperiment.read(tmp_path, NAME))["chosen"].rows
    assert "lr 7.0: diverged" in str(row[3]) and "lr 9.0: refused" in str(row[3])


def test_without_training_alone_there_is_one_line_instead(tmp_path):
    decision = decide(build(tmp_path, ("shared", "other")), "shift")
    assert decision.gains is None and decision.table is None
    assert (
        decision.conclusions[-1]
        == "Gains over training alone need finished runs of the method local; add it to the"
        " comparison, or lower its rate if they diverged."
    )


def test_methods_that_halving_left_out_are_tested_as_all_were_then(tmp_path):
    build(tmp_path, ("local", "shared"))
    # test accuracy after rounds 1, 2 and 3; runs of methods that were left out have
    # gone on since
    after = {
        "local": (0.5, 0.5, 0.5),
        "shared": (0.55, 0.6, 0.9),
        "other": (0.3, 0.4, 0.99),
        "early": (0.2, 0.99, 0.99),
    }
    for method in ("other", "early"):
        make_run(tmp_path / f"runs/{method}-0", method, 0)
    noise = np.random.default_rng(0).normal(0, 0.001, (len(after), 3))
    for path in tmp_path.glob("runs/*"):
        method = path.name.partition("-")[0]
        luck = dict(zip(CLIENTS_OF, noise[list(after).index(method)], strict=True))
        lines = [
            (rounds, name, False, "test", "accuracy", value + luck[name])
            for rounds, value in enumerate(after[method], 1)
            for name in CLIENTS_OF
        ]
        frame = pl.read_parquet(path / METRICS).filter(pl.col("split") == "val")
        pl.concat(
            [frame, pl.DataFrame(lines, schema=frame.schema, orient="row")]
        ).write_parquet(path / METRICS)
    cells = [
        MethodRun("shift", name.upper(), seed, f"runs/{name}-{seed}")
        for name in ("local", "shared")
        for seed in SEEDS
    ]
    candidates = [
        {
            "scenario": "shift",
            "algorithm": name.upper(),
            "parameters": {},
            "seed": 0,
            "run": f"runs/{name}-0",
            "val": val,
            "chosen": rounds == 3,
            "rounds": rounds,
        }
        for name, rounds, val in (
            ("local", 3, 0.5),
            ("shared", 3, 0.6),
            ("other", 2, 0.4),
            ("early", 1, 0.2),
            ("wild", 1, None),
        )
    ]
    first = {
        "parameters": {"lr": 1},
        "run": "runs/early-0",
        "rounds": 1,
        "val": 0.9,
    }  # left out before the other setting
    candidates.insert(0, candidates[2] | first)
    write_index(
        tmp_path,
        cells,
        algorithms=[name.upper() for name in (*after, "wild")],
        published={},
        sweeps={},
        candidates=candidates,
        seeds=list(SEEDS),
        budget={"rounds": 1, "full": 3},
    )
    decision = decide(StoredExperiment.read(tmp_path, NAME), "shift")
    # Two seeds are too few for a winner.
    assert decision.winner.winner is None and decision.winner.unbeaten == ("SHARED",)
    assert decision.left_out == {"EARLY": 1, "OTHER": 2}
    gains = {
        (one, other): gain
        for one, other, gain in decision.winner.pairs.select(
            "method", "other", "difference"
        ).iter_rows()
    }
    assert gains == {
        ("SHARED", "LOCAL"): pytest.approx(0.4, abs=0.003),
        ("SHARED", "OTHER"): pytest.approx(0.2, abs=0.003),
        ("SHARED", "EARLY"): pytest.approx(0.35, abs=0.003),
        ("LOCAL", "OTHER"): pytest.approx(0.1, abs=0.003),
        ("LOCAL", "EARLY"): pytest.approx(0.3, abs=0.003),
        ("OTHER", "EARLY"): pytest.approx(0.1, abs=0.003),
    }
    assert (
        "Open, over 3 clients and 2 seeds, too few to speak of other seeds: SHARED is"
        " better than every other method there" in decision.conclusions[0]
    )
    assert decision.conclusions[1].startswith(
        "Better than training alone on average: SHARED, for clients like these ("
    )
    assert decision.conclusions[2].endswith(
        "OTHER after 2 and EARLY after 1 of 3 rounds."
    )
    (
        tmp_path / "runs/other-0" / SUMMARY
    ).unlink()  # as while it goes on for the full comparison
    decision = decide(StoredExperiment.read(tmp_path, NAME), "shift")
    assert decision.winner.winner is None and decision.winner.leader == "SHARED"
    assert (
        decision.conclusions[2].endswith("EARLY after 1 of 3 rounds.")
        and "OTHER" not in decision.conclusions[2]
    )
    assert decision.conclusions[3].startswith(
        "Nothing is said of OTHER: left out by validation data"
    )


def test_runs_that_kept_no_rows_say_so(tmp_path):
    experiment = build(tmp_path, rows=False)
    assert "did not keep" in decide(experiment, "shift").conclusions[-1]
    assert not experiment.baselines["shift"]
    assert all(row[0] != BASELINE_ROW for row in tables(experiment)["mean"].rows)


def test_without_any_test_rows_every_form_of_a_report_says_so(tmp_path, capsys):
    experiment = build(tmp_path, rows=False, splits=("val",))
    write_index(
        tmp_path,
        experiment.index.method_runs,
        algorithms=["LOCAL", "SHARED", "OTHER"],
        seeds=list(SEEDS),
        published={},
        sweeps={"LOCAL": {"parameter": "lr", "rows": {"1": "LOCAL"}}},
    )
    experiment = StoredExperiment.read(tmp_path, NAME)  # every measure, every figure
    decision = decide(experiment, "shift")
    assert (decision.winner, decision.choice, decision.gains) == (None, None, None)
    (sentence,) = decision.conclusions
    assert sentence.startswith("There are no test data to measure accuracy on")
    assert (
        "rows repeat" in decision.warnings
    )  # what is known from validation data is still said
    for name, table in tables(experiment).items():
        if name not in ("chosen", "shift-costs", "permuted-costs"):
            assert {str(cell) for row in table.rows for cell in row[1:]} <= {"-"}, name
    results, out, page = str(tmp_path), tmp_path / "out", tmp_path / "page.html"
    for form in ("terminal", "markdown", "csv", "latex", "json"):
        assert main(["report", results, "--format", form]) == 0
        printed = capsys.readouterr().out
        assert (sentence in printed) == (
            form in ("terminal", "markdown", "json")
        ) and "nan" not in printed.lower()
    assert main(["report", results, "--out", str(out)]) == 0
    assert (
        "accuracy-by-round is left out: it needs a finished run with test rows"
        in (out / NAME / "report.md").read_text()
    )
    assert main(["report", results, "--html", str(page)]) == 0
    assert sentence in page.read_text()


def test_gains_by_a_metric_that_rows_do_not_give_are_in_accuracy(tmp_path):
    decision = decide(build(tmp_path, metric="roc_auc"), "shift")
    assert (decision.metric, decision.gain_metric) == ("roc_auc", "accuracy")
    assert "By test ROC AUC, %: " in decision.conclusions[0]
    assert any(
        "clients are counted by their accuracy" in sentence
        for sentence in decision.conclusions
    )


def test_gains_in_areas_follow_from_rows_of_two_classes(tmp_path):
    build(tmp_path, metric="roc_auc")
    for path in tmp_path.glob(f"runs/*/{ROWS}"):
        rows = pl.read_parquet(path)
        label = pl.col("row") % 2
        predicted = pl.when(pl.col("correct")).then(label).otherwise(1 - label)
        odds = 0.6 + 0.01 * (pl.col("row") % 7)
        rows.with_columns(prediction=predicted, log_odds=odds).write_parquet(path)
    decision = decide(StoredExperiment.read(tmp_path, NAME), "shift")
    assert decision.gain_metric == "roc_auc"
    assert not any("do not follow" in text for text in decision.conclusions)
    gains = decision.gains.filter(pl.col("method") == "SHARED")
    verdicts = dict(gains.select("client", "verdict").iter_rows())
    assert verdicts == {"gains": "helps", "loses": "hurts", "same": "cannot tell"}


def test_unseen_clients_that_nobody_named_are_a_line_and_no_table(tmp_path):
    """It was a table of dashes."""
    experiment = build(tmp_path)
    write_index(
        tmp_path,
        experiment.index.method_runs,
        algorithms=experiment.index.algorithms,
        published={},
        sweeps={},
        metrics=["mean", "unseen"],
    )
    experiment = StoredExperiment.read(tmp_path, NAME)
    assert "unseen" not in tables(experiment)
    (said,) = [text for text in paragraphs(experiment) if "unseen clients is" in text]
    assert "unseen = 0.2" in said


def test_the_mean_of_the_leader_is_said_to_be_too_good(tmp_path):
    experiment = build(tmp_path, ("local", "shared", "other", "early"))
    decision = decide(experiment, "shift")
    winner = decision.winner
    means = list(winner.means.values())
    assert means[-1] < winner.expected < means[0]
    (sentence,) = [text for text in decision.conclusions if "too good by" in text]
    assert sentence == (
        "The best of 4 means is too good by being chosen on these test rows: expect"
        f" about {100 * winner.expected:.1f} of {winner.leader} on others."
    )


def test_every_table_has_the_row_of_what_learns_nothing(tmp_path):
    found = tables(build(tmp_path))
    for name in ("mean", "worst", "shift-clients"):
        assert [row[0] for row in found[name].rows] == [
            "LOCAL",
            "SHARED",
            "OTHER",
            BASELINE_ROW,
        ]
        assert found[name].rows[-1][1].mean == pytest.approx(25)


def test_all_forms_of_a_report_hold_the_decision(tmp_path, capsys, monkeypatch):
    experiment = build(tmp_path)
    decision = decide(experiment, "shift")
    found = as_dict(experiment, tables(experiment), [decision])["decision"]["shift"]
    assert (
        json.loads(json.dumps(found, allow_nan=False))["gains"][0]["client"] == "gains"
    )
    assert found["winner"] is None and len(found["pairs"]) == 3
    text = markdown(experiment, tables(experiment), [decision])
    assert (
        "## Decision: shift" in text
        and "| gains | SHARED | 60 | 50.0 | 95.0 | +45.0 |" in text
    )
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (
        printed.index("Decision: shift")
        > printed.index("gain of each client")
        > printed.index("mean over clients")
    )
    assert (
        main(["report", str(tmp_path), "--out", str(tmp_path / "out"), "--no-figures"])
        == 0
    )
    assert (
        len(
            (tmp_path / "out" / NAME / "tables" / "shift-gains.csv")
            .read_text()
            .splitlines()
        )
        == 7
    )
    monkeypatch.setattr("fedtailor.lab.report.document.MAX_TABLE_ROWS", 5)
    assert "| gains | SHARED |" not in markdown(
        experiment, tables(experiment), [decision]
    )


def test_a_curve_is_the_same_to_the_bit_whenever_it_is_asked_for(tmp_path):
    """Else a run would not always reach its own best, and tables of times would change
    from call to call.
    """
    rng, clients, rounds = np.random.default_rng(0), 48, 51
    run = build(tmp_path, ("local",)).runs["shift"]["LOCAL"][0]
    lines = {
        "round": np.repeat(np.arange(rounds), clients),
        "client": [f"c{n}" for n in range(clients)] * rounds,
    }
    vars(run)["metrics"] = pl.DataFrame(lines).with_columns(
        value=rng.random(rounds * clients),
        unseen=False,
        split=pl.lit("test"),
        metric=pl.lit("accuracy"),
    )
    curves = [run.curve() for _ in range(20)]
    assert len(curves[0]) == rounds and all(curve == curves[0] for curve in curves)
    values = run.metrics["value"].to_numpy().reshape(rounds, clients)
    np.testing.assert_allclose(
        list(curves[0].values()), values.mean(axis=1), rtol=1e-14
    )


# other metrics, and trainings until they stand still
# --------------------------------------------------------------------------------------


def test_counts_of_clients_and_mean_gains_are_in_metrics_that_are_named(tmp_path):
    # Of an AUC no single client's gain follows from its rows; those counted are by
    # accuracy, and the sentence says so.
    experiment = build(tmp_path, metric="roc_auc")
    decision = decide(experiment, "shift")
    assert decision.gain_metric == "accuracy"
    (sentence,) = [
        text
        for text in decision.conclusions
        if text.startswith("SHARED against training alone")
    ]
    mean, counts = sentence.split("; ")
    assert "mean gain in ROC AUC" in mean
    assert counts.startswith("by accuracy better for 1 of 3 clients")


def index_of(experiment, **changed):
    return replace(experiment, index=replace(experiment.index, **changed))


def test_trainings_that_did_not_stand_still_are_named_by_one_rule(tmp_path):
    experiment = index_of(build(tmp_path), until_converged=True)
    warnings = decide(experiment, "shift").warnings
    assert any(
        "training had not converged after" in warning
        and "rounds: LOCAL, SHARED, OTHER; use more (--rounds)" in warning
        for warning in warnings
    )
    assert not any("still falling" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("ends", "is_worse"),
    [
        ((0.8, 0.81, 0.79), True),
        ((0.9, 0.9, 0.9), False),
        ((0.95, 0.92, 0.85), False),
        ((0.8,), True),
    ],
)
def test_a_loss_that_rises_is_overfitting_where_the_metric_falls(ends, is_worse):
    """All reach .9 where the loss is lowest."""
    seeds = []
    for end in ends:
        curves = {
            "loss": {1: 0.5, 2: 0.3, 3: 0.9},
            "accuracy": {1: 0.1, 2: 0.9, 3: end},
        }
        seeds.append(
            SimpleNamespace(
                unit=unit_of("accuracy"),
                metric="accuracy",
                curve=lambda split, name, curves=curves: curves[name],
            )
        )
    assert is_worse_at_the_end(seeds) == is_worse


def test_the_rounds_that_were_trained_are_shown(tmp_path):
    experiment = build(tmp_path)
    assert "rounds" not in tables(experiment)["shift-clients"].columns
    for run, rounds in zip(
        ("local-0", "local-1", "shared-0", "shared-1", "other-0", "other-1"),
        (65, 120, 70, 70, 80, 85),
        strict=True,
    ):
        path = tmp_path / "runs" / run / SUMMARY
        summary = json.loads(path.read_text()) | {"rounds": rounds}
        path.write_text(json.dumps(with_digest(summary)))
    again = StoredExperiment.read(tmp_path, NAME)
    table = tables(index_of(again, until_converged=True))["shift-clients"]
    assert table.columns[-1] == "rounds"
    assert [str(row[-1]) for row in table.rows[:3]] == ["65 to 120", "70", "80 to 85"]
