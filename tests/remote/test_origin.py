"""A copied kit and other rows are told at both sides; releases that do not talk say so."""

import logging
import shutil
import time

import numpy as np
import polars as pl
import pytest

from fedtailor.remote import service
from fedtailor.remote.client import table_requests as job_work
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.client.table_requests import JobHandler
from fedtailor.remote.job.job import read_job
from fedtailor.remote.service import Connection, Greeter, share_note, wait_for_clients
from fedtailor.remote.wire.fingerprints import Origin, Origins
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.remote.wire.releases import RELEASE, talk
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines, client_log
from fedtailor.remote.wire.transport import LoopbackTransport, Responder, TooFewClients
from remote.jobs import NAMES, Clients


class Process:
    """A client's process, with the directory of its states."""

    def __init__(self, clients, name, state=None, rows=None):
        lines = self.lines = []
        job, data = clients.job, clients.directory / f"{name}.csv"
        if rows is not None:
            data = clients.directory / f"{name}-{rows}.csv"
            pl.read_csv(clients.directory / f"{name}.csv").head(rows).write_csv(data)
        store = ClientStore(state or clients.directory / f"state-{name}", job.identity)
        hearing = Lines(self.lines.append, logging.WARNING).of(client_log(name))
        with hearing:
            handler = JobHandler(job, name, data, store)

        class Heard(Responder):
            def __call__(self, body):
                with Lines(lines.append).of(client_log(name)):
                    return super().__call__(body)

        self.respond = Heard(
            job.identity,
            name,
            handler,
            handler.common_vectors,
            origin=handler.origin,
        )


@pytest.fixture
def clients(tmp_path):
    return Clients(tmp_path / "wards")


def greet(clients, processes, origins, lines, **options):
    transport = LoopbackTransport(
        {name: process.respond for name, process in processes.items()}
    )
    transport.origins = origins
    connection = Connection(clients.job, tuple(processes), transport)
    with Lines(lines.append).of(COORDINATOR_LOG):
        return wait_for_clients(connection, wait=60, **options)


def test_a_client_that_starts_again_is_the_same(clients, tmp_path):
    lines, path = [], tmp_path / "origins.json"
    for _ in range(2):  # of the coordinator
        origins = Origins(path, clients.job.identity)
        for _ in range(2):  # of the clients
            processes = {name: Process(clients, name) for name in NAMES}
            greet(clients, processes, origins, lines)
            assert all(not process.lines for process in processes.values())
    assert lines == []


def test_a_copied_kit_is_told_at_both_sides(clients, tmp_path):
    lines, path = [], tmp_path / "origins.json"
    first = {name: Process(clients, name) for name in NAMES}
    origins = Origins(path, clients.job.identity)
    greet(clients, first, origins, lines)
    shutil.copytree(clients.directory / "state-b", tmp_path / "copy")
    copy = Process(clients, "b", state=tmp_path / "copy")
    assert [line.split(";")[0] for line in copy.lines] == [
        "this kit was used on another machine or in another directory before"
    ]
    # The coordinator may have been started again in between.
    origins = Origins(path, clients.job.identity)
    greet(clients, first | {"b": copy}, origins, lines)
    told = "client b: it answers from another machine or directory than before;"
    assert len(lines) == 1 and lines[0].startswith(told)
    assert len(copy.lines) == 1
    greet(clients, first, origins, lines)
    assert len(lines) == 2 and lines[1].startswith(told)
    assert len(first["b"].lines) == 1
    assert "has answered in this client's name" in first["b"].lines[0]
    assert all(not first[name].lines for name in "acd")
    greet(clients, first, origins, lines)  # said once
    assert len(lines) == 2 and len(first["b"].lines) == 1


def test_a_client_that_refuses_is_told_of_the_copy(clients, tmp_path):
    """Its state is older than what the copy has answered, so that it must refuse."""
    original = Process(clients, "b")
    shutil.copytree(clients.directory / "state-b", tmp_path / "copy")
    copy = Process(clients, "b", state=tmp_path / "copy")
    request = Request(
        clients.job.identity,
        round=1,
        exchange=0,
        task="client",
        client="b",
        state_round=0,
        deadline=time.time() + 60,
        origin=copy.respond._origin.text,
    )
    assert decode_reply(original.respond(encode_request(request))).refusal is not None
    told = [line for line in original.lines if "answered in this client's name" in line]
    assert len(told) == 1


