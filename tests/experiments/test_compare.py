"""Comparisons: the choice on validation data, and the same end after a stop."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedtailor.executors import Settings
from fedtailor.experiments.compare import Comparison
from fedtailor.experiments.experiment import load
from fedtailor.storage import Interrupted
from fedtailor.storage.run_directory import METRICS

FILE = """title = "A comparison"
seeds = [0, 1]
rounds = 2
evaluate_every = 1
scenarios.rotated = {use = "digits-rotated", val = 0.25}
[algorithms.Local]
use = "local"
[algorithms.FedAvg]
use = "fedavg"
grid.sgd.lr = [0.001, 0.1, 1e30]
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "e.toml"
    path.write_text(FILE)
    return load(path)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory):
    results = tmp_path_factory.mktemp("whole")
    return results, json.loads(Comparison(experiment, results, Settings()).run().read_text())


def measured(results, cells):
    return [pl.read_parquet(results / cell["run"] / METRICS) for cell in cells]


def test_every_cell_has_a_run_and_the_grid_is_chosen_on_validation_data(whole):
    results, index = whole
    assert [(cell["algorithm"], cell["seed"]) for cell in index["cells"]] == [
        ("Local", 0), ("FedAvg", 0), ("Local", 1), ("FedAvg", 1),
    ]  # fmt: skip
    small, good, wild = index["candidates"]
    assert wild["val"] is None  # diverged: a finding, not an end
    for candidate in (small, good):
        frame = pl.read_parquet(results / candidate["run"] / METRICS)
        last = frame.filter((pl.col("round") == 2) & (pl.col("split") == "val") & (pl.col("metric") == "accuracy"))
        assert candidate["val"] == pytest.approx(np.mean(last["value"].to_numpy()), abs=1e-12)
    assert good["val"] > small["val"] and [one["chosen"] for one in index["candidates"]] == [False, True, False]
    assert {json.dumps(cell["chosen"]) for cell in index["cells"] if cell["algorithm"] == "FedAvg"} == {
        '{"sgd.lr": 0.1}'
    }
    assert all((results / cell["run"] / METRICS).exists() for cell in index["cells"])


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_stopped_comparison_ends_with_the_same_measurements(experiment, whole, tmp_path, at):
    def stop(comparison, entry, seed, training):
        if training is not None and comparison.done == at and training.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        Comparison(experiment, tmp_path, Settings(), stop).run()
    finished = len(list(tmp_path.rglob("summary.json")))
    trained = []
    again = Comparison(experiment, tmp_path, Settings(), lambda c, e, s, training: trained.append(training is None))
    index = json.loads(again.run().read_text())
    results, expected = whole
    assert index["cells"] == expected["cells"] and index["candidates"] == expected["candidates"]
    for found, wanted in zip(measured(tmp_path, index["cells"]), measured(results, expected["cells"]), strict=True):
        assert found.equals(wanted)
    assert finished >= at and sum(trained) == experiment.runs - finished  # what was finished is not repeated
    assert again.done == experiment.runs


def test_experiments_share_runs(experiment, whole):
    results, expected = whole
    before = {path: path.stat().st_mtime_ns for path in Path(results).rglob("summary.json")}
    assert json.loads(Comparison(experiment, results, Settings()).run().read_text())["cells"] == expected["cells"]
    assert {path: path.stat().st_mtime_ns for path in Path(results).rglob("summary.json")} == before


def test_results_that_cannot_be_written_are_one_line(experiment, tmp_path):
    (tmp_path / "runs").write_text("a file where a directory should be")
    with pytest.raises(ValueError, match=r"cannot use .*; name another directory"):
        Comparison(experiment, tmp_path, Settings()).run()


def test_seeds_trained_at_once_end_like_seeds_in_turn(experiment, whole, tmp_path):
    def stop(comparison, entry, seed, training):
        if training is not None and entry.row == "FedAvg" and seed == 1 and training.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        Comparison(experiment, tmp_path, Settings(), stop, at_once=2).run()
    index = json.loads(Comparison(experiment, tmp_path, Settings(), at_once=2).run().read_text())
    results, expected = whole
    assert sorted(map(str, index["cells"])) == sorted(map(str, expected["cells"]))
    for found, wanted in zip(measured(tmp_path, expected["cells"]), measured(results, expected["cells"]), strict=True):
        assert found.equals(wanted)
