"""Clients' tables as they come: made alike by counts and sums of all of them, and
nothing else of them is told.
"""

import json
import logging
import shutil
from io import StringIO
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedtailor._base.digests import with_digest
from fedtailor.cli import main
from fedtailor.data.tables import from_table
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run
from fedtailor.engine.storage.export import load_models
from fedtailor.remote.client.round_requests import PERSONAL
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.client.table_requests import JobHandler
from fedtailor.remote.job.examples import read_all, split_client_rows
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.statistics import (
    ClientTable,
    Statistics,
    add_statistics,
    as_array,
    correlation_note,
    read_table,
)
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.service import (
    Connection,
    Greeter,
    agree_on_preprocessing,
)
from fedtailor.remote.wire.messages import (
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.request_kind import AGREED, DESCRIBE, HELLO, STATISTICS
from fedtailor.remote.wire.run_log import Lines, client_log
from fedtailor.remote.wire.transport import LoopbackTransport, Responder, TooFewClients

JOB = """[coordinator]
address = "127.0.0.1:9092"
[data]
target = "cost"
val = 0.1
test = 0.25
preprocessing = "federated"
[data.columns]
age = "number"
ward = "category"
risk = ["low", "high"]
insured = "boolean"
seen = "date"
[model]
use = "mlp"
hidden = 4
[method]
use = "fedavg"
sgd = {{ lr = 0.05, epochs = 1, batch_size = 8 }}
[training]
rounds = {rounds}
minimum = {minimum}
"""
NAMES = ("a", "b", "c")
WARDS = {
    "a": ["surgery", "medicine"],
    "b": ["medicine", "eye"],
    "c": ["surgery", "Ms Jones"],
}
ROWS = 80


def rows_of(name, count=ROWS):
    """A table with gaps, text, dates and columns that nobody asked for; every "Ms Jones"
    stands in one row only.
    """
    rng = np.random.default_rng(NAMES.index(name))
    age = np.round(rng.normal(50 + 10 * NAMES.index(name), 5, count), 1)
    ward = [
        WARDS[name][place % 20 >= (10 if name != "c" else 16)] for place in range(count)
    ]
    ward = [f"{it} {place}" if "Ms" in it else it for place, it in enumerate(ward)]
    frame = pl.DataFrame(
        {
            "age": [
                None if place % 7 == 3 else str(value)
                for place, value in enumerate(age)
            ],
            "ward": ward,
            "risk": rng.choice(["low", "high"], count),
            "insured": rng.choice(["yes", "no"], count),
            "seen": [f"2024-0{1 + place % 3}-11" for place in range(count)],
            "cost": 1000 + 20 * age,
            "note": "private",
        }
    )
    return frame.with_columns(pl.col("age").fill_null("?"))


@pytest.fixture
def clients(tmp_path):
    """A job, three files, and each client's work behind messages."""

    class Clients:
        def __init__(self):
            self.directory, self.files = (
                tmp_path,
                {name: tmp_path / f"{name}.csv" for name in NAMES},
            )

        def set(self, minimum=3, rounds=2):
            text = JOB.format(minimum=minimum, rounds=rounds)
            (tmp_path / "job.toml").write_text(text)
            self.job = read_job(tmp_path / "job.toml")

        def store(self, name):
            return ClientStore(tmp_path / f"state-{name}", self.job.identity)

        def start(self):
            self.work = {
                name: JobHandler(self.job, name, self.files[name], self.store(name))
                for name in NAMES
            }
            self.logged = {name: [] for name in NAMES}
            for name, lines in self.logged.items():
                Lines(lines.append, logging.WARNING).listen(client_log(name))
            self.responders = {
                name: Responder(
                    self.job.identity,
                    name,
                    work,
                    work.common_vectors,
                )
                for name, work in self.work.items()
            }
            return LoopbackTransport(self.responders)

    found = Clients()
    found.set()
    for name, path in found.files.items():
        rows_of(name).write_csv(path)
    return found


def train_rows(clients):
    """What all clients' training rows hold."""
    job = clients.job
    parts = []
    for name, path in clients.files.items():
        table = read_table(path, job.schema)
        split = split_client_rows(table.y, job.schema, job.spec.seed, name)
        parts.append(table.frame[split["train"]])
    return pl.concat(parts)


def is_as_of(mean, deviation, cells):
    """Each client's sum is rounded to two standard deviations at most."""
    rows, of_all = len(cells.drop_nulls()), cells.std(ddof=0)
    assert abs(mean - cells.mean()) <= len(NAMES) * of_all / rows
    assert abs(deviation - of_all) <= len(NAMES) * of_all / rows


def test_what_is_agreed_is_what_one_table_of_all_training_rows_would_give(clients):
    transport = clients.start()
    agreed = agree_on_preprocessing(clients.job, transport, NAMES[::-1], wait=60)
    preprocessing, rows = agreed.preprocessing(clients.job.schema), train_rows(clients)
    by_name = {column.name: column for column in preprocessing.columns}
    age = rows["age"].cast(pl.Float64)
    assert 0 < age.null_count() == agreed.columns["age"].missing
    is_as_of(by_name["age"].mean, by_name["age"].deviation, age)
    assert by_name["age"].fill == by_name["age"].mean and by_name["age"].indicator
    seen = rows["seen"]
    is_as_of(by_name["seen"].mean, by_name["seen"].deviation, seen)
    assert (
        by_name["ward"].categories == ("eye", "medicine", "surgery")
        and by_name["ward"].other
    )
    assert by_name["risk"].categories == ("low", "high") and not by_name["risk"].other
    assert (
        preprocessing.inputs[:2] == ("age", "age is missing")
        and len(preprocessing.inputs) == 2 + 4 + 2 + 1 + 1
    )
    cost = np.concatenate(
        [work._table.y[work._examples.training_rows] for work in clients.work.values()]
    )
    is_as_of(preprocessing.target_shift, preprocessing.target_scale, pl.Series(cost))


def test_no_rare_category_and_no_row_leaves_a_client(clients):
    heard = []

    def listening(name, respond):
        def answer(body):
            heard.append((name, respond(body)))
            return heard[-1][1]

        return answer

    clients.start()
    transport = LoopbackTransport(
        {name: listening(name, it) for name, it in clients.responders.items()}
    )
    agree_on_preprocessing(clients.job, transport, NAMES, wait=60)
    told = {
        name: json.loads(decode_reply(body).arrays["statistics"].tobytes())
        for name, body in heard[:3]
    }
    assert (
        set(told["c"]["columns"]["ward"]["categories"]) == {"surgery"}
        and told["c"]["columns"]["ward"]["rare"] > 0
    )
    assert not any(b"Jones" in body or b"private" in body for _, body in heard)
    assert all(set(it) == {"format", "columns", "target"} for it in told.values())


def test_clients_with_few_values_each_are_told_so_in_one_line(clients):
    """VA's `ca`: the values of one or two patients would follow from their sums."""
    for name, path in clients.files.items():
        frame = rows_of(name)
        age = [None] * (ROWS - 4) + frame["age"][-4:].to_list()
        frame.with_columns(age=pl.Series(age)).write_csv(path)
    transport = clients.start()
    for work in clients.work.values():
        told = work._table.statistics(work._examples.training_rows).columns["age"]
        assert (told.count, told.mean, told.squares) == (0, 0.0, 0.0)
    said = (
        r"^no client says anything of column 'age': it has values in too few training"
        r" rows, or mostly rare ones; take it out of the job$"
    )
    with pytest.raises(ValueError, match=said):
        agree_on_preprocessing(clients.job, transport, NAMES, wait=60)


def test_a_client_below_the_least_count_uses_what_the_others_told(clients):
    frame = rows_of("a")
    age = [None] * (ROWS - 4) + frame["age"][-4:].to_list()
    frame.with_columns(age=pl.Series(age)).write_csv(clients.files["a"])
    agreed = agree_on_preprocessing(clients.job, clients.start(), NAMES, wait=60)
    others = [
        work._table.statistics(work._examples.training_rows).columns["age"]
        for name, work in clients.work.items()
        if name != "a"
    ]
    assert agreed.columns["age"].mean == (others[0] + others[1]).mean
    assert np.isfinite(clients.work["a"]._table.rows(agreed).x).all()


def simulation(clients, files, agreed, rounds):
    """The job over some files as a simulation, which agrees to the same."""
    federation, same = read_all(clients.job, files)
    assert same == agreed
    plan = plan_of(clients.job, agreed)
    settings = Settings(devices=1, canonical=True)
    return run(plan.algorithm, federation, plan.model, rounds, settings=settings)


def test_a_job_over_raw_tables_is_its_simulation_and_predicts_raw_rows(clients, capsys):
    transport = clients.start()
    agreed = agree_on_preprocessing(clients.job, transport, NAMES, wait=60)
    sizes = {name: work.sizes for name, work in clients.work.items()}
    trained = coordinate(
        clients.job, transport, sizes, clients.directory / "run", statistics=agreed
    )
    simulated = simulation(clients, clients.files, agreed, 2)
    assert plan_of(clients.job, agreed).model.input_shape == (
        len(agreed.preprocessing(clients.job.schema).inputs),
    )
    for name in NAMES:
        mine = load_models(clients.store(name).directory / PERSONAL)[name].theta
        np.testing.assert_array_equal(mine, simulated.personal(name).theta)
    assert trained.training.round == 2

    # a client that is started again knows what was agreed, and takes part at once
    clients.set(rounds=3)
    again = clients.start()
    assert all(work._rounds is not None for work in clients.work.values())
    coordinate(
        clients.job,
        again,
        sizes,
        clients.directory / "run",
        statistics=agreed,
        resume=True,
    )

    # raw rows with a new ward and a gap; the kit is a directory as `init` makes it,
    # without its key
    kit = clients.directory / "kit"
    kit.mkdir()
    (clients.directory / "state-a").rename(kit / "state")
    (kit / "job.toml").write_bytes((clients.directory / "job.toml").read_bytes())
    for name, content in (
        ("client.toml", 'name = "a"'),
        ("ca.crt", ""),
        ("client.pem", ""),
    ):
        (kit / name).write_text(content)
    (kit / "client.pem").chmod(0o600)
    new = rows_of("a", 5).drop("cost").with_columns(ward=pl.lit("dental"))
    new.write_csv(clients.directory / "new.csv")
    assert (
        main(
            [
                "federation",
                "predict",
                str(kit),
                "--data",
                str(clients.directory / "new.csv"),
            ]
        )
        == 0
    )
    written = pl.read_csv(StringIO(capsys.readouterr().out))
    assert written["row"].to_list() == [1, 2, 3, 4, 5]
    # in the target's own unit
    assert written["prediction"].is_between(500, 4000).all()


class Asked(LoopbackTransport):
    """Some clients, and others from when they come; the tasks that each was sent."""

    def __init__(self, clients, online):
        super().__init__(clients)
        self.there, self.tasks = set(online), {name: [] for name in clients}

    def online(self):
        return {name: "1" for name in sorted(self.there)}

    def send(self, client, body):
        self.tasks[client].append(decode_request(body).task)
        super().send(client, body)


def test_a_client_that_comes_later_takes_what_the_others_agreed_to(clients):
    """Its statistics are not asked for, so the others' models stay the same to the bit."""
    clients.set(minimum=2, rounds=4)
    clients.start()
    transport = Asked(clients.responders, "ab")
    connection = Connection(clients.job, NAMES, transport)
    agreed = agree_on_preprocessing(clients.job, transport, ("a", "b"), wait=60)
    sizes = {name: clients.work[name].sizes for name in "ab"}
    greet, there = Greeter(connection, agreed), []

    def arrivals(known, late):
        there.append(sorted(known))
        if len(there) == 2:
            transport.there.add("c")
        return greet(known, late)

    run_of_machines = coordinate(
        clients.job,
        transport,
        sizes,
        clients.directory / "run",
        statistics=agreed,
        arrivals=arrivals,
    )
    assert there == [["a", "b"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]
    training = run_of_machines.training
    assert training.executor.unseen.names == ("c",)
    # It was served, and sent no statistics.
    assert transport.tasks["c"][:2] == [HELLO, AGREED]
    assert STATISTICS not in transport.tasks["c"]
    assert Statistics.load(clients.store("c").directory, clients.job.schema) == agreed
    theirs = clients.store("c").directory / PERSONAL
    np.testing.assert_array_equal(
        load_models(theirs)["c"].theta, np.asarray(training.server.model[0])
    )
    # The others' models are those of a simulation without it.
    files = {name: clients.files[name] for name in ("a", "b")}
    simulated = simulation(clients, files, agreed, 4)
    for name in files:
        mine = load_models(clients.store(name).directory / PERSONAL)[name].theta
        np.testing.assert_array_equal(mine, simulated.personal(name).theta)
    # Other statistics, which would be its own with theirs, are refused from now on.
    three = add_statistics(own_statistics(clients))
    assert ask(clients, "c", AGREED, three) == Refusal.OTHER_STATISTICS


def test_a_client_whose_rows_are_impossible_by_the_others_statistics_is_not_served(
    clients, lines
):
    """It has not told its sums, so it can only look at the scale of its rows."""
    clients.start()
    pooled = add_statistics(own_statistics(clients)[:2])
    transport = Asked(clients.responders, "c")
    connection = Connection(clients.job, NAMES, transport)
    greet = Greeter(connection, invented(pooled))
    assert greet(["a", "b"]) == {}
    assert transport.tasks["c"] == [HELLO, AGREED]
    assert any("its table does not fit" in it for it in lines)
    assert greet(["a", "b"]) == {}  # it is greeted once on each connection
    assert transport.tasks["c"] == [HELLO, AGREED]


@pytest.mark.parametrize("task", [HELLO, AGREED])
def test_whatever_a_newcomer_answers_the_others_go_on(clients, lines, task):
    """Before, the code of a model that diverged ended their run."""
    clients.start()
    honest = clients.responders["c"]

    def respond(body):
        request = decode_request(body)
        if request.task != task:
            return honest(body)
        return encode_reply(Reply.to(request, refusal=Refusal.DIVERGED))

    transport = LoopbackTransport({"c": respond})
    pooled = add_statistics(own_statistics(clients))
    greet = Greeter(Connection(clients.job, NAMES, transport), pooled)
    assert greet(["a", "b"]) == {}
    assert [line.startswith("client c: it refused") for line in lines] == [True]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"age": ["x"] + ["1"] * (ROWS - 1)},
            "a.csv, row 1: 'age' is 'x', which is not a number such as 1234.5; mend it",
        ),
        (
            {"risk": ["none"] * ROWS},
            "a.csv, row 1: 'risk' is 'none'; the job knows low, high",
        ),
        ({"cost": [None] * ROWS}, "'cost'"),
    ],
)
def test_a_cell_that_does_not_fit_is_named(clients, change, said):
    rows_of("a").with_columns(
        **{name: pl.Series(values) for name, values in change.items()}
    ).write_csv(clients.files["a"])
    with pytest.raises(ValueError) as refused:
        clients.start()
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_client_that_is_silent_or_tells_nonsense_is_named(clients, lines):
    clients.start()
    mute = LoopbackTransport({**clients.responders, "b": lambda body: b""})
    with pytest.raises(TooFewClients):
        agree_on_preprocessing(clients.job, mute, NAMES, wait=60)
    assert lines[0].startswith("client b: ")
    clients.work["b"]._table = SimpleNamespace(
        statistics=lambda train: Statistics(columns={})
    )
    with pytest.raises(
        ValueError,
        match=r"^client b: these statistics are of other columns than the job's$",
    ):
        agree_on_preprocessing(
            clients.job, LoopbackTransport(clients.responders), NAMES, wait=60
        )
    shutil.rmtree(clients.store("b").directory)
    clients.start()
    lie = invented(own_statistics(clients)[1], 1e152)
    clients.work["b"]._table = SimpleNamespace(statistics=lambda train: lie)
    with pytest.raises(
        ValueError, match=r"^client b: its sums of 'age' are of numbers"
    ):
        agree_on_preprocessing(
            clients.job, LoopbackTransport(clients.responders), NAMES, wait=60
        )


