"""Runs of own networks and methods are told apart by their code: settings do not say what
a function computes.
"""

import sys

import pytest

from fedtailor.algorithms.find import find_algorithm
from fedtailor.engine.executors import Settings
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.protocol import Algorithm

NETWORK = """
import jax.numpy as jnp
import fedtailor as ft

def init(key):
    return {{"w": jnp.zeros((64, 10))}}

def apply(params, x):
    return x.reshape(len(x), -1) @ params["w"] * {factor}

def net():
    return ft.models.from_function(init, apply)

def other():
    return ft.models.from_function(init, lambda params, x: apply(params, x) * 2)
"""
METHOD = """
from dataclasses import replace
from typing import ClassVar
import fedtailor as ft
from fedtailor.protocol import About, hyperparameters

@hyperparameters
class Own(ft.FedAvg):
    {about}
    def personal(self, state, data, model, local):
        return model * {factor}
"""
ABOUT = 'about: ClassVar[About] = replace(ft.FedAvg.about, name="own-code")'


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    """What a test loads is not there in the next one."""
    monkeypatch.chdir(tmp_path)
    before, modules = dict(Algorithm.registry), set(sys.modules)
    yield
    Algorithm.registry.clear()
    Algorithm.registry.update(before)
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def fingerprints(tmp_path, models, method="fedavg"):
    """Of a column for each model, or of the models to choose from in one column."""
    columns = [f'model = "{model}"' for model in models]
    if isinstance(models, list):
        columns = [f"models = {models}"]
    text = 'title = "own"\nrounds = 1\nseeds = [0]\n'
    for number, column in enumerate(columns):
        text += f'[scenarios.s{number}]\nuse = "digits-rotated"\nval = 0.1\n{column}\n'
    text += f'[algorithms.A]\nuse = "{method}"\n'
    (tmp_path / "e.toml").write_text(text.replace("'", '"'))
    comparison = Comparison(
        load_experiment(tmp_path / "e.toml"), tmp_path / "out", Settings()
    )
    return [
        comparison._runs.fingerprint(one, candidate)
        for one in comparison.experiment.methods
        for candidate in one.candidates
    ]


def write(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    sys.modules.pop(name.removesuffix(".py"), None)


def test_networks_of_two_files_or_of_one_have_runs_of_their_own(tmp_path):
    write(tmp_path, "one_net.py", NETWORK.format(factor=1))
    write(tmp_path, "two_net.py", NETWORK.format(factor=3))
    models = ("one_net.py:net", "two_net.py:net", "one_net.py:other")
    found = fingerprints(tmp_path, models)
    assert len(set(found)) == 3
    assert len(set(fingerprints(tmp_path, list(models)))) == 3


def test_a_file_that_changes_makes_other_runs(tmp_path):
    models = ("one_net.py:net",)
    write(tmp_path, "one_net.py", NETWORK.format(factor=1))
    before = fingerprints(tmp_path, models)
    assert fingerprints(tmp_path, models) == before
    write(tmp_path, "one_net.py", NETWORK.format(factor=2))
    assert fingerprints(tmp_path, models) != before


def test_a_method_that_changes_makes_other_runs(tmp_path):
    found = []
    for factor in (1, 1, 2):
        Algorithm.registry.pop("own-code", None)
        write(tmp_path, "own_method.py", METHOD.format(about=ABOUT, factor=factor))
        found += fingerprints(tmp_path, ("logistic",), "own_method.py:Own")
    assert found[0] == found[1] != found[2]


def test_a_method_without_a_name_of_its_own_is_refused(tmp_path):
    """Methods are found by their names: its base would be trained."""
    write(tmp_path, "nameless.py", METHOD.format(about="", factor=0))
    with pytest.raises(ValueError, match="Own has no `about` of its own, only that of"):
        find_algorithm("nameless.py:Own", own_files=True)
