"""Client states in a file: a run that dies between any two steps on the disk goes on
from its last checkpoint.
"""

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from conformance.problems import classification, softmax_model
from fedtailor.algorithms import Ditto
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run
from fedtailor.engine.storage.run_files import CHECKPOINT, LEDGER, METRICS
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
ROUNDS = 3


def fsync(file):
    pass


class Disk:
    """Counts the calls that change files. Before each of them, and in the middle of a
    write, it copies the run's directory: that is what a process leaves which dies there,
    as a process that dies loses nothing that it wrote.

    Attributes:
        calls: how often each function was called.
        copies: the copies that differ from the one before, in their order.
    """

    def __init__(self, monkeypatch, directory, copies):
        self.directory, self.folder = directory, copies
        self.calls, self.copies, self.last = Counter(), [], None
        # nothing waits for the disk
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
            self.calls[call.__name__] += 1
            self.copy()
            if call.__name__ == "pwrite":
                file, data, offset = arguments
                call(file, data[: len(data) // 2], offset)
                self.copy()
            return call(*arguments, **options)

        return step

    def copy(self):
        """Copy the directory if it has changed."""
        found = contents(self.directory)
        if found != self.last:
            self.last = found
            self.copies.append(self.folder / str(len(self.copies)))
            shutil.copytree(self.directory, self.copies[-1])


def contents(directory):
    """File -> its bytes."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def train(directory, resume=False):
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


@pytest.mark.slow
def test_whenever_a_run_dies_it_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        disk = Disk(patch, tmp_path / "whole", tmp_path / "copies")
        whole = train(tmp_path / "whole")
    # the states of the reporters are written, and no others for a checkpoint
    assert disk.calls["pwrite"] == 2 * ROUNDS
    assert disk.calls["fsync"] >= 3 * ROUNDS
    with_checkpoint = sum((copy / CHECKPOINT).exists() for copy in disk.copies)
    assert len(disk.copies) > with_checkpoint > len(disk.copies) // 2
    monkeypatch.setattr(os, "fsync", fsync)
    for copy in disk.copies:
        assert train(copy, resume=True) == whole, copy
