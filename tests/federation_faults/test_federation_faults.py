"""The short forms of the campaign: a few kills from fixed seeds."""

import os
from importlib.util import find_spec

import numpy as np
import pytest

from federation_faults.in_process import KINDS, Trials
from federation_faults.processes import campaign
from fedtailor.remote.client.store import ClientStore

LOAD = ClientStore.load


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    return Trials(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_killed_at_whatever_message_nothing_is_lost(trials, kind):
    assert trials.kill(np.random.default_rng(KINDS.index(kind)), kind).startswith(kind)


def test_a_trial_notices_what_is_lost(trials, monkeypatch):
    """What it looks for, made wrong: clients that start from the state that they wrote
    last, whoever accepted it.
    """
    monkeypatch.setattr(
        "fedtailor.remote.client.round_requests.ClientStore.load",
        lambda store, state_round, run: (
            LOAD(store, max(store.rounds(run)), run) if store.rounds(run) else None
        ),
    )
    with pytest.raises(AssertionError):
        for seed in range(12):
            trials.kill(np.random.default_rng(seed))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(
    "FEDTAILOR_PROCESS_TESTS" not in os.environ or find_spec("httpx") is None,
    reason=(
        "starts servers and clients as processes for minutes: FEDTAILOR_PROCESS_TESTS=1"
        " asks for it"
    ),
)
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_random_kills_of_processes_change_no_bit(method, tmp_path):
    found = campaign(tmp_path / "digits", kills=10, seed=0, method=method)
    assert found == (10, 10)