def test_statistics_survive_their_file_to_the_bit_and_a_damaged_one_is_said(
    clients, tmp_path
):
    clients.start()
    agreed = add_statistics(
        work._table.statistics(work._examples.training_rows)
        for work in clients.work.values()
    )
    agreed.save(tmp_path)
    assert Statistics.load(tmp_path, clients.job.schema) == agreed
    content = (tmp_path / "statistics.json").read_text()
    mean = repr(agreed.columns["age"].mean)
    (tmp_path / "statistics.json").write_text(content.replace(mean, "9" + mean[1:]))
    with pytest.raises(
        ValueError, match=r"^cannot read .*statistics.json: it is not what was written"
    ):
        Statistics.load(tmp_path, clients.job.schema)
    (tmp_path / "statistics.json").write_text(
        '{"format": 1, "columns": {"age": {"count": -1}}}'
    )
    with pytest.raises(
        ValueError, match=r"^cannot read .*statistics.json: it is not what was written"
    ):
        Statistics.load(tmp_path, clients.job.schema)
    (tmp_path / "statistics.json").write_text(
        json.dumps(with_digest({"format": 1, "columns": {"age": {"count": -1}}}))
    )
    with pytest.raises(
        ValueError,
        match=r"^cannot read .*statistics.json: these are not statistics of columns",
    ):
        Statistics.load(tmp_path, clients.job.schema)