def test_a_coordinator_does_not_choose_how_many_lines_a_client_logs(clients):
    """A line for each place that it named filled the disk."""
    origin, lines = Process(clients, "b").respond._origin, []
    with Lines(lines.append).of(client_log("b")):
        for number in range(1, 50):
            origin.compare(f"{number:016x}{number:016x}")
    assert len(lines) == 1


@pytest.mark.parametrize("size", [0, 31])
def test_half_a_key_is_drawn_again(clients, size):
    """A client was killed while it wrote the key: anybody could know a key of nothing."""
    key = clients.directory / "state-a" / ".origin-key"
    Process(clients, "a")
    key.write_bytes(b"0" * size)
    Process(clients, "a")
    drawn = key.read_bytes()
    assert len(drawn) == 32 and key.stat().st_mode & 0o777 == 0o600
    Process(clients, "a")
    assert key.read_bytes() == drawn


def test_other_rows_are_told_at_both_sides(clients):
    lines, origins = [], Origins()
    first = {name: Process(clients, name) for name in NAMES}
    greet(clients, first, origins, lines)
    fewer = Process(clients, "c", rows=30)
    assert len(fewer.lines) == 1
    assert fewer.lines[0].startswith("the rows differ from those that this client had")
    greet(clients, first | {"c": fewer}, origins, lines)
    assert lines == [
        "client c: its rows differ from before; it keeps the weight that was"
        " agreed at the start"
    ]


def test_an_origin_says_nothing_without_the_clients_key(clients, tmp_path):
    """Two clients with equal rows have other digests; the key is the client's alone."""
    for name in "bc":
        shutil.copy(clients.directory / "a.csv", clients.directory / f"{name}.csv")
    texts = set()
    for name in "abc":
        process = Process(clients, name)
        texts.add(Origin.of(process.respond._origin.text).rows)
    assert len(texts) == 3
    key = clients.directory / "state-a" / ".origin-key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 32
    assert Origin.of("") is None and Origin.of("g" * 32) is None


def test_a_damaged_file_of_origins_is_said_and_left_out(tmp_path, lines):
    path = tmp_path / "origins.json"
    for content in ("", "[]", "{}", '{"experiment": "x", "clients": 3}', "\0"):
        path.write_text(content)
        assert Origins(path, "x").of("a") == ""
    assert len(lines) == 5
    path.write_text('{"experiment": "other", "clients": {"a": "%s"}}' % ("0" * 32))
    assert Origins(path, "x").of("a") == "" and len(lines) == 5


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.2.0", "0.2.7", True),
        ("0.2.0.dev0", "0.2.0", True),
        ("0.2.0", "0.3.0", False),
        ("1.2", "2.2", False),
        ("0.2.0", "", False),
        ("0.2.0\n", "0.2.0", False),
        ("nonsense", "nonsense", False),
        ("0.2." + "9" * 10**6, "0.2.0", False),
    ],
)
def test_which_releases_talk(one, other, expected):
    assert talk(one, other) == talk(other, one) == expected
    assert talk(RELEASE, RELEASE)


def test_other_releases_are_refused_by_name_at_both_sides(clients, monkeypatch):
    processes = {name: Process(clients, name) for name in NAMES}
    lines = []
    monkeypatch.setattr(service, "RELEASE", "9.9.0")
    with pytest.raises(TooFewClients):
        greet(clients, processes, Origins(), lines)
    assert len(lines) == 4 and "both need the same minor version" in lines[0]
    for process in processes.values():
        assert len(process.lines) == 1 and "'9.9.0'" in process.lines[0]
    # A client of another release that does not look is left out by the coordinator.
    monkeypatch.undo()
    lines.clear()
    honest = processes["a"].respond

    def other(body):
        with monkeypatch.context() as patch:
            patch.setattr(job_work, "RELEASE", "0.2.0")
            patch.setattr(job_work, "talk", lambda one, other: True)
            patch.setattr(job_work, "RELEASE", "8.1.0")
            return honest(body)

    processes["a"].respond = other
    assert sorted(greet(clients, processes, Origins(), lines)) == ["b", "c", "d"]
    assert len(lines) == 1 and lines[0].startswith("client a: it runs a release")


