"""Frozen arrays beside runs and exports: stored once, checked, and read again."""

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.engine.storage.frozen_file import FROZEN, read_frozen
from fedtailor.testing import classification

SGD = ft.SGD(lr=0.1, steps=2, batch_size=8)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    federation = classification(3)
    path = tmp_path_factory.mktemp("frozen") / "run"
    model = ft.models.lora(ft.models.mlp(5), rank=2)
    done = ft.run(ft.FedAvg(sgd=SGD), federation, model, rounds=1, directory=path)
    return federation, done, path


def test_a_run_keeps_them_once_and_is_opened_without_code(finished):
    federation, done, path = finished
    assert len(read_frozen(path)) == 1
    assert [file.name for file in path.glob("frozen*")] == [FROZEN]
    opened = ft.open(path, federation=federation)
    assert opened.model == done.model
    name, x = federation.names[0], federation.client(0).test.x
    np.testing.assert_array_equal(
        opened.personal(name).outputs(x), done.personal(name).outputs(x)
    )


def test_an_export_has_them_and_can_be_merged(finished, tmp_path):
    federation, done, _ = finished
    done.export(tmp_path / "models")
    models = ft.load_models(tmp_path / "models")
    name, x = federation.names[1], federation.client(1).test.x
    expected = done.personal(name).outputs(x)
    np.testing.assert_array_equal(models[name].outputs(x), expected)
    whole = models[name].merged()
    assert whole.model.frozen is None and whole.merged() is whole
    np.testing.assert_allclose(whole.outputs(x), expected, rtol=0, atol=1e-5)
    whole.save(tmp_path / "merged")
    assert not (tmp_path / "merged" / FROZEN).exists()
    (tmp_path / "models" / FROZEN).write_bytes(b"x")
    with pytest.raises(ValueError, match="is missing or damaged"):
        ft.load_models(tmp_path / "models")


def test_a_run_goes_on_where_it_was(finished, tmp_path):
    federation, _, _ = finished
    model = ft.models.frozen(ft.models.mlp(5), "layers.1")

    def theta(rounds, directory, **options):
        done = ft.run(
            ft.FedAvg(sgd=SGD),
            federation,
            model,
            rounds,
            directory=directory,
            **options,
        )
        return done.personal(0).theta

    whole = theta(2, tmp_path / "whole")
    theta(1, tmp_path / "parts")
    np.testing.assert_array_equal(theta(2, tmp_path / "parts", resume=True), whole)
    other = ft.models.frozen(ft.models.mlp(5), "layers.1", seed=1)
    with pytest.raises(ValueError, match="arrays"):
        ft.run(
            ft.FedAvg(sgd=SGD),
            federation,
            other,
            3,
            directory=tmp_path / "parts",
            resume=True,
        )
