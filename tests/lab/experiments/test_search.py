"""Searches over settings by Optuna: what is proposed, resumed, refused and kept."""

import json
import math

import pytest

from fedtailor.engine.executors import Settings
from fedtailor.lab.experiments import search
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.experiments.search import STUDIES, Range, Study, space_of
from fedtailor.protocol.plain import ConfigError

FILE = """title = "A search"
seeds = [0, 1]
rounds = 2
evaluate_every = 1
search = {use = "optuna", trials = 4}
scenarios.rotated = {use = "digits-rotated", val = 0.25}
[algorithms.Ditto]
use = "ditto"
[algorithms.Ditto.search]
lam = {low = 0.01, high = 10.0, log = true}
sgd.batch_size = [10, 16]
"""


def loaded(tmp_path, text=FILE):
    path = tmp_path / "e.toml"
    path.write_text(text)
    return load_experiment(path)


class Stopped(Exception):
    """Ends a comparison, as an error of its machine would."""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("low = 0.01", "low = 20.0", "low of lam is 20.0; it must be below high, 10.0"),
        ("low = 0.01", "low = 0.0", "with log = true it must be above 0"),
        ("low = 0.01", 'low = "a"', "the range of lam has low and high, two numbers"),
        ("log = true", "steps = 3", "the range of lam has low and high, two numbers"),
        ("lam = {", "lamb = {", "did you mean 'lam'"),
        ("[10, 16]", '["ten"]', "batch_size is 'ten'"),
        ("[10, 16]", "[]", "batch_size is []; it must be a range"),
        ('search = {use = "optuna", trials = 4}\n', "", "add a table [search]"),
        ("trials = 4", "trials = 1", "trials"),
        ("val = 0.25", "val = 0.0", "chosen on validation data"),
        ('use = "ditto"', 'use = "ditto"\ngrid.lam = [1.0]', "a grid and a search"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, old, new, message):
    assert old in FILE
    with pytest.raises(ValueError, match="line") as caught:
        loaded(tmp_path, FILE.replace(old, new))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_space_names_its_settings_by_dots():
    table = {"lam": {"low": 1, "high": 5}, "sgd": {"lr": [0.1, 0.2]}}
    assert space_of(table, ()) == {"lam": Range(1, 5), "sgd.lr": (0.1, 0.2)}
    with pytest.raises(ConfigError):
        space_of({"sgd": {}}, ())


def test_without_optuna_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'fedtailor\[optuna\]'"):
        Study("s", {}, 0)


@pytest.mark.extra
def test_a_search_comes_near_the_best_value_and_depends_on_its_seed_only():
    pytest.importorskip("optuna")

    def values(seed):
        study = Study("s", {"lr": Range(1e-4, 1.0, log=True)}, seed, first={"lr": 1.0})
        found = []
        for _ in range(40):
            value = study.propose()["lr"]
            found.append(value)
            study.tell(None if value > 0.5 else -((math.log10(value) + 2) ** 2))
        return found

    found = values(0)
    assert found[0] == 1.0  # what the method has by itself
    away = [abs(math.log10(value) + 2) for value in found]
    # Proposals that learn nothing are 1 away on average.
    assert min(away) < 0.1 and sum(away[20:]) / 20 < 0.5
    assert values(0) == found and values(1) != found


@pytest.mark.extra
def test_a_stopped_search_goes_on_as_if_it_had_not_been_stopped(tmp_path):
    optuna = pytest.importorskip("optuna")
    experiment = loaded(tmp_path)
    assert experiment.runs == 4 + 1  # four settings on the first seed, one on the other
    whole = Comparison(experiment, tmp_path / "whole", Settings())
    index = json.loads(whole.run().read_text())
    tried = [one["parameters"] for one in index["candidates"]]
    assert len(tried) == 4 and tried[0]["lam"] == 0.1
    best = max(index["candidates"], key=lambda one: one["val"])
    assert [one["chosen"] for one in index["candidates"]].index(True) == index[
        "candidates"
    ].index(best)
    assert {json.dumps(cell["chosen"]) for cell in index["cells"]} == {
        json.dumps(best["parameters"])
    }

    def stop(comparison, method, seed, training):
        if training is None:
            started.append(seed)
            if len(started) == 3:
                raise Stopped

    started = []
    results = tmp_path / "stopped"
    with pytest.raises(Stopped):
        Comparison(experiment, results, Settings(), stop).run()
    assert Comparison(experiment, results, Settings()).finished() == 2
    started = [0] * 3  # stops no more
    again = Comparison(experiment, results, Settings(), stop)
    index = json.loads(again.run().read_text())
    assert len(started) == 3 + 3  # two of five runs were there
    assert [one["parameters"] for one in index["candidates"]] == tried
    assert again.finished() == again.runs == again.done == 5

    backend = optuna.storages.journal.JournalFileBackend(
        str(results / experiment.name / STUDIES)
    )
    storage = optuna.storages.JournalStorage(backend)
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    assert name == "rotated, Ditto"
    assert [trial.params for trial in study.trials] == tried
    assert study.best_params == best["parameters"]


@pytest.mark.extra
def test_processes_that_share_a_comparison_share_its_searches(tmp_path):
    pytest.importorskip("optuna")
    from fedtailor.lab.experiments.sharding import Shard

    experiment = loaded(tmp_path)
    alone = json.loads(
        Comparison(experiment, tmp_path / "alone", Settings()).run().read_text()
    )
    shared = Comparison(experiment, tmp_path / "shared", Settings(), shard=Shard(1, 1))
    index = json.loads(shared.run().read_text())
    assert index["candidates"] == alone["candidates"]
    with pytest.raises(ValueError, match="leave out the budget or the search"):
        Comparison(experiment, tmp_path, Settings(), budget=True)
