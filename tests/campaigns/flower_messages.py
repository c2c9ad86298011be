"""What one side of Flower's connection can send to the other, below the messages of
fedtailor: answers of a server that is no honest coordinator's, and objects of a client
that are no message. Both are drawn, and nothing leaves this process.
"""

import gzip
import threading
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fedtailor.remote.flower import bounded_http
from fedtailor.remote.flower import client as flower_client
from fedtailor.remote.flower.client import FleetConnection, answer_messages
from fedtailor.remote.flower.common import MESSAGE_TYPE, require_flower, wrap
from fedtailor.remote.flower.server import GridTransport
from fedtailor.remote.keys.keys import make_authority, make_client_key

ADDRESS = ("https", "127.0.0.1", 9)
HOSTILE_CALLS = 15
"""Calls of a client's that are answered as drawn, before all are answered honestly."""

MEMORY = 2**23
"""Bytes of memory that the client's machine seems to have."""

PART = 2**16
"""Bytes in which an answer arrives."""

QUESTION, ANSWER = b"an honest question", b"the answer to it"

_LOCATIONS = (
    *(
        "http://10.0.0.1/",
        "https://127.0.0.1:9/",
        "/",
        "",
        "//10.0.0.1/x",
        "http://[::",
    ),
    *("file:///etc/passwd", "/v1/fleet/activate-node", "http://127.0.0.1/", "\xff"),
)
_ENCODINGS = (
    "gzip",
    "deflate",
    "br",
    "zstd",
    "GZIP",
    "gzip, gzip",
    "identity",
    "x",
    "",
)
_STATUSES = (
    *(200, 201, 204, 206, 300, 301, 302, 303, 304, 305, 307, 308, 400, 401, 403, 404),
    *(408, 413, 418, 429, 431, 500, 502, 503, 504, 505, 599, 999),
)
_NUMBERS = (0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -1)
_TEXTS = ("", "a", "../x", "\x00", "\x1b[2J", "a\nclient b: forged", "x" * 10**4, "7")


def draw_bytes(rng: np.random.Generator, content: bytes) -> bytes:
    """Bytes that are others than an honest content, or a part of it."""
    kind = rng.integers(6)
    if kind == 0 or not content:
        return rng.bytes(int(rng.integers(0, 200)))
    if kind == 1:
        return content[: int(rng.integers(len(content)))]
    if kind == 2:
        return content + rng.bytes(int(rng.integers(1, 50)))
    if kind == 3:  # the first bytes say of what type an object is, and how long
        head = [
            b"Message",
            b"RecordDict",
            b"ConfigRecord",
            b"ArrayRecord",
            b"Junk",
            b"",
        ]
        size = int(rng.choice([0, 1, 10, len(content), 10**9]))
        return head[int(rng.integers(len(head)))] + b" %d\0" % size + content[9:]
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def change_fields(rng: np.random.Generator, message: Any, depth: int = 5) -> None:
    """Draw some field of a protobuf message anew, in place.

    Args:
        rng: what draws it.
        message: the message.
        depth: largest depth of the field.
    """
    fields = message.DESCRIPTOR.fields
    if not fields or not depth:
        return
    field = fields[int(rng.integers(len(fields)))]
    place = getattr(message, field.name)
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.is_repeated:
        if field.message_type is None:
            place.extend([_value(rng, field)] * int(rng.choice([1, 2, 100])))
        elif len(place) and rng.random() < 0.5:
            change_fields(rng, place[int(rng.integers(len(place)))], depth - 1)
        elif len(place) and rng.random() < 0.5:
            place.add().CopyFrom(place[0])
        elif hasattr(place, "add"):
            for _ in range(int(rng.choice([1, 2, 10]))):
                change_fields(rng, place.add(), depth - 1)
    elif field.message_type is not None:
        change_fields(rng, place, depth - 1)
    else:
        setattr(message, field.name, _value(rng, field))


def _value(rng: np.random.Generator, field: Any) -> Any:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return float(rng.choice([0, -1, 1e30, 1e-39, np.nan, np.inf]))
    if kind == field.CPPTYPE_BOOL:
        return bool(rng.random() < 0.5)
    if field.type == field.TYPE_BYTES:
        return rng.bytes(int(rng.integers(50)))
    if kind == field.CPPTYPE_STRING:
        return _TEXTS[int(rng.integers(len(_TEXTS)))]
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    if kind == field.CPPTYPE_ENUM:
        return 0
    number = _NUMBERS[int(rng.integers(len(_NUMBERS)))]
    is_unsigned = kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    least = 0 if is_unsigned else -(2 ** (bits - 1))
    return min(max(number, least), least + 2**bits - 1)


def deep_tree(rng: np.random.Generator, tree: Any) -> None:
    """Let a tree of objects have many children, or deep ones, in place."""
    for _ in range(int(rng.choice([1, 10, 80]))):
        child = tree.children.add(object_id=tree.object_id)
        if rng.random() < 0.9:
            child.object_id = rng.bytes(32).hex()
        if rng.random() < 0.5:
            tree = child


