"""Without Flower, `fedtailor federation` says what to install; with it, nothing is
contacted that was not given.
"""

import os
import threading

import pytest

from fedtailor.cli import main
from fedtailor.remote import flower
from fedtailor.remote.flower_client import answer_messages
from fedtailor.remote.messages import Request, decode_reply, encode_request
from fedtailor.remote.refusals import Refusal


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


@pytest.mark.parametrize("settings", [{}, {"kit": "Qzkit", "data": "Qzrows.csv"}])
def test_as_a_plain_flower_app_no_text_of_an_error_reaches_the_server(settings):
    """Flower sends the server the text of an exception that a client app raises."""
    pytest.importorskip(
        "flwr", reason="federations of machines need Flower (extra flower)"
    )
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fedtailor.remote import flower_app

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
