"""Run directories: exact resume after a kill, refusals, nothing overwritten."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from conformance.problems import classification, softmax_model
from fedtailor._base.files import private_folder
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import UCFL, FedAvg, Local, Then
from fedtailor.engine.runs import run
from fedtailor.engine.storage import Interrupted, load_models, run_directory
from fedtailor.engine.storage.checkpoint import load_tree, save_tree
from fedtailor.engine.storage.run_directory import RunDirectory
from fedtailor.engine.storage.run_files import (
    CHECKPOINT,
    CLIENTS,
    LEDGER,
    MANIFEST,
    METRICS,
    SUMMARY,
)
from fedtailor.protocol import SGD, Diverged

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
ALGORITHM = UCFL(sgd=TRAINED)


def start(directory, rounds=4, algorithm=ALGORITHM, **options):
    federation = classification(unseen=[False, False, True, False, False])
    options = {"directory": directory, "checkpoint_every": 2, **options}
    return run(algorithm, federation, softmax_model("float32"), rounds, **options)


def test_trees_survive_exactly(tmp_path):
    tree = {
        "a": [1, 2.5, None, "x", True],
        "b": (np.arange(3, dtype=np.uint32), {}),
        "c": np.float32(0.1),
    }
    tree |= {"empty": np.zeros((0, 2)), "scalar": np.array(3.5), "device": jnp.ones(2)}
    save_tree(tmp_path / "tree", tree)
    found = load_tree(tmp_path / "tree")
    assert (
        found["a"] == tree["a"]
        and isinstance(found["b"], tuple)
        and found["b"][1] == {}
    )
    np.testing.assert_array_equal(found["b"][0], tree["b"][0])
    assert found["b"][0].dtype == np.uint32
    assert found["c"] == tree["c"] and found["c"].dtype == np.float32
    assert (
        found["empty"].shape == (0, 2)
        and found["scalar"].shape == ()
        and isinstance(found["device"], jax.Array)
    )
    with pytest.raises(TypeError, match="cannot be written"):
        save_tree(tmp_path / "no", {"f": object()})
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("seconds_of_a_save", "saved"), [(0, [4, 7, 8]), (30, [4, 8])])
def test_where_rounds_take_long_a_run_is_saved_once_a_minute(
    tmp_path, monkeypatch, seconds_of_a_save, saved
):
    """A round takes 25 s; a save of 30 s is made less often."""
    clock, rounds = [0.0], []
    save = RunDirectory.save

    def slow_save(directory, training):
        save(directory, training)
        rounds.append(training.round)
        clock[0] += seconds_of_a_save

    def pass_time(training, evaluated):
        clock[0] += 25

    monkeypatch.setattr(RunDirectory, "save", slow_save)
    monkeypatch.setattr(run_directory, "monotonic", lambda: clock[0])
    start(tmp_path, rounds=8, checkpoint_every=100, progress=pass_time)
    assert rounds == saved


@pytest.mark.as_shipped
def test_a_stopped_run_ends_with_the_same_bytes(tmp_path):
    start(tmp_path / "whole")

    def stop_in_round_3(training, evaluated):
        if training.round == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with pytest.raises(Interrupted):
        start(tmp_path / "parts", progress=stop_in_round_3)
    assert load_tree(tmp_path / "parts" / CHECKPOINT)["round"] in (2, 3)
    done = start(tmp_path / "parts", resume=True)
    assert len(done.training.round_seconds) == 4
    for name in (METRICS, LEDGER):
        assert (tmp_path / "parts" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()
    # resuming what is finished changes nothing, more rounds go on
    start(tmp_path / "parts", resume=True)
    assert (tmp_path / "parts" / METRICS).read_bytes() == (
        tmp_path / "whole" / METRICS
    ).read_bytes()
    start(tmp_path / "parts", rounds=5, resume=True)
    start(tmp_path / "longer", rounds=5)
    assert (tmp_path / "parts" / METRICS).read_bytes() == (
        tmp_path / "longer" / METRICS
    ).read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from engine.storage.test_run_directory import start
def kill(training, evaluated):
    if training.round == 3:
        os.kill(os.getpid(), signal.SIGKILL)
start(Path(sys.argv[1]), progress=kill)
"""


@pytest.mark.as_shipped
def test_a_killed_run_ends_with_the_same_bytes(tmp_path):
    start(tmp_path / "whole")
    tests = Path(__file__).parents[2]
    paths = [str(tests), str(tests.parent / "src")]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "parts"), *paths], timeout=300
    )
    assert done.returncode == -signal.SIGKILL
    assert load_tree(tmp_path / "parts" / CHECKPOINT)["round"] == 2
    start(tmp_path / "parts", resume=True)
    assert (tmp_path / "parts" / METRICS).read_bytes() == (
        tmp_path / "whole" / METRICS
    ).read_bytes()


