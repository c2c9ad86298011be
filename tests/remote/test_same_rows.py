"""One table in three ways: as a table on one machine, as the simulated job, and over
machines. Rows, inputs and models are equal to the bit.
"""

import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables import from_table
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run
from fedtailor.remote.job.examples import read_all
from fedtailor.remote.job.job import read_job
from fedtailor.remote.simulation import simulate_job
from remote.test_survival_and_windows import NAMES, Clients

JOB = """[coordinator]
address = "127.0.0.1:9092"
[data]
target = "ill"
classes = ["no", "yes"]
test = 0.25
preprocessing = "federated"
[data.columns]
age = "number"
code = "category"
ward = "category"
smokes = "boolean"
seen = "date"
"""


def rows(name, count=90):
    """Missing cells in each column, codes that look like numbers, and rare categories."""
    rng = np.random.default_rng(NAMES.index(name))
    age = rng.normal(60, 10, count).round(1)
    frame = pl.DataFrame(
        {
            "age": age,
            "code": rng.choice(["007", "7", "12a"], count, p=[0.5, 0.4, 0.1]),
            "ward": rng.choice(["eye", "heart", "ärzte, 2"], count),
            "smokes": rng.choice(["yes", "no"], count),
            "seen": [f"2024-0{month}-11" for month in rng.integers(1, 9, count)],
            "ill": np.where(age + rng.normal(0, 8, count) > 60, "yes", "no"),
        }
    )
    for column in frame.columns[:-1]:
        is_missing = pl.Series(rng.random(count) < 0.1)
        frame = frame.with_columns(
            pl.when(is_missing).then(None).otherwise(pl.col(column)).alias(column)
        )
    return frame


class Same(Clients):
    """A job over three files, and one file with all rows, in another order."""

    def __init__(self, directory, *changes):
        super().__init__(directory, JOB, rows)
        path = directory / "job.toml"
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        self.job = read_job(path)
        frames = [
            pl.read_csv(file, infer_schema=False).with_columns(site=pl.lit(name))
            for name, file in self.files.items()
        ]
        # Rows of clients are mixed, each client's in their order.
        order = np.arange(sum(map(len, frames))).reshape(len(NAMES), -1).T.ravel()
        pl.concat(frames)[order].write_csv(directory / "all.csv")

    def table(self):
        return from_table(
            self.directory / "all.csv",
            client="site",
            target="ill",
            features=tuple(self.job.schema.columns),
            val=0.1,
            test=0.25,
            seed=self.job.spec.seed,
            preprocessing="federated",
        )

    def trained(self):
        """The run of the table, the simulated job, and the federation's."""
        deployed = self.train()
        federation, statistics = read_all(self.job, self.files)
        assert statistics == self.agreed
        simulation = simulate_job(self.job, federation, statistics)
        spec, table = self.job.spec, self.table()
        of_table = run(
            spec.algorithm,
            table,
            spec.model,
            spec.rounds,
            seed=spec.seed,
            participation=spec.participation,
            uplink=spec.uplink,
            privacy=spec.privacy,
            settings=Settings(devices=1, canonical=True),
        )
        for split in ("train", "val", "test"):
            for client in NAMES:
                one, other = (
                    getattr(it.client(client), split) for it in (table, federation)
                )
                np.testing.assert_array_equal(one.x, other.x, strict=True)
                np.testing.assert_array_equal(one.y, other.y, strict=True)
        return of_table, simulation, deployed


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            '"ditto"': '"fedavg"\nweights = "samples"',
            "rounds = 2": "rounds = 2\nseed = 5",
        },
        {
            'use = "linear"': 'use = "mlp"\nhidden = 4\nprecision = "bfloat16"',
            '"ditto"': '"fedavg"',
        },
        {
            "minimum = 3\n": (
                'minimum = 3\n[privacy]\nuplink = [{ use = "clip", norm = 0.5 },'
                ' { use = "quantize" }]\n'
            )
        },
    ],
    ids=["ditto", "weights", "bfloat16", "uplink"],
)
def test_a_table_its_simulated_job_and_its_federation_are_one(tmp_path, changes):
    ours = Same(tmp_path, *changes.items())
    of_table, simulation, deployed = ours.trained()
    server = [
        np.asarray(it.training.server.model) for it in (of_table, simulation, deployed)
    ]
    np.testing.assert_array_equal(server[0], server[1], strict=True)
    np.testing.assert_array_equal(server[1], server[2], strict=True)
    for client in NAMES:
        np.testing.assert_array_equal(
            of_table.personal(client).theta, simulation.personal(client).theta
        )


@pytest.mark.parametrize("name", ["split", "group", "client", "folds"])
def test_what_a_job_does_not_have_is_refused_with_its_line(tmp_path, name):
    """The rows of a table's own split or of groups cannot silently be other ones."""
    path = tmp_path / "job.toml"
    text = JOB.replace("test = 0.25", f'test = 0.25\n{name} = "age"')
    path.write_text(text + '[model]\nuse = "linear"\n[method]\nuse = "fedavg"\n')
    path.write_text(path.read_text() + "[training]\nrounds = 1\n")
    with pytest.raises(
        ValueError, match=rf"line 7: .* no setting of \[data\] '{name}'"
    ):
        read_job(path)
