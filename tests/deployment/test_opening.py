"""A run directory gives the run back that wrote it, and finds its data again or says
why not.
"""

import dataclasses

import numpy as np
import pytest

import fedtailor as ft
from deployment_helpers import BLOBS, NAMES
from fedtailor.aggregation.pipelines import Cast, Clip
from fedtailor.engine.training.spec import method_of_run, model_of_run, pipeline_of_run
from fedtailor.lab import scenarios
from fedtailor.models import Classification, logistic
from fedtailor.protocol import Algorithm
from fedtailor.protocol.plain import from_plain, to_plain


def equal(first, second):
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def test_what_is_opened_is_what_was_trained(trained):
    run, path = trained
    again = ft.open(path)
    assert isinstance(again, ft.Run)
    assert again.summary() == run.summary()
    assert again.frame().equals(run.frame())
    assert again.metrics.values("roc_auc", unseen=True).size == 1
    equal(again.metrics.curve("accuracy")[1], run.metrics.curve("accuracy")[1])
    assert again.ledger.entries == run.ledger.entries
    assert to_plain(again.algorithm) == to_plain(run.algorithm)
    assert again.model == run.model
    assert set(again.personal_models()) == set(NAMES)
    for name in NAMES:
        equal(again.personal(name).theta, run.personal(name).theta)
    row = {"age": 61.0, "mass": None, "town": "Oslo"}
    rows = [{**row, "age": age} for age in (20.0, 90.0)]
    assert (
        again.predict(NAMES[0], rows).tolist()
        == run.predict(NAMES[0], rows).tolist()
        == ["well", "ill"]
    )
    with pytest.raises(ValueError, match=r"no client of .* called 'Ada'"):
        again.personal("Ada")


def test_what_needs_data_finds_them(trained):
    run, path = trained
    again = ft.open(path)
    assert again.row_outcomes().equals(run.row_outcomes())
    x, y = run.federation.x[:9], run.federation.y[:9]
    equal(again.enroll(x, y).theta, run.enroll(x, y).theta)
    equal(again.training.server.model, run.training.server.model)


def test_models_that_were_not_kept_are_made_again(trained, moved):
    for name in ("models.json", "models.safetensors"):
        (moved / name).unlink()
    equal(ft.open(moved).personal(NAMES[1]).theta, trained[0].personal(NAMES[1]).theta)


def test_a_table_that_is_gone_moved_or_changed_is_one_line(moved, tmp_path):
    table = moved.parent / "table.csv"
    elsewhere = table.rename(tmp_path / "elsewhere.csv")
    alone = ft.open(moved)
    assert alone.predict(
        NAMES[0], [{"age": 61.0, "mass": 70.0, "town": "Oslo"}]
    ).shape == (1,)
    with pytest.raises(
        ValueError, match=r"is not at .*table\.csv; say where it is with --table"
    ):
        _ = alone.federation
    assert len(ft.open(moved, table=elsewhere).federation) == 3
    table.write_text(elsewhere.read_text().replace("Oslo", "Bonn", 1))
    with pytest.raises(
        ValueError, match=r"is not the table that .* was trained on .its digest differs"
    ):
        _ = ft.open(moved).federation


def test_a_scenario_is_built_again_and_must_be_the_same(of_arrays, monkeypatch):
    run, path = of_arrays
    monkeypatch.setitem(scenarios.SCENARIOS, "blobs", BLOBS)
    again = ft.open(path)
    equal(again.personal(0).predictor.models, run.personal(0).predictor.models)
    assert again.row_outcomes().equals(run.row_outcomes())
    monkeypatch.setitem(
        scenarios.SCENARIOS, "blobs", dataclasses.replace(BLOBS, build=other_blobs)
    )
    with pytest.raises(
        ValueError, match=r"the data are not those that .* was trained on"
    ):
        _ = ft.open(path).federation
    with pytest.raises(ValueError, match="the data are not those"):
        _ = ft.open(path, federation=other_blobs(2)).federation
    assert len(ft.open(path, federation=run.federation).federation) == 3


def other_blobs(seed, *, clients: int = 3, missing: str | None = None):
    return BLOBS.build(seed + 1, clients=clients)


def test_every_method_is_read_back_from_a_manifest():
    changed = [
        ft.Ditto(lam=0.3, sgd=ft.SGD(lr=0.25, steps=3)),
        ft.Then(ft.FedAvg(), rounds=2, next=ft.SelfFL()),
    ]
    for given in [*(kind() for kind in Algorithm.registry.values()), *changed]:
        found = from_plain(Algorithm, to_plain(given))
        assert type(found) is type(given)
        assert to_plain(found) == to_plain(given)


def test_pipelines_and_models_are_read_back():
    found = pipeline_of_run(
        {"uplink": [to_plain(Clip(0.5)), to_plain(Cast("float16"))]}, "uplink"
    )
    assert [to_plain(one) for one in found] == [
        to_plain(Clip(0.5)),
        to_plain(Cast("float16")),
    ]
    model = ft.models.lenet5("max", norm="group").bind((16, 16), 3)
    assert model_of_run({"model": to_plain(model)}) == model
    own = logistic().bind((2,), 2, loss=Classification(own_loss))
    with pytest.raises(ValueError, match="only your code knows; pass model="):
        model_of_run({"model": to_plain(own)})
    with pytest.raises(
        ValueError,
        match=r"method 'fedsomething' cannot be made from its directory .* installed here",
    ):
        method_of_run({"algorithm": {"name": "fedsomething"}})


def own_loss(outputs, y):
    return outputs.sum(-1)


def test_what_is_no_finished_run_is_one_line(tmp_path, moved):
    with pytest.raises(ValueError, match="there is no directory"):
        ft.open(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no finished run"):
        ft.open(tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    (tmp_path / "results" / "mine" / "experiment.json").write_text("{}")
    with pytest.raises(
        ValueError, match="is a comparison of several runs; name one of them"
    ):
        ft.open(tmp_path / "results")