def test_a_save_that_did_not_end_is_cut_off(tmp_path):
    start(tmp_path / "whole", rounds=2)
    start(tmp_path / "parts", rounds=2)
    frame = pl.read_parquet(tmp_path / "parts" / METRICS)
    pl.concat([frame, frame]).write_parquet(tmp_path / "parts" / METRICS)
    start(tmp_path / "parts", rounds=3, resume=True)
    start(tmp_path / "whole", rounds=3, resume=True)
    assert (tmp_path / "parts" / METRICS).read_bytes() == (
        tmp_path / "whole" / METRICS
    ).read_bytes()


def test_what_is_not_ours_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="other files"):
        start(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(ValueError, match="cannot use"):
        start(tmp_path / "notes.txt")
    directory = tmp_path / "run"
    start(directory, rounds=1, algorithm=FedAvg(sgd=TRAINED))
    before = (directory / METRICS).read_bytes()
    with pytest.raises(ValueError, match="already holds a run"):
        start(directory, rounds=1, algorithm=FedAvg(sgd=TRAINED))
    with pytest.raises(
        ValueError, match=r"other settings \(algorithm.sgd.lr: 0.1, now 0.2\)"
    ):
        start(
            directory,
            rounds=2,
            algorithm=FedAvg(sgd=SGD(lr=0.2, momentum=0.9, epochs=2, batch_size=8)),
            resume=True,
        )
    with pytest.raises(ValueError, match="rounds is 0"):
        start(directory, rounds=0, algorithm=FedAvg(sgd=TRAINED), resume=True)
    assert (directory / METRICS).read_bytes() == before


@pytest.mark.parametrize("name", [CHECKPOINT, METRICS, MANIFEST])
def test_damage_is_one_line(tmp_path, name):
    start(tmp_path / "run", rounds=1, algorithm=Local(sgd=TRAINED))
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\xff\x00")
    with pytest.raises(ValueError, match=f"{name}.* damaged") as caught:
        start(tmp_path / "run", rounds=2, algorithm=Local(sgd=TRAINED), resume=True)
    assert "\n" not in str(caught.value)


def test_a_full_disk_keeps_what_was_saved(tmp_path, monkeypatch):
    start(tmp_path / "run", rounds=2)
    before = {
        name: (tmp_path / "run" / name).read_bytes() for name in (METRICS, CHECKPOINT)
    }

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match="No space left"):
        start(tmp_path / "run", rounds=4, resume=True)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == sorted(
        [
            MANIFEST,
            CLIENTS,
            METRICS,
            LEDGER,
            CHECKPOINT,
            "diagnostics.json",
            "diagnostics.safetensors",
            "models.json",
            "models.safetensors",
            SUMMARY,
        ]
    )
    assert RunDirectory(tmp_path / "run").finished_summary(2) is not None


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no full device"
)
@pytest.mark.parametrize("name", [METRICS, LEDGER])
def test_a_really_full_disk_is_one_line(tmp_path, monkeypatch, name):
    start(tmp_path / "run", rounds=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}

    @contextmanager
    def full(parent, purpose):
        with private_folder(parent, purpose) as folder:
            (folder / name).symlink_to("/dev/full")
            yield folder

    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.engine.storage.run_directory.private_folder", full)
        with pytest.raises(
            ValueError, match=r"cannot write to .* make room and resume"
        ) as caught:
            start(tmp_path / "run", rounds=4, resume=True)
    assert "\n" not in str(caught.value)
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()
    } == before  # the summary, too
    start(tmp_path / "run", rounds=4, resume=True)
    start(tmp_path / "whole", rounds=4)
    assert (tmp_path / "run" / METRICS).read_bytes() == (
        tmp_path / "whole" / METRICS
    ).read_bytes()


def test_one_wrong_bit_is_noticed(tmp_path):
    start(tmp_path / "run", rounds=1, algorithm=Local(sgd=TRAINED))
    path = tmp_path / "run" / CHECKPOINT
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        start(tmp_path / "run", rounds=2, algorithm=Local(sgd=TRAINED), resume=True)


def test_the_directory_tells_what_the_run_tells(tmp_path):
    done = start(tmp_path / "run", rounds=2)
    assert (
        Ledger.from_frame(pl.read_parquet(tmp_path / "run" / LEDGER)).totals()
        == done.ledger.totals()
    )
    assert pl.read_parquet(tmp_path / "run" / METRICS).equals(done.frame())


