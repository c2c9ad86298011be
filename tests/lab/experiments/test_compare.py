"""Comparisons: the choice on validation data, and the same end after a stop."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedtailor import __version__
from fedtailor._base.digests import with_digest
from fedtailor._base.files import file_digest
from fedtailor.algorithms import FedProx
from fedtailor.cli import main
from fedtailor.engine.executors import Settings
from fedtailor.engine.storage import DirectoryLock, Interrupted, Unusable
from fedtailor.engine.storage.run_files import MANIFEST, METRICS, SUMMARY
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment
from lab.experiments.comparisons import FILE


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "e.toml"
    path.write_text(FILE)
    return load_experiment(path)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory):
    results = tmp_path_factory.mktemp("whole")
    return results, json.loads(
        Comparison(experiment, results, Settings()).run().read_text()
    )


def measured(results, cells):
    return [pl.read_parquet(results / cell["run"] / METRICS) for cell in cells]


def test_every_cell_has_a_run_and_the_grid_is_chosen_on_validation_data(whole):
    results, index = whole
    assert [(cell["algorithm"], cell["seed"]) for cell in index["cells"]] == [
        ("Local", 0),
        ("FedAvg", 0),
        ("Local", 1),
        ("FedAvg", 1),
    ]
    small, good, wild = index["candidates"]
    assert wild["val"] is None  # diverged: a finding, not an end
    assert index["core_seconds"] > 0
    for candidate in (small, good):
        frame = pl.read_parquet(results / candidate["run"] / METRICS)
        last = frame.filter(
            (pl.col("round") == 2)
            & (pl.col("split") == "val")
            & (pl.col("metric") == "accuracy")
        )
        assert candidate["val"] == pytest.approx(
            np.mean(last["value"].to_numpy()), abs=1e-12
        )
    assert good["val"] > small["val"] and [
        one["chosen"] for one in index["candidates"]
    ] == [False, True, False]
    assert {
        json.dumps(cell["chosen"])
        for cell in index["cells"]
        if cell["algorithm"] == "FedAvg"
    } == {'{"sgd.lr": 0.1}'}
    assert all((results / cell["run"] / METRICS).exists() for cell in index["cells"])


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_stopped_comparison_ends_with_the_same_measurements(
    experiment, whole, tmp_path, at
):
    def stop(comparison, method, seed, training):
        if training is not None and comparison.done == at and training.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        Comparison(experiment, tmp_path, Settings(), stop).run()
    finished = len(list(tmp_path.rglob("summary.json")))
    trained = []
    again = Comparison(
        experiment,
        tmp_path,
        Settings(),
        lambda c, e, s, training: trained.append(training is None),
    )
    index = json.loads(again.run().read_text())
    results, expected = whole
    assert (
        index["cells"] == expected["cells"]
        and index["candidates"] == expected["candidates"]
    )
    for found, wanted in zip(
        measured(tmp_path, index["cells"]),
        measured(results, expected["cells"]),
        strict=True,
    ):
        assert found.equals(wanted)
    assert (
        finished >= at and sum(trained) == experiment.runs - finished
    )  # what was finished is not repeated
    assert again.done == experiment.runs


def test_experiments_share_runs(experiment, whole):
    results, expected = whole
    before = {
        path: path.stat().st_mtime_ns for path in Path(results).rglob("summary.json")
    }
    assert (
        json.loads(Comparison(experiment, results, Settings()).run().read_text())[
            "cells"
        ]
        == expected["cells"]
    )
    assert {
        path: path.stat().st_mtime_ns for path in Path(results).rglob("summary.json")
    } == before


def test_results_that_cannot_be_written_are_one_line(experiment, tmp_path):
    (tmp_path / "runs").write_text("a file where a directory should be")
    with pytest.raises(ValueError, match=r"cannot use .*; name another directory"):
        Comparison(experiment, tmp_path, Settings()).run()


def test_seeds_trained_at_once_end_like_seeds_in_turn(experiment, whole, tmp_path):
    def stop(comparison, method, seed, training):
        if (
            training is not None
            and method.label == "FedAvg"
            and seed == 1
            and training.round == 1
        ):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        Comparison(experiment, tmp_path, Settings(), stop, at_once=2).run()
    index = json.loads(
        Comparison(experiment, tmp_path, Settings(), at_once=2).run().read_text()
    )
    results, expected = whole
    assert sorted(map(str, index["cells"])) == sorted(map(str, expected["cells"]))
    for found, wanted in zip(
        measured(tmp_path, expected["cells"]),
        measured(results, expected["cells"]),
        strict=True,
    ):
        assert found.equals(wanted)


# what ends alone
# --------------------------------------------------------------------------------------

REFUSED = """title = "Refusals"
seeds = [0, 1]
rounds = 1
scenarios.rotated = {use = "digits-rotated", val = 0.25}
[algorithms.Local]
use = "local"
[algorithms.Ditto]
use = "ditto"
grid.lam = [1.0, 1e6]
[algorithms.Wild]
use = "fedavg"
grid.sgd.lr = [1e29, 1e30]
[algorithms.Fussy]
use = "fedprox"
"""


def from_text(tmp_path, text):
    path = tmp_path / "e.toml"
    path.write_text(text)
    return load_experiment(path)


def refuse(self, population):
    raise ValueError("fedprox does not like these clients")


def test_what_diverges_or_is_refused_ends_no_comparison(tmp_path, monkeypatch, capsys):
    experiment = from_text(tmp_path, REFUSED)
    monkeypatch.setattr(FedProx, "check", refuse)
    comparison = Comparison(experiment, tmp_path / "results", Settings())
    index = json.loads(comparison.run().read_text())
    assert [(cell["algorithm"], cell["seed"]) for cell in index["cells"]] == [
        ("Local", 0),
        ("Ditto", 0),
        ("Local", 1),
        ("Ditto", 1),
    ]
    skipped = [(one["algorithm"], one["seed"], one["runs"]) for one in index["skipped"]]
    assert skipped == [
        ("Ditto", None, 0),
        ("Wild", None, 1),
        ("Fussy", 0, 1),
        ("Fussy", 1, 1),
    ]
    assert [one["why"] for one in index["skipped"]][
        -1
    ] == "fedprox does not like these clients"
    assert comparison.done == experiment.runs
    assert main(["report", str(tmp_path / "results")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{experiment.runs} runs" in shown and "unfinished" not in shown
    assert "Not run: Ditto on rotated (lam 1000000.0): " in shown and "not run" in shown
    assert "Not run: Wild on rotated: every candidate diverged or was refused" in shown
    assert (
        "Not run: Fussy on rotated, seed 1: fedprox does not like these clients"
        in shown
    )


def test_refused_seeds_trained_at_once_end_alone(tmp_path, monkeypatch):
    experiment = from_text(
        tmp_path,
        REFUSED.partition("[algorithms.Ditto]")[0]
        + '[algorithms.Fussy]\nuse="fedprox"',
    )
    monkeypatch.setattr(FedProx, "check", refuse)
    index = json.loads(
        Comparison(experiment, tmp_path / "results", Settings(), at_once=2)
        .run()
        .read_text()
    )
    assert [cell["algorithm"] for cell in index["cells"]] == ["Local", "Local"]
    assert [one["seed"] for one in index["skipped"]] == [0, 1]


def test_a_comparison_of_nothing_is_an_error(tmp_path, monkeypatch):
    text = (
        REFUSED.partition("[algorithms.Local]")[0] + '[algorithms.Fussy]\nuse="fedprox"'
    )
    monkeypatch.setattr(FedProx, "check", refuse)
    with pytest.raises(ValueError, match="nothing could be run: fedprox does not like"):
        Comparison(from_text(tmp_path, text), tmp_path / "results", Settings()).run()


def test_a_grid_of_which_a_method_takes_nothing_is_an_error(tmp_path):
    with pytest.raises(
        ValueError, match=r"e.toml, line 9: the learning rate .* times lam 100000.0 is"
    ):
        from_text(tmp_path, REFUSED.replace("[1.0, 1e6]", "[1e5, 1e6]"))
    with pytest.raises(ValueError, match=r"e.toml, line 9: lam is '1.0'"):
        from_text(tmp_path, REFUSED.replace("[1.0, 1e6]", '[1.0, "1.0"]'))


# versions and writers
# --------------------------------------------------------------------------------------

TWO = FILE.partition("[algorithms.FedAvg]")[0].replace("rounds = 2", "rounds = 1")


def test_runs_of_another_version_are_made_anew(tmp_path, capsys):
    experiment, results = from_text(tmp_path, TWO), tmp_path / "results"
    before = json.loads(Comparison(experiment, results, Settings()).run().read_text())
    old = results / before["cells"][0]["run"]
    as_if_made_by(old, "0.0.1")
    reused = json.loads(
        Comparison(experiment, results, Settings(), any_version=True).run().read_text()
    )
    assert [cell["run"] for cell in reused["cells"]] == [
        cell["run"] for cell in before["cells"]
    ]
    assert reused["versions"]["fedtailor"] == f"0.0.1, {__version__}"
    assert main(["report", str(results)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"fedtailor 0.0.1 (1 runs) and {__version__} (1 runs)" in shown
    assert "these runs were made by different versions of fedtailor" in shown

    kept = {path: path.read_bytes() for path in old.iterdir()}
    anew = json.loads(Comparison(experiment, results, Settings()).run().read_text())
    assert anew["versions"]["fedtailor"] == __version__
    runs = [cell["run"] for cell in anew["cells"]]
    assert runs == [
        f"{before['cells'][0]['run']}-{__version__}",
        before["cells"][1]["run"],
    ]
    assert {path: path.read_bytes() for path in old.iterdir()} == kept
    assert (
        json.loads(Comparison(experiment, results, Settings()).run().read_text())[
            "cells"
        ]
        == anew["cells"]
    )


def as_if_made_by(run, version):
    """A finished run of another version."""
    manifest = run / MANIFEST
    manifest.write_text(
        manifest.read_text().replace(
            f'fedtailor = "{__version__}"', f'fedtailor = "{version}"'
        )
    )
    summary = json.loads((run / SUMMARY).read_text())
    summary["digests"][MANIFEST] = file_digest(manifest)
    (run / SUMMARY).write_text(json.dumps(with_digest(summary)))


def test_a_comparison_has_one_writer(tmp_path):
    experiment, results, refused = from_text(tmp_path, TWO), tmp_path / "results", []

    def second(comparison, method, seed, training):
        with pytest.raises(Unusable) as caught:
            Comparison(experiment, results, Settings()).run()
        refused.append(str(caught.value))

    Comparison(experiment, results, Settings(), second).run()
    assert set(refused) == {
        f"{results / 'e'} is in use by process {os.getpid()}; wait until it ends, or"
        " name another directory (docs: errors#a-directory-in-use)"
    }


def test_a_run_that_is_in_use_ends_the_comparison(tmp_path):
    experiment, results = from_text(tmp_path, TWO), tmp_path / "results"
    run = (
        results
        / json.loads(Comparison(experiment, results, Settings()).run().read_text())[
            "cells"
        ][0]["run"]
    )
    (run / SUMMARY).unlink()
    with DirectoryLock(run), pytest.raises(Unusable, match="in use by process"):
        Comparison(experiment, results, Settings()).run()


def test_a_damaged_run_is_not_reported(tmp_path, capsys):
    experiment, results = from_text(tmp_path, TWO), tmp_path / "results"
    run = (
        results
        / json.loads(Comparison(experiment, results, Settings()).run().read_text())[
            "cells"
        ][0]["run"]
    )
    frame = pl.read_parquet(run / METRICS)
    frame.with_columns(pl.col("value") * 0.5).write_parquet(run / METRICS)
    assert main(["report", str(results)]) == 2
    assert (
        "metrics.parquet is damaged (its digest is wrong); repeat the run"
        in capsys.readouterr().err
    )
