"""Successive halving: what is cut when, and that candidates which go on are not trained
again.
"""

import json

import polars as pl
import pytest

from fedtailor.engine.executors import Settings
from fedtailor.engine.storage import Damaged, Interrupted
from fedtailor.engine.storage.run_files import METRICS
from fedtailor.lab.experiments import halving
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.report.comparison import tables
from fedtailor.lab.report.document import markdown
from fedtailor.lab.results.decision import decide
from fedtailor.lab.results.experiment import StoredExperiment

FILE = """title = "Halved"
seeds = [0, 1]
rounds = 8
evaluate_every = 1
scenarios.turned = {use = "digits-rotated", clients = 4, val = 0.25}
sgd = {epochs = 1, batch_size = 32}
algorithms.Alone = {use = "local", grid = {sgd.lr = [1e-6, 0.1]}}
algorithms.FedAvg = {use = "fedavg", grid = {sgd.lr = [1e-6, 0.1, 1e30]}}
algorithms.Tuned = {use = "finetune", sgd.lr = 1e-6, tune.lr = 1e-6}
algorithms.Still = {use = "fedavg", sgd.lr = 1e-7}
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "halved.toml"
    path.write_text(FILE)
    return load_experiment(path)


@pytest.fixture(scope="module")
def halved(experiment, tmp_path_factory):
    results = tmp_path_factory.mktemp("halved")
    return results, json.loads(
        Comparison(experiment, results, Settings(), budget=True).run().read_text()
    )


def test_cuts_fall_on_evaluations_and_numbers_on_equal_ratios():
    assert halving.cut_rounds(50, 2) == [4, 18] and halving.cut_rounds(8, 1) == [1, 3]
    assert halving.cut_rounds(50, 20) == [20] and halving.cut_rounds(1, 1) == []
    assert halving.methods_after_cuts(6, 2) == [6, 2] and halving.methods_after_cuts(
        32, 3
    ) == [32, 8, 2]
    assert (
        halving.methods_after_cuts(1, 2) == [1, 1]
        and halving.methods_after_cuts(6, 1) == [2]
        and halving.methods_after_cuts(6, 0) == []
    )
    # the default comparison of a table takes a third of the rounds, with any number of
    # seeds
    after, left = halving.cut_rounds(50, 2), [12, *halving.methods_after_cuts(6, 2)]
    trained = sum(
        count * (to - since)
        for count, since, to in zip(left, [0, *after], [*after, 50], strict=True)
    )
    for seeds in (1, 3, 5):
        assert (
            trained + halving.FINALISTS * (seeds - 1) * 50
            <= (12 + 6 * (seeds - 1)) * 50 / 3
        )


def test_the_best_setting_of_each_goes_on_and_with_them_training_alone():
    rows, alone = [0, 0, 1, 1, 2], [True, True, False, False, False]
    assert halving.select([0.1, 0.2, 0.9, 0.8, 0.7], rows, alone, 3) == [1, 2, 4]
    assert halving.select([0.1, 0.2, 0.9, 0.8, 0.7], rows, alone, 2) == [1, 2]
    assert halving.select([0.1, 0.2, 0.9, 0.8, 0.7], rows, [False] * 5, 2) == [2, 4]
    assert halving.select([None, None, 0.9, None, 0.7], rows, alone, 3) == [
        2,
        4,
    ]  # alone diverged
    assert halving.select([0.5, 0.5, 0.5, 0.5, 0.5], rows, alone, 2) == [
        0,
        2,
    ]  # of equal ones the first


def test_two_methods_are_trained_to_the_end_and_the_index_says_what_became_of_the_others(
    halved,
):
    results, index = halved
    reached = {
        (it["algorithm"], it["parameters"].get("sgd.lr")): it["rounds"]
        for it in index["candidates"]
    }
    # seven candidates; a setting of each of four methods is left after round 1, and two
    # of them after round 3
    assert (
        reached["FedAvg", 0.1] == reached["Alone", 0.1] == 8
        and reached["Tuned", None] == 3
    )
    assert reached["FedAvg", 1e30] == 1 and sorted(reached.values()) == [
        1,
        1,
        1,
        3,
        3,
        8,
        8,
    ]
    assert {
        (it["algorithm"], it["parameters"].get("sgd.lr"))
        for it in index["candidates"]
        if it["chosen"]
    } == {
        ("FedAvg", 0.1),
        ("Alone", 0.1),
    }
    for candidate in index["candidates"]:
        if candidate["val"] is not None:
            frame = pl.read_parquet(results / candidate["run"] / METRICS)
            assert frame["round"].max() == candidate["rounds"]
    assert [(cell["algorithm"], cell["seed"]) for cell in index["cells"]] == [
        ("Alone", 0),
        ("FedAvg", 0),
        ("Alone", 1),
        ("FedAvg", 1),
    ]
    why = {it["algorithm"]: it["why"] for it in index["skipped"]}
    assert set(why) == {"Tuned", "Still"} and all(
        it["runs"] == 1 for it in index["skipped"]
    )
    assert all(
        "left out after 3 of 8 rounds by its validation data" in reason
        for reason in why.values()
    )
    # on the first seed 7 for a round, 4 for another two, 2 for the rest; on the second
    # 2 for all
    assert index["budget"] == {
        "rounds": 7 + 4 * 2 + 2 * 5 + 2 * 8,
        "full": 7 * 8 + 4 * 8,
    }


def test_the_report_says_what_was_left_out(halved):
    results, _ = halved
    stored = StoredExperiment.read(results, "halved")
    assert stored.done == stored.index.runs
    decision = decide(stored, "turned")
    text = markdown(stored, tables(stored), [decision])
    assert (
        "Budget: 41 rounds instead of 88" in text
        and "Not run: Tuned on turned: left out after" in text
    )
    assert (
        "tested there against the others as all were then: Tuned, Still after 3 of 8"
        " rounds." in text
    )
    assert (
        "sgd.lr 1e+30: diverged" in text
        and "| Still | - | as it is: " in text
        and " after 3 rounds" in text
    )
    assert any(
        "halving chose by" in warning and "validation rows" in warning
        for warning in decision.warnings
    )
    assert (
        set(list(decision.winner.means)[2:]) == {"Tuned", "Still"}
        and len(decision.winner.pairs) == 6
    )
    assert decision.as_dict()["left_out"] == {"Tuned": 3, "Still": 3}


def test_who_was_left_out_is_compared_after_the_rounds_that_it_was_trained(halved):
    results, index = halved
    pairs = decide(StoredExperiment.read(results, "halved"), "turned").winner.pairs
    run = {
        it["algorithm"]: results / it["run"]
        for it in index["candidates"]
        if it["rounds"] > 1
    }

    def mean_after(rounds, method):
        frame = pl.read_parquet(run[method] / METRICS)
        wanted = (
            (pl.col("round") == rounds)
            & (pl.col("split") == "test")
            & (pl.col("metric") == "accuracy")
        )
        return frame.filter(wanted)["value"].mean()

    for line in pairs.filter(pl.col("other").is_in(["Tuned", "Still"])).iter_rows(
        named=True
    ):
        expected = mean_after(3, line["method"]) - mean_after(3, line["other"])
        assert line["difference"] == pytest.approx(expected, abs=1e-12)
    assert mean_after(8, "FedAvg") != mean_after(
        3, "FedAvg"
    )  # or the round would not matter


def test_an_interrupted_one_ends_the_same_and_trains_no_round_again(
    experiment, halved, tmp_path
):
    results, index = halved
    trained: dict[str, list[int]] = {}

    def watch(stop_at):
        def look(comparison, method, seed, training):
            if training is None:
                return
            rounds = trained.setdefault(
                f"{method.label} {training.algorithm.sgd.lr} {seed}", []
            )
            rounds.append(training.round)
            if rounds and method.label == "FedAvg" and training.round == stop_at:
                raise Interrupted

        return look

    for stop_at in (2, 5, None):  # between two cuts, and after the last one
        comparison = Comparison(
            experiment, tmp_path, Settings(), watch(stop_at), budget=True
        )
        if stop_at is None:
            again = json.loads(comparison.run().read_text())
        else:
            with pytest.raises(Interrupted):
                comparison.run()
    for key in ("candidates", "cells", "budget", "skipped"):
        assert again[key] == index[key]
    assert trained["FedAvg 0.1 0"] == [1, 2, 3, 4, 5, 6, 7, 8]
    for cell in index["cells"]:  # as a run that nothing ever stopped
        assert pl.read_parquet(tmp_path / cell["run"] / METRICS).equals(
            pl.read_parquet(results / cell["run"] / METRICS)
        )


def test_the_full_comparison_goes_on_with_what_was_halved(experiment, halved, tmp_path):
    results, index = halved
    damaged = next(it for it in index["candidates"] if it["rounds"] == 3)
    path = results / damaged["run"] / METRICS
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes(20))
    with pytest.raises(Damaged, match=r"metrics.parquet"):
        Comparison(experiment, results, Settings(), budget=True).run()
    path.write_bytes(whole)
    before = decide(StoredExperiment.read(results, "halved"), "turned").as_dict()
    full = json.loads(Comparison(experiment, results, Settings()).run().read_text())
    assert full["budget"] is None and len(full["cells"]) == 8
    best = {
        it["algorithm"]: it["parameters"] for it in full["candidates"] if it["chosen"]
    }
    assert best == {
        "Alone": {"sgd.lr": 0.1},
        "FedAvg": {"sgd.lr": 0.1},
    }  # the others have nothing to choose
    # a budget that comes later decides as it would have: what it would not have trained
    # is left aside
    Comparison(experiment, results, Settings(), budget=True).run()
    assert (
        decide(StoredExperiment.read(results, "halved"), "turned").as_dict() == before
    )


def test_a_budget_needs_validation_data(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(
        'title = "t"\nrounds = 2\nscenarios.d = {use = "digits-rotated", val = 0.0}\n'
        'algorithms.Local = {use = "local"}\n'
    )
    with pytest.raises(
        ValueError,
        match="a budget is spent by validation data, and scenario 'd' has none",
    ):
        Comparison(
            load_experiment(path), tmp_path / "out", Settings(), budget=True
        ).run()
