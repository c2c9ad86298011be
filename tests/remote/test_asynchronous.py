"""Clients that are late, over messages: the coordinator takes the answers that come
first; a simulation that takes them in the same order has the same bits.
"""

import heapq
import threading
import time
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import polars as pl
import pytest

from fedtailor.cli.main import main
from fedtailor.engine.storage import Interrupted
from fedtailor.engine.storage.run_files import ANSWERS, METRICS, read_frame
from fedtailor.engine.training import Callback
from fedtailor.protocol import Diverged
from fedtailor.remote.job.job import read_job
from fedtailor.remote.server.executor import RemoteExecutor
from fedtailor.remote.server.late import LateRequests
from fedtailor.remote.server.rounds import RemoteTraining
from fedtailor.remote.service import check_client_count
from fedtailor.remote.wire.messages import (
    Reply,
    decode_reply,
    decode_request,
    encode_reply,
)
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.transport import LoopbackTransport, TooFewClients
from remote.jobs import NAMES, Clients

LATE = "asynchronous = { buffer = %d }"
SLOW = {"a": 7, "b": 1, "c": 3, "d": 2}
"""How many polls each client takes for a round."""


class Slow(LoopbackTransport):
    """Clients that take some polls for a round of training; other answers come at once.

    Attributes:
        sent: all messages, with their clients.
        away: clients that are not connected.
        deadlines: after how many polls the deadline of a client's request passes.
    """

    def __init__(self, clients, speeds=SLOW):
        super().__init__(clients)
        self.now, self.queue, self.sent, self.speeds = 0, [], [], speeds
        self.away, self.deadlines, self.expiring = set(), {}, []

    def online(self):
        return {
            name: mark
            for name, mark in super().online().items()
            if name not in self.away
        }

    def send(self, client, body):
        request = decode_request(body)
        self.sent.append((client, request))
        answer = self._clients[client](body)
        polls = self.speeds[client] if request.task == "client" else 0
        if request.task == "client" and client in self.deadlines:
            self.expiring.append((self.now + self.deadlines[client], request))
        heapq.heappush(self.queue, (self.now + polls, len(self.sent), client, answer))

    def receive(self):
        self.now += 1
        for when, request in self.expiring:
            open_now = self.late.requests.get(request.client)
            if when == self.now and open_now and open_now.nonce == request.nonce:
                self.late.requests[request.client] = replace(open_now, deadline=0.0)
        while self.queue and self.queue[0][0] < self.now:
            _, _, client, answer = heapq.heappop(self.queue)
            yield client, answer


@pytest.fixture(autouse=True)
def known_to_the_transport(monkeypatch):
    """The transport of these tests can let the deadlines of open requests pass."""
    begin = LateRequests.__init__

    def remember(self, transport):
        begin(self, transport)
        transport.late = self

    monkeypatch.setattr(LateRequests, "__init__", remember)


def late_clients(directory, rounds=6, *, buffer=2, rest="", **options):
    text = f"{LATE % buffer}\n{rest}"
    return Clients(directory, rounds, rest=text, **options)


def slow(clients, speeds=SLOW, names=NAMES):
    return Slow({name: clients.client(name) for name in names}, speeds)


def train(clients, transport=None, names=NAMES, **options):
    return clients.train_over(transport or slow(clients, names=names), names, **options)


def assert_same(ours, expected):
    for one, other in zip(
        jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True
    ):
        if not isinstance(one, str):
            np.testing.assert_array_equal(one, other)


def replayed(clients, rounds, names=NAMES):
    return clients.simulated(names, rounds, replay=clients.directory / "run")


def record_of(clients):
    return read_frame(clients.directory / "run" / ANSWERS)


def asked_to_train(transport):
    """The rounds for which each client was asked to train, one after another."""
    return [
        (client, request.round)
        for client, request in transport.sent
        if request.task == "client"
    ]


class Stops(Callback):
    """Ends the coordinator after a round, as Ctrl-C does."""

    def __init__(self, after):
        self.after = after

    def after_round(self, training, evaluated):
        if training.round == self.after:
            raise KeyboardInterrupt


