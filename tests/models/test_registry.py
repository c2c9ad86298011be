"""Models that files can name."""

import pytest

from fedtailor import models
from fedtailor.experiments.parsing import architecture


def test_every_registered_model_is_one_a_file_can_name():
    names = set(models.builders())
    assert names == {"logistic", "mlp", "lenet5", "cnn", "cnn_5x5", "tutorial_cnn", "density", "lstm", "resnet"}
    assert architecture("resnet", ("model",)) == models.resnet()
    given = {"use": "lenet5", "pool": "max", "norm": "group"}
    assert architecture(given, ("model",)) == models.tutorial_cnn(norm="group")


def test_names_are_taken_once():
    def mlp():
        return models.mlp(3)

    with pytest.raises(ValueError, match="there is a model 'mlp' already"):
        models.register(mlp)
    assert models.register(models.mlp) is models.mlp and models.builders()["mlp"] is models.mlp