def test_a_client_refuses_rounds_before_an_agreement(clients, lines):
    transport = clients.start()
    agreed = agree_on_preprocessing(clients.job, transport, NAMES, wait=60)
    clients.store("a").directory.joinpath("statistics.json").unlink()
    sizes = {name: work.sizes for name, work in clients.work.items()}
    fresh = clients.start()
    with pytest.raises(TooFewClients):
        coordinate(
            clients.job,
            fresh,
            sizes,
            clients.directory / "run",
            statistics=agreed,
            patience=0.0,
        )
    assert (
        lines[0]
        == "client a: it refused: it has not received the statistics of all clients'"
        " tables (see that client's log)"
    )


def ask(clients, name, task, statistics=None):
    """A client's answer to a message about tables: the refusal, or None."""
    arrays = {} if statistics is None else {"statistics": as_array(statistics)}
    request = Request(clients.job.identity, 0, 0, task, name, arrays=arrays)
    return decode_reply(clients.responders[name](encode_request(request))).refusal


def own_statistics(clients):
    return [
        work._table.statistics(work._examples.training_rows)
        for work in clients.work.values()
    ]


def invented(pooled, deviation=1e-39, column="age"):
    """Pooled statistics in which a column has another deviation."""
    sums = pooled.columns[column]
    sums = sums.model_copy(update={"squares": deviation**2 * sums.count})
    return pooled.model_copy(update={"columns": {**pooled.columns, column: sums}})


