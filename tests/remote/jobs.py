"""A job from its file, with clients in this process behind real messages, for tests of
whole trainings.
"""

from dataclasses import replace

import numpy as np
import polars as pl

from fedtailor.engine.client.pool import client_split_sizes
from fedtailor.engine.storage.export import load_models
from fedtailor.remote.client.round_requests import PERSONAL, RoundHandler
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.examples import federation_from_rows
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.table import read_rows
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.simulation import simulate_job
from fedtailor.remote.wire.transport import LoopbackTransport, Responder

JOB = """title = "wards"
[coordinator]
address = "127.0.0.1:9092"
[data]
target = "label"
classes = ["no", "yes"]
val = 0.15
test = 0.25
[data.columns]
age = "number"
ward = ["surgery", "medicine"]
[model]
use = "logistic"
{model}
[method]
use = "{method}"
sgd = {{ lr = {lr}, epochs = 1, batch_size = 8 }}
[training]
rounds = {rounds}
minimum = 2
{rest}
"""
NAMES = ("a", "b", "c", "d")


class Clients:
    """A job's file, and four clients with a file and a directory each."""

    def __init__(
        self, directory, rounds=4, *, method="ditto", lr=0.1, model="", rest=""
    ):
        directory.mkdir()
        self.settings = {"method": method, "lr": lr, "model": model, "rest": rest}
        self.directory, self.path = directory, directory / "job.toml"
        self.set_rounds(rounds)
        for place, name in enumerate(NAMES):
            rng = np.random.default_rng(place)
            age, ward = rng.normal(size=40), rng.choice(["surgery", "medicine"], 40)
            label = np.where(age * (-1) ** place + (ward == "surgery") > 0, "yes", "no")
            pl.DataFrame({"age": age, "ward": ward, "label": label}).write_csv(
                directory / f"{name}.csv"
            )
        self.rows = {
            name: read_rows(directory / f"{name}.csv", self.job.schema)
            for name in NAMES
        }

    def set_rounds(self, rounds):
        self.path.write_text(JOB.format(rounds=rounds, **self.settings))
        self.job = read_job(self.path)

    def start(self, names):
        """Clients as they are after their processes started, and how many rows each
        says to have.
        """
        return LoopbackTransport(
            {name: self.client(name) for name in names}
        ), self.sizes(names)

    def client(self, name):
        """A client as it is after its process started."""
        plan = plan_of(self.job)
        work = RoundHandler(
            plan,
            federation_from_rows(self.job, {name: self.rows[name]}),
            self.store(name),
        )
        return Responder(self.job.identity, name, work, plan.common_vectors)

    def sizes(self, names):
        """How many rows each client says to have."""
        own = {
            name: federation_from_rows(self.job, {name: self.rows[name]})
            for name in names
        }
        return {
            name: client_split_sizes(it)[0].astype(np.int64) for name, it in own.items()
        }

    def store(self, name):
        return ClientStore(self.directory / f"state-{name}", self.job.identity)

    def train(self, names, **options):
        return self.train_over(self.start(names)[0], names, **options)

    def train_over(self, transport, names, **options):
        run = coordinate(
            self.job, transport, self.sizes(names), self.directory / "run", **options
        )
        return run.training

    def personal(self, name):
        return load_models(self.store(name).directory / PERSONAL)[name]

    def simulated(self, names, rounds, **options):
        clients = federation_from_rows(
            self.job, {name: self.rows[name] for name in names}
        )
        job = replace(self.job, spec=replace(self.job.spec, rounds=rounds))
        return simulate_job(job, clients, **options)