def test_the_manifest_says_what_was_run(tmp_path):
    start(tmp_path / "run", rounds=1)
    found = tomllib.loads((tmp_path / "run" / MANIFEST).read_text())
    assert (
        found["algorithm"]["name"] == "ucfl"
        and found["algorithm"]["sgd"]["momentum"] == 0.9
    )
    assert (
        found["run"]["seed"] == 0
        and found["model"]["outputs"] == 3
        and found["versions"]["jax"]
    )


def test_personal_models_come_home(tmp_path):
    federation = classification()
    result = run(FedAvg(sgd=TRAINED), federation, softmax_model("float32"), rounds=1)
    result.export(tmp_path / "models")
    found = load_models(tmp_path / "models")
    x = federation.client(2).test.x
    np.testing.assert_array_equal(
        found["client 2"].outputs(x), result.personal(2).outputs(x)
    )
    result.export(tmp_path / "one", clients=["client 1"])
    assert list(load_models(tmp_path / "one")) == ["client 1"]
    with pytest.raises(ValueError, match="not empty"):
        result.export(tmp_path / "models")
    with pytest.raises(ValueError, match="holds no exported models"):
        load_models(tmp_path)


def test_a_finished_run_that_is_extended_and_killed_has_no_summary(tmp_path):
    """Else tables would show the numbers of the end beside the rows of what
    followed.
    """
    first = start(tmp_path / "run", rounds=2)
    before = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert before["rounds"] == 2

    def killed_in_round_4(training, evaluated):
        if training.round == 4:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        start(
            tmp_path / "run",
            rounds=5,
            resume=True,
            checkpoint_every=1,
            progress=killed_in_round_4,
        )
    assert (
        load_tree(tmp_path / "run" / CHECKPOINT)["round"] >= 3
        and not (tmp_path / "run" / SUMMARY).exists()
    )
    done = start(tmp_path / "run", rounds=5, resume=True)
    after = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert after["rounds"] == 5
    # Seconds are those of all invocations, not of the last one.
    assert len(done.training.round_seconds) == 5
    assert done.training.round_seconds[:2] == pytest.approx(
        first.training.round_seconds
    )
    assert after["training_seconds"] == pytest.approx(sum(done.training.round_seconds))
    assert after["training_seconds"] > before["training_seconds"]
    assert after["core_seconds"] > before["core_seconds"] > 0


def test_a_run_of_an_earlier_version_has_no_processor_time(tmp_path):
    start(tmp_path / "run", rounds=2)
    checkpoint = load_tree(tmp_path / "run" / CHECKPOINT)
    del checkpoint["saved"]["core_seconds"]
    save_tree(tmp_path / "run" / CHECKPOINT, checkpoint)
    for rounds in (3, 4):
        assert (
            start(tmp_path / "run", rounds=rounds, resume=True).summary().core_seconds
            is None
        )


def test_a_finished_run_says_so_and_who_took_part(tmp_path):
    done = start(tmp_path / "run")
    store = RunDirectory(tmp_path / "run")
    summary = store.finished_summary(4)
    assert (
        summary is not None
        and summary["mean"] == done.summary().mean
        and summary["rounds"] == 4
    )
    assert summary["training_seconds"] == pytest.approx(
        sum(done.training.round_seconds)
    )
    assert (
        store.finished_summary(5) is None
        and RunDirectory(tmp_path / "other").finished_summary(4) is None
    )
    clients = pl.read_parquet(tmp_path / "run" / CLIENTS)
    assert clients["client"].to_list() == list(done.federation.names)
    assert clients["unseen"].to_list() == [False, False, True, False, False]
    for split in ("train", "val", "test"):
        assert (
            clients[split].to_list() == getattr(done.federation, split).sizes.tolist()
        )


def test_a_diverged_run_says_so(tmp_path):
    with pytest.raises(Diverged) as error:
        start(tmp_path / "run", algorithm=FedAvg(sgd=SGD(lr=1e38, epochs=3)))
    summary = RunDirectory(tmp_path / "run").finished_summary(4)
    assert summary is not None and summary["diverged"] == str(error.value)


def test_a_schedule_has_a_manifest(tmp_path):
    start(
        tmp_path / "run",
        rounds=2,
        algorithm=Then(FedAvg(sgd=TRAINED), rounds=1, next=Local(sgd=TRAINED)),
    )
    found = tomllib.loads((tmp_path / "run" / MANIFEST).read_text())["algorithm"]
    assert (found["name"], found["first"]["name"], found["next"]["name"]) == (
        "then",
        "fedavg",
        "local",
    )
