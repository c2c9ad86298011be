"""Trackers, against the stores that the real libraries write, and read back with them
where they can.
"""

import json
import socket
import struct
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from fedtailor import models
from fedtailor.algorithms import FedAvg
from fedtailor.cli import main
from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.runs import run
from fedtailor.engine.storage import Unusable, check
from fedtailor.engine.training import Callback
from fedtailor.lab.experiments.compare import Comparison, Settings
from fedtailor.lab.experiments.experiment import load_experiment
from fedtailor.lab.trackers import Tracker, find_tracker, find_trackers, tracker
from fedtailor.protocol import SGD

METHOD = FedAvg(SGD(lr=0.1, epochs=1, batch_size=8))
NAMES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 3)).astype(np.float32), rng.integers(0, 2, 90)
    parts = np.split(np.arange(90), 9)
    train, val, test = (Ragged.of(parts[place::3]) for place in range(3))
    return Federation(
        x, y, train, val, test, tuple("abc"), unseen=np.arange(3) == 2, classes=2
    )


@pytest.fixture
def offline(monkeypatch):
    """Whoever tries to reach another machine fails."""
    connect = socket.socket.connect

    def refuse(self, address):
        local = self.family == socket.AF_UNIX or str(address[0]) in (
            "127.0.0.1",
            "::1",
            "localhost",
        )
        assert local, f"a tracker tried to reach {address}"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)


class Kept(Tracker):
    """A tracker that keeps what it is told."""

    name, package = "kept", "json"

    def begin(self, title, known, told, described):
        self.begun, self.rounds, self.ended = (title, known, told, described), {}, None
        return known or "the id", told

    def log(self, round, values):
        self.rounds[round] = values

    def end(self, ended):
        self.ended = ended


del Tracker.registry["kept"]


class Fails(Callback):
    """Ends a run as a kill would: what no checkpoint holds is lost."""

    def after_round(self, training, evaluated):
        if training.round == 3:
            raise KeyboardInterrupt


def killed_and_resumed(federation, directory, kind):
    """Five rounds: told of three, continued from the checkpoint of the second."""
    options = {"directory": directory, "checkpoint_every": 2, "seed": 4}
    with pytest.raises(KeyboardInterrupt):
        run(
            METHOD,
            federation,
            models.logistic(),
            5,
            callbacks=[first := kind(directory), Fails()],
            **options,
        )
    second = kind(directory)
    done = run(
        METHOD,
        federation,
        models.logistic(),
        5,
        callbacks=[second],
        resume=True,
        **options,
    )
    return first, second, done


def test_a_resumed_run_goes_on_in_the_same_tracker_run_and_repeats_no_round(
    federation, tmp_path
):
    first, second, done = killed_and_resumed(federation, tmp_path, Kept)
    assert (list(first.rounds), first.ended) == ([1, 2, 3], "interrupted")
    assert (list(second.rounds), second.ended, second.begun[1:3]) == (
        [4, 5],
        "finished",
        ("the id", 3),
    )
    kept = (tmp_path / "tracker-kept.json").read_text()
    assert json.loads(kept).items() >= {"run": "the id", "round": 5}.items()
    assert [found.whole for found in check(tmp_path)] == [True]

    values, totals = second.rounds[5], done.training.ledger.totals()
    assert values["test/accuracy"] == done.metrics.values("accuracy").mean()
    assert values["test/accuracy_worst10"] == done.metrics.values("accuracy").min()
    assert values["unseen_test/loss"] == done.metrics.values("loss", unseen=True).mean()
    assert (values["traffic/bytes_down"], values["traffic/bytes_up"]) == (
        totals.bytes_down,
        totals.bytes_up,
    )
    title, _, _, described = first.begun
    assert (
        title == "fedavg, seed 4"
        and described["algorithm.sgd.lr"] == 0.1
        and described["clients"] == 2
    )

    for damaged in ("{}", "[]", kept.replace('"round": 5', '"round": 4')):
        (tmp_path / "tracker-kept.json").write_text(damaged)
        with pytest.raises(Unusable, match=r"tracker-kept.json is damaged; remove it"):
            run(
                METHOD,
                federation,
                models.logistic(),
                6,
                callbacks=[Kept(tmp_path)],
                directory=tmp_path,
                checkpoint_every=2,
                seed=4,
                resume=True,
            )


def test_what_a_library_raises_ends_in_one_line(federation):
    class Broken(Kept):
        def log(self, round, values):
            raise RuntimeError("the store\nis full")

    with pytest.raises(
        Unusable,
        match=(
            r"^the tracker kept failed: the store is full; run without it, or mend"
            r" that$"
        ),
    ):
        run(METHOD, federation, models.logistic(), 1, callbacks=[broken := Broken()])
    assert broken.ended == "failed"


@pytest.mark.parametrize(
    "name",
    [
        "tensorboard",
        pytest.param("mlflow", marks=pytest.mark.extra),
        pytest.param("wandb", marks=pytest.mark.extra),
    ],
)
def test_the_library_s_own_store_holds_every_round_once(
    federation, tmp_path, monkeypatch, offline, name
):
    pytest.importorskip(NAMES[name], reason=f"the extra {name} is not installed")
    monkeypatch.chdir(tmp_path)
    for variable in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(
        "MLFLOW_DISABLE_TELEMETRY", "true"
    )  # put back after the test; so is the next one
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    _, _, done = killed_and_resumed(federation, tmp_path / "run", find_tracker(name))
    stored, settings = READERS[name](tmp_path)
    rounds, means = done.metrics.curve("accuracy", "test")
    assert [round for round, _ in stored] == [1, 2, 3, 4, 5] == rounds.tolist()
    np.testing.assert_allclose(
        [value for _, value in stored], means, rtol=1e-6
    )  # TensorBoard keeps 32 bits
    assert "algorithm.sgd.lr" in settings


