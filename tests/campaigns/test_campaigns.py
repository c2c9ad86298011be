"""The short form of `make campaign`: a few tries of every kind, from fixed seeds."""

import logging

import numpy as np
import pytest

from campaigns.faults import FAULTS, Faults
from campaigns.file_events import Steps, watching
from campaigns.inputs import INPUTS, Inputs
from campaigns.small_run import start

TRIES = {"kill": 5, "fill_disk": 5, "flip_bit_of_opened": 10}


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def inputs(faults, tmp_path_factory):
    return Inputs(
        tmp_path_factory.mktemp("inputs"),
        faults.folder / "whole",
        faults.folder / "models",
    )


@pytest.mark.parametrize("kind", FAULTS)
def test_faults(faults, kind):
    for number in range(TRIES.get(kind, 20)):
        getattr(faults, kind)(np.random.default_rng(number))


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs(inputs, kind, caplog):
    caplog.set_level(logging.ERROR)
    assert getattr(inputs, kind)(0, 20) >= 10


def test_a_campaign_notices_what_is_not_exact(tmp_path, monkeypatch):
    """What it looks for, made wrong: neither checkpoints nor the tables' files know
    what was written.
    """
    monkeypatch.setattr(
        "fedtailor.storage.run_directory.frame_digest", lambda frame: ""
    )
    monkeypatch.setattr("fedtailor._parquet._has_valid_digest", lambda file: True)
    careless = Faults(tmp_path)
    with pytest.raises(AssertionError, match=r"(metrics|ledger).parquet, bit"):
        for number in range(300):
            careless.flip_bit_of_unfinished(np.random.default_rng(number))


def test_changes_of_files_are_counted_and_fail(tmp_path):
    steps = Steps(lambda: OSError("no"), first=2, last=2)
    with watching(tmp_path, steps):
        (tmp_path / "a").mkdir()
        with pytest.raises(OSError, match="no"):
            (tmp_path / "a" / "b").write_text("")
        (tmp_path / "a" / "b").write_text("")
        (tmp_path / "a" / "b").replace(tmp_path / "c")
        (tmp_path / "c").unlink()
    (tmp_path / "d").write_text("")
    assert steps.count == 5
    start(tmp_path / "run", rounds=1)
    assert steps.count == 5
