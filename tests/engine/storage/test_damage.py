"""Files that were damaged, or belong to another run, are refused or replaced, and never
believed.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from conformance.problems import classification, softmax_model
from fedtailor._base.digests import (
    DIGEST_KEY,
    frame_digest,
    has_valid_digest,
    with_digest,
)
from fedtailor.algorithms import Ditto, Local
from fedtailor.data.federation.storage import arrays_digest
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run
from fedtailor.engine.storage import (
    Damaged,
    DirectoryLock,
    Interrupted,
    RunDirectory,
    Unusable,
    load_models,
)
from fedtailor.engine.storage.checkpoint import _FORMAT, load_tree
from fedtailor.engine.storage.export import MODELS
from fedtailor.engine.storage.run_files import (
    CHECKPOINT,
    CLIENTS,
    LEDGER,
    MANIFEST,
    METRICS,
    PREVIOUS_CHECKPOINT,
    SUMMARY,
    read_summary,
    require_unchanged,
)
from fedtailor.protocol import SGD

METHOD = Local(sgd=SGD(lr=0.1, epochs=2, batch_size=8))
TABLES = (METRICS, LEDGER)


def start(directory, rounds=4, method=METHOD, **options):
    federation = classification(unseen=[False, False, True, False, False])
    options = {"checkpoint_every": 1, **options}
    return run(
        method,
        federation,
        softmax_model("float32"),
        rounds,
        directory=directory,
        **options,
    )


def content(directory):
    return {name: (directory / name).read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run of four rounds, never interrupted, leaves."""
    directory = tmp_path_factory.mktemp("whole")
    start(directory)
    return content(directory)


@pytest.fixture
def half(tmp_path):
    """A run of two rounds."""
    start(tmp_path / "run", rounds=2)
    return tmp_path / "run"


def change_value(path, column):
    """A table in which one number is another one."""
    frame = pl.read_parquet(path)
    values = frame[column].to_numpy().copy()
    values[0] += 1
    frame.with_columns(
        pl.Series(column, values, dtype=frame[column].dtype)
    ).write_parquet(path)


@pytest.mark.parametrize(
    ("name", "column"), [(METRICS, "value"), (LEDGER, "unicasts"), (CLIENTS, "train")]
)
def test_a_changed_number_in_a_table_is_refused(half, name, column):
    change_value(half / name, column)
    with pytest.raises(
        Damaged, match=rf"{name} is damaged, or the checkpoint is another run's"
    ):
        start(half, resume=True)


def test_a_changed_manifest_is_refused(half):
    text = (half / MANIFEST).read_text()
    (half / MANIFEST).write_text(
        text.replace("platform", "platforn")
    )  # settings are compared anyway; this is none
    with pytest.raises(Damaged, match=r"manifest.toml is damaged"):
        start(half, resume=True)


def test_another_runs_checkpoint_is_refused(half, tmp_path):
    start(tmp_path / "other", rounds=2, seed=1)
    shutil.copy(tmp_path / "other" / CHECKPOINT, half / CHECKPOINT)
    with pytest.raises(Damaged, match="another run's"):
        start(half, resume=True)


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(half, whole, caplog, damage):
    assert [
        load_tree(half / name)["round"] for name in (PREVIOUS_CHECKPOINT, CHECKPOINT)
    ] == [1, 2]
    written = bytearray((half / CHECKPOINT).read_bytes())
    written[-9] ^= 4
    (half / CHECKPOINT).write_bytes(written if damage == "bit" else written[:50])
    if damage == "gone":
        (half / CHECKPOINT).unlink()
    with caplog.at_level(logging.WARNING, "fedtailor"):
        done = start(half, resume=True)
    assert (
        "continuing from the one before, round 1" in caplog.text
        and caplog.text.count("\n") == 1
    )
    assert len(done.training.round_seconds) == 4
    assert content(half) == whole
    assert [
        load_tree(half / name)["round"] for name in (PREVIOUS_CHECKPOINT, CHECKPOINT)
    ] == [3, 4]


def test_a_damaged_checkpoint_never_takes_the_place_of_a_good_one(half, monkeypatch):
    (half / CHECKPOINT).write_bytes(b"damaged")
    start(half, rounds=2, resume=True)  # saves round 2 again
    assert [
        load_tree(half / name)["round"] for name in (PREVIOUS_CHECKPOINT, CHECKPOINT)
    ] == [1, 2]


def test_states_in_a_file_fall_back_too(tmp_path):
    options = {
        "method": Ditto(sgd=METHOD.sgd),
        "participation": 0.5,
        "settings": Settings(state_limit=0),
    }
    start(tmp_path / "whole", **options)
    start(tmp_path / "run", rounds=3, **options)
    (tmp_path / "run" / CHECKPOINT).write_bytes(b"damaged")
    start(tmp_path / "run", resume=True, **options)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_both_checkpoints_damaged_is_one_line(half):
    for name in (CHECKPOINT, PREVIOUS_CHECKPOINT):
        (half / name).write_bytes(b"damaged")
    with pytest.raises(
        Damaged, match=r"checkpoint-before.safetensors is damaged .* start again"
    ) as caught:
        start(half, resume=True)
    assert "\n" not in str(caught.value)


