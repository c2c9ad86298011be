"""The coordinator's end on Flower, beside a grid that loses messages."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="federations of machines need Flower (extra flower)")

from fedtailor.remote.flower import require_flower, wrap
from fedtailor.remote.flower_server import GridTransport


class Grid:
    """Two nodes; the next push, or the next pull, may go wrong."""

    def __init__(self) -> None:
        self.waiting, self.takes, self.breaks = [], True, False

    def get_nodes(self):
        return [
            SimpleNamespace(public_key=key, status="online", node_id=node, last_activated_at="noon")
            for node, key in enumerate((b"of a", b"of b"))
        ]

    def push_messages(self, messages):
        if self.takes is None:
            return []
        self.waiting += [str(message.metadata.dst_node_id) for message in messages] if self.takes else []
        return [str(message.metadata.dst_node_id) if self.takes else None for message in messages]

    def pull_messages(self, asked):
        import httpx

        found = [it for it in self.waiting if it in asked]
        self.waiting = [it for it in self.waiting if it not in asked]  # handed out, whether it arrives or not
        if self.breaks:
            raise httpx.ReadTimeout("")
        metadata = (SimpleNamespace(reply_to_message_id=it, src_node_id=int(it)) for it in found)
        rest = {"content": wrap(b"x"), "has_content": lambda: True, "has_error": lambda: False}
        return [SimpleNamespace(metadata=it, **rest) for it in metadata]


@pytest.fixture
def grid():
    require_flower()
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
    return Grid()


@pytest.fixture
def transport(grid):
    return GridTransport(grid, {"a": b"of a", "b": b"of b"}, check=lambda: None)


def test_a_message_that_the_superlink_does_not_take_is_sent_again(grid, transport):
    before = transport.online()
    grid.takes = False
    transport.send("a", b"ask")
    after = transport.online()
    assert after["a"] != before["a"] and after["b"] == before["b"]
    grid.takes = True
    transport.send("a", b"ask")
    assert transport.online() == after and list(transport.receive()) == [("a", b"x")]


def test_answers_of_a_look_that_failed_are_asked_for_again(grid, transport):
    before = transport.online()
    transport.send("a", b"ask")
    grid.breaks = True
    assert list(transport.receive()) == []
    grid.breaks = False
    assert list(transport.receive()) == []  # the SuperLink thinks that it has been handed out
    after = transport.online()
    assert after["a"] != before["a"] and after["b"] == before["b"]
    transport.send("a", b"ask")
    assert list(transport.receive()) == [("a", b"x")]


def test_a_message_that_is_too_large_ends_in_one_line(grid, transport):
    transport.online()
    grid.takes = None
    with pytest.raises(RuntimeError, match="the SuperLink takes no message of 3 MB"):
        transport.send("a", bytes(3_000_000))
