"""The coordinator's end on Flower, with a SuperLink that loses messages and clients
that are killed while they send.
"""

import pytest

pytest.importorskip("flwr", reason="federations of machines need Flower (extra flower)")

from fedtailor.remote.flower import server as flower_server
from fedtailor.remote.flower.common import require_flower
from fedtailor.remote.flower.server import GridTransport
from remote.superlink_double import SuperLink


@pytest.fixture
def superlink():
    require_flower()
    return SuperLink()


@pytest.fixture
def transport(superlink):
    superlink.woken = []
    transport = GridTransport(
        superlink,
        {"a": b"of a", "b": b"of b"},
        check=lambda: None,
        wake=superlink.woken.append,
    )
    transport.online()
    return transport


def ask(transport, client, body=b"ask"):
    """Send a message; no answer is there yet."""
    transport.send(client, body)
    assert list(transport.receive()) == []


def test_messages_are_pushed_together_and_their_clients_woken(superlink, transport):
    pushed, push = [], superlink.push_messages
    superlink.push_messages = lambda messages: (
        pushed.append(len(messages)) or push(messages)
    )
    transport.send("a", b"for a")
    transport.send("b", b"for b")
    assert (pushed, superlink.woken) == ([], [])
    assert list(transport.receive()) == []
    assert (pushed, superlink.woken) == ([2], [[b"of a", b"of b"]])
    ask(transport, "b")
    assert (pushed, superlink.woken[1:]) == ([2, 1], [[b"of b"]])


def test_large_messages_are_not_held_in_memory_together(
    superlink, transport, monkeypatch
):
    monkeypatch.setattr(flower_server, "QUEUE", 10)
    transport.send("a", bytes(9))
    transport.send("b", bytes(9))
    assert superlink.woken == [[b"of a"]]
    assert list(transport.receive()) == []
    assert superlink.woken == [[b"of a"], [b"of b"]]


def asked_again(transport, before):
    """Clients whose connection ids have changed, so that they are asked again."""
    return {name for name, mark in transport.online().items() if mark != before[name]}


def test_clients_are_added_and_revoked_while_others_train(superlink, monkeypatch):
    keys, lines = {"a": b"of a"}, []
    monkeypatch.setattr(flower_server, "RELOAD_S", 0.0)
    transport = GridTransport(
        superlink, dict(keys), lambda: None, lines.append, reload=lambda: keys
    )
    assert set(transport.online()) == {"a"} and lines == []
    keys = {"a": b"of a", "b": b"of b"}
    assert set(transport.online()) == {"a", "b"} and not transport.revoked
    assert transport.num_registered == 2
    keys = {"b": b"of b"}
    assert set(transport.online()) == {"b"} and transport.revoked == {"a"}
    keys = None  # nothing has changed
    assert set(transport.online()) == {"b"} and transport.revoked == {"a"}
    keys = {"a": b"another of a", "b": b"of b"}  # it has a new key
    assert set(transport.online()) == {"b"} and not transport.revoked
    assert lines == [
        "client b may join now",
        "client a was revoked",
        "client a may join now",
    ]


def test_a_message_that_the_superlink_does_not_take_is_sent_again(superlink, transport):
    before = transport.online()
    superlink.takes = False
    ask(transport, "a")
    assert asked_again(transport, before) == {"a"}
    superlink.takes = True
    before = transport.online()
    ask(transport, "a")
    superlink.answer(5, b"answer of a")
    assert list(transport.receive()) == [("a", b"answer of a")] and not asked_again(
        transport, before
    )


def test_answers_of_a_look_that_failed_are_asked_for_again(superlink, transport):
    before = transport.online()
    ask(transport, "a")
    superlink.answer(5, b"answer of a")
    superlink.breaks = True
    assert list(transport.receive()) == []
    superlink.breaks = False
    assert (
        list(transport.receive()) == []
    )  # the SuperLink thinks that it has been handed out
    assert asked_again(transport, before) == {"a"}
    ask(transport, "a")
    superlink.answer(5, b"answer of a")
    assert list(transport.receive()) == [("a", b"answer of a")]


def test_a_client_killed_while_it_sends_holds_up_nobody(superlink, transport):
    before = transport.online()
    for name in ("a", "b"):
        ask(transport, name)
    superlink.answer(5, b"answer of a", sent=False)
    superlink.answer(6, b"answer of b")
    assert list(transport.receive()) == [("b", b"answer of b")]
    assert list(transport.receive()) == [] and not asked_again(
        transport, before
    )  # it may still be under way
    ask(transport, "a", b"ask again")  # it was started again
    superlink.answer(5, b"second answer of a")
    assert (
        list(transport.receive()) == [("a", b"second answer of a")]
        and list(transport.receive()) == []
    )


def test_an_answer_is_taken_when_its_last_part_has_arrived(superlink, transport):
    ask(transport, "a")
    parts = list(superlink.answer(5, b"answer of a", sent=False).items())
    assert len(parts) > 1
    for name, content in parts:
        assert list(transport.receive()) == []
        superlink.objects[name] = content
    assert (
        list(transport.receive()) == [("a", b"answer of a")]
        and list(transport.receive()) == []
    )


def test_an_answer_whose_content_the_superlink_gave_up_is_asked_for_again(
    superlink, transport
):
    before = transport.online()
    ask(transport, "a")
    superlink.answer(5, b"answer of a", sent=False)
    assert list(transport.receive()) == []
    superlink.objects.clear()
    assert list(transport.receive()) == [] and asked_again(transport, before) == {"a"}


def test_a_message_that_is_too_large_ends_in_one_line(superlink, transport):
    superlink.takes = None
    with pytest.raises(RuntimeError, match="the SuperLink takes no message of 3 MB"):
        ask(transport, "a", bytes(3_000_000))


def part(content):
    """The id and the content of an object that a client pushes."""
    import hashlib

    return hashlib.sha256(content).hexdigest(), content


@pytest.mark.parametrize(
    "content", [b"junk", b"Junk  0\0", b"Message  3\0abc", b"\xff", "record", "message"]
)
def test_what_is_no_answer_of_flower_ends_no_coordinator(superlink, transport, content):
    """Before, a registered client ended the training by one such answer."""
    from flwr.proto.message_pb2 import ObjectTree

    lines = []
    transport._log = lines.append
    for name in ("a", "b"):
        ask(transport, name)
    parts = superlink.answer(5, b"answer of a", sent=False)
    proto, _ = superlink.announced.pop()
    if isinstance(content, str):  # a part without those that it consists of
        content = list(parts.values())[-1 if content == "message" else 0]
    root, content = part(content)
    proto.metadata.message_id = root
    superlink.announced.append((proto, ObjectTree(object_id=root)))
    superlink.objects[root] = content
    superlink.answer(6, b"answer of b")
    assert list(transport.receive()) == [("b", b"answer of b")]
    (line,) = lines
    assert line.startswith("client a: its answer is no message of Flower's")


def test_an_answer_of_many_parts_is_not_pulled(superlink, transport):
    lines = []
    transport._log = lines.append
    ask(transport, "a")
    superlink.answer(5, b"answer of a")
    for number in range(100):
        superlink.announced[0][1].children.add(object_id=part(b"%d" % number)[0])
    assert list(transport.receive()) == []
    assert lines == ["client a: its answer has more than 64 parts"]