def test_impossible_numbers_of_rows_are_not_believed(clients):
    processes = {name: Process(clients, name) for name in NAMES}
    for rows in ([10**9, 0, 0], [-5, 3, 3], [0, 10, 10], [5, 2**40, 1]):
        lines = []
        processes["a"] = Process(clients, "a")
        processes["a"].respond._handler.sizes = np.array(rows, np.int64)
        found = greet(clients, processes, Origins(), lines)
        assert sorted(found) == ["b", "c", "d"] and len(lines) == 1
        assert lines[0].startswith("client a: ")
    lines = []
    processes["a"] = Process(clients, "a")
    processes["a"].respond._handler.sizes = np.array([10**6, 0, 0], np.int64)
    assert len(greet(clients, processes, Origins(), lines)) == 4
    assert "client a says that it has 100% of all training rows" in lines[0]
    assert sorted(greet(clients, processes, Origins(), [], most_rows=1000)) == list(
        "bcd"
    )


def test_a_client_with_too_many_rows_for_private_steps_is_left_out(clients):
    """Before, one client that said so ended the training of all."""
    text = clients.path.read_text()
    private = "batch_size = 8, dp_noise = 1.0, dp_norm = 1.0, dp_delta = 0.001"
    clients.path.write_text(text.replace("batch_size = 8", private))
    clients.job = read_job(clients.path)
    for rows, there in ((999, 4), (1000, 3), (10**6, 3)):
        lines = []
        processes = {name: Process(clients, name) for name in NAMES}
        processes["a"].respond._handler.sizes = np.array([rows, 0, 0], np.int64)
        assert len(greet(clients, processes, Origins(), lines)) == there
        named = [line for line in lines if line.startswith("client a: ")]
        assert len(named) == 4 - there and all("dp_delta, 0.001" in it for it in named)


def test_a_client_with_most_rows_is_named():
    few, many = np.array([10, 1, 1]), np.array([1000, 1, 1])
    assert share_note({"a": few, "b": few, "c": few}) is None
    assert share_note({"a": many, "b": few}) is None
    assert share_note({"a": many, "b": few, "c": few}).startswith("client a says")


def test_clients_that_come_later_are_greeted_once(clients, lines):
    processes = {name: Process(clients, name) for name in NAMES}
    transport = LoopbackTransport(
        {name: process.respond for name, process in processes.items()}
    )
    transport._clients["c"] = lambda body: b"nonsense"
    connection = Connection(clients.job, NAMES[:2], transport)
    arrivals = Greeter(connection, None)
    assert list(arrivals(["a", "b"])) == ["d"]
    assert lines[-1] == "client d has come, and is served as a newcomer"
    assert len(lines) == 2 and lines[0].startswith("client c: ")
    assert arrivals(["a", "b", "d"]) == {} and len(lines) == 2


def test_who_answers_no_greeting_delays_few_rounds(clients, monkeypatch):
    """It comes on another connection in each round; the others train meanwhile."""
    monkeypatch.setattr(service, "ARRIVAL_S", 0.02)

    class Silent(LoopbackTransport):
        asked, round = [], 0

        def online(self):
            return {"d": f"connection {self.round}"}

        def send(self, client, body):
            self.asked.append(self.round)

    transport = Silent({"d": None})
    greet = Greeter(Connection(clients.job, NAMES, transport), None)
    for transport.round in range(20):
        assert greet(["a", "b"]) == {}
    assert transport.asked == [0, 2, 6, 14]


def test_who_has_not_connected_is_named_while_the_others_are_waited_for(clients, lines):
    class OneAway(LoopbackTransport):
        """Client d comes when the coordinator has said that it waits."""

        def online(self):
            return {
                name: connection
                for name, connection in super().online().items()
                if name != "d" or lines
            }

    processes = {name: Process(clients, name) for name in NAMES}
    transport = OneAway({name: process.respond for name, process in processes.items()})
    connection = Connection(clients.job, NAMES, transport)
    rows = wait_for_clients(connection, wait=2)
    assert tuple(rows) == NAMES
    assert lines[0].startswith("not connected yet: d. ") and "policy" in lines[0]
    assert not any("no answer in time" in line for line in lines)
