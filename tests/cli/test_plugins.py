"""What an installed package offers stands in the lists, and is found by its name."""

import sys

import pytest

from fedtailor.algorithms import FedAvg
from fedtailor.cli import main
from fedtailor.data import datasets
from fedtailor.lab.scenarios import SCENARIOS
from fedtailor.models import mlp
from fedtailor.models.metrics import Metric, find_metric
from fedtailor.models.plain import architecture_of
from fedtailor.models.registry import _BUILDERS
from fedtailor.protocol import Algorithm

PACKAGE = '''
from dataclasses import replace

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.lab.scenarios import SCENARIOS, digits_rotated
from fedtailor.data.datasets import digits, register
from fedtailor.models.metrics import Accuracy
from fedtailor.models import mlp
from fedtailor.protocol import hyperparameters


@hyperparameters
class Theirs(FedAvg):
    """A method of another package."""

    about = replace(FedAvg.about, name="plug-method")


@hyperparameters
class Misnamed(FedAvg):
    about = replace(FedAvg.about, name="plug-other")


class TheirMetric(Accuracy):
    name = "plug_metric"


def build(seed: int, *, clients: int = 4):
    """Few clients."""
    return digits_rotated(seed, clients=clients)


SCENARIO = replace(SCENARIOS["digits-rotated"], name="plug-scenario", build=build)


def plug_model(width: int = 3):
    return mlp(width)


@register()
def plug_data():
    return digits()
'''
ENTRY_POINTS = """
[fedtailor.algorithms]
plug-method = plugged:Theirs
plug-broken = plugged_not_there:Method
plug-misnamed = plugged:Misnamed

[fedtailor.scenarios]
plug-scenario = plugged:SCENARIO

[fedtailor.metrics]
plug_metric = plugged:TheirMetric

[fedtailor.models]
plug_model = plugged:plug_model

[fedtailor.datasets]
plug_data = plugged:plug_data
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package as pip installs it: a module, and metadata with its entry points."""
    (tmp_path / "plugged.py").write_text(PACKAGE)
    metadata = tmp_path / "plugged-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugged\nVersion: 1"
    )
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    registries = (
        Algorithm.registry,
        Metric.registry,
        SCENARIOS,
        datasets.DATASETS,
        _BUILDERS,
    )
    before = [dict(registry) for registry in registries]
    yield
    sys.modules.pop("plugged", None)
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


def test_lists_name_what_packages_offer_and_say_what_is_broken(installed, capsys):
    assert main(["algorithms"]) == 0
    printed = capsys.readouterr()
    assert "plug-method" in printed.out
    assert "not listed: the algorithm 'plug-broken' of plugged_not_there" in printed.err
    assert "'plug-misnamed' of an installed package calls itself 'plug-other'" in (
        printed.err
    )
    assert main(["scenarios"]) == 0
    assert "plug-scenario" in capsys.readouterr().out


def test_a_scenario_without_descriptions_of_its_arguments_is_shown(installed, capsys):
    assert main(["scenarios", "plug-scenario"]) == 0
    assert "--clients (default 4)\n      (not described)" in capsys.readouterr().out


def test_metrics_models_and_data_sets_are_found_by_name(installed):
    assert find_metric("plug_metric").name == "plug_metric"
    model = architecture_of({"use": "plug_model", "width": 5}, ("model",))
    assert model == mlp(5)
    assert datasets.plug_data is datasets.find("plug_data")
    with pytest.raises(
        AttributeError, match="there is no data set 'plug_date'; did you"
    ):
        _ = datasets.plug_date


def test_misspelt_names_are_compared_with_those_of_packages_too(installed, capsys):
    assert main(["run", "plug-metod", "digits-rotated"]) == 2
    assert "did you mean 'plug-method'?" in capsys.readouterr().err


def test_help_of_a_method_explains_its_fields():
    assert "weights (default samples): Weights of the average" in (FedAvg.__doc__ or "")
    assert "Hyper-parameters:" in (FedAvg.__doc__ or "")
