"""A job from its file to personal models, with clients in this process behind real
messages.
"""

import time

import numpy as np
import polars as pl
import pytest

from conformance.examples import PLAIN
from fedtailor.algorithms import UCFL
from fedtailor.deployment import open_run
from fedtailor.engine.storage.run_directory import METRICS, SUMMARY
from fedtailor.engine.training import Callback
from fedtailor.remote.job.examples import federation_from_rows, split_client_rows
from fedtailor.remote.job.job import read_job
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.server.rounds import RemoteTraining
from fedtailor.remote.wire.messages import decode_reply, decode_request
from fedtailor.remote.wire.transport import LoopbackTransport, TooFewClients
from fedtailor.testing.problems import classification, softmax_model
from remote.federations import Remote
from remote.jobs import NAMES, Clients


class Dies(Callback):
    """As if the coordinator's process was killed after a round."""

    def __init__(self, after):
        self.after = after

    def after_round(self, training, evaluated):
        if training.round == self.after:
            raise MemoryError


def test_a_job_gives_the_simulations_measurements_and_leaves_models_at_the_clients(
    tmp_path,
):
    clients = Clients(tmp_path / "wards")
    clients.train(NAMES)
    simulated = clients.simulated(NAMES, 4)
    keys = ["round", "client", "split", "metric"]
    measured, wanted = (
        frame.sort(keys)
        for frame in (
            pl.read_parquet(clients.directory / "run" / METRICS),
            simulated.frame(),
        )
    )
    assert len(measured) == 4 * 4 * 2 * 2 and measured.select(keys).equals(
        wanted.select(keys)
    )
    np.testing.assert_allclose(measured["value"], wanted["value"], rtol=1e-5)
    for name in NAMES:
        np.testing.assert_allclose(
            clients.personal(name).theta,
            simulated.personal(name).theta,
            rtol=1e-5,
            atol=1e-6,
        )
        assert set(clients.personal(name).predict(clients.rows[name].x)) == {0, 1}
    assert (clients.directory / "run" / SUMMARY).is_file()
    # The directory can be opened; what needs the clients' data is for their machines.
    opened = open_run(clients.directory / "run")
    assert opened.spec.rounds == 4 and opened.summary().rounds == 4
    asked = (
        lambda: opened.personal("a"),
        lambda: opened.enroll(clients.rows["a"].x, clients.rows["a"].y),
        opened.row_outcomes,
    )
    for ask in asked:
        with pytest.raises(ValueError, match="federation of machines"):
            ask()


def test_a_coordinator_that_died_goes_on_to_the_same_bytes(tmp_path):
    straight, killed = Clients(tmp_path / "straight"), Clients(tmp_path / "killed")
    straight.train(NAMES)
    with pytest.raises(MemoryError):
        killed.train(NAMES, callbacks=(Dies(after=2),))
    assert not (killed.directory / "run" / SUMMARY).exists()
    with pytest.raises(
        ValueError, match="already holds a run; continue it with resume"
    ):
        killed.train(NAMES)
    killed.train(NAMES, resume=True)
    for name in NAMES:
        np.testing.assert_array_equal(
            killed.personal(name).theta, straight.personal(name).theta
        )
    one, other = (
        (it.directory / "run" / METRICS).read_bytes() for it in (straight, killed)
    )
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
        np.testing.assert_allclose(
            clients.personal(name).theta,
            simulated.personal(name).theta,
            rtol=1e-5,
            atol=1e-6,
        )
    own = federation_from_rows(clients.job, {"d": clients.rows["d"]})
    train = own.train[0]
    enrolled = simulated.enroll(own.x[train], own.y[train], name="d")
    np.testing.assert_allclose(
        clients.personal("d").theta, enrolled.theta, rtol=1e-5, atol=1e-6
    )
    measured = pl.read_parquet(clients.directory / "run" / METRICS)
    assert set(measured.filter("unseen")["client"]) == {"d"}


def test_rows_are_split_by_the_clients_name_and_none_is_lost(tmp_path):
    schema = Clients(tmp_path / "wards").job.schema
    for count in (1, 2, 7, 40):
        parts = split_client_rows(np.zeros(count), schema, 0, "a")
        assert (
            sorted(np.concatenate(list(parts.values()))) == list(range(count))
            and len(parts["train"]) >= 1
        )
    assert [len(part) for part in parts.values()] == [24, 6, 10]
    assert (
        split_client_rows(np.zeros(40), schema, 0, "b")["train"] != parts["train"]
    ).any()


