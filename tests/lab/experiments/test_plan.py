"""The plan of a comparison: what is missing, and how long it takes."""

import itertools

import pytest

from fedtailor.engine.executors import Settings
from fedtailor.lab.experiments import plan
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment

FILE = """title = "A comparison"
seeds = [0, 1, 2]
rounds = 8
evaluate_every = 3
scenarios.turned = { use = "digits-rotated", clients = 4, val = 0.2 }
[algorithms.Local]
use = "local"
[algorithms.FedAvg]
use = "fedavg"
grid.sgd.lr = [0.1, 1e30]
"""


@pytest.fixture
def comparison(tmp_path):
    (tmp_path / "e.toml").write_text(FILE)
    return Comparison(
        load_experiment(tmp_path / "e.toml"), tmp_path / "results", Settings()
    )


def test_it_counts_runs_and_writes_nothing(comparison, tmp_path):
    timed = []
    local, fedavg = comparison.plan(lambda method, _: timed.append(method.label))
    assert timed == ["Local", "FedAvg", "FedAvg"]
    assert (local.runs, local.finished, local.rounds, local.evaluations) == (3, 0, 8, 3)
    assert fedavg.runs == 4  # three seeds, and one further setting on the first
    good, wild = fedavg.settings
    assert good.round_seconds > 0 and good.core_seconds_of_round > 0
    assert good.evaluation_seconds > 0 and good.error == ""
    assert wild.error == "diverges in its first rounds"
    # The setting that cannot be trained does not count in the mean.
    assert fedavg.round_seconds == good.round_seconds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.toml"]


def test_the_estimate_follows_from_its_parts(comparison, monkeypatch):
    # Calls of the clock are a second apart, those of the core clock two.
    monkeypatch.setattr(plan, "perf_counter", itertools.count().__next__)
    monkeypatch.setattr(plan, "process_time", itertools.count(step=2).__next__)
    local, fedavg = comparison.plan()
    assert local.round_seconds == 1 and local.compile_seconds == 0
    assert local.training_seconds == 3 * (8 * 1 + 3 * 1)
    assert local.core_seconds == 3 * (8 * 2 + 3 * 2)
    assert fedavg.training_seconds == 4 * (8 + 3)


def test_a_plan_times_one_setting_of_each_method_first_and_ends(
    comparison, monkeypatch
):
    monkeypatch.setattr(plan, "MAX_PLAN_SECONDS", 0.0)
    timed = []
    local, fedavg = comparison.plan(lambda method, _: timed.append(method.label))
    assert timed == ["Local"]
    assert [setting.is_timed for setting in fedavg.settings] == [False, False]
    assert fedavg.round_seconds == local.round_seconds > 0
    assert fedavg.runs == 4


def test_what_is_finished_is_not_timed(comparison):
    comparison.run()
    assert comparison.finished() == comparison.experiment.runs == 7
    local, fedavg = comparison.plan(lambda *_: pytest.fail("nothing is missing"))
    assert (local.finished, fedavg.finished) == (3, 4)
    assert local.training_seconds == fedavg.training_seconds == 0


def test_a_refused_method_is_said(tmp_path):
    text = FILE.replace('use = "local"', 'use = "ucfl"\nstreams = 9')
    (tmp_path / "e.toml").write_text(text)
    planned = Comparison(
        load_experiment(tmp_path / "e.toml"), tmp_path / "results", Settings()
    )
    refused, _ = planned.plan()
    assert "streams" in refused.settings[0].error
    assert refused.training_seconds == 0


def test_missing_data_and_devices_end_a_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    monkeypatch.setenv("FEDTAILOR_OFFLINE", "1")
    (tmp_path / "e.toml").write_text(
        FILE.replace('"digits-rotated", clients = 4', '"school"')
    )
    missing = Comparison(
        load_experiment(tmp_path / "e.toml"), tmp_path / "results", Settings()
    )
    with pytest.raises(ValueError, match=r"school\.csv\.gz"):
        list(missing.plan())
    (tmp_path / "e.toml").write_text(FILE)
    many = Settings(devices=99)
    with pytest.raises(ValueError, match="99"):
        list(Comparison(load_experiment(tmp_path / "e.toml"), tmp_path, many).plan())


def test_halving_has_no_plan(comparison):
    comparison.budget = True
    with pytest.raises(ValueError, match="leave out the budget"):
        list(comparison.plan())


def test_the_digest_is_that_of_the_settings(comparison, tmp_path):
    def digest(text):
        (tmp_path / "e.toml").write_text(text)
        loaded = load_experiment(tmp_path / "e.toml")
        return Comparison(loaded, tmp_path / "elsewhere", Settings()).digest()

    assert comparison.digest() == digest(FILE.replace("A comparison", "Another title"))
    changed = [
        FILE.replace("rounds = 8", "rounds = 9"),
        FILE.replace("[0, 1, 2]", "[0, 1, 3]"),
        FILE.replace("0.1, 1e30", "0.1, 1e29"),
        FILE.replace("algorithms.Local", "algorithms.Alone"),
        FILE.replace("clients = 4", "clients = 5"),
    ]
    digests = {digest(text) for text in [FILE, *changed]}
    assert len(digests) == 1 + len(changed)