def test_a_client_takes_pooled_statistics_once_a_job(clients):
    clients.start()
    parts = own_statistics(clients)
    pooled, others = add_statistics(parts), add_statistics(parts[:2])
    assert ask(clients, "a", AGREED, pooled) is None
    for _ in range(2):
        assert ask(clients, "a", AGREED, others) == Refusal.OTHER_STATISTICS
        assert ask(clients, "a", AGREED, pooled) is None
        clients.start()


def test_statistics_that_cannot_hold_a_clients_own_are_refused_and_not_kept(clients):
    clients.start()
    assert ask(clients, "a", STATISTICS) is None
    parts = own_statistics(clients)
    pooled = add_statistics(parts)
    for wrong in (
        invented(pooled),
        invented(pooled, 0.0, "seen"),
        add_statistics(parts[1:]),
        pooled.model_copy(update={"target": parts[1].target}),
    ):
        assert ask(clients, "a", AGREED, wrong) == Refusal.WRONG_STATISTICS
        assert not (clients.store("a").directory / "statistics.json").exists()
    assert ask(clients, "a", AGREED, pooled) is None


def test_a_coordinator_that_invents_statistics_learns_no_cell(clients):
    """Before, 821 messages gave 110 of 120 values: the text of an error held the first
    cell that was too far, and the deviation chose which one that is.
    """
    clients.start()
    pooled = add_statistics(own_statistics(clients))
    answers = []
    for exponent in range(-39, -20):
        # a client that is not asked for its statistics cannot compare them
        answers.append(ask(clients, "a", AGREED, invented(pooled, 10.0**exponent)))
        if exponent == -30:
            clients.start()  # and a restart changes nothing
    assert answers == [Refusal.TABLE, *[Refusal.OTHER_STATISTICS] * 18]