class Away(LoopbackTransport):
    """Clients of which some are away for a while.

    Args:
        clients: the clients, by name.
        missed: names of clients, and how many of their first answers are lost.
    """

    def __init__(self, clients, missed):
        super().__init__(clients)
        self.missed, self.asked = dict(missed), []

    def send(self, client, body):
        self.asked.append((client, decode_request(body)))
        super().send(client, body)

    def receive(self):
        kept = []
        for client, body in super().receive():
            task = decode_reply(body).task
            if task == "client" and self.missed.get(client, 0) > 0:
                self.missed[client] -= 1
                body = b"lost"
            kept.append((client, body))
        return kept


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(RemoteTraining, "pause", 0.0)


def test_a_round_with_too_few_clients_is_asked_again(tmp_path, no_pause, lines):
    straight, other = Clients(tmp_path / "straight"), Clients(tmp_path / "other")
    straight.train(NAMES)
    transport = Away(other.start(NAMES)[0]._clients, dict.fromkeys("abc", 3))
    other.train_over(transport, NAMES)
    told = [line for line in lines if "asking again" in line]
    assert len(told) == 3 and told[0].startswith(
        "round 1: 1 of 4 clients answered in time, and 2 are needed (docs:"
        " errors#too-few-clients); asking again for 60 minutes"
    )
    for name in NAMES:
        np.testing.assert_array_equal(
            other.personal(name).theta, straight.personal(name).theta
        )
    one, two = (
        (it.directory / "run" / METRICS).read_bytes() for it in (straight, other)
    )
    assert one == two
    # The request that is repeated is the same but for its time and its nonce.
    first, again = [
        request
        for name, request in transport.asked
        if name == "d" and request.task == "client" and request.round == 0
    ][:2]
    assert (first.exchange, first.state_round) == (again.exchange, again.state_round)


@pytest.mark.parametrize("minimum", [2, 4])
def test_secure_sums_say_that_they_need_all_where_fewer_would_do(
    tmp_path, lines, minimum
):
    rest = "[privacy]\nsecure_aggregation = true"
    clients = Clients(tmp_path / "wards", 1, method="fedavg", rest=rest)
    text = clients.path.read_text()
    clients.path.write_text(text.replace("minimum = 2", f"minimum = {minimum}"))
    clients.job = read_job(clients.path)
    clients.train(NAMES)
    needs = "each round needs the answers of all 4 clients"
    assert sum(needs in line for line in lines) == (minimum < 4)


def test_waiting_for_clients_has_an_end(tmp_path, no_pause):
    clients = Clients(tmp_path / "wards")
    transport = Away(clients.start(NAMES)[0]._clients, dict.fromkeys("abc", 10**6))
    with pytest.raises(TooFewClients):
        clients.train_over(transport, NAMES, patience=0.5)
    assert clients.train(NAMES, resume=True).round == 4


def test_a_newcomer_that_is_away_does_not_end_the_others_training(tmp_path):
    """Its probe would be needed to serve it, and nothing else."""
    data = classification(4, unseen=[False, False, True, True])
    ours = Remote(
        UCFL(sgd=PLAIN, streams=1, warm=0), data, softmax_model("float32"), tmp_path
    )
    away = data.names[2]
    clients = dict(ours.responders) | {away: lambda body: b"lost"}
    training = ours.training(ours.executor(LoopbackTransport(clients)))
    training.advance()
    training.evaluate()
    assert len(training.metrics.values("accuracy")) == 2
    assert len(training.metrics.values("accuracy", unseen=True)) == 1


def test_a_client_that_returns_with_other_rows_is_named(tmp_path, lines):
    clients = Clients(tmp_path / "wards", rounds=1)
    clients.train(NAMES)
    clients.set_rounds(2)
    rows = clients.sizes(NAMES) | {"b": np.array([30, 2, 7])}
    coordinate(
        clients.job,
        clients.start(NAMES)[0],
        rows,
        clients.directory / "run",
        resume=True,
    )
    assert lines[0] == (
        "client b: it has 30 + 2 + 7 rows now, and had 24 + 6 + 10 when the run began;"
        " it keeps the weight that it had"
    )


