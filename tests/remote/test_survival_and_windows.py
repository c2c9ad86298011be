"""Times to an event, and windows of a long table, over machines: the same as their
simulation to the bit.
"""

import json
import logging
from io import StringIO

import numpy as np
import polars as pl
import pytest

from fedtailor._base.groups import MIN_ROWS
from fedtailor.cli import main
from fedtailor.data.tables import from_table
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run
from fedtailor.engine.storage.export import load_models
from fedtailor.models.tasks.survival import log_odds
from fedtailor.remote.client.describing import describe_clients, preview, what_is_sent
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.client.table_requests import JobHandler
from fedtailor.remote.job.examples import example_rows_of, read_all
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.job_template import columns_of, template
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.statistics import read_table
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.service import agree_on_preprocessing
from fedtailor.remote.wire.run_log import FEDERATION, Lines
from fedtailor.remote.wire.transport import LoopbackTransport, Responder

NAMES = ("a", "b", "c")
REST = """[model]
use = "{model}"
[method]
use = "ditto"
sgd = {{ lr = 0.05, epochs = 1, batch_size = 200 }}
[training]
rounds = 2
minimum = 3
"""
SURVIVAL = """[coordinator]
address = "127.0.0.1:9092"
[data]
target = "days"
event = "died"
hazard = "{hazard}"
intervals = [100, 250.5, 600]
test = 0.25
preprocessing = "{preprocessing}"
[data.columns]
age = "number"
stage = ["early", "late"]
"""
WINDOWS = """[coordinator]
address = "127.0.0.1:9092"
[data]
target = "activity"
classes = ["rest", "walk"]
time = "t"
window = 8
step = 4
gap = 1.5
test = 0.25
val = 0.15
preprocessing = "{preprocessing}"
[data.columns]
left = "number"
right = "number"
"""


def patients(name, count=120):
    rng = np.random.default_rng(NAMES.index(name))
    age = np.round(rng.normal(60, 8, count), 1)
    late = rng.random(count) < 0.4
    days = rng.exponential(300 / (1 + 2 * late), count).round() + 1
    return pl.DataFrame(
        {
            "days": days,
            "died": rng.choice(["yes", "no"], count, p=[0.7, 0.3]),
            "age": age,
            "stage": np.where(late, "late", "early"),
        }
    )


