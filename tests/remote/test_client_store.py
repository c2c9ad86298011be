"""A client's states on disk: whole or not at all, kept as long as the coordinator may
ask for them, and no longer.
"""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedtailor.remote.client.store import ClientStore

WRITER = """
import sys
from pathlib import Path
import numpy as np
from fedtailor.remote.client.store import ClientStore

with ClientStore(Path(sys.argv[1]), "experiment") as store:
    first = max(store.rounds(), default=-1) + 1
    for round in range(first, first + 100_000):
        store.save(round, {"control": np.full(50_000, round, np.float32), "steps": round})
        store.prune(round, round - 2)
        print(round, flush=True)
"""


def state(round):
    return {"control": np.full(5, round, np.float32), "parts": [np.int32(round), None]}


def test_a_state_is_found_again_by_round(tmp_path):
    with ClientStore(tmp_path, "experiment") as store:
        assert store.load(-1) is None
        for round in (3, 7):
            store.save(round, state(round))
    with ClientStore(tmp_path, "experiment") as store:
        assert store.rounds() == [3, 7]
        got = store.load(3)
        np.testing.assert_array_equal(got["control"], np.full(5, 3, np.float32))
        assert got["parts"] == [3, None]


def test_experiments_do_not_meet(tmp_path):
    one, other = ClientStore(tmp_path, "one"), ClientStore(tmp_path, "other")
    one.save(0, state(0))
    assert other.rounds() == []
    with pytest.raises(
        ValueError,
        match=r"^the state after round 0 of this run is not in .*other; restore it from a backup",
    ):
        other.load(0)


def test_only_what_a_coordinator_can_ask_for_is_kept(tmp_path):
    store = ClientStore(tmp_path, "experiment")
    for round in (1, 2, 4, 6, 9):
        store.save(round, state(round))
    # round 9 was not accepted yet; the coordinator's disk says 2
    store.prune(state_round=6, durable_state_round=2)
    assert store.rounds() == [2, 4, 6, 9]
    assert len(list(store.directory.glob("round-*"))) == 4
    store.prune(state_round=6, durable_state_round=6)
    assert store.rounds() == [6, 9]


def test_an_old_request_costs_no_state(tmp_path):
    """It may be an honest one that somebody sends again."""
    store = ClientStore(tmp_path, "experiment")
    for round in (0, 1):
        store.save(round, state(round))
    store.prune(state_round=-1, durable_state_round=-1)
    store.prune(state_round=0, durable_state_round=-1)
    assert store.rounds() == [0, 1]


def test_states_are_for_their_owner_only(tmp_path):
    assert (
        ClientStore(tmp_path / "state", "experiment").directory.stat().st_mode & 0o777
        == 0o700
    )


def test_two_processes_do_not_work_in_one_directory(tmp_path):
    with (
        ClientStore(tmp_path, "experiment"),
        pytest.raises(ValueError, match=r"^another process works in "),
        ClientStore(tmp_path, "experiment"),
    ):
        pass
    with ClientStore(tmp_path, "experiment") as store:
        store.save(0, state(0))


def test_a_damaged_state_is_refused(tmp_path):
    store = ClientStore(tmp_path, "experiment")
    store.save(0, state(0))
    (path,) = store.directory.glob("round-*")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        store.load(0)


@pytest.mark.slow
def test_states_are_whole_after_a_kill_at_any_moment(tmp_path):
    generator = random.Random(0)
    reached = -1
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        said = process.stdout.readline()  # it works; now at any moment
        time.sleep(generator.uniform(0, 0.2))
        os.kill(process.pid, signal.SIGKILL)
        rest = process.communicate()[0]
        told = int((said + rest).split("\n")[-2])  # the last whole line
        store = ClientStore(tmp_path, "experiment")
        rounds = store.rounds()
        assert told in rounds and told > reached  # what was said to be written is there
        for round in rounds:
            got = store.load(round)
            assert got["steps"] == round and np.all(np.asarray(got["control"]) == round)
        reached = told


def test_all_states_are_of_the_run_that_saved_last(tmp_path):
    """Before, a run could be continued from a state of another: the same request had
    another answer, with another noise.
    """
    store = ClientStore(tmp_path, "experiment")
    store.save(0, state(0), "a")
    store.save(1, state(1), "a")
    assert store.load(1, "a") is not None
    with pytest.raises(ValueError, match="of this run"):
        store.load(1, "b")
    store.save(0, state(0), "b")
    assert (store.rounds("a"), store.rounds("b")) == ([], [0])
    for run, round in (("a", 0), ("a", 1), ("b", 1)):
        with pytest.raises(ValueError, match="of this run"):
            store.load(round, run)
    assert store.load(0, "b") is not None
