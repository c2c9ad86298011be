"""Models that files can name."""

import sys

import pytest

from fedtailor import models
from fedtailor._base.entry_points import import_modules
from fedtailor.models import registry
from fedtailor.models.plain import architecture_of


def test_every_registered_model_is_one_a_file_can_name():
    names = set(models.builders())
    assert names == {
        "linear",
        "logistic",
        "mlp",
        "lenet5",
        "cnn",
        "cnn_5x5",
        "tutorial_cnn",
        "density",
        "lstm",
        "resnet",
        "conv1d",
        "gru",
        "periodic_mlp",
        "from_huggingface",
    }
    assert architecture_of("resnet", ("model",)) == models.resnet()
    given = {"use": "lenet5", "pool": "max", "norm": "group"}
    assert architecture_of(given, ("model",)) == models.tutorial_cnn(norm="group")


def test_a_new_model_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "wide.py").write_text("""
from fedtailor.models.registry import register
from fedtailor.models.zoo import mlp

@register
def wide(factor: int = 2):
    return mlp(8 * factor)
""")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))
    try:
        import_modules(models.__name__)
        assert architecture_of({"use": "wide", "factor": 3}, ("model",)) == models.mlp(
            24
        )
    finally:
        sys.modules.pop(f"{models.__name__}.wide", None)


def test_names_are_taken_once():
    def mlp():
        return models.mlp(3)

    with pytest.raises(ValueError, match="there is a model 'mlp' already"):
        models.register(mlp)
    assert (
        models.register(models.mlp) is models.mlp
        and models.builders()["mlp"] is models.mlp
    )


def test_a_file_of_one_s_own(tmp_path, monkeypatch):
    """For experiments; a job's file names models of the zoo only, lest it run code of
    somebody else's.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net.py").write_text("""
from fedtailor import models

def net(hidden: int = 5):
    return models.mlp(hidden)

def number():
    return 3

def broken():
    return {}["net"]
""")
    (tmp_path / "own_script.py").write_text("raise SystemExit(3)")
    try:
        given = {"use": "own_net.py:net", "hidden": 7}
        assert architecture_of(
            "own_net.py:net", ("model",), own_files=True
        ) == models.mlp(5)
        assert architecture_of(given, ("model",), own_files=True) == models.mlp(7)
        for use, message in (
            ("own_net.py:number", "gives 3; it must give an architecture"),
            ("own_net.py:broken", "own_net.py:broken failed: KeyError: 'net'"),
            ("own_script.py:net", r"own_script\.py cannot be loaded: SystemExit: 3"),
            ("own_net.py:nett", r"own_net\.py has no function 'nett'"),
            ("no_such.py:net", r"there is no file no_such\.py"),
        ):
            with pytest.raises(ValueError, match=message):
                architecture_of(use, ("model",), own_files=True)
        with pytest.raises(ValueError, match=r"there is no model 'own_net\.py:net'"):
            architecture_of("own_net.py:net", ("model",))
    finally:
        sys.modules.pop("own_net", None)