def recording(name, count=240):
    rng = np.random.default_rng(10 + NAMES.index(name))
    walks = np.arange(count) // 60 % 2 == 1
    left = rng.normal(size=count) + walks * np.sin(np.arange(count))
    t = np.arange(count, dtype=float)
    t[count // 3 :] += 7  # a gap
    frame = pl.DataFrame(
        {
            "t": t,
            "left": left,
            "right": rng.normal(size=count) - left,
            "activity": np.where(walks, "walk", "rest"),
        }
    )
    return frame.sample(fraction=1, shuffle=True, seed=3)


class Clients:
    """A job, three files, and each client's work behind messages."""

    def __init__(self, directory, text, rows, model="linear"):
        self.directory = directory
        path = directory / "job.toml"
        path.write_text(text + REST.format(model=model))
        self.job = read_job(path)
        self.files = {name: directory / f"{name}.csv" for name in NAMES}
        for name, file in self.files.items():
            rows(name).write_csv(file)
        self.lines = []
        Lines(self.lines.append, logging.WARNING).listen(FEDERATION)

    def store(self, name):
        return ClientStore(self.directory / f"state-{name}", self.job.identity)

    def start(self):
        self.work = {
            name: JobHandler(self.job, name, self.files[name], self.store(name))
            for name in NAMES
        }
        return LoopbackTransport(
            {
                name: Responder(
                    self.job.identity,
                    name,
                    work,
                    work.common_vectors,
                )
                for name, work in self.work.items()
            }
        )

    def train(self):
        transport = self.start()
        sizes = {name: work.sizes for name, work in self.work.items()}
        self.agreed = agree_on_preprocessing(self.job, transport, sizes, wait=60)
        trained = coordinate(
            self.job,
            transport,
            sizes,
            self.directory / "run",
            statistics=self.agreed,
        )
        assert not self.lines
        return trained

    def simulate(self):
        federation, same = read_all(self.job, self.files)
        assert same == self.agreed
        plan = plan_of(self.job, same)
        return run(
            plan.algorithm,
            federation,
            plan.model,
            self.job.spec.rounds,
            metrics=plan.requested_metrics,
            settings=Settings(devices=1, canonical=True),
        )

    def kit(self, name):
        """The client's kit as `init` makes it, without its key."""
        kit = self.directory / "kit"
        kit.mkdir()
        (self.directory / f"state-{name}").rename(kit / "state")
        (kit / "job.toml").write_bytes((self.directory / "job.toml").read_bytes())
        for file, content in (
            ("client.toml", f'name = "{name}"'),
            ("ca.crt", ""),
            ("client.pem", ""),
        ):
            (kit / file).write_text(content)
        (kit / "client.pem").chmod(0o600)
        return kit

    def check_equal_to_simulation(self):
        trained, simulated = self.train(), self.simulate()
        for name in NAMES:
            directory = self.store(name).directory / PERSONAL
            theta = load_models(directory, plan_of(self.job, self.agreed).model)[name]
            np.testing.assert_array_equal(theta.theta, simulated.personal(name).theta)
        measured = trained.training.metrics.evaluations
        expected = simulated.training.metrics.evaluations
        assert {it.metric for it in measured} == {it.metric for it in expected}
        for one in measured:
            (same,) = [
                it
                for it in expected
                if (it.round, it.split, it.metric) == (one.round, one.split, one.metric)
            ]
            np.testing.assert_array_equal(one.values, same.values)
        return measured


@pytest.mark.parametrize(
    ("hazard", "preprocessing"),
    [("discrete", "federated"), ("cox", "federated"), ("discrete", "none")],
)
def test_survival_over_machines_is_its_simulation(hazard, preprocessing, tmp_path):
    text = SURVIVAL.format(hazard=hazard, preprocessing=preprocessing)
    clients = Clients(tmp_path, text, patients)
    measured = clients.check_equal_to_simulation()
    assert {it.metric for it in measured} == {"loss", "c_index"}


PRIVATE = "lr = 0.05, dp_noise = 1.0, dp_norm = 1.0"


def test_behind_masks_clients_without_events_must_change_something(tmp_path):
    """Cox's likelihood is constant at them, so that a sum was what another had changed."""
    path, sums = tmp_path / "job.toml", "[privacy]\nsecure_aggregation = true\n"
    rest = REST.format(model="linear") + sums + "evaluate = false\n"
    path.write_text(SURVIVAL.format(hazard="discrete", preprocessing="none") + rest)
    read_job(path)
    text = SURVIVAL.format(hazard="cox", preprocessing="none")
    private = rest.split("[privacy]")[0].replace("lr = 0.05", PRIVATE)
    path.write_text(text + private)
    with pytest.raises(ValueError, match=r"private steps clip .* leave hazard out$"):
        read_job(path)
    path.write_text(text + rest)
    with pytest.raises(ValueError, match=r"by a single event; leave hazard out$"):
        read_job(path)


def test_hazards_start_from_the_training_rows_of_all(tmp_path):
    text = SURVIVAL.format(hazard="discrete", preprocessing="federated")
    clients = Clients(tmp_path, text, lambda name: patients(name, 800))
    clients.start()
    federation, statistics = read_all(clients.job, clients.files)
    of_outcome = statistics.target.categories
    assert min(of_outcome.values()) >= MIN_ROWS
    train = federation.y[np.concatenate([federation.train[k] for k in range(3)])]
    assert train.shape == (sum(of_outcome.values()), 2)
    ends = clients.job.schema.intervals
    assert federation.loss.ends == ends == (100.0, 250.5, 600.0)
    assert federation.loss.start == pytest.approx(
        log_odds(train[:, 0], train[:, 1], ends), abs=1e-12
    )


def test_no_client_tells_of_few_outcomes(tmp_path):
    """Groups of fewer than five of 60 patients are counted together, or to the largest."""
    text = SURVIVAL.format(hazard="discrete", preprocessing="federated")
    clients = Clients(tmp_path, text, patients)
    table, rows = read_table(clients.files["a"], clients.job.schema), np.arange(60)
    assert min(table.outcomes()[rows].value_counts()["count"]) < MIN_ROWS
    sums = table.statistics(rows).target
    told = [*sums.categories.values(), sums.rare, sums.missing]
    assert all(count == 0 or count >= MIN_ROWS for count in told)
    assert sum(told) == 60


def test_of_times_only_pairs_are_measured(tmp_path):
    """No histogram of times or risks leaves, nor a weight that needs the times at which
    rows were censored: risk sets and weights are not known over machines.
    """
    text = SURVIVAL.format(hazard="discrete", preprocessing="federated")
    rest = REST.format(model="linear")
    path = tmp_path / "job.toml"
    path.write_text(text + rest)
    plan = plan_of(read_job(path))
    assert [it.name for it in plan.metrics] == ["loss", "c_index"]
    cells = np.ones((4, 8))
    condensed = plan.metrics[1].condense({"events": cells, "all": cells})
    assert {name: np.shape(it) for name, it in condensed.items()} == {
        "ranked": (),
        "pairs": (),
    }
    for metric in ("uno", "integrated_brier"):
        path.write_text(text + rest + f'metrics = ["{metric}"]\n')
        with pytest.raises(ValueError, match="is not defined for"):
            plan_of(read_job(path))


def test_survival_is_described_and_predicted(tmp_path, capsys):
    text = SURVIVAL.format(hazard="discrete", preprocessing="federated")
    clients = Clients(tmp_path, text, patients)
    schema = clients.job.schema
    assert "'days': in which of 3 intervals" in what_is_sent(schema)[0]
    shown = json.loads(preview(clients.job, "a", clients.files["a"]))
    assert set(shown["target"]["categories"]) == set(schema.outcomes)
    transport = clients.start()
    description = describe_clients(clients.job, transport, NAMES, 60)
    of_days = description.sums["b"]["days"]
    assert of_days.categories["event until 100"] >= MIN_ROWS
    assert sum(of_days.categories.values()) + of_days.rare == description.rows["b"]

    clients.train()
    kit = clients.kit("a")
    new = patients("b", 5).drop("days", "died")
    new.write_csv(tmp_path / "new.csv")
    ask = ["federation", "predict", str(kit), "--data", str(tmp_path / "new.csv")]
    capsys.readouterr()
    assert main([*ask, "--times", "50", "250.5", "9999"]) == 0
    table = pl.read_csv(StringIO(capsys.readouterr().out))
    assert table.columns == ["row", "risk", "S(50)", "S(250.5)", "S(9999)"]
    assert (table["S(50)"] > table["S(250.5)"]).all()
    order = np.argsort(table["risk"].to_numpy())
    assert (np.diff(table["S(250.5)"].to_numpy()[order]) <= 0).all()
    assert main([*ask, "--times", "-1"]) == 2
    assert "a time is a number of 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("preprocessing", ["federated", "none"])
def test_windows_over_machines_are_their_simulation(preprocessing, tmp_path, capsys):
    text = WINDOWS.format(preprocessing=preprocessing)
    clients = Clients(
        tmp_path, text, recording, 'conv1d"\nsize = 3\nchannels = [3]\n#"'
    )
    clients.check_equal_to_simulation()
    kit = clients.kit("b")
    recording("a", 50).drop("activity").sort("t").write_csv(tmp_path / "new.csv")
    ask = ["federation", "predict", str(kit), "--data", str(tmp_path / "new.csv")]
    capsys.readouterr()
    assert main([*ask, "--probabilities"]) == 0
    table = pl.read_csv(StringIO(capsys.readouterr().out))
    assert table.columns[:3] == ["row", "last_row", "prediction"]
    # The gap is after row 16, and 34 rows follow.
    assert table["row"].to_list() == [1, 9, 17, 25, 33, 41]
    assert (table["last_row"] == table["row"] + 7).all()
    recording("a", 7).drop("activity").write_csv(tmp_path / "new.csv")
    assert main(ask) == 2
    assert "no 8 rows follow each other" in capsys.readouterr().err


def test_windows_of_a_client_are_those_of_a_table(tmp_path):
    clients = Clients(tmp_path, WINDOWS.format(preprocessing="none"), recording)
    frames = [recording(name).with_columns(client=pl.lit(name)) for name in NAMES]
    table = from_table(
        pl.concat(frames),
        target="activity",
        time="t",
        window=8,
        step=4,
        test=0.25,
        val=0.15,
    )
    federation, _ = read_all(clients.job, clients.files)
    for split in ("train", "val", "test"):
        assert (federation.sizes[split] == table.sizes[split]).all()
    mean, scale = (
        np.array([getattr(column, name) for column in table.preprocessing.columns])
        for name in ("mean", "deviation")
    )
    for client in range(3):
        ours, theirs = federation.client(client), table.client(client)
        for split in ("train", "val", "test"):
            x, same = getattr(ours, split).x, getattr(theirs, split).x
            # In the order of time here, of the table there.
            ours_sorted = x[np.argsort(x[:, 0, 0])]
            theirs_sorted = (same * scale + mean)[np.argsort(same[:, 0, 0])]
            np.testing.assert_allclose(ours_sorted, theirs_sorted, atol=1e-5)


def test_sums_of_windows_are_of_the_rows_that_train(tmp_path):
    clients = Clients(tmp_path, WINDOWS.format(preprocessing="federated"), recording)
    schema = clients.job.schema
    table = read_table(clients.files["a"], schema)
    examples = example_rows_of(table, schema, 0, "a")
    train, windows = examples.training_rows, len(examples.split["train"])
    assert len(set(train.tolist())) == len(train) < windows * 8
    own = table.statistics(train)
    own.check_rows(windows, schema)
    for wrong in (len(train), len(train) // 8 - 1):
        with pytest.raises(ValueError, match="of 'left' are of"):
            own.check_rows(wrong, schema)


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (SURVIVAL, "[100, 250.5, 600]", "[100, 90]", "ascending times at which"),
        (SURVIVAL, "intervals = [100, 250.5, 600]", "", "ascending times at which"),
        (SURVIVAL, 'event = "died"\n', "", "hazard is for times to an event"),
        (SURVIVAL, 'event = "died"', 'event = "days"', "'days' has two roles"),
        (SURVIVAL, 'event = "died"', 'event = "age"', "'age' is the event"),
        (SURVIVAL, "test = 0.25", "window = 3", "leave out window, or event"),
        (SURVIVAL, "test = 0.25", 'classes = ["a", "b"]', "leave out classes"),
        (WINDOWS, "gap = 1.5\n", "", "windows need time"),
        (WINDOWS, "window = 8\n", "", "time is for windows of rows"),
        (WINDOWS, 'time = "t"', 'time = "left"', "'left' is the time"),
        (WINDOWS, "window = 8", "window = 0", "greater than or equal to 1"),
    ],
)
def test_mistakes_are_one_line(text, old, new, said, tmp_path):
    text = text.format(hazard="discrete", preprocessing="federated")
    assert old in text
    (tmp_path / "job.toml").write_text(
        text.replace(old, new) + REST.format(model="linear")
    )
    with pytest.raises(ValueError) as refused:
        read_job(tmp_path / "job.toml")
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "change", "said"),
    [
        (SURVIVAL, {"died": [None] + ["yes"] * 119}, "event column 'died' is missing"),
        (SURVIVAL, {"died": ["maybe"] * 120}, "says neither yes"),
        (SURVIVAL, {"days": [-1.0] * 120}, "a time is a number of 0 or more"),
        (WINDOWS, {"t": [None] + [1.0] * 239}, "time column 't' is missing"),
        (WINDOWS, {"t": [0.0] * 240}, "no 8 training rows follow each other"),
    ],
)
@pytest.mark.parametrize("preprocessing", ["federated", "none"])
def test_rows_that_do_not_fit_are_one_line(text, change, said, preprocessing, tmp_path):
    text = text.format(hazard="discrete", preprocessing=preprocessing)
    clients = Clients(tmp_path, text, recording if text.count("gap") else patients)
    rows = pl.read_csv(clients.files["a"])
    rows.with_columns(**{k: pl.Series(v) for k, v in change.items()}).write_csv(
        clients.files["a"]
    )
    with pytest.raises(ValueError) as refused:
        JobHandler(clients.job, "a", clients.files["a"], clients.store("a"))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_init_fills_in_events_and_windows(tmp_path):
    patients("a", 400).write_csv(tmp_path / "patients.csv")
    columns, notes = columns_of(tmp_path / "patients.csv", "days", event="died")
    path = tmp_path / "job.toml"
    path.write_text(template("t", "x.org:9092", 3, columns))
    schema = read_job(path).schema
    assert (schema.task, schema.event, set(schema.columns)) == (
        "survival",
        "died",
        {"age", "stage"},
    )
    assert len(schema.intervals) >= 8
    assert all(float(f"{end:.2g}") == end for end in schema.intervals)
    assert "edit them if clients must not know" in notes[0]
    recording("a").write_csv(tmp_path / "recording.csv")
    columns, _ = columns_of(tmp_path / "recording.csv", "activity", time="t", window=8)
    path.write_text(template("t", "x.org:9092", 3, columns))
    job = read_job(path)
    windowing = job.schema.windowing
    assert (windowing.window, windowing.step, windowing.time, windowing.gap) == (
        8,
        8,
        "t",
        1.5,
    )
