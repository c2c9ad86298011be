"""A client's end on Flower, in the place of Flower's SuperNode.

It speaks the SuperLink's fleet interface with the client's key. A SuperNode runs code
that the server sends. This one runs none: a message is bytes for `Responder`, and the
client runs the method named in its own job file, with the fedtailor installed here.
"""

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedtailor._files import replacing
from fedtailor.protocol import require
from fedtailor.remote.flower import is_untrusted, unwrap, wrap
from fedtailor.remote.keys import check_secret

if TYPE_CHECKING:
    from flwr.app import Message

HEARTBEAT_S = 10.0
"""Seconds between heartbeats that this client promises: the fewest that Flower allows.

Flower takes a client that died for online for twice as long.
"""

RETRY_S = 1.0
"""Seconds between attempts to connect."""

REFUSED_S = 3 * HEARTBEAT_S
"""Seconds for which the SuperLink may refuse a key that it knows.

It refuses the key while it takes a former connection of this client for online, which
is two heartbeats after that client died.
"""

POLL_S = (0.1, 2.0)
"""Seconds between polls for a message: just after one, and after a long silence."""

T = TypeVar("T")


class Disconnected(RuntimeError):
    """The coordinator cannot be reached, or this connection to it is not valid."""


class Refused(Disconnected):
    """The coordinator was reached, and refuses this client's key or connection."""