@pytest.mark.parametrize("far", [1e3, 1e9])
def test_a_hidden_cell_does_not_show_in_whether_a_client_takes_part(clients, far):
    """It is in no sum, and a coordinator chooses from which size on it would be too far."""
    clients.start()
    ages = [None if age == "?" else float(age) for age in rows_of("a")["age"]]
    ages[int(clients.work["a"]._examples.training_rows[1])] = far
    rows_of("a").with_columns(age=pl.Series(ages)).write_csv(clients.files["a"])
    clients.start()
    pooled = add_statistics(own_statistics(clients))
    assert pooled.columns["age"].mean < 100
    assert ask(clients, "a", AGREED, invented(pooled, 0.1)) is None
    warned = [line for line in clients.logged["a"] if "count as so far" in line]
    assert len(warned) == (far == 1e9)


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("mean", [2.0, 1e300])
@pytest.mark.parametrize("base", [2.0, None])
def test_few_hidden_cells_do_not_show_in_whether_a_client_takes_part(
    clients, base, mean, is_asked
):
    """A deviation of 1e-101 makes each of them too far for a float, and no other cell."""
    clients.start()
    # Of a column that is empty but for few cells nothing is told, so that any mean fits.
    mean = 2.0 if base is not None else mean
    answers = []
    for few in (0, 1, 4):
        shutil.rmtree(clients.store("a").directory)
        ages = [base] * ROWS
        for row in clients.work["a"]._examples.training_rows[:few]:
            ages[row] = -999.0
        age = pl.Series(ages, dtype=pl.Float64)
        rows_of("a").with_columns(age=age).write_csv(clients.files["a"])
        clients.start()
        if is_asked:
            assert ask(clients, "a", STATISTICS) is None
        own = own_statistics(clients)[0]
        sums = own.columns["age"]
        pooled = {"count": sums.count + 1000, "mean": mean, "squares": 1e-200}
        columns = {**own.columns, "age": sums.model_copy(update=pooled)}
        pooled = own.model_copy(update={"columns": columns})
        answers.append((own, ask(clients, "a", AGREED, pooled)))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][1] is None


