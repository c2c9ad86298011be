"""An answer that a client is still sending to the SuperLink, and its parts as far as
they are there.

The SuperLink announces an answer before its content has arrived, and Flower's grid
waits for the content of one answer before it looks at the next: a client that was
killed while it sent would hold up all others for minutes, whatever the deadline. Here
each look takes what is there.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.superlink.grid.http_grid import HttpGrid


class Lost(Exception):
    """The content of an answer will never be there."""


@dataclass
class Arriving:
    """An answer of a client.

    Attributes:
        client: its name.
        node_id: where it was asked.
        message_id: of the answer.
        tree: Flower's tree of the objects that the answer is made of.
        content: bytes of the objects that have arrived, by their ids.
    """

    client: str
    node_id: int
    message_id: str
    tree: Any
    content: dict[str, bytes] = field(default_factory=dict)

    def look(self, grid: "HttpGrid") -> "Message | None":
        """The answer, or None if a part of it is still under way.

        Raises:
            Lost: the SuperLink waits for its content no more.
            httpx.HTTPError: the SuperLink does not answer.
        """
        from flwr.app import Message
        from flwr.proto.message_pb2 import (
            ConfirmMessageReceivedRequest,
            PullObjectRequest,
        )
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import (
            inflate_object_from_contents,
        )

        runtime, run_id = grid._runtime_client, grid.run.run_id
        for part in iterate_object_tree(self.tree):
            if part.object_id in self.content:
                continue
            found = runtime.PullObject(
                PullObjectRequest(
                    node=grid.node, run_id=run_id, object_id=part.object_id
                )
            )
            if not found.object_found:
                raise Lost
            if not found.object_available:
                return None
            self.content[part.object_id] = found.object_content
        received = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=self.message_id
        )
        runtime.ConfirmMessageReceived(received)
        message = inflate_object_from_contents(self.message_id, self.content)
        assert isinstance(message, Message)
        return message


def announced(grid: "HttpGrid", asked: list[str]) -> list[tuple[str, str, Any]]:
    """Answers that the SuperLink announces for the first time.

    Args:
        grid: of the run.
        asked: ids of messages whose answers are awaited.

    Returns:
        For each: the message that it answers, its own id, and the tree of its objects.

    Raises:
        httpx.HTTPError: the SuperLink does not answer.
    """
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=asked))
    return [
        (message.metadata.reply_to_message_id, message.metadata.message_id, tree)
        for message, tree in zip(
            found.messages_list, found.message_object_trees, strict=True
        )
    ]
