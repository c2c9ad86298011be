"""Comparisons that train until the loss has converged, with grids that grow."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.engine.executors import Settings
from fedtailor.engine.storage.run_files import SUMMARY, read_summary
from fedtailor.engine.training import UntilConverged
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import resolve
from fedtailor.protocol.document import Document
from fedtailor.statistics.decision import movement


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "table.csv"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 2))
    y = x @ [1.0, -2.0] + 0.3 * rng.normal(size=160)
    columns = {
        "site": [f"s{row % 8}" for row in range(160)],
        "u": x[:, 0],
        "v": x[:, 1],
        "y": y,
    }
    pl.DataFrame(columns).write_csv(path)
    return path


def experiment_of(table, **changed):
    content = {
        "title": "t",
        "rounds": 120,
        "until_converged": True,
        "bracket": ["sgd.lr"],
        "evaluate_every": 2,
        "seeds": [0],
        "scenarios": {
            "table": {"path": str(table), "client": "site", "target": "y", "val": 0.3}
        },
        # The first rates are far too small.
        "algorithms": {"local": {"grid": {"sgd": {"lr": [0.0003, 0.0001]}}}},
    }
    document = Document(content | changed, (("the test", "", ()),))
    return resolve(document, "still")


def test_the_grid_grows_and_trainings_end(table, tmp_path):
    comparison = Comparison(experiment_of(table), tmp_path, Settings())
    index = json.loads(comparison.run().read_text())
    rates = [one["parameters"]["sgd.lr"] for one in index["candidates"]]
    assert rates[:4] == [0.0003, 0.0001, 0.0009, 0.0027]
    (chosen,) = [one for one in index["candidates"] if one["chosen"]]
    assert chosen["parameters"]["sgd.lr"] > 0.0003
    assert index["runs"] == len(rates) and index["until_converged"]
    summaries = [
        read_summary(tmp_path / one["run"] / SUMMARY) for one in index["candidates"]
    ]
    assert all(summary["asked_rounds"] == 120 for summary in summaries)
    assert min(summary["rounds"] for summary in summaries) < 120
    # The same command trains nothing again.
    again = Comparison(experiment_of(table), tmp_path, Settings())
    again.run()
    assert again.entries == comparison.entries
    assert json.loads(again.index.read_text())["candidates"] == index["candidates"]


def test_a_run_that_stands_still_is_not_trained_when_it_is_extended(table, tmp_path):
    data = ft.tables.from_table(table, client="site", target="y", val=0.3)
    arguments = (
        ft.Local(sgd=ft.SGD(lr=0.3, steps=10, batch_size=256)),
        data,
        ft.models.linear(),
    )
    options = {
        "directory": tmp_path / "run",
        "until_converged": True,
        "evaluate_every": 2,
    }
    first = ft.run(*arguments, 60, **options)
    rounds = first.training.round
    assert rounds < 60
    longer = ft.run(*arguments, 80, resume=True, **options)
    assert longer.training.round == rounds
    assert ft.open(tmp_path / "run").manifest["run"]["until_converged"]
    # Without validation data there is no rule by which to end.
    unjudged = ft.tables.from_table(table, client="site", target="y", val=0)
    run = ft.run(arguments[0], unjudged, arguments[2], 40, until_converged=True)
    assert run.training.round == 40


def judged(losses, scores, higher_is_better=True):
    """A training with curves of validation loss and of the measure that judges it."""
    curves = {"loss": losses, "score": scores}
    rounds = np.arange(len(losses))
    return SimpleNamespace(
        metric=SimpleNamespace(name="score", higher_is_better=higher_is_better),
        metrics=SimpleNamespace(curve=lambda name, split: (rounds, curves[name])),
    )


def test_training_ends_where_the_loss_rises_and_the_measure_does_not_improve():
    rising, flat = np.linspace(1, 2, 30), np.ones(30)
    for loss, score, higher, ends in (
        (rising, flat, True, True),
        (rising, -rising, True, True),
        (rising, rising, False, True),
        # A network becomes too sure while it still learns.
        (rising, rising, True, False),
        (rising, -rising, False, False),
        (-rising, flat, True, False),
        (flat, rising, True, True),
        (rising[:6], flat[:6], True, False),
    ):
        assert UntilConverged.holds(judged(loss, score, higher)) == ends


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
    """Labels are noise, and each client can separate its six rows: losses only rise."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 8)), rng.integers(0, 2, 40)
    data = ft.federation.from_arrays(x, y, np.arange(40) % 4, val=0.3, test=0.1, seed=0)
    sgd = ft.SGD(lr=0.5, steps=10, batch_size=64)
    arguments = ft.Local(sgd=sgd), data, ft.models.logistic()
    options = {"until_converged": True, "evaluate_every": 2}
    once = ft.run(*arguments, 60, directory=tmp_path / "once", **options)
    assert once.training.round < 60
    assert movement(*once.metrics.curve("loss", "val")) == "rising"
    ft.run(*arguments, 10, directory=tmp_path / "twice", **options)
    twice = ft.run(*arguments, 60, directory=tmp_path / "twice", resume=True, **options)
    assert twice.training.round == once.training.round
    np.testing.assert_array_equal(twice.personal(0).theta, once.personal(0).theta)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bracket": ["sgd.momentum"]}, "bracket names 'sgd.momentum', which is in no"),
        (
            {
                "bracket": ["weights"],
                "algorithms": {"fedavg": {"grid": {"weights": ["samples", "uniform"]}}},
            },
            "'weights', whose grid holds 'samples'; only numbers above 0",
        ),
    ],
)
def test_what_cannot_be_bracketed_is_refused(table, changed, message):
    with pytest.raises(ValueError, match=message):
        experiment_of(table, **changed)
