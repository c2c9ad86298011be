"""Without Flower, `fedtailor federation` says what to install; with it, nothing is
contacted that was not given.
"""

import gzip
import os
import threading

import pytest

from fedtailor.cli import main
from fedtailor.remote.flower import client as flower_client
from fedtailor.remote.flower import common as flower
from fedtailor.remote.flower.client import (
    Disconnected,
    FleetConnection,
    answer_messages,
)
from fedtailor.remote.keys.keys import make_authority, make_client_key
from fedtailor.remote.wire.messages import Request, decode_reply, encode_request
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.run_log import RunLog


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "wards", "--clients", "a", "--address", "127.0.0.1:9092"),
        ("serve", "wards"),
        ("join", "kit", "--data", "rows.csv"),
    ],
)
def test_without_flower_one_line_says_what_to_install(
    monkeypatch, tmp_path, capsys, arguments
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flower, "find_spec", lambda name: None)
    assert main(["federation", *arguments]) == 2
    said = capsys.readouterr().err
    assert (
        said == "fedtailor: a federation of machines needs Flower; run: pip install"
        " 'fedtailor[flower]'\n"
    )
    assert not list(tmp_path.iterdir())


def test_telemetry_update_checks_and_installations_are_off(monkeypatch):
    pytest.importorskip(
        "flwr", reason="federations of machines need Flower (extra flower)"
    )
    for name in flower.SETTINGS:
        monkeypatch.setenv(name, "something else")
    flower.require_flower()
    assert {name: os.environ[name] for name in flower.SETTINGS} == flower.SETTINGS
    from flwr.common.constant import FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION
    from flwr.supercore import telemetry
    from flwr.supercore.constant import FLWR_DISABLE_UPDATE_CHECK

    # the names are Flower's own, so a release that renames them is noticed
    assert {
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION,
        FLWR_DISABLE_UPDATE_CHECK,
    } <= set(flower.SETTINGS)
    assert (
        "FLWR_TELEMETRY_ENABLED" in vars(telemetry)
        and "FLWR_TELEMETRY_ENABLED" in flower.SETTINGS
    )


def test_a_body_is_the_same_behind_flowers_messages():
    pytest.importorskip(
        "flwr", reason="federations of machines need Flower (extra flower)"
    )
    flower.require_flower()
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
    body = bytes(range(256)) * 100
    assert flower.unwrap(Message(flower.wrap(body), 5, flower.MESSAGE_TYPE)) == body
    for content in (
        RecordDict(),
        RecordDict({"fedtailor": ArrayRecord()}),
        RecordDict({"fedtailor": ConfigRecord({"body": "text"})}),
    ):
        assert flower.unwrap(Message(content, 5, flower.MESSAGE_TYPE)) == b""


@pytest.mark.parametrize("kept", [b"", b"12\xff", b"-3", b"9" * 30, b"1234"], ids=repr)
def test_a_damaged_note_of_the_last_connection_keeps_no_client_away(tmp_path, kept):
    """A client that is killed while it writes the note leaves an empty one."""
    memory, stop, asked = tmp_path / "node", threading.Event(), []

    class Connection:
        address = "coordinator:9092"

        def activate(self, former):
            asked.append(former)
            stop.set()
            return 77

        def close(self):
            pass

    memory.write_bytes(kept)
    answer_messages(
        Connection(),
        lambda body: body,
        node_id_file=memory,
        stop=stop,
        log=lambda line: None,
    )
    assert asked == [1234 if kept == b"1234" else None] and memory.read_text() == "77"


@pytest.mark.parametrize("error", [TypeError("x"), IndexError(), KeyError("y")])
def test_a_message_that_flower_cannot_read_and_a_full_disk_end_no_client(
    tmp_path, error
):
    """A coordinator can write any message of Flower."""
    stop, lines, pulled = threading.Event(), [], []

    class Connection:
        address = "coordinator:9092"

        def activate(self, former):
            return 7

        def heartbeat(self):
            pass

        def pull(self):
            pulled.append(1)
            if len(pulled) == 1:
                raise error
            stop.set()

        def close(self):
            pass

    answer_messages(
        Connection(),
        lambda body: body,
        node_id_file=tmp_path / "no directory" / "node",
        stop=stop,
        log=lines.append,
    )
    assert len(pulled) == 2
    assert any("a message cannot be handled" in line for line in lines)
    assert any("going on without it" in line for line in lines)


class Ends:
    """A coordinator that asks some things, and ends."""

    address = "coordinator:9092"

    def __init__(self, tasks, stop, attempts=4):
        self.tasks, self.stop, self.attempts = list(tasks), stop, attempts
        self.asked, self.answered, self.up = "", [], True

    def activate(self, former):
        if not self.up:
            self.attempts -= 1
            if not self.attempts:
                self.stop.set()
            raise Disconnected(f"cannot reach it ({self.attempts % 2})")
        return 7

    def heartbeat(self):
        pass

    def pull(self):
        if not self.tasks:
            self.up = False
            raise Disconnected("a message was lost")
        self.asked = self.tasks.pop(0)
        return self.asked

    def push(self, message, body):
        self.answered.append(message)

    def close(self):
        pass