@pytest.mark.as_shipped
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_the_same_order_in_a_simulation_gives_the_same_bits(method, tmp_path, lines):
    clients = late_clients(tmp_path / "wards", method=method)
    training = train(clients)
    assert lines == []
    record = record_of(clients)
    assert len(record) == 6 * 2 and record["age"].max() >= 2
    expected = replayed(clients, 6)
    assert_same(training.server, expected.training.server)
    for name in NAMES:
        ours, wanted = clients.personal(name).theta, expected.personal(name).theta
        if method == "fedavg":
            np.testing.assert_array_equal(ours, wanted)
        else:
            # Steps of a client alone, as without late clients, agree to rounding.
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.as_shipped
def test_a_buffer_of_all_is_a_server_that_waits_to_the_bit(tmp_path):
    waits = Clients(tmp_path / "waits", 4, method="fedavg")
    late = late_clients(tmp_path / "late", 4, buffer=4, method="fedavg")
    expected, ours = waits.train(NAMES), late.train(NAMES)
    assert_same(ours.server, expected.server)
    assert ours.ledger.frame().equals(expected.ledger.frame())
    assert ours.metrics.frame(NAMES).equals(expected.metrics.frame(NAMES))
    assert record_of(late)["age"].to_list() == [0] * 16
    # so is the simulation, in which all are equally fast unless it is said otherwise
    assert_same(late.simulated(NAMES, 4).training.server, expected.server)
    for name in NAMES:
        np.testing.assert_array_equal(
            late.personal(name).theta, waits.personal(name).theta
        )


def test_the_coordinator_does_not_wait_and_counts_each_answer_once(tmp_path, lines):
    clients = late_clients(tmp_path / "wards", 12, buffer=1, method="fedavg")
    transport = slow(clients)
    training = train(clients, transport)
    record = record_of(clients)
    assert training.round == 12 and lines == []
    began = record["round"] - 1 - record["age"]
    counted = list(zip(record["client"], began, strict=True))
    assert len(set(counted)) == len(counted) == 12
    # each was asked once for what it was counted for, and only that
    asked = Counter(asked_to_train(transport))
    assert max(asked.values()) == 1 and set(counted) <= set(asked)
    fast, *_, slowest = Counter(record["client"]).most_common()
    assert fast[0] == "b" and fast[1] > slowest[1]
    # nobody begins anew before its answer was taken
    for name in NAMES:
        of_client = record.filter(client=name)
        taken, starts = (
            of_client["round"] - 1,
            of_client["round"] - 1 - of_client["age"],
        )
        assert (starts.to_numpy()[1:] > taken.to_numpy()[:-1]).all()


def test_a_card_counts_the_rounds_whose_answers_were_a_clients(tmp_path, capsys):
    clients = late_clients(tmp_path / "wards", 6, method="fedavg")
    train(clients)
    run = clients.directory / "run"
    for name in NAMES:
        assert main(["card", str(run), "--client", name]) == 0
        counted = len(record_of(clients).filter(client=name))
        assert f"It reported in {counted} of 6 rounds" in capsys.readouterr().out


def test_clients_at_work_are_measured_after_the_training(tmp_path):
    clients = late_clients(tmp_path / "wards", 5, buffer=1, method="ditto")
    transport = slow(clients)
    train(clients, transport)
    measured = pl.read_parquet(clients.directory / "run" / METRICS)
    assert set(measured.filter(pl.col("round") == 5)["client"]) == set(NAMES)
    assert len(set(measured.filter(pl.col("round") == 1)["client"])) < len(NAMES)


@pytest.mark.parametrize("after", [1, 4])
def test_a_killed_coordinator_resumes(after, tmp_path, lines):
    clients = late_clients(tmp_path / "wards", 7, method="fedavg")
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(clients, callbacks=[Stops(after)])
    transport = slow(clients)
    training = train(clients, transport, resume=True)
    assert training.round == 7 and lines == []
    record = record_of(clients)
    assert len(record) == 7 * 2
    # whoever was at work goes on with the round in which it began
    first = dict(reversed(asked_to_train(transport)))
    assert min(first.values()) < after
    assert_same(training.server, replayed(clients, 7).training.server)