def test_a_finished_run_tells_its_files_from_others(half):
    summary = read_summary(half / SUMMARY)
    for name in (MANIFEST, CLIENTS, *TABLES):
        require_unchanged(half / name, summary)
        change = bytearray((half / name).read_bytes())
        change[-1] ^= 1
        (half / name).write_bytes(change)
        with pytest.raises(Damaged, match=f"{name} is damaged"):
            require_unchanged(half / name, summary)


def test_a_changed_summary_is_no_summary(half):
    path = half / SUMMARY
    path.write_text(path.read_text().replace('"rounds": 2', '"rounds": 3'))
    assert RunDirectory(half).finished_summary(3) is None
    with pytest.raises(Damaged, match=r"summary.json is damaged"):
        read_summary(path)


def test_a_seal_is_of_what_json_keeps():
    content = with_digest(
        {"a": float("nan"), "b": [float("inf"), 0.1, None], "c": {"d": (1, 2)}}
    )
    assert content["a"] is None and content["b"] == [None, 0.1, None]
    again = json.loads(json.dumps(content, allow_nan=False))
    assert has_valid_digest(again)
    for other in ({**again, "a": 1}, {**again, DIGEST_KEY: None}, {"a": 1}, [again]):
        assert not has_valid_digest(other)


def test_the_digest_of_a_table_is_of_its_content(tmp_path):
    frame = pl.DataFrame(
        {"a": ["x", "yz", None], "b": [1.0, 2.0, None], "c": [True, False, True]}
    )
    frame.write_parquet(tmp_path / "t", compression="uncompressed")
    assert frame_digest(pl.read_parquet(tmp_path / "t")) == frame_digest(frame)
    others = [
        frame.head(2),
        frame.reverse(),
        frame.rename({"a": "d"}),
        frame.with_columns(pl.col("b").fill_null(0)),
        frame.with_columns(a=pl.Series(["xy", "z", None])),
        frame.with_columns(a=pl.Series(["x", "yz", ""])),
        frame.with_columns(pl.col("b").cast(pl.Float32)),
    ]
    assert len({frame_digest(one) for one in [frame, *others]}) == 1 + len(others)


def test_a_summary_without_test_data_is_json(tmp_path):
    federation = classification(test=0)
    done = run(
        METHOD, federation, softmax_model("float32"), 1, directory=tmp_path / "run"
    )
    assert np.isnan(done.summary().mean)

    def refuse(constant):
        raise AssertionError(constant)

    found = json.loads((tmp_path / "run" / SUMMARY).read_text(), parse_constant=refuse)
    assert found["mean"] is None and found["worst"] is None


# one writer
# --------------------------------------------------------------------------------------


def test_a_directory_has_one_writer(half, whole):
    refused = []

    def second(training, evaluated):
        with pytest.raises(Unusable) as caught:
            start(half, resume=True)
        refused.append(str(caught.value))

    start(half, resume=True, progress=second)
    assert (
        refused
        == [
            f"{half} is in use by process {os.getpid()}; wait until it ends, or name"
            " another directory (docs: errors#a-directory-in-use)"
        ]
        * 2
    )
    assert content(half) == whole
    assert not (half / ".lock").exists()