def test_a_client_that_comes_while_others_train_is_served_as_a_newcomer(tmp_path):
    """And the run goes on without it, when it is away at a later start."""
    clients = Clients(tmp_path / "wards", rounds=4)
    transport = clients.start(NAMES)[0]
    calls = []

    def arrivals(known, late):
        calls.append(sorted(known))
        return clients.sizes(["d"]) if len(calls) == 2 else {}

    training = clients.train_over(transport, NAMES[:3], arrivals=arrivals)
    assert calls == [list("abc")] * 2 + [list("abcd")] * 2
    assert training.executor.unseen.names == ("d",)
    measured = pl.read_parquet(clients.directory / "run" / METRICS)
    of_newcomer = measured.filter(client="d", split="test", metric="accuracy")
    assert of_newcomer["round"].to_list() == [3, 4] and of_newcomer["unseen"].all()
    assert clients.personal("d").theta.shape == clients.personal("a").theta.shape
    simulated = clients.simulated(NAMES[:3], 4)
    for name in NAMES[:3]:
        np.testing.assert_allclose(
            clients.personal(name).theta,
            simulated.personal(name).theta,
            rtol=1e-5,
            atol=1e-6,
        )
    clients.set_rounds(5)
    again = clients.train(NAMES[:3], resume=True)
    assert again.client_names == ("a", "b", "c", "d")
    measured = pl.read_parquet(clients.directory / "run" / METRICS)
    assert set(measured.filter(pl.col("round") == 5)["client"]) == {"a", "b", "c"}
    assert measured.filter(client="d")["round"].max() == 4


def test_a_client_that_is_revoked_is_not_waited_for(tmp_path, lines):
    clients = Clients(tmp_path / "wards", rounds=2)

    class Revoking(LoopbackTransport):
        def online(self):
            return {name: "1" for name in NAMES if name != "b"}

    transport = Revoking(clients.start(NAMES)[0]._clients)
    transport.revoked = {"b"}
    training = clients.train_over(transport, NAMES)
    assert training.round == 2
    accepted = dict(
        zip(training.executor.seen.names, training.executor._accepted, strict=True)
    )
    assert accepted == {"a": 1, "b": -1, "c": 1, "d": 1} and lines == []


def test_a_first_round_has_time_to_compile(tmp_path):
    """Beyond the deadline, for the first exchange of each task that is answered."""
    clients = Clients(tmp_path / "wards", rounds=3)
    transport, before = Away(clients.start(NAMES)[0]._clients, {}), time.time()
    clients.train_over(transport, NAMES, compile_time=10_000.0)
    extra = {}
    for _, request in transport.asked:
        left = request.deadline - before
        extra.setdefault((request.task, request.round), left > 5_000)
    assert extra == {
        ("client", 0): True,
        ("client", 1): False,
        ("client", 2): False,
        ("evaluate", 1): True,
        ("evaluate", 2): False,
        ("evaluate", 3): False,
        ("personal", 3): True,
    }


@pytest.mark.parametrize("setting", ["until_converged = true", "until_score = 0.6"])
def test_a_training_over_machines_ends_by_a_result_as_in_the_simulation(
    setting, tmp_path
):
    clients = Clients(
        tmp_path / "wards", rounds=80, method="fedavg", lr=0.3, rest=setting
    )
    training = clients.train(NAMES)
    simulated = clients.simulated(NAMES, 80)
    assert training.round == simulated.training.round < 80
    for name in NAMES:
        np.testing.assert_array_equal(
            clients.personal(name).theta, simulated.personal(name).theta
        )
    # A run that has ended is not trained on when it is opened again.
    assert clients.train(NAMES, resume=True).round == training.round


def test_an_end_by_a_result_needs_what_it_looks_at(tmp_path):
    for setting in ("until_converged = true", "until_score = 0.8"):
        rest = f"{setting}\n[privacy]\nevaluate = false"
        with pytest.raises(ValueError, match="validation rows of the clients"):
            Clients(tmp_path / setting[:9], rest=rest)
