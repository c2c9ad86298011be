"""Connects a client to Flower's SuperLink, in place of Flower's SuperNode.

The connection uses the SuperLink's fleet interface, and authenticates with the client's
key. A SuperNode runs code that the server sends; this client does not. A message is
bytes for `Responder`, and the client runs the method of its own job file with its own
installation of fedtailor.
"""

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.files import atomic_write, reason
from fedtailor._base.printable import say
from fedtailor.remote.flower.common import is_untrusted, unwrap, wrap
from fedtailor.remote.wire.run_log import info_of

if TYPE_CHECKING:
    from flwr.app import Message

HEARTBEAT_S = 10.0
"""Interval of heartbeats in seconds: the shortest that Flower allows.

Flower lists a client that was killed as online for twice as long.
"""

RETRY_S = (1.0, 15.0)
"""Seconds between attempts to connect: at first, and after minutes."""

MAX_REFUSAL_S = 3 * HEARTBEAT_S
"""Seconds for which the SuperLink may refuse a registered key.

It does so while it lists an earlier connection of this client as online, which takes up
to two heartbeats after the client was killed.
"""

POLL_INTERVALS_S = (0.1, 2.0)
"""Seconds from one poll for messages to the next: the shortest and the longest interval.

The SuperLink may answer a poll when there is a message (see `superlink.HeldPolls`). A poll
that took as long is followed by the next at once.
"""

T = TypeVar("T")

_END = (
    "the training is over, and its coordinator has ended; stop this client with Ctrl-C, or"
    " let it run: it takes part if the job is served again"
)


class Disconnected(RuntimeError):
    """The coordinator cannot be reached, or the connection is not valid any more."""


class KeyRefused(Disconnected):
    """The coordinator can be reached, but refuses this client's key or connection."""