HOLD = """
import sys, time
from pathlib import Path
from fedtailor.engine.storage import DirectoryLock
with DirectoryLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_process_that_is_killed_gives_its_directory_back(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)
    }
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "held\n"
    lock = DirectoryLock(tmp_path)
    with pytest.raises(Unusable, match=f"in use by process {holder.pid};"):
        lock.acquire()
    holder.kill()
    holder.wait()
    with lock:
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_end_saves_first(tmp_path, whole, which):
    before = signal.getsignal(which)

    def ask(training, evaluated):
        if training.round == 3:
            os.kill(os.getpid(), which)
            time.sleep(0.01)

    with pytest.raises(Interrupted):
        start(tmp_path, checkpoint_every=4, progress=ask)
    assert signal.getsignal(which) is before
    assert (
        load_tree(tmp_path / CHECKPOINT)["round"] == 3
    )  # although it came after the checkpoint's turn
    start(tmp_path, resume=True)
    assert content(tmp_path) == whole


# what is said at resume
# --------------------------------------------------------------------------------------


def edited(directory, old, new):
    """A run whose manifest says something else, with a checkpoint that agrees."""
    text = (directory / MANIFEST).read_text()
    assert old in text
    (directory / MANIFEST).write_text(text.replace(old, new))
    store = RunDirectory(directory)
    done = start(directory.with_name("again"), rounds=2)
    store.save(done.training)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "devices = 2",
            "devices = 7",
            "devices 2 instead of 7: last bits may differ; canonical aggregation",
        ),
        (
            "canonical = false",
            "canonical = true",
            "canonical False instead of True: last bits may differ",
        ),
        ("\njax = ", "\njax = '0.1' #", "instead of 0.1: last bits may differ"),
        ("devices = 2", "devices = 2", ""),
    ],
)
def test_other_circumstances_are_said(half, caplog, old, new, said):
    edited(half, old, new)
    with caplog.at_level(logging.WARNING, "fedtailor"):
        start(half, resume=True)
    assert said in caplog.text and caplog.text.count("\n") == bool(said)


@pytest.mark.as_shipped
def test_canonical_runs_do_not_depend_on_devices(tmp_path, caplog):
    start(tmp_path / "run", rounds=1, settings=Settings(canonical=True))
    with caplog.at_level(logging.WARNING, "fedtailor"):
        start(
            tmp_path / "run",
            rounds=2,
            resume=True,
            settings=Settings(canonical=True, devices=1),
        )
    assert caplog.text == ""
    start(tmp_path / "whole", rounds=2, settings=Settings(canonical=True))
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_a_resume_without_a_checkpoint_is_said(tmp_path, whole, caplog):
    def fail(training, evaluated):
        raise RuntimeError("in the first round")

    with pytest.raises(RuntimeError):
        start(tmp_path, checkpoint_every=4, progress=fail)
    with caplog.at_level(logging.WARNING, "fedtailor"):
        start(tmp_path, resume=True)
    assert "has no checkpoint yet: the run starts again" in caplog.text
    assert content(tmp_path) == whole


@pytest.mark.parametrize("rounds", [10**30, 2**31, 0, -1, 1.5, True, "3", None])
def test_rounds_that_are_none_are_refused(tmp_path, rounds):
    with pytest.raises(
        ValueError, match=r"^rounds is .*; it must be a whole number, 1 to 2147483647$"
    ):
        start(tmp_path / "run", rounds=rounds)
    for option in ("evaluate_every", "checkpoint_every"):
        with pytest.raises(ValueError, match=f"^{option} is "):
            start(tmp_path / "run", **{option: rounds})
    assert not (tmp_path / "run").exists()


def test_leftovers_of_killed_writes_are_removed(half):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with DirectoryLock(half):
        pass
    mine = f".save.{host()}.{gone.pid}.0.part"
    (half / mine).mkdir()
    (half / mine / METRICS).write_bytes(b"half")
    start(half, rounds=3, resume=True)
    assert [entry.name for entry in half.iterdir() if entry.name.startswith(".")] == []


def host():
    from fedtailor._base import files

    return files._HOST


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        start(tmp_path / "run", rounds=2).export(tmp_path / "models")
    finally:
        os.umask(before)
    found = {
        path.name: path.stat().st_mode & 0o777
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert set(found.values()) == {0o640} and {
        CHECKPOINT,
        MODELS,
        SUMMARY,
        "manifest.json",
    } <= set(found)


# exports
# --------------------------------------------------------------------------------------


def test_every_flipped_bit_of_an_export_is_noticed(half, tmp_path):
    start(half, rounds=2, resume=True).export(tmp_path / "models")
    expected = {
        name: model.theta for name, model in load_models(tmp_path / "models").items()
    }
    rng, refused = np.random.default_rng(0), 0
    for path in sorted((tmp_path / "models").iterdir()):
        written = path.read_bytes()
        for place in rng.integers(0, 8 * len(written), 100):
            damaged = bytearray(written)
            damaged[place // 8] ^= 1 << (place % 8)
            path.write_bytes(damaged)
            try:
                found = load_models(tmp_path / "models")
            except ValueError as error:
                assert "\n" not in str(error)
                refused += 1
            else:  # white space
                assert found.keys() == expected.keys()
                for name, model in found.items():
                    np.testing.assert_array_equal(model.theta, expected[name])
        path.write_bytes(written)
    assert refused > 150


def test_an_export_leaves_nothing_half_written(half, tmp_path, monkeypatch):
    done = start(half, rounds=2, resume=True)

    def full(file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            ValueError,
            match=r"cannot write models to .*No space left on device; name another",
        ):
            done.export(tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
    done.export(tmp_path / "models")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "manifest.json",
        MODELS,
    ]
    assert Path(tmp_path / "models").is_dir()


@pytest.mark.parametrize(
    "tree",
    ["[]", "1", '"x"', '{"list": {"a": 1}}', '{"dict": [1]}', '{"dict": {"a": null}}'],
)
def test_a_tree_that_somebody_else_wrote_is_one_line(tree, tmp_path):
    """Its digest is right. Before, it ended in a traceback."""
    path, digest = tmp_path / CHECKPOINT, arrays_digest(tree, {})
    save_file({}, path, {"format": _FORMAT, "tree": tree, "digest": digest})
    with pytest.raises(Damaged, match="is damaged") as refusal:
        load_tree(path)
    assert "\n" not in str(refusal.value)
