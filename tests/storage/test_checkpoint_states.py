"""Client states in a file: a run that dies between any two steps on the disk goes on
from its last checkpoint.
"""

import gc
import os
from collections import Counter
from pathlib import Path

import pytest

from conformance.problems import classification, softmax_model
from fedtailor.algorithms import Ditto
from fedtailor.executors import Settings
from fedtailor.protocol import SGD
from fedtailor.runs import run
from fedtailor.storage.run_files import CHECKPOINT, LEDGER, METRICS

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
ROUNDS = 3


class Killed(BaseException):
    """Not an `Exception`: nothing in the package may catch it."""


def fsync(file):
    pass


class Disk:
    """Counts the calls that change files; the one numbered `dies_at` does half its
    work, and no later one any.

    A process that dies loses nothing that it wrote, so nothing waits for the disk."""

    def __init__(self, monkeypatch, dies_at=None):
        self.steps, self.dies_at, self.calls = 0, dies_at, Counter()
        monkeypatch.setattr(os, "fsync", fsync)
        for owner, name in (
            (os, "pwrite"),
            (os, "fsync"),
            (Path, "replace"),
            (Path, "unlink"),
        ):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, call):
        def step(*arguments, **options):
            self.steps += 1
            self.calls[call.__name__] += 1
            if self.dies_at is not None and self.steps >= self.dies_at:
                if self.steps == self.dies_at and call.__name__ == "pwrite":
                    file, data, offset = arguments
                    call(file, data[: len(data) // 2], offset)
                raise Killed
            return call(*arguments, **options)

        return step


def start(directory, resume=False):
    federation = classification(unseen=[False, False, True, False, False])
    settings, model = Settings(state_limit=0), softmax_model("float32")
    options = {
        "participation": 0.5,
        "checkpoint_every": 1,
        "settings": settings,
        "resume": resume,
    }
    run(Ditto(sgd=TRAINED), federation, model, ROUNDS, directory=directory, **options)
    return {name: (directory / name).read_bytes() for name in (METRICS, LEDGER)}


@pytest.fixture
def quick_collections():
    """What the tests before this one have left is not looked through in each of its
    many collections.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_collections")
def test_whenever_a_run_dies_it_goes_on_from_its_last_checkpoint(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        whole = start(tmp_path / "whole")
    assert (
        disk.calls["pwrite"] == 2 * ROUNDS
    )  # the states of the reporters, and no others for a checkpoint
    assert disk.calls["fsync"] >= 3 * ROUNDS
    resumed = 0
    for step in range(1, disk.steps + 1):
        directory = tmp_path / f"step {step}"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            Disk(patch, dies_at=step)
            start(directory)
        gc.collect()  # the lock of a process goes with it
        resumed += (directory / CHECKPOINT).exists()
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch)
            assert start(directory, resume=True) == whole, f"killed at step {step}"
    assert resumed > disk.steps // 2