def tensorboard(folder):
    from tensorboardX.proto.event_pb2 import Event

    stored, text = [], ""
    for path in sorted(
        (folder / "run" / "tensorboard").iterdir(),
        key=lambda path: path.stat().st_mtime_ns,
    ):
        content = path.read_bytes()
        while content:  # length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", content[:8])
            event, content = (
                Event.FromString(content[12 : 12 + length]),
                content[16 + length :],
            )
            for value in event.summary.value:
                stored += (
                    [(event.step, value.simple_value)]
                    if value.tag == "test/accuracy"
                    else []
                )
                text += (
                    str(value.tensor.string_val)
                    if value.tag.startswith("settings")
                    else ""
                )
    return stored, text


def mlflow(folder):
    from mlflow.tracking import MlflowClient

    assert sorted(path.name for path in folder.iterdir()) == ["mlflow.db", "run"]
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    (found,) = client.search_runs(
        [client.get_experiment_by_name("fedtailor").experiment_id]
    )
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "test/accuracy")
    return [(metric.step, metric.value) for metric in history], found.data.params


def wandb(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    stored, settings, ids = [], set(), set()
    for path in sorted(
        (folder / "run" / "wandb").glob("offline-run-*/*.wandb"),
        key=lambda path: path.stat().st_mtime,
    ):
        for record in map(Record.FromString, log_records(path.read_bytes())):
            ids |= {record.run.run_id} - {""}
            settings |= {item.key for item in record.run.config.update}
            row = {
                item.key or item.nested_key[0]: item.value_json
                for item in record.history.item
            }
            stored += (
                [(json.loads(row["_step"]), json.loads(row["test/accuracy"]))]
                if row
                else []
            )
    assert len(ids) == 1
    return stored, settings


def log_records(content, block=2**15):
    """The records of LevelDB's log format: blocks of (checksum, length, kind, part of a
    record).
    """
    place, parts = 7, b""  # after W&B's header
    while place + 7 <= len(content):
        if (
            block - place % block < 7
        ):  # no room for a part's head: the rest of the block is padding
            place += block - place % block
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


READERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


def test_a_comparison_tracks_the_runs_that_it_makes(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(Tracker, "registry", {})

    class Told(Kept):
        name = "told"

        def end(self, ended):
            told.append((self.experiment, self.begun[0], list(self.rounds), ended))

    path = tmp_path / "e.toml"
    path.write_text("""title = "t"
rounds = 1
seeds = [0]
track = ["told"]
scenarios.digits = {use = "digits-rotated", val = 0.25}
algorithms.Local = {use = "local", grid = {sgd.lr = [0.01, 0.1]}}
""")
    for _ in range(2):  # what is done is not run again
        Comparison(
            load_experiment(path), tmp_path / "out", Settings(), track=["told"]
        ).run()
    titles = [f"Local, sgd.lr {rate} on digits, seed 0" for rate in (0.01, 0.1)]
    assert told == [("e", title, [1], "finished") for title in titles]

    path.write_text(path.read_text().replace('["told"]', '["tolt"]'))
    with pytest.raises(
        ValueError,
        match=r"e.toml, line 4: there is no tracker 'tolt'; did you mean 'told'",
    ):
        load_experiment(path)


def test_unknown_and_missing_trackers_are_one_line_before_anything_is_written(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "run"
    command = [
        "run",
        "fedavg",
        "digits-rotated",
        "--rounds",
        "1",
        "--out",
        str(out),
        "--track",
    ]
    assert main([*command, "tensorbord"]) == 2
    assert (
        capsys.readouterr().err
        == "fedtailor: there is no tracker 'tensorbord'; did you mean 'tensorboard'?"
        " choose one of mlflow, tensorboard, wandb\n"
    )
    monkeypatch.setattr(tracker, "find_spec", lambda package: None)
    for name, package in NAMES.items():
        assert main([*command, name]) == 2
        assert (
            capsys.readouterr().err
            == f"fedtailor: tracking with {name} needs {package}, which is not"
            f" installed: pip install 'fedtailor[{name}]'\n"
        )
    assert not out.exists()


def test_a_tracker_of_another_package_is_found_by_its_entry_point(monkeypatch):
    points = {
        "outside": "fedtailor.lab.trackers:TensorBoard",
        "no_class": "fedtailor.lab.trackers:find_tracker",
        "gone": "fedtailor_no_such_module:Tracker",
    }

    def offered(group, name=None):
        assert group == "fedtailor.trackers"
        return [EntryPoint(name, points[name], group)] if name in points else []

    monkeypatch.setattr("fedtailor._base.entry_points.entry_points", offered)
    monkeypatch.setattr(Tracker, "registry", dict(Tracker.registry))
    monkeypatch.setattr(tracker, "find_spec", lambda package: "installed")
    (found,) = find_trackers(["outside", "outside"], Path("somewhere"))
    assert type(found).__name__ == "TensorBoard"
    with pytest.raises(ValueError, match="must be a subclass of Tracker"):
        find_tracker("no_class")
    with pytest.raises(
        ValueError,
        match="'gone' of fedtailor_no_such_module:Tracker cannot be imported",
    ):
        find_tracker("gone")
