"""Answers that clients are still sending to the SuperLink.

The SuperLink announces an answer before its content has arrived, and Flower's grid
waits for the content of one answer before it looks at the next: a client that was
killed while it sent would hold up all others for minutes, whatever the deadline. Here
each look takes the parts that have arrived, and goes on with the next answer.
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
    """An answer that was announced.

    Attributes:
        client: who was asked.
        node_id: of the connection on which it was asked.
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
        """Take the parts that have arrived since the last look.

        Returns:
            The answer, or None while a part of it is under way.

        Raises:
            Lost: the SuperLink has given up waiting for its content.
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
            pulled = runtime.PullObject(
                PullObjectRequest(
                    node=grid.node, run_id=run_id, object_id=part.object_id
                )
            )
            if not pulled.object_found:
                raise Lost
            if not pulled.object_available:
                return None
            self.content[part.object_id] = pulled.object_content
        # The SuperLink deletes the answer once this is confirmed, so not before.
        received = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=self.message_id
        )
        runtime.ConfirmMessageReceived(received)
        message = inflate_object_from_contents(self.message_id, self.content)
        assert isinstance(message, Message)
        return message


def announced(grid: "HttpGrid", asked: list[str]) -> list[tuple[str, str, Any]]:
    """Pull the answers that the SuperLink has not announced before.

    Args:
        grid: of the run.
        asked: ids of messages whose answers are awaited.

    Returns:
        For each: the message that it answers, its own id, and the tree of its objects.

    Raises:
        httpx.HTTPError: the SuperLink does not answer.
    """
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    request = PullAppMessagesRequest(message_ids=asked)
    pulled = grid._runtime_client.PullMessages(request)
    pairs = zip(pulled.messages_list, pulled.message_object_trees, strict=True)
    return [
        (message.metadata.reply_to_message_id, message.metadata.message_id, tree)
        for message, tree in pairs
    ]