TINY, COUNT = 5e-324, 10**12 - 10
"""Squares that are not 0, and whose quotient by the count is."""


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ("age", {"squares": TINY, "count": COUNT}),
        ("age", {"squares": 1e-200}),
        ("age", {"squares": 1e308, "mean": -1e308}),
        ("age", {"squares": 1.0, "count": 0}),
        ("cost", {"squares": TINY, "count": COUNT}),
        ("cost", {"squares": 1e-200}),
        ("cost", {"squares": 1e308, "mean": 1e308}),
        ("insured", {"squares": 1e308, "mean": 1e308}),
    ],
)
@pytest.mark.parametrize("is_asked", [True, False])
def test_no_pooled_sums_keep_a_client_from_starting(clients, column, changes, is_asked):
    clients.start()
    if is_asked:
        assert ask(clients, "a", STATISTICS) is None
    pooled = add_statistics(own_statistics(clients))
    if column == "cost":
        wrong = pooled.model_copy(
            update={"target": pooled.target.model_copy(update=changes)}
        )
    else:
        sums = pooled.columns[column].model_copy(update=changes)
        wrong = pooled.model_copy(update={"columns": {**pooled.columns, column: sums}})
    answer = ask(clients, "a", AGREED, wrong)
    assert answer is not Refusal.FAILED
    clients.start()
    assert ask(clients, "a", AGREED, wrong) is answer


