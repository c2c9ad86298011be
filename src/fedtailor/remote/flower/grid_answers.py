"""Pulls answers from the SuperLink while clients are still sending them.

The SuperLink announces an answer before its content has arrived. Flower's grid waits
for the content of one answer before it pulls the next, so a client that is killed while
it sends would block all others for minutes, whatever the deadline. Here each poll pulls
the parts that have arrived, and continues with the next answer.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message

    from fedtailor.remote.flower.internals import (
        HttpGrid,
    )


class ReplyLost(Exception):
    """The content of an answer will never arrive."""


class MalformedReply(ValueError):
    """The content of an answer is no message of Flower's."""


MAX_PARTS = 64
"""The largest number of parts of an answer; one of ours has three."""


@dataclass
class PartialReply:
    """An answer that was announced, and the parts of it that have arrived.

    Attributes:
        client: name of the client.
        node_id: node id of the connection on which the request was sent.
        message_id: id of the answer.
        tree: Flower's tree of the objects in the answer.
        content: bytes of the objects that have arrived, by id.
    """

    client: str
    node_id: int
    message_id: str
    tree: Any
    content: dict[str, bytes] = field(default_factory=dict)

    def poll(self, grid: "HttpGrid") -> "Message | None":
        """Pull the parts that have arrived since the last poll.

        Returns:
            The answer, or None while a part of it is missing.

        Raises:
            ReplyLost: the SuperLink does not wait for the content any more.
            MalformedReply: the client has announced, or sent, something else.
            httpx.HTTPError: the SuperLink does not answer.
        """
        from flwr.app import Message

        from fedtailor.remote.flower.internals import (
            ConfirmMessageReceivedRequest,
            PullObjectRequest,
            inflate_object_from_contents,
            iterate_object_tree,
        )

        runtime, run_id = grid._runtime_client, grid.run.run_id
        parts = list(islice(iterate_object_tree(self.tree), MAX_PARTS + 1))
        if len(parts) > MAX_PARTS:
            raise MalformedReply(f"its answer has more than {MAX_PARTS} parts")
        for part in parts:
            if part.object_id in self.content:
                continue
            pulled = runtime.PullObject(
                PullObjectRequest(
                    node=grid.node, run_id=run_id, object_id=part.object_id
                )
            )
            if not pulled.object_found:
                raise ReplyLost
            if not pulled.object_available:
                return None
            self.content[part.object_id] = pulled.object_content
        # The SuperLink deletes the answer when this is confirmed.
        received = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=self.message_id
        )
        runtime.ConfirmMessageReceived(received)
        # The client chooses what the parts hold, and Flower raises any exception at what
        # it would not write itself.
        try:
            message = inflate_object_from_contents(self.message_id, self.content)
        except Exception as error:
            raise MalformedReply(
                f"its answer is no message of Flower's ({type(error).__name__})"
            ) from None
        if not isinstance(message, Message):
            raise MalformedReply("its answer is no message of Flower's")
        return message


def pull_new_replies(
    grid: "HttpGrid", message_ids: list[str]
) -> list[tuple[str, str, Any]]:
    """Pull the announcements of answers that have not been pulled before.

    Args:
        grid: grid of the run.
        message_ids: ids of the messages that have not been answered.

    Returns:
        For each answer: the id of the message that it answers, its own id, and the tree
        of its objects.

    Raises:
        httpx.HTTPError: the SuperLink does not answer.
    """
    from fedtailor.remote.flower.internals import (
        PullAppMessagesRequest,
    )

    request = PullAppMessagesRequest(message_ids=message_ids)
    pulled = grid._runtime_client.PullMessages(request)
    pairs = zip(pulled.messages_list, pulled.message_object_trees, strict=True)
    return [
        (message.metadata.reply_to_message_id, message.metadata.message_id, tree)
        for message, tree in pairs
    ]