class FleetConnection:
    """One client's connection to the SuperLink.

    Args:
        address: "host:port" of the coordinator.
        authority: PEM certificate of the federation's authority; no other authority is
            trusted.
        private_key: the client's key, in OpenSSH format.
    """

    def __init__(self, address: str, authority: bytes, private_key: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        from fedtailor.remote.flower.bounded_http import bound_connection
        from fedtailor.remote.flower.internals import (
            FleetHttpClient,
            NodeAuthHttpInterceptor,
            RuntimeVersionHttpInterceptor,
            public_key_to_bytes,
        )

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
        self._budget = bound_connection(self._client._client)

    def activate(self, previous: int | None = None) -> int:
        """Come online.

        Args:
            previous: node id of an earlier connection of this client. It is ended
                first, as the SuperLink accepts one connection for each key.

        Returns:
            The node id of this connection.

        Raises:
            ValueError: the certificate is not trusted.
            Disconnected: the coordinator cannot be reached or refuses the key.
        """
        from fedtailor.remote.flower.internals import (
            ActivateNodeRequest,
            DeactivateNodeRequest,
        )

        self._budget.renew()
        if previous is not None:
            # This fails if the SuperLink was restarted, or has ended the connection.
            with suppress(Disconnected):
                self._call(
                    self._client.DeactivateNode, DeactivateNodeRequest(node_id=previous)
                )
        request = ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=HEARTBEAT_S
        )
        node_id = int(self._call(self._client.ActivateNode, request).node_id)
        self.node_id = node_id
        return node_id

    def heartbeat(self) -> None:
        """Tell the coordinator that this client is alive.

        Raises:
            Disconnected: the coordinator cannot be reached.
        """
        from fedtailor.remote.flower.internals import (
            SendNodeHeartbeatRequest,
        )

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

        from fedtailor.remote.flower.internals import (
            PullMessagesRequest,
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
            pull_and_inflate_object_from_tree,
        )

        self._budget.renew()
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
        message = self._translate_errors(
            lambda: pull_and_inflate_object_from_tree(
                tree, pull_object, confirm, return_type=Message
            )
        )
        # The answer must name the id of the message, which Flower does not restore.
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def push(self, message: "Message", body: bytes) -> None:
        """Answer a message.

        Raises:
            Disconnected: the answer could not be delivered.
        """
        from flwr.app import Message

        from fedtailor.remote.flower.internals import (
            PushMessagesRequest,
            TaskIdentity,
            get_all_nested_objects,
            get_object_tree,
            make_push_object_fn_protobuf,
            message_to_proto,
            no_object_id_recompute,
            push_objects,
            remove_content_from_message,
        )

        run_id = message.metadata.run_id
        # Flower's messages take their source from these process-wide attributes.
        TaskIdentity.task_id = 0
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = self._node().node_id
        reply = Message(wrap(body), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        # First announce the answer, then push those of its objects that the SuperLink
        # does not have. A client that is killed in between is asked again.
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
            self._translate_errors(
                lambda: push_objects(
                    get_all_nested_objects(reply),
                    push_object,
                    object_ids_to_push=set(pushed.objects_to_push),
                )
            )

    def close(self) -> None:
        """Go offline; the coordinator is notified if it can be reached."""
        from fedtailor.remote.flower.internals import (
            DeactivateNodeRequest,
        )

        if self.node_id is not None:
            with suppress(Disconnected, ValueError):
                self._call(
                    self._client.DeactivateNode,
                    DeactivateNodeRequest(node_id=self.node_id),
                )
        self._client.close()

    def _node(self) -> Any:
        from fedtailor.remote.flower.internals import (
            Node,
        )

        if self.node_id is None:
            raise Disconnected("this client is not connected")
        return Node(node_id=self.node_id)

    def _call(self, method: Callable[[Any], T], request: Any) -> T:
        return self._translate_errors(lambda: method(request))

    def _translate_errors(self, action: Callable[[], T]) -> T:
        """Call a function that uses the connection, and translate its errors.

        Returns:
            The result of `action`.

        Raises:
            ValueError: the certificate is not trusted, so that retries are useless.
            Disconnected: in place of all other errors of Flower and the network.
        """
        import httpx

        from fedtailor.remote.flower.bounded_http import TooLarge

        try:
            return action()
        except TooLarge:
            raise Disconnected(
                f"the coordinator at {self.address} sends a message that is larger than"
                " what this machine takes"
            ) from None
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
            # Other codes than these are no answers to a key: a redirection, which is
            # not followed, or one of a server in between.
            busy = (
                httpx.codes.REQUEST_TIMEOUT,
                httpx.codes.REQUEST_ENTITY_TOO_LARGE,
                httpx.codes.TOO_MANY_REQUESTS,
            )
            status = error.response.status_code
            if not error.response.is_client_error or status in busy:
                raise Disconnected(
                    f"the coordinator at {self.address} has trouble"
                ) from None
            raise KeyRefused(
                f"the coordinator at {self.address} does not accept this client's key"
                " (yet)"
            ) from None
        except Exception as error:
            # A coordinator can answer anything, and Flower raises whatever it likes then.
            raise Disconnected(
                f"a message was lost on the way, or cannot be read: {reason(error)}"
            ) from None


def answer_messages(
    connection: FleetConnection,
    respond: Callable[[bytes], bytes],
    *,
    node_id_file: Path,
    stop: threading.Event,
    is_over: Callable[[], bool] = lambda: False,
    log: Callable[[str], None] = say,
) -> None:
    """Answer the coordinator's messages until `stop` is set.

    A connection that is lost is made again, without a limit of time.

    Args:
        connection: connection to the coordinator.
        respond: function from a message to its answer, which raises no exception (see
            `transport.answer_message`).
        node_id_file: file that stores the node id. With it a client that was killed can
            end its earlier connection, and need not wait until the SuperLink does.
        stop: set by another thread or a signal handler.
        is_over: whether the coordinator has asked for the last thing that it asks, so
            that its end is no trouble.
        log: called with lines for the user.

    Raises:
        ValueError: the coordinator's certificate is not trusted, or it refuses this
            client's key permanently.
    """
    first_refusal: float | None = None
    last_problem, lost_at = "", 0.0
    try:
        while not stop.is_set():
            try:
                node_id = connection.activate(_read_node_id(node_id_file))
                _write_node_id(node_id_file, node_id, log)
                first_refusal, last_problem = None, ""
                info_of(log)(f"connected to {connection.address}")
                _serve(connection, respond, stop)
            except Disconnected as error:
                if not last_problem:
                    lost_at = time.monotonic()
                has_ended = is_over() and not isinstance(error, KeyRefused)
                problem = _END if has_ended else f"{error}; trying again"
                # Log a repeated problem once.
                if problem != last_problem:
                    last_problem = problem
                    (info_of(log) if has_ended else log)(problem)
                if not isinstance(error, KeyRefused):
                    first_refusal = None
                elif first_refusal is None:
                    first_refusal = time.monotonic()
                # A refusal may be due to an earlier connection, but not for so long.
                elif time.monotonic() - first_refusal >= MAX_REFUSAL_S:
                    raise ValueError(
                        f"the coordinator at {connection.address} refuses this client's"
                        " key; it must be registered there, no other process may use"
                        " it, and the clocks of both machines must agree to 5 seconds"
                        f"{see('errors#a-key-that-is-not-accepted')}"
                    ) from None
                shortest, longest = RETRY_S
                lost_for = time.monotonic() - lost_at
                stop.wait(min(longest, max(shortest, lost_for / 20)))
    finally:
        connection.close()


def _read_node_id(path: Path) -> int | None:
    """Read a stored node id; None if there is none, or the file is damaged."""
    text = path.read_bytes() if path.is_file() else b""
    if not re.fullmatch(rb"[0-9]{1,20}", text) or int(text) >= 2**64:
        return None
    return int(text)


def _write_node_id(path: Path, node_id: int, log: Callable[[str], None]) -> None:
    """Store a node id; a client whose disk is full does without."""
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(str(node_id))
    except OSError as error:
        log(f"cannot write {path} ({reason(error)}); going on without it")


def _serve(
    connection: FleetConnection,
    respond: Callable[[bytes], bytes],
    stop: threading.Event,
) -> None:
    """Answer messages until `stop` is set.

    Raises:
        Disconnected: the connection was lost.
    """
    disconnected = threading.Event()
    # Heartbeats need a thread, as training may take longer than their interval.
    threading.Thread(
        target=_send_heartbeats, args=(connection, stop, disconnected), daemon=True
    ).start()
    try:
        last = time.monotonic()
        while not stop.is_set():
            begun = time.monotonic()
            message = connection.pull()
            if message is None:
                # Poll less often the longer there has been no message.
                shortest, longest = POLL_INTERVALS_S
                now = time.monotonic()
                interval = min(longest, max(shortest, (now - last) / 20))
                stop.wait(max(0.0, begun + interval - now))
                continue
            connection.push(message, respond(unwrap(message)))
            last = time.monotonic()
    except Disconnected:
        raise
    except Exception as error:
        # Flower raises many kinds of exceptions at messages that it would not write.
        raise Disconnected(f"a message cannot be handled: {error!r}") from None
    finally:
        disconnected.set()


def _send_heartbeats(
    connection: FleetConnection, stop: threading.Event, disconnected: threading.Event
) -> None:
    """Send three heartbeats in each interval in which Flower expects one.

    Args:
        connection: connection to the coordinator.
        stop: set when the client stops.
        disconnected: set when the connection is lost.
    """
    while not (stop.is_set() or disconnected.wait(HEARTBEAT_S / 3)):
        # The thread that pulls messages gets the same error, and connects again.
        with suppress(Disconnected, ValueError):
            connection.heartbeat()