def until_it_ends(monkeypatch, tmp_path, tasks):
    """What a client says of a coordinator that ends after some tasks, and the warnings."""
    monkeypatch.setattr(flower_client, "RETRY_S", (0.01, 0.02))
    monkeypatch.setattr(flower_client, "unwrap", lambda message: b"")
    stop, shown, warnings = threading.Event(), [], []
    log = RunLog(show=shown.append, warned=lambda: warnings.append(1))
    connection = Ends(tasks, stop)
    answer_messages(
        connection,
        lambda body: b"",
        node_id_file=tmp_path / "node",
        stop=stop,
        is_over=lambda: connection.asked == "personal",
        log=log,
    )
    assert connection.answered == list(tasks)
    return shown, len(warnings)


def test_the_end_of_a_training_is_said_once_and_is_no_warning(monkeypatch, tmp_path):
    shown, warnings = until_it_ends(monkeypatch, tmp_path, ["client", "personal"])
    assert warnings == 0
    assert [line for line in shown if "has ended" in line] == shown[-1:]


def test_a_coordinator_that_ends_before_it_is_done_is_a_warning(monkeypatch, tmp_path):
    shown, warnings = until_it_ends(monkeypatch, tmp_path, ["personal", "client"])
    assert warnings > 1
    assert not any("has ended" in line for line in shown)


@pytest.mark.parametrize("settings", [{}, {"kit": "Qzkit", "data": "Qzrows.csv"}])
def test_as_a_plain_flower_app_no_text_of_an_error_reaches_the_server(
    settings, monkeypatch
):
    """Flower sends the server the text of an exception that a client app raises."""
    pytest.importorskip(
        "flwr", reason="federations of machines need Flower (extra flower)"
    )
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fedtailor.remote import flower_app

    monkeypatch.setattr(flower_app, "save_memory", lambda: None)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
    context = Context(2, 3, settings, RecordDict(), {})
    request = Request("job", 0, 0, "hello", "a")
    for body in (encode_request(request), b"nonsense"):
        message = Message(flower.wrap(body), 3, flower.MESSAGE_TYPE)
        reply = flower_app.client(message, context)
        answer = flower.unwrap(reply)
        assert not reply.has_error()
        # without a kit there is no place to write down what was sent
        assert decode_reply(answer).refusal == Refusal.NO_AUDIT
        assert b"Qz" not in answer and b"node-config" not in answer


def connection_to(handler):
    """A client's connection whose coordinator is a function from requests to answers."""
    import httpx

    authority, key = make_authority("wards"), make_client_key()
    connection = FleetConnection("127.0.0.1:9", authority.public, key.private)
    connection._client._client._transport._transport = httpx.MockTransport(handler)
    return connection


HOSTILE_ANSWERS = {
    "no protobuf": {"content": b"\xff\xff"},
    "packed, or not": {"headers": {"content-encoding": "gzip"}, "content": b"hello"},
    "a bomb": {
        "headers": {"content-encoding": "gzip"},
        "content": gzip.compress(bytes(2**24)),
    },
    "too much": {"content": bytes(2**21)},
    "another place": {"status_code": 307, "headers": {"location": "http://10.0.0.1/"}},
    "the same place": {"status_code": 307, "headers": {"location": "/"}},
    "no place": {"status_code": 307, "headers": {"location": "http://[::"}},
    "a strange status": {"status_code": 206, "content": b"\xff"},
}


@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
def test_no_answer_of_a_coordinator_ends_a_client_or_leads_it_elsewhere(
    name, monkeypatch, tmp_path
):
    """Before, a client followed its coordinator to any address, without TLS, unpacked
    answers of any size, and ended at one that was no protobuf.
    """
    pytest.importorskip(
        "flwr", reason="federations of machines need Flower (extra flower)"
    )
    import httpx

    from fedtailor.remote.flower import bounded_http

    monkeypatch.setattr(bounded_http, "total_memory", lambda: 2**23)
    monkeypatch.setattr(flower_client, "RETRY_S", (0.01, 0.02))
    stop, lines, asked, read = threading.Event(), [], [], []

    class Stream(httpx.SyncByteStream):
        def __init__(self, content):
            self._content = content

        def __iter__(self):
            for start in range(0, len(self._content), 2**16):
                read.append(start)
                yield self._content[start : start + 2**16]

    def handler(request):
        asked.append((request.url.scheme, request.url.host))
        if len(asked) > 3:
            stop.set()
        answer = dict(HOSTILE_ANSWERS[name])
        return httpx.Response(
            answer.get("status_code", 200),
            headers=answer.get("headers", {}),
            stream=Stream(answer.get("content", b"")),
        )

    connection = connection_to(handler)
    answer_messages(
        connection,
        lambda body: body,
        node_id_file=tmp_path / "node",
        stop=stop,
        log=lines.append,
    )
    assert set(asked) == {("https", "127.0.0.1")} and len(asked) > 3
    assert len(read) < 100 and lines and not any("\n" in line for line in lines)
    if name == "too much":
        assert "larger than what this machine takes" in lines[0]


def test_all_parts_of_a_message_are_bounded_together():
    pytest.importorskip(
        "flwr", reason="federations of machines need Flower (extra flower)"
    )
    import httpx

    from fedtailor.remote.flower.bounded_http import BoundedTransport, Budget, TooLarge

    part = httpx.MockTransport(lambda request: httpx.Response(200, content=bytes(100)))
    budget = Budget(250)
    client = httpx.Client(transport=BoundedTransport(part, budget))
    for _ in range(2):
        budget.renew()
        assert len(client.get("https://x").content) == 100
        assert len(client.get("https://x").content) == 100
        with pytest.raises(TooLarge):
            client.get("https://x")