class _Server:
    """Answers the calls of a client's connection, some of them as drawn.

    Args:
        rng: what draws.
        stop: set when the client has given the honest answer.
    """

    def __init__(self, rng: np.random.Generator, stop: threading.Event) -> None:
        self._rng, self._stop = rng, stop
        self._lock = threading.Lock()  # a client pulls several parts at once
        self.drawn: list[str] = []
        self.elsewhere: list[str] = []
        self.most_read = 0
        self._pushed: list[bytes] = []
        self._parts, self._message, self._tree = _honest_message()

    def __call__(self, request: Any) -> Any:
        """Answer a call (for `httpx.MockTransport`)."""
        import httpx

        url = request.url
        if (url.scheme, url.host, url.port) != ADDRESS:
            self.elsewhere.append(str(url))
        with self._lock:
            status, headers, content = self._answer(url.path, request.content)
        return httpx.Response(status, headers=headers, stream=self._stream(content))

    def _stream(self, content: bytes) -> Any:
        import httpx

        server = self

        class Stream(httpx.SyncByteStream):
            def __iter__(self):
                for start in range(0, len(content), PART):
                    server.most_read = max(server.most_read, start)
                    yield content[start : start + PART]

        return Stream()

    def _answer(
        self, path: str, body: bytes
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        honest = self._honest(path, body)
        rng = self._rng
        if len(self.drawn) >= HOSTILE_CALLS or rng.random() < 0.5:
            return 200, [], honest.SerializeToString()
        content, status, headers = honest.SerializeToString(), 200, []
        kinds = rng.choice(
            ["fields", "fields", "bytes", "status", "place", "packed", "large", "head"],
            int(rng.integers(1, 3)),
        )
        for kind in kinds:
            if kind == "fields":
                changed = self._honest(path, body)
                for _ in range(int(rng.integers(1, 4))):
                    change_fields(rng, changed)
                trees = getattr(changed, "message_object_trees", ())
                if len(trees) and rng.random() < 0.3:
                    deep_tree(rng, trees[0])
                if hasattr(changed, "object_available"):
                    changed.object_available = True  # else a client waits, as it should
                    if rng.random() < 0.5:
                        changed.object_content = draw_bytes(rng, changed.object_content)
                content = changed.SerializeToString()
            elif kind == "bytes":
                content = draw_bytes(rng, content)
            elif kind == "status":
                status = int(rng.choice(_STATUSES))
            elif kind == "place":
                status = int(rng.choice([301, 302, 303, 307, 308]))
                place = _LOCATIONS[int(rng.integers(len(_LOCATIONS)))]
                headers.append((b"location", place.encode("latin-1")))
            elif kind == "packed":
                encoding = _ENCODINGS[int(rng.integers(len(_ENCODINGS)))]
                headers.append((b"content-encoding", encoding.encode()))
                content = _packed(rng, content)
            elif kind == "large":
                content = bytes(int(rng.choice([2**20, 2**22, 2**24])))
            else:
                name = str(rng.choice(["set-cookie", "content-type", "x", "refresh"]))
                headers.append((name.encode(), rng.bytes(20).hex().encode()))
        self.drawn.append(
            f"{path.rsplit('/', 1)[-1]}: {kinds} {status} {headers}"[:200]
        )
        return status, headers, content

    def _honest(self, path: str, body: bytes) -> Any:
        from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2

        name = path.rsplit("/", 1)[-1]
        if name == "activate-node":
            return fleet_pb2.ActivateNodeResponse(node_id=7)
        if name == "pull-messages":
            return fleet_pb2.PullMessagesResponse(
                messages_list=[self._message], message_object_trees=[self._tree]
            )
        if name == "pull-object":
            asked = message_pb2.PullObjectRequest.FromString(body)
            content = self._parts.get(asked.object_id)
            return message_pb2.PullObjectResponse(
                object_found=True, object_available=True, object_content=content
            )
        if name == "push-messages":
            pushed = fleet_pb2.PushMessagesRequest.FromString(body)
            return fleet_pb2.PushMessagesResponse(
                objects_to_push=_ids(pushed.message_object_trees)
            )
        if name == "push-object":
            pushed = message_pb2.PushObjectRequest.FromString(body)
            if ANSWER in pushed.object_content and len(self.drawn) >= HOSTILE_CALLS:
                self._stop.set()
            return message_pb2.PushObjectResponse(stored=True)
        if name == "confirm-message-received":
            return message_pb2.ConfirmMessageReceivedResponse()
        if name == "send-node-heartbeat":
            return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)
        return fleet_pb2.DeactivateNodeResponse()


def _ids(trees: Any) -> list[str]:
    found = []
    for tree in trees:
        found += [tree.object_id, *_ids(tree.children)]
    return found


def _packed(rng: np.random.Generator, content: bytes) -> bytes:
    kind = rng.integers(4)
    if kind == 0:
        return gzip.compress(content)
    if kind == 1:
        return zlib.compress(content)
    if kind == 2:
        return gzip.compress(bytes(2**23))
    return content


