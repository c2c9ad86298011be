"""A job from its file to personal models, with clients in this process behind real messages."""

import numpy as np
import polars as pl
import pytest

from fedtailor.client.pool import split_sizes
from fedtailor.executors import Settings
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.coordinate import coordinate
from fedtailor.remote.examples import federation_of, split_rows
from fedtailor.remote.job import read_job
from fedtailor.remote.plan import plan_of
from fedtailor.remote.table import read_rows
from fedtailor.remote.transport import LoopbackTransport, Responder
from fedtailor.remote.work import PERSONAL, ClientWork
from fedtailor.runs import run
from fedtailor.storage.export import load_models
from fedtailor.storage.run_directory import METRICS, SUMMARY
from fedtailor.training import Callback

JOB = """title = "wards"
[coordinator]
address = "127.0.0.1:9092"
[data]
target = "label"
classes = ["no", "yes"]
validation = 0.1
test = 0.25
[data.columns]
age = "number"
ward = ["surgery", "medicine"]
[model]
use = "logistic"
[method]
use = "ditto"
sgd = {{ lr = 0.1, epochs = 1, batch_size = 8 }}
[training]
rounds = {rounds}
minimum = 2
"""
NAMES = ("a", "b", "c", "d")


class Clients:
    """A job's file, and four clients with a file and a directory each."""

    def __init__(self, directory, rounds=4):
        directory.mkdir()
        self.directory, self.path = directory, directory / "job.toml"
        self.set_rounds(rounds)
        for place, name in enumerate(NAMES):
            rng = np.random.default_rng(place)
            age, ward = rng.normal(size=40), rng.choice(["surgery", "medicine"], 40)
            label = np.where(age * (-1) ** place + (ward == "surgery") > 0, "yes", "no")
            pl.DataFrame({"age": age, "ward": ward, "label": label}).write_csv(directory / f"{name}.csv")
        self.rows = {name: read_rows(directory / f"{name}.csv", self.job.schema) for name in NAMES}

    def set_rounds(self, rounds):
        self.path.write_text(JOB.format(rounds=rounds))
        self.job = read_job(self.path)

    def start(self, names):
        """Clients as they are after their processes started, and how many rows each says to have."""
        responders, sizes = {}, {}
        for name in names:
            own = federation_of(self.job, {name: self.rows[name]})
            plan = plan_of(self.job)
            work = ClientWork(plan, own, self.store(name))
            responders[name] = Responder(self.job.identity, name, work, plan.common_vectors)
            sizes[name] = split_sizes(own)[0].astype(np.int64)
        return LoopbackTransport(responders), sizes

    def store(self, name):
        return ClientStore(self.directory / f"state-{name}", self.job.identity)

    def train(self, names, **options):
        return coordinate(self.job, *self.start(names), self.directory / "run", **options)

    def personal(self, name):
        return load_models(self.store(name).directory / PERSONAL)[name]

    def simulated(self, names, rounds):
        clients, plan = federation_of(self.job, {name: self.rows[name] for name in names}), plan_of(self.job)
        return run(plan.algorithm, clients, plan.model, rounds, settings=Settings(devices=1, canonical=True))


class Dies(Callback):
    """As if the coordinator's process was killed after a round."""

    def __init__(self, after):
        self.after = after

    def after_round(self, training, evaluated):
        if training.round == self.after:
            raise MemoryError


def test_a_job_gives_the_simulations_measurements_and_leaves_models_at_the_clients(tmp_path):
    clients = Clients(tmp_path / "wards")
    clients.train(NAMES)
    simulated = clients.simulated(NAMES, 4)
    keys = ["round", "client", "split", "metric"]
    measured, wanted = (
        frame.sort(keys) for frame in (pl.read_parquet(clients.directory / "run" / METRICS), simulated.frame())
    )
    assert len(measured) == 4 * 4 * 2 * 2 and measured.select(keys).equals(wanted.select(keys))
    np.testing.assert_allclose(measured["value"], wanted["value"], rtol=1e-5)
    for name in NAMES:
        np.testing.assert_allclose(clients.personal(name).theta, simulated.personal(name).theta, rtol=1e-5, atol=1e-6)
        assert set(clients.personal(name).predict(clients.rows[name].x)) == {0, 1}
    assert (clients.directory / "run" / SUMMARY).is_file()


def test_a_coordinator_that_died_goes_on_to_the_same_bytes(tmp_path):
    straight, killed = Clients(tmp_path / "straight"), Clients(tmp_path / "killed")
    straight.train(NAMES)
    with pytest.raises(MemoryError):
        killed.train(NAMES, callbacks=(Dies(after=2),))
    assert not (killed.directory / "run" / SUMMARY).exists()
    with pytest.raises(ValueError, match="already holds a run; continue it with resume"):
        killed.train(NAMES)
    killed.train(NAMES, resume=True)
    for name in NAMES:
        np.testing.assert_array_equal(killed.personal(name).theta, straight.personal(name).theta)
    one, other = ((it.directory / "run" / METRICS).read_bytes() for it in (straight, killed))
    assert one == other


def test_clients_that_come_after_training_are_served_as_newcomers(tmp_path):
    clients = Clients(tmp_path / "wards", rounds=2)
    clients.train(NAMES[:3])
    before = clients.personal("a").theta
    clients.set_rounds(4)
    training = clients.train(NAMES, resume=True)
    assert training.executor.seen.names and set(training.executor.unseen.names) == {"d"}
    simulated = clients.simulated(NAMES[:3], 4)
    assert (clients.personal("a").theta != before).any()
    for name in NAMES[:3]:
        np.testing.assert_allclose(clients.personal(name).theta, simulated.personal(name).theta, rtol=1e-5, atol=1e-6)
    own = federation_of(clients.job, {"d": clients.rows["d"]})
    train = own.train[0]
    enrolled = simulated.enroll(own.x[train], own.y[train], name="d")
    np.testing.assert_allclose(clients.personal("d").theta, enrolled.theta, rtol=1e-5, atol=1e-6)
    measured = pl.read_parquet(clients.directory / "run" / METRICS)
    assert set(measured.filter("unseen")["client"]) == {"d"}


def test_rows_are_split_by_the_clients_name_and_none_is_lost(tmp_path):
    schema = Clients(tmp_path / "wards").job.schema
    for count in (1, 2, 7, 40):
        parts = split_rows(count, schema, 0, "a")
        assert sorted(np.concatenate(list(parts.values()))) == list(range(count)) and len(parts["train"]) >= 1
    assert [len(part) for part in parts.values()] == [26, 4, 10]
    assert (split_rows(40, schema, 0, "b")["train"] != parts["train"]).any()
