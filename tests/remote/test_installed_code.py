"""Code of other packages: installed on every machine, and agreed to by a digest."""

import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from fedtailor.models import registry
from fedtailor.models.metrics import Metric
from fedtailor.protocol import Algorithm
from fedtailor.protocol.plain import from_plain, to_plain
from fedtailor.remote.client.round_requests import PERSONAL, load_own
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.plan import plan_of
from remote.jobs import JOB, NAMES, Clients

THEIRS = """
import fedtailor as ft
from dataclasses import replace
from fedtailor.algorithms import FedAvg
from fedtailor.models.metrics import find_metric
from fedtailor.protocol import hyperparameters

@hyperparameters
class Theirs(FedAvg):
    about = replace(FedAvg.about, name="theirs")

def their_model():
    return ft.models.logistic()

class TheirMetric(type(find_metric("accuracy"))):
    name = "their_accuracy"
"""
OFFERED = {
    "fedtailor.algorithms": {"theirs": "Theirs"},
    "fedtailor.models": {"their_model": "their_model"},
    "fedtailor.metrics": {"their_accuracy": "TheirMetric"},
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Reads a job whose method has some lines of its own."""
    (tmp_path / "theirs_outside.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)

    def entry_points(group, name=None):
        return [
            EntryPoint(one, f"theirs_outside:{value}", group)
            for one, value in OFFERED.get(group, {}).items()
            if name in (None, one)
        ]

    monkeypatch.setattr("fedtailor._base.entry_points.entry_points", entry_points)

    def read(code="", method="theirs", model="logistic", metrics=""):
        text = JOB.format(method=method, lr=0.1, model="", rounds=2, rest=metrics)
        path = tmp_path / "job.toml"
        text = text.replace('use = "logistic"', f'use = "{model}"')
        path.write_text(f"{text}\n[code]\n{code}\n")
        return read_job(path)

    yield read
    Algorithm.registry.pop("theirs", None)
    Metric.registry.pop("their_accuracy", None)
    registry._BUILDERS.pop("their_model", None)
    sys.modules.pop("theirs_outside", None)


def agreed_line(job, **settings):
    """The line that a job without it asks for."""
    with pytest.raises(ValueError, match="is code of the package") as caught:
        job(**settings)
    return str(caught.value).partition("by ")[2].partition(" in [code]")[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "ditto", "model": "their_model"},
        {"method": "ditto", "metrics": 'metrics = ["their_accuracy"]'},
    ],
    ids=["method", "model", "metric"],
)
def test_a_job_says_which_code_it_needs_and_others_refuse_it(job, tmp_path, settings):
    line = agreed_line(job, **settings)
    assert job(line, **settings).spec.rounds == 2

    # The package of another machine has one more line.
    (tmp_path / "theirs_outside.py").write_text(THEIRS + "# changed\n")
    with pytest.raises(ValueError, match="the job was made for another"):
        job(line, **settings)
    with pytest.raises(ValueError, match="the job was made for another"):
        job('theirs_outside = "0"', **settings)


def test_no_machine_runs_a_file_that_a_job_names(job):
    with pytest.raises(ValueError, match="no machine runs a file that a job names"):
        job(method="theirs_outside.py:Theirs")


def test_only_packages_that_a_job_uses_have_a_digest(job):
    with pytest.raises(ValueError, match="uses nothing of a package theirs_outside"):
        job('theirs_outside = "0"', method="ditto")


def test_a_stored_method_of_an_installed_package_is_found(job):
    line = agreed_line(job)
    method = job(line).spec.algorithm
    stored = to_plain(method)
    Algorithm.registry.pop("theirs")
    sys.modules.pop("theirs_outside")
    assert type(from_plain(Algorithm, stored)).__name__ == "Theirs"


TOWERS = """
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import fedtailor as ft

# The columns of a table in their order: the age, and the two wards.
INPUTS = ft.models.Inputs.of({"a_age": np.zeros((1, 1)), "ward": np.zeros((1, 2))})

class Towers(eqx.Module):
    age: eqx.nn.Linear
    ward: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.age = eqx.nn.Linear(1, 3, key=keys[0])
        self.ward = eqx.nn.Linear(2, 3, key=keys[1])
        self.head = eqx.nn.Linear(6, 2, key=keys[2])

    def __call__(self, x):
        parts = INPUTS.unpack(x)
        both = jnp.concatenate([self.age(parts["a_age"]), self.ward(parts["ward"])])
        return self.head(jax.nn.relu(both))

def towers():
    return ft.models.from_equinox(Towers)
"""


@pytest.fixture
def towers(tmp_path, monkeypatch):
    """Clients whose job names a network of several inputs that a package offers."""
    (tmp_path / "towers_outside.py").write_text(TOWERS)
    monkeypatch.syspath_prepend(tmp_path)

    def entry_points(group, name=None):
        is_theirs = group == "fedtailor.models" and name in (None, "towers")
        return [EntryPoint("towers", "towers_outside:towers", group)] * is_theirs

    monkeypatch.setattr("fedtailor._base.entry_points.entry_points", entry_points)

    class Towers(Clients):
        def set_rounds(self, rounds):
            text = JOB.format(rounds=rounds, **self.settings)
            text = text.replace('use = "logistic"', 'use = "towers"')
            self.path.write_text(text)
            with pytest.raises(ValueError, match="is code of the package") as caught:
                read_job(self.path)
            line = str(caught.value).partition("by ")[2].partition(" in [code]")[0]
            self.path.write_text(f"{text}\n[code]\n{line}\n")
            self.job = read_job(self.path)

    yield Towers(tmp_path / "job", 2, method="fedper")
    registry._BUILDERS.pop("towers", None)
    sys.modules.pop("towers_outside", None)


def test_a_network_of_several_inputs_trains_over_machines(towers):
    """The columns of the clients' tables are its inputs in their order."""
    training, simulation = towers.train(NAMES), towers.simulated(NAMES, 2)
    np.testing.assert_array_equal(
        np.asarray(training.server.model), np.asarray(simulation.training.server.model)
    )
    for name in NAMES:
        # As `fedtailor federation predict` opens it.
        path = towers.store(name).directory / PERSONAL
        own = load_own(path, plan_of(towers.job).model, name)
        expected = simulation.personal(name)
        np.testing.assert_array_equal(own.theta, expected.theta)
        x = towers.rows[name].x[:5]
        np.testing.assert_array_equal(own.predict(x), expected.predict(x))