class FleetConnection:
    """One client's connection to the SuperLink.

    Args:
        address: "host:port" of the coordinator.
        authority: PEM certificate of the federation's authority, the only one that is
            trusted.
        private_key: the client's key, in OpenSSH's form.
    """

    def __init__(self, address: str, authority: bytes, private_key: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        key = load_ssh_private_key(private_key, None)
        require(
            isinstance(key, EllipticCurvePrivateKey), "the private key is no EC key"
        )
        assert isinstance(key, EllipticCurvePrivateKey)
        self.address = address
        self.node_id: int | None = None
        self._public = public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient.from_server_address(
            address,
            False,
            authority,
            [
                RuntimeVersionHttpInterceptor("SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )

    def activate(self, former: int | None = None) -> int:
        """Come online.

        Args:
            former: node id of a connection of this client that was cut off. It is ended
                first, as the SuperLink accepts a key once at a time.

        Returns:
            The node id of this connection.

        Raises:
            ValueError: the certificate is not trusted.
            Disconnected: the coordinator cannot be reached or refuses the key.
        """
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest

        if former is not None:
            # The coordinator knows nothing of it if it was restarted, or noticed.
            with suppress(Disconnected):
                self._call(
                    self._client.DeactivateNode, DeactivateNodeRequest(node_id=former)
                )
        request = ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=HEARTBEAT_S
        )
        self.node_id = self._call(self._client.ActivateNode, request).node_id
        return self.node_id

    def heartbeat(self) -> None:
        """Tell the coordinator that this client is alive.

        Raises:
            Disconnected: the coordinator cannot be reached.
        """
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        request = SendNodeHeartbeatRequest(
            node=self._node(), heartbeat_interval=HEARTBEAT_S
        )
        self._call(self._client.SendNodeHeartbeat, request)

    def pull(self) -> "Message | None":
        """The next message for this client, or None.

        Raises:
            Disconnected: the coordinator cannot be reached, or the connection is not
                valid any more.
        """
        from flwr.app import Message
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import (
            pull_and_inflate_object_from_tree,
        )

        pulled = self._call(
            self._client.PullMessages, PullMessagesRequest(node=self._node())
        )
        if not pulled.messages_list:
            return None
        run_id = pulled.messages_list[0].metadata.run_id
        tree = pulled.message_object_trees[0]
        pull_object = make_pull_object_fn_protobuf(
            self._client.PullObject, self._node(), run_id
        )
        confirm = make_confirm_message_received_fn_protobuf(
            self._client.ConfirmMessageReceived, self._node(), run_id
        )
        message = self._guard(
            lambda: pull_and_inflate_object_from_tree(
                tree, pull_object, confirm, return_type=Message
            )
        )
        # Flower leaves the id out of the content, and an answer must name it.
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def push(self, message: "Message", body: bytes) -> None:
        """Answer a message.

        Raises:
            Disconnected: the answer could not be delivered.
        """
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_push_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import push_objects
        from flwr.supercore.task_identity import TaskIdentity

        run_id = message.metadata.run_id
        # Flower's messages read where they come from in this process-wide place.
        TaskIdentity.task_id = 0
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = self._node().node_id
        reply = Message(wrap(body), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        # The answer is announced first, and its content follows, object by object, as
        # far as the SuperLink does not have it. Whoever dies in between is asked again.
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=self._node(),
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
            )
            pushed = self._call(self._client.PushMessages, request)
            push_object = make_push_object_fn_protobuf(
                self._client.PushObject, self._node(), run_id, pushed.session_id
            )
            self._guard(
                lambda: push_objects(
                    get_all_nested_objects(reply),
                    push_object,
                    object_ids_to_push=set(pushed.objects_to_push),
                )
            )

    def close(self) -> None:
        """Go offline, if the coordinator can be told."""
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        if self.node_id is not None:
            with suppress(Disconnected, ValueError):
                self._call(
                    self._client.DeactivateNode,
                    DeactivateNodeRequest(node_id=self.node_id),
                )
        self._client.close()

    def _node(self) -> Any:
        from flwr.proto.node_pb2 import Node

        if self.node_id is None:
            raise Disconnected("this client is not connected")
        return Node(node_id=self.node_id)

    def _call(self, method: Callable[[Any], T], request: Any) -> T:
        return self._guard(lambda: method(request))

    def _guard(self, action: Callable[[], T]) -> T:
        """Do something over the connection.

        Returns:
            What `action` returns.

        Raises:
            ValueError: the certificate is not trusted, which no retry mends.
            Disconnected: in place of everything else that Flower and the network raise.
        """
        import httpx
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
        from google.protobuf.message import DecodeError

        try:
            return action()
        except httpx.TransportError as error:
            require(
                not is_untrusted(error),
                f"the server at {self.address} has no certificate of this federation's"
                " authority for that address; check the address in job.toml, and that"
                " the kit is of this federation",
            )
            raise Disconnected(
                f"cannot reach the coordinator at {self.address}"
            ) from None
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise Disconnected(
                    f"the coordinator at {self.address} has trouble"
                ) from None
            raise Refused(
                f"the coordinator at {self.address} does not accept this client's key"
                " (yet)"
            ) from None
        except (ObjectPullError, DecodeError, RuntimeError) as error:
            raise Disconnected(f"a message was lost on the way: {error}") from None


def answer_messages(
    connection: FleetConnection,
    respond: Callable[[bytes], bytes],
    *,
    memory: Path,
    stop: threading.Event,
    tell: Callable[[str], None] = print,
) -> None:
    """Answer the coordinator's messages until `stop` is set.

    Where the connection is lost, it is made again, however long that takes.

    Args:
        connection: to the coordinator.
        respond: from a message to its answer; a message for which it raises
            `ValueError` stays without one.
        memory: file that stores the node id, so that a client that was killed need not
            wait until the SuperLink gives up its former connection.
        stop: set by another thread or a signal handler.
        tell: is given lines for the user.

    Raises:
        ValueError: the coordinator's certificate is not trusted, or it refuses this
            client's key for good.
    """
    refused_since: float | None = None
    told = ""
    try:
        while not stop.is_set():
            try:
                node_id = connection.activate(_former_node(memory))
                with replacing(memory) as temporary:
                    temporary.write_text(str(node_id))
                refused_since, told = None, ""
                tell(f"connected to {connection.address}")
                _serve(connection, respond, stop, tell)
            except Disconnected as error:
                # A coordinator that is away for hours makes one line, not thousands.
                if str(error) != told:
                    told = str(error)
                    tell(f"{told}; trying again")
                if not isinstance(error, Refused):
                    refused_since = None
                elif refused_since is None:
                    refused_since = time.monotonic()
                else:
                    _check_refusal(connection, refused_since)
                stop.wait(RETRY_S)
    finally:
        connection.close()


def _former_node(memory: Path) -> int | None:
    """The node id that a file stores; None if there is none, or it is damaged."""
    text = memory.read_bytes() if memory.is_file() else b""
    if not re.fullmatch(rb"[0-9]{1,20}", text) or int(text) >= 2**64:
        return None
    return int(text)


def _check_refusal(connection: FleetConnection, since: float) -> None:
    """Stop trying where the coordinator has refused this client for too long.

    Raises:
        ValueError: for longer than a former connection of this client could explain.
    """
    require(
        time.monotonic() - since < REFUSED_S,
        f"the coordinator at {connection.address} refuses this client's key; it must be"
        " registered there, no other process may use it, and the clocks of both"
        " machines must agree to 5 seconds",
    )


def _serve(
    connection: FleetConnection,
    respond: Callable[[bytes], bytes],
    stop: threading.Event,
    tell: Callable[[str], None],
) -> None:
    """Answer messages while the connection lasts.

    Raises:
        Disconnected: it was lost.
    """
    over = threading.Event()
    # In a thread of its own, as a client may train for longer than a heartbeat.
    threading.Thread(
        target=_send_heartbeats, args=(connection, stop, over), daemon=True
    ).start()
    try:
        last = time.monotonic()
        while not stop.is_set():
            message = connection.pull()
            if message is None:
                shortest, longest = POLL_S
                silence = time.monotonic() - last
                stop.wait(min(longest, max(shortest, silence / 20)))
                continue
            try:
                body = respond(unwrap(message))
            except ValueError as error:
                tell(f"a message was not answered: {error}")
                continue
            connection.push(message, body)
            last = time.monotonic()
    finally:
        over.set()


def _send_heartbeats(
    connection: FleetConnection, stop: threading.Event, over: threading.Event
) -> None:
    """Send heartbeats, three in the time in which one must arrive.

    Args:
        connection: to the coordinator.
        stop: set when the client ends.
        over: set when the connection is lost.
    """
    while not (stop.is_set() or over.wait(HEARTBEAT_S / 3)):
        # The thread that pulls messages meets the same error, and connects again.
        with suppress(Disconnected, ValueError):
            connection.heartbeat()


def read_key(path: Path) -> bytes:
    """Read a client's private key.

    Raises:
        ValueError: it is missing, or others can read it.
    """
    check_secret(path)
    return path.read_bytes()
