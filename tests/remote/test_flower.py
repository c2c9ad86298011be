"""Without Flower, `fedtailor federation` says what to install; with it, nothing is
contacted that was not given.
"""

import os
import threading

import pytest

from fedtailor.cli import main
from fedtailor.remote import flower
from fedtailor.remote.flower_client import answer_messages


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