@pytest.mark.parametrize("at", [0, 2])
def test_a_stop_ends_the_wait_for_answers_and_is_resumed(at, tmp_path, lines):
    clients = late_clients(tmp_path / "wards", 4, method="fedavg")
    transport, stopped = slow(clients), threading.Event()
    receive, answer = transport.receive, transport._clients["b"]

    def stop(body):
        request = decode_request(body)
        if request.task == "client" and request.round == at:
            stopped.set()
        return answer(body)

    transport._clients["b"] = stop
    transport.receive = lambda: () if stopped.is_set() else receive()
    with pytest.raises(Interrupted):
        train(clients, transport, stopped=stopped)
    assert lines == []  # before a deadline passed
    training = train(clients, resume=True)
    assert training.round == 4
    assert len(record_of(clients)) == 4 * 2
    assert_same(training.server, replayed(clients, 4).training.server)


def test_a_client_that_dies_at_work_is_released_and_may_come_back(tmp_path, lines):
    clients = late_clients(tmp_path / "wards", 12, method="fedavg")
    transport, lost = slow(clients), []
    transport.deadlines = {"c": 8}
    answer = transport._clients["c"]

    def lose(body):
        request = decode_request(body)
        if request.task == "client" and not lost:
            lost.append(request.round)
            transport.speeds = SLOW | {"c": 10**6}  # no answer comes
        else:
            transport.speeds = SLOW
        return answer(body)

    transport._clients["c"] = lose
    training = train(clients, transport)
    assert training.round == 12
    assert lines == ["no answer in time from c"]
    of_lost = record_of(clients).filter(client="c")
    assert len(of_lost) and (of_lost["round"] - 1 - of_lost["age"]).min() > lost[0]
    assert_same(training.server, replayed(clients, 12).training.server)


def test_an_answer_after_the_deadline_is_not_counted(tmp_path, lines):
    clients = late_clients(tmp_path / "wards", 12, method="fedavg")
    transport = slow(clients, SLOW | {"c": 9})
    transport.deadlines = {"c": 6}
    training = train(clients, transport)
    assert training.round == 12
    assert "no answer in time from c" in lines
    assert any(line.startswith("client c: it answers exchange") for line in lines)
    assert "c" not in set(record_of(clients)["client"])
    assert_same(training.server, replayed(clients, 12).training.server)


@pytest.mark.as_shipped
def test_answers_that_come_again_are_refused(tmp_path, lines):
    once = late_clients(tmp_path / "once", 6, method="fedavg")
    expected = train(once)
    clients = late_clients(tmp_path / "again", 6, method="fedavg")
    transport, sent = slow(clients), []
    receive = transport.receive

    def again():
        for client, body in receive():
            yield client, body
            if decode_reply(body).task == "client":
                sent.append((client, body))
                yield from sent

    transport.receive = again
    training = train(clients, transport)
    assert record_of(clients).equals(record_of(once))
    assert_same(training.server, expected.server)
    assert {line.partition(": ")[2] for line in lines} <= {
        "it was not asked",
        "it answered twice; the first answer stands",
        *(line.partition(": ")[2] for line in lines if "it answers exchange" in line),
    }
    assert any("the first answer stands" in line for line in lines)


def test_who_is_not_connected_holds_nobody_up_and_begins_when_it_comes(tmp_path, lines):
    clients = late_clients(tmp_path / "wards", 8, method="ditto")
    transport = slow(clients)
    transport.away = {"d"}

    class Comes(Callback):
        def after_round(self, training, evaluated):
            if training.round == 4:
                transport.away = set()

    begun = time.monotonic()
    train(clients, transport, callbacks=[Comes()])
    assert lines == [] and time.monotonic() - begun < clients.job.deadline / 2
    began = [round for name, round in asked_to_train(transport) if name == "d"]
    assert began[0] == 4


def test_a_round_that_nobody_works_for_is_told_and_tried_again(tmp_path):
    clients = late_clients(tmp_path / "wards", 2, buffer=3, method="fedavg")
    transport = slow(clients)
    transport.away = {"a", "b"}
    with pytest.raises(TooFewClients) as found:
        train(clients, transport, patience=0.0)
    assert str(found.value).startswith(
        "2 of the 3 answers of a step are there, and no client is at work"
    )
    transport.away = set()
    training = train(clients, transport, resume=True)
    assert training.round == 2