def test_no_error_about_pooled_sums_keeps_a_client_from_starting(
    clients, client_lines, monkeypatch
):
    clients.start()
    pooled = add_statistics(own_statistics(clients))
    with monkeypatch.context() as broken:
        broken.setattr(ClientTable, "rows", lambda self, statistics: 1 // 0)
        assert ask(clients, "a", AGREED, pooled) is Refusal.FAILED
        clients.start()
        assert any("cannot go on as before" in line for line in client_lines)
        assert ask(clients, "a", AGREED, pooled) is Refusal.FAILED
    assert ask(clients, "a", AGREED, pooled) is None


def test_pooled_sums_are_compared_with_those_of_a_description(clients):
    clients.start()
    algorithm = {"step": "columns"}
    request = Request(clients.job.identity, 0, 0, DESCRIBE, "a", algorithm=algorithm)
    assert not decode_reply(clients.responders["a"](encode_request(request))).refusal
    pooled = add_statistics(own_statistics(clients))
    assert ask(clients, "a", AGREED, invented(pooled)) == Refusal.WRONG_STATISTICS
    assert ask(clients, "a", AGREED, pooled) is None


TARGETS = {"cost": "", "risk": 'classes = ["high", "low"]\n'}
"""Targets of a regression and of a classification, and what the job says of them."""


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_of_all_clients_trains_on_what_the_machines_train_on(clients, target):
    """The same rows of it, and the same numbers, to the bit; so does each method."""
    path = clients.directory / "job.toml"
    text = path.read_text().replace('target = "cost"\n', f'target = "{target}"\n')
    # a job may list categories, and a table cannot
    text = text.replace('risk = ["low", "high"]\n', "")
    assert "\nval =" in text
    path.write_text(text.replace("\nval =", f"\n{TARGETS[target]}val ="))
    job = read_job(path)
    machines, statistics = read_all(job, clients.files)

    frames = [
        pl.read_csv(file).with_columns(site=pl.lit(name))
        for name, file in clients.files.items()
    ]
    # rows of clients are mixed, each client's in their order
    everything = pl.concat(frames)[np.arange(3 * ROWS).reshape(3, -1).T.ravel()]
    everything.write_csv(clients.directory / "all.csv")
    table = from_table(
        clients.directory / "all.csv",
        client="site",
        target=target,
        task=None if target == "risk" else "regression",
        features=tuple(job.schema.columns),
        test=0.25,
        val=0.1,
        preprocessing="federated",
    )
    said = "The inputs stay correlated, as in a federation of machines."
    assert (said in table.notes) == (correlation_note(job.schema) is not None)
    assert (said in table.notes) == (target == "cost")
    assert table.preprocessing.inputs == statistics.preprocessing(job.schema).inputs
    assert table.names == machines.names
    for split in ("train", "val", "test"):
        for client in machines.names:
            of_machine = getattr(machines.client(client), split)
            of_table = getattr(table.client(client), split)
            np.testing.assert_array_equal(of_table.x, of_machine.x, strict=True)
            np.testing.assert_array_equal(of_table.y, of_machine.y, strict=True)
    plan = plan_of(job, statistics)
    runs = [
        run(plan.algorithm, federation, plan.model, 2)
        for federation in (table, machines)
    ]
    for client in machines.names:
        np.testing.assert_array_equal(
            *(one.personal(client).predictor for one in runs), strict=True
        )


def test_a_client_tells_the_sums_of_one_set_of_rows_in_a_job(clients):
    """Before, a client that came back with a row more told its sums again, and the
    difference of both was that row.
    """
    clients.start()
    assert ask(clients, "a", STATISTICS) is None
    frame = pl.read_csv(clients.files["a"])
    pl.concat([frame, frame[:1]]).write_csv(clients.files["a"])
    clients.start()
    assert ask(clients, "a", STATISTICS) == Refusal.OTHER_STATISTICS
    frame.write_csv(clients.files["a"])
    clients.start()
    assert ask(clients, "a", STATISTICS) is None
    # What it sent counts after a restart, too.
    pooled = add_statistics(own_statistics(clients))
    assert ask(clients, "a", AGREED, invented(pooled)) == Refusal.WRONG_STATISTICS
    assert ask(clients, "a", AGREED, pooled) is None


def test_sums_of_other_rows_than_a_client_has_are_refused_with_its_name(clients):
    transport = clients.start()
    rows = {name: work.sizes for name, work in clients.work.items()}
    rows["b"] = rows["b"] + 1
    with pytest.raises(
        ValueError, match=r"^client b: its sums of '\w+' are of \d+ tra"
    ):
        agree_on_preprocessing(clients.job, transport, rows, wait=60)
