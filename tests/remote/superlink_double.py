"""A SuperLink in this process, with two clients that answer as a test likes."""

from types import SimpleNamespace

from fedtailor.remote.flower.common import wrap


class SuperLink:
    """Two clients, and what they have answered; the next messages, or the next look,
    may go wrong.
    """

    def __init__(self) -> None:
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
        self.run, self.node, self._runtime_client = (
            SimpleNamespace(run_id=2),
            Node(node_id=1),
            self,
        )
        self.asked, self.announced, self.objects, self.takes, self.breaks = (
            {},
            [],
            {},
            True,
            False,
        )

    def get_nodes(self):
        return [
            SimpleNamespace(
                public_key=key, status="online", node_id=node, last_activated_at="noon"
            )
            for node, key in enumerate((b"of a", b"of b"), start=5)
        ]

    def push_messages(self, messages):
        if self.takes is None:
            return []
        for message in messages if self.takes else ():
            message.metadata.__dict__["_message_id"] = message.object_id
            self.asked[message.metadata.dst_node_id] = message
        return [message.object_id if self.takes else None for message in messages]

    def answer(self, node_id, body, sent=True):
        """The client at a node answers; where the answer is not `sent`, it is announced
        only.
        """
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.node_id = node_id
        reply = Message(wrap(body), reply_to=self.asked[node_id])
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.announced.append(
            (
                message_to_proto(remove_content_from_message(reply)),
                get_object_tree(reply),
            )
        )
        parts = {
            name: part.deflate() for name, part in get_all_nested_objects(reply).items()
        }
        self.objects |= parts if sent else dict.fromkeys(parts, b"")
        return parts

    def PullMessages(self, request):
        import httpx

        asked = set(request.message_ids)
        found = [
            it for it in self.announced if it[0].metadata.reply_to_message_id in asked
        ]
        self.announced = [
            it for it in self.announced if it not in found
        ]  # handed out, whether it arrives or not
        if self.breaks:
            raise httpx.ReadTimeout("")
        return SimpleNamespace(
            messages_list=[it[0] for it in found],
            message_object_trees=[it[1] for it in found],
        )

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        return SimpleNamespace(
            object_found=content is not None,
            object_available=bool(content),
            object_content=content,
        )

    def ConfirmMessageReceived(self, request):
        pass