def test_a_model_that_diverges_ends_the_training(tmp_path):
    clients = late_clients(tmp_path / "wards", 3, method="fedavg")
    text = clients.path.read_text().replace("lr = 0.1", "lr = 3e38")
    clients.path.write_text(text)
    clients.job = read_job(clients.path)
    with pytest.raises(Diverged, match="NaN or infinity"):
        train(clients)


def test_a_client_that_says_it_diverged_does_not_end_what_the_others_can_do(
    tmp_path, monkeypatch, lines
):
    """The others' answers are too few for a moment, as one is not connected."""
    monkeypatch.setattr(RemoteTraining, "pause", 0.01)
    clients = late_clients(tmp_path / "wards", 4, method="fedavg")
    transport = slow(clients, dict.fromkeys("abc", 1), "abc")

    def refuse(body):
        return encode_reply(Reply.to(decode_request(body), refusal=Refusal.DIVERGED))

    class Goes(Callback):
        def after_round(self, training, evaluated):
            if training.round == 2:
                transport.away, transport._clients["c"] = {"b"}, refuse

    def come_back(executor):
        transport.away = set()
        return repeat(executor)

    repeat = RemoteExecutor.repeat_exchanges
    monkeypatch.setattr(RemoteExecutor, "repeat_exchanges", come_back)
    training = train(clients, transport, "abc", callbacks=[Goes()], patience=60.0)
    assert training.round == 4
    assert any("1 of the 2 answers of a step are there" in line for line in lines)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer": 0}, "line 21: buffer is 0"),
        ({"more": ", buffers = 2"}, "line 21: .*'buffers'; did you mean 'buffer'"),
        (
            {"more": ", mean_delay = 1.0"},
            "line 21: mean_delay is of the simulated clock",
        ),
        ({"more": ", slowness = 'samples'"}, "slowness is of the simulated clock"),
        ({"more": ", weight = 'square'"}, "weight"),
        (
            {"rest": "[privacy]\nsecure_aggregation = true"},
            "line 21: secure sums are over",
        ),
        ({"method": "scaffold"}, "line 21: scaffold is not defined for late clients"),
        ({"method": "local"}, "local is not defined for late clients"),
        ({"rest": 'sampling = "poisson"\nparticipation = 0.5'}, "fixed number"),
        (
            {"rest": "[privacy]\nuplink = [{ use = 'robust-mean' }]"},
            "a robust mean compares",
        ),
    ],
)
def test_what_late_clients_exclude_is_told_with_its_line(settings, message, tmp_path):
    table = f"asynchronous = {{ buffer = {settings.get('buffer', 2)}{settings.get('more', '')} }}"
    rest = f"{table}\n{settings.get('rest', '')}"
    with pytest.raises(ValueError, match=message) as refused:
        Clients(tmp_path / "wards", method=settings.get("method", "fedavg"), rest=rest)
    assert "\n" not in str(refused.value)


def test_a_record_that_does_not_fit_the_job_is_told(tmp_path):
    clients = late_clients(tmp_path / "wards", 3, method="fedavg")
    with pytest.raises(ValueError, match=r"has no answers.parquet; name the directory"):
        replayed(clients, 3)
    train(clients)
    with pytest.raises(
        ValueError, match="the answers of 3 rounds, and the job asks for 4"
    ):
        replayed(clients, 4)
    with pytest.raises(ValueError, match="no client has that name"):
        replayed(clients, 3, NAMES[:2])
    waits = Clients(tmp_path / "waits", 3, method="fedavg")
    with pytest.raises(
        ValueError, match="a server that does not wait: set asynchronous"
    ):
        waits.simulated(NAMES, 3, replay=clients.directory / "run")


def test_more_answers_than_clients_are_refused(tmp_path):
    clients = late_clients(tmp_path / "wards", 2, buffer=5, method="fedavg")
    with pytest.raises(ValueError, match="buffer is 5, and 4 clients have a kit"):
        check_client_count(clients.job, 4)
    with pytest.raises(ValueError, match="buffer is 5, and only 4 clients train"):
        train(clients)
    assert not (clients.directory / "run").exists()
