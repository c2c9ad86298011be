"""States in a file: the same numbers, only what was written takes room, and failures of
the disk are one line.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import classification, predictors, softmax_model
from fedtailor.algorithms import APFL, Ditto, Then
from fedtailor.engine.executors import Settings, state_file
from fedtailor.engine.executors.state_file import FileStates
from fedtailor.engine.runs import simulate
from fedtailor.engine.storage.checkpoint import load_tree, save_tree
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
METHODS = [Ditto(sgd=TRAINED), APFL(sgd=SGD(lr=0.1, batch_size=8))]


def start(algorithm, directory=None, **settings):
    federation = classification(unseen=[False, False, True, False, False])
    return simulate(
        algorithm,
        federation,
        softmax_model("float32"),
        participation=Participation(fraction=0.3),
        settings=Settings(**settings),
        directory=directory,
    )


def after(training, rounds):
    """What a training has measured and predicts with after so many rounds, evaluated
    after each.
    """
    while training.round < rounds:
        training.advance()
        training.evaluate()
    measured = [evaluation.values for evaluation in training.metrics.evaluations[-8:]]
    return [*measured, *predictors(training)]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "algorithm", METHODS, ids=lambda algorithm: algorithm.about.name
)
def test_where_states_are_changes_no_bit(algorithm, tmp_path, monkeypatch):
    in_memory = after(start(algorithm), 4)
    monkeypatch.setattr(
        state_file, "MAX_BYTES", 200
    )  # an evaluation takes the clients part by part
    filed = start(algorithm, tmp_path, state_limit=0)
    assert isinstance(
        filed.executor.states, FileStates
    ) and filed.executor.states.max_clients in (2, 3)
    after(filed, 2)
    save_tree(tmp_path / "checkpoint", filed.snapshot())
    filed.executor.snapshot_saved()
    assert_same(after(filed, 4), in_memory)
    resumed = start(algorithm, tmp_path, state_limit=0)
    resumed.restore(load_tree(tmp_path / "checkpoint"))
    assert_same(after(resumed, 4), in_memory)


def test_a_run_may_change_where_its_states_are(tmp_path):
    expected = after(start(METHODS[0]), 3)
    for first, then in ((0, 2**30), (2**30, 0)):
        training = start(METHODS[0], tmp_path, state_limit=first)
        after(training, 2)
        resumed = start(METHODS[0], tmp_path, state_limit=then)
        resumed.restore(training.snapshot())
        assert_same(after(resumed, 3), expected)


@pytest.mark.parametrize("last", [2, 3])
def test_the_states_of_a_phase_stay_until_a_checkpoint_of_the_next(tmp_path, last):
    schedule = Then(METHODS[0], rounds=2, next=METHODS[1])
    training = start(schedule, tmp_path, state_limit=0)
    files = []
    for rounds in (2, 3):
        after(training, rounds)
        files.append(sorted(path.name for path in tmp_path.glob("states*")))
        if rounds <= last:
            save_tree(tmp_path / "checkpoint", training.snapshot())
            training.executor.snapshot_saved()
    assert files == [["states-0.bin"], ["states-0.bin", "states-1.bin"]]
    resumed = start(schedule, tmp_path, state_limit=0)
    resumed.restore(load_tree(tmp_path / "checkpoint"))
    assert resumed.round == last
    assert_same(after(resumed, 4), after(start(schedule), 4))
    for _ in range(2):  # of the last two checkpoints
        resumed.executor.snapshot_saved()
    assert [path.name for path in tmp_path.glob("states*")] == ["states-1.bin"]


def test_what_the_last_two_checkpoints_name_is_not_overwritten(tmp_path):
    states = FileStates({"model": jnp.zeros(3)}, 4, tmp_path / "states")
    index = np.arange(3)
    checkpoints = [(0, states.snapshot())]
    sizes = []
    for value in range(1, 7):
        states.write(index, {"model": jnp.full((3, 3), value)})
        checkpoints.append((value, states.snapshot()))
        states.snapshot_saved()
        for later in (10, 20):
            states.write(index[1:], {"model": jnp.full((2, 3), later)})
        for wanted, saved in checkpoints[-2:]:
            resumed = FileStates({"model": jnp.zeros(3)}, 4, tmp_path / "states")
            resumed.restore(saved)
            np.testing.assert_array_equal(
                resumed.rows["model"][:, 0], [wanted, wanted, wanted, 0]
            )
        np.testing.assert_array_equal(states.rows["model"][:, 0], [value, 20, 20, 0])
        sizes.append((tmp_path / "states").stat().st_size)
    assert sizes[-1] == sizes[2]  # three places a client are all there ever are


def test_clients_that_never_took_part_need_no_room(tmp_path):
    clients, size = 100_000, 25_000
    states = FileStates(
        {"model": jnp.arange(size, dtype=jnp.float32)}, clients, tmp_path / "states"
    )
    touched = np.array([5, 77_777])
    states.write(touched, {"model": jnp.ones((2, size))})
    assert (tmp_path / "states").stat().st_blocks * 512 < 3 * 4 * size
    read = states.read(np.array([99_999, 77_777]), 2)["model"]
    np.testing.assert_array_equal(read, [np.arange(size), np.ones(size)])


def test_a_directory_that_does_not_exist_is_one_line(tmp_path):
    training = start(METHODS[0], state_limit=0, state_dir=tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match=r"cannot keep the states of 4 clients in .*nowhere: No such"
    ) as caught:
        training.advance()
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no full device"
)
def test_a_full_disk_is_one_line(tmp_path):
    (tmp_path / "states-0.bin").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="No space left on device; make room"):
        start(METHODS[0], tmp_path, state_limit=0).advance()


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_a_damaged_file_is_noticed(tmp_path, damage):
    path = tmp_path / "states"
    states = FileStates({"model": jnp.zeros(3)}, 4, path)
    states.write(np.arange(4), {"model": jnp.ones((4, 3))})
    saved, content = states.snapshot(), bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[20] ^= 1
        path.write_bytes(content if damage == "bit" else content[:-1])
    resumed = FileStates({"model": jnp.zeros(3)}, 4, path)
    with pytest.raises(
        ValueError, match=r"are damaged; start the run again|No such file"
    ):
        resumed.restore(saved)
        resumed.read(np.arange(4), 4)