def _honest_message() -> tuple[dict[str, bytes], Any, Any]:
    """A message with an honest question: its parts by id, its head and its tree."""
    from flwr.app import Message
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
    )
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 1
    message = Message(wrap(QUESTION), 7, MESSAGE_TYPE)
    message.metadata.__dict__["_message_id"] = message.object_id
    parts = {
        name: part.deflate() for name, part in get_all_nested_objects(message).items()
    }
    head = message_to_proto(remove_content_from_message(message))
    return parts, head, get_object_tree(message)


class FlowerMessages:
    """Tries of both sides.

    Args:
        folder: for files.
    """

    def __init__(self, folder: Path) -> None:
        require_flower()
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._authority, self._key = make_authority("wards"), make_client_key()

    def flower_coordinator(self, rng: np.random.Generator) -> None:
        """A server whose answers are drawn, then honest: the client goes nowhere else,
        reads no more than fits, and answers in the end.
        """
        import httpx

        stop, lines, problem = threading.Event(), [], []
        server = _Server(rng, stop)
        with ExitStack() as stack:
            for module, name, value in (
                (bounded_http, "total_memory", lambda: MEMORY),
                (flower_client, "RETRY_S", (0.001, 0.002)),
                (flower_client, "POLL_INTERVALS_S", (0.001, 0.002)),
            ):
                stack.enter_context(patch.object(module, name, value))
            connection = FleetConnection(
                f"{ADDRESS[1]}:{ADDRESS[2]}", self._authority.public, self._key.private
            )
            inner = connection._client._client
            inner._transport._transport = httpx.MockTransport(server)  # type: ignore[union-attr]

            def work() -> None:
                try:
                    answer_messages(
                        connection,
                        lambda body: ANSWER if body == QUESTION else b"",
                        node_id_file=self._folder / "node",
                        stop=stop,
                        log=lines.append,
                    )
                except BaseException as error:
                    problem.append(f"{type(error).__name__}: {error}")

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(120.0)
            late = not stop.is_set() and not problem
            stop.set()
            thread.join(120.0)
        where = f"; drawn {server.drawn[-6:]}; said {lines[-3:]}"
        assert not problem, f"the client ended: {problem}{where}"
        assert not late, f"the client answers no more{where}"
        assert not server.elsewhere, f"the client asked {server.elsewhere[:2]}{where}"
        most = bounded_http.LARGEST_SHARE * MEMORY + PART
        assert server.most_read <= most, f"it read {server.most_read} bytes{where}"

    def flower_client(self, rng: np.random.Generator) -> None:
        """A client whose objects are drawn: the coordinator goes on, hears the others,
        and names nobody but that client.
        """
        from remote.superlink_double import SuperLink

        lines: list[str] = []
        link: Any = SuperLink()
        transport = GridTransport(
            link, {"a": b"of a", "b": b"of b"}, lambda: None, lines.append
        )
        transport.online()
        for name in ("a", "b"):
            transport.send(name, QUESTION)
        assert list(transport.receive()) == []
        parts = link.answer(5, ANSWER)
        drawn = self._hostile_parts(rng, link, parts)
        link.answer(6, ANSWER)
        try:
            got = [*transport.receive(), *transport.receive()]
        except Exception as error:
            raise AssertionError(
                f"the coordinator ended: {type(error).__name__}: {error}; {drawn}"
            ) from error
        assert [body for name, body in got if name == "b"] == [ANSWER], (
            f"{got}; {drawn}"
        )
        assert all(isinstance(body, bytes) for _, body in got), drawn
        for line in lines:
            assert "client a" in line and "\n" not in line, f"{line!r}; {drawn}"

    def _hostile_parts(
        self, rng: np.random.Generator, link: Any, parts: dict[str, bytes]
    ) -> list[str]:
        """Draw what a client has announced and sent; returns what was drawn."""
        head, tree = link.announced[-1]
        asked = head.metadata.reply_to_message_id
        names, drawn = list(parts), []

        def objects() -> None:
            name = names[int(rng.integers(len(names)))]
            link.objects[name] = draw_bytes(rng, link.objects.get(name, b""))

        def other_object() -> None:
            one, other = (names[int(rng.integers(len(names)))] for _ in range(2))
            link.objects[one] = parts[other]

        def missing() -> None:
            link.objects.pop(names[int(rng.integers(len(names)))], None)

        def fields() -> None:
            change_fields(rng, head)
            head.metadata.reply_to_message_id = (
                asked  # else it is no answer to anything
            )

        def trees() -> None:
            change_fields(rng, tree)
            if rng.random() < 0.5:
                deep_tree(rng, tree)

        def root() -> None:
            tree.ClearField("children")
            name = names[int(rng.integers(len(names)))]
            tree.object_id = head.metadata.message_id = name

        kinds: list[Callable[[], None]] = [objects, objects, other_object, missing]
        kinds += [fields, trees, root]
        for _ in range(int(rng.integers(1, 4))):
            kind = kinds[int(rng.integers(len(kinds)))]
            kind()
            drawn.append(kind.__name__)
        return drawn
