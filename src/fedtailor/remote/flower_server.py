"""The coordinator's end on Flower, in the place of a `ServerApp`.

It registers the clients' keys, and carries messages over the SuperLink's grid. The
process that trains does this itself: Flower would start another process for it, and
call a strategy that can hand out one model only. Here the round loop pushes to the grid
and pulls from it, and no code travels with a run.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedtailor.remote.flower import MESSAGE_TYPE, unwrap, wrap
from fedtailor.remote.grid_answers import Arriving, Lost, announced
from fedtailor.remote.keys import registered_form
from fedtailor.remote.waits import LONGEST_S

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.superlink.grid.http_grid import HttpGrid

T = TypeVar("T")

PATIENCE_S = 30.0
"""Seconds for which a busy SuperLink may fail to answer."""

START_S = 30.0
"""Seconds that a run may take to start."""

APP = {
    "pyproject.toml": (
        b"""[project]
name = "fedtailor-federation"
version = "1.0.0"
description = "Messages of a fedtailor federation; this app holds no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedtailor"

[tool.flwr.app.components]
serverapp = "fedtailor_federation:server"
clientapp = "fedtailor_federation:client"
"""
    ),
    "fedtailor_federation.py": (
        b'raise RuntimeError("join this federation with `fedtailor federation join`")\n'
    ),
}
"""The app that Flower wants with every run: its files, by name.

Nobody runs it; a SuperNode that tries prints what to do instead.
"""


@dataclass(frozen=True)
class _Sent:
    """To whom a message went, whose answer has not been announced yet."""

    client: str
    node_id: int


class GridTransport:
    """Carries messages over a Flower grid (implements `Transport`).

    Args:
        grid: of a run that has started.
        keys: public key (PEM, as the SuperLink lists it) by client; nodes with other
            keys are ignored.
        check: raises `RuntimeError` if the SuperLink has ended.
        tell: is given a line for every answer that comes from another node than its
            client's.
    """

    def __init__(
        self,
        grid: "HttpGrid",
        keys: Mapping[str, bytes],
        check: Callable[[], None],
        tell: Callable[[str], None] = print,
    ) -> None:
        self._grid, self._check, self._tell = grid, check, tell
        self._names = {key: name for name, key in keys.items()}
        self._nodes: dict[str, int] = {}  # by client, as of the last look
        self._sent: dict[str, _Sent] = {}  # by id of the message
        self._arriving: list[Arriving] = []
        self._lost = dict.fromkeys(keys, 0)  # messages and answers, by client

    def online(self) -> Mapping[str, str]:
        """The clients that are online, each with a mark (see `Transport`).

        The mark is made of the time at which the client connected, and of how many of
        its messages and answers were lost: a client that is still connected is asked
        again, too, if what it was sent or has sent is gone.
        """
        marks: dict[str, str] = {}
        for node in self._retry(self._grid.get_nodes):
            name = self._names.get(node.public_key)
            if name is not None and node.status == "online":
                marks[name] = f"{node.last_activated_at} {self._lost[name]}"
                self._nodes[name] = node.node_id
        return marks

    def send(self, client: str, body: bytes) -> None:
        """Leave a message for a client at the SuperLink.

        Raises:
            RuntimeError: the SuperLink takes no message of that size.
        """
        from flwr.app import Message

        node_id = self._nodes[client]
        message = Message(wrap(body), node_id, MESSAGE_TYPE, ttl=LONGEST_S)
        message_ids = list(self._retry(lambda: self._grid.push_messages([message])))
        if not message_ids:
            raise RuntimeError(
                f"the SuperLink takes no message of {len(body) / 1e6:.0f} MB"
            )
        if message_ids[0] is None:  # the client has left since it was seen
            self._lost[client] += 1
        else:
            self._sent[message_ids[0]] = _Sent(client, node_id)
        # What the client was still sending is not awaited: it answers again.
        self._arriving = [
            answer for answer in self._arriving if answer.client != client
        ]

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """Answers that have arrived whole. Who sent one that is lost is asked again."""
        import httpx

        try:
            self._take_announced()
            complete = self._take_complete()
        except httpx.HTTPError:
            # The SuperLink hands each announcement out once, and nobody knows which of
            # them were in the response that is lost: everybody is asked again.
            for awaited in (*self._sent.values(), *self._arriving):
                self._lost[awaited.client] += 1
            self._sent.clear()
            self._arriving.clear()
            return
        for answer, reply in complete:
            if reply.has_error():  # made by Flower: the client is gone
                self._lost[answer.client] += 1
            elif reply.metadata.src_node_id != answer.node_id:
                self._tell(
                    f"a message in the name of client {answer.client} came from another"
                    " node; it is ignored"
                )
            else:
                yield answer.client, _body(reply)

    def _take_announced(self) -> None:
        """Move the messages whose answers are announced from `_sent` to `_arriving`."""
        if not self._sent:
            return
        for asked_id, answer_id, tree in announced(self._grid, list(self._sent)):
            sent = self._sent.pop(asked_id, None)
            if sent is not None:
                answer = Arriving(sent.client, sent.node_id, answer_id, tree)
                self._arriving.append(answer)

    def _take_complete(self) -> list[tuple[Arriving, "Message"]]:
        """Remove the answers that have arrived whole from `_arriving`.

        Returns:
            Each with its message.
        """
        complete, incomplete = [], []
        for answer in self._arriving:
            try:
                message = answer.look(self._grid)
            except Lost:
                self._lost[answer.client] += 1
                continue
            if message is None:
                incomplete.append(answer)
            else:
                complete.append((answer, message))
        self._arriving = incomplete
        return complete

    def _retry(self, action: Callable[[], T]) -> T:
        """Ask the SuperLink, and again while it is busy; it is on this machine.

        Raises:
            RuntimeError: it has ended, or does not answer.
        """
        import httpx

        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return action()
            except httpx.HTTPError as error:
                self._check()
                # A status is an answer: the same question gets the same again.
                if time.monotonic() >= end or isinstance(error, httpx.HTTPStatusError):
                    raise RuntimeError(
                        f"the SuperLink does not answer as it should: {error}"
                    ) from None
            time.sleep(0.5)


def _body(reply: "Message") -> bytes:
    """The body of an answer; empty if it is no message of ours."""
    try:
        return unwrap(reply)
    except ValueError:
        return b""  # which is refused where it is decoded, with the client's name


def register(
    address: str, authority: bytes, public_keys: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Register the clients' public keys at the SuperLink.

    Args:
        address: "host:port" of the SuperLink.
        authority: PEM certificate of the federation's authority.
        public_keys: in OpenSSH's form, by client.

    Returns:
        The keys in the form in which the SuperLink lists them (PEM), by client.

    Raises:
        ValueError: a key is none, or the SuperLink does not take it.
    """
    import httpx
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.error import ApiErrorCode, FlowerError

    registered = {}
    with _control(address, authority) as control:
        for name, public in public_keys.items():
            try:
                registered[name] = registered_form(public)
            except ValueError as error:
                raise ValueError(f"the public key of client {name}: {error}") from None
            try:
                control.RegisterNode(
                    RegisterNodeRequest(public_key=registered[name], name=name)
                )
            except httpx.HTTPStatusError as error:
                reason = FlowerError.from_json(error.response.text)
                known = ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE
                if reason is None or reason.code != known:
                    raise ValueError(
                        f"the SuperLink does not take the key of client {name}"
                    ) from None
    return registered


@contextmanager
def open_grid(address: str, authority: bytes, secret: bytes) -> Iterator["HttpGrid"]:
    """Start a run at the SuperLink, and be its server until the end of the block.

    Args:
        address: "host:port" of the SuperLink, on this machine.
        authority: PEM certificate of the federation's authority.
        secret: proves to the SuperLink that this process may carry out runs; nobody
            else has it, so runs that others start never begin.

    Yields:
        The grid over which this process talks to the clients.

    Raises:
        TimeoutError: the SuperLink did not start the run.
    """
    from flwr.common.constant import SubStatus
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid.http_grid import HttpGrid

    token = _acquire(address, authority, secret, _start_run(address, authority))
    grid = HttpGrid(address, False, authority, token=token)
    # Flower's own would retry for ever, and end this process on a 401.
    grid._retry_invoker = None  # type: ignore[assignment]
    runtime = grid._runtime_client
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
    heartbeat.start()
    try:
        task = runtime.PullTaskInput(PullTaskInputRequest())
        # Flower's messages read where they come from in this process-wide place.
        TaskIdentity.task_id = task.task_id
        TaskIdentity.run_id = task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        grid.set_run(run_from_proto(task.run))
        yield grid
    finally:
        with suppress(Exception):  # the run is over in any case
            runtime.PushTaskOutput(
                PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            )
        heartbeat.stop()
        grid.close()


def _start_run(address: str, authority: bytes) -> int:
    """Start a run; returns its id."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    bundle, _ = build_fab_from_files(APP)
    fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
    with _control(address, authority) as control:
        return control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id


def _acquire(address: str, authority: bytes, secret: bytes, run_id: int) -> str:
    """Acquire the server task of a run.

    Tasks of runs that somebody else started are acquired on the way, and left alone.

    Returns:
        The task's token.

    Raises:
        TimeoutError: the SuperLink did not start the run.
    """
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
    )
    client = RuntimeHttpClient.from_server_address(
        address, False, authority, [RuntimeVersionHttpInterceptor("SuperExec"), signed]
    )
    end = time.monotonic() + START_S
    try:
        while time.monotonic() < end:
            acquired = client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            )
            if acquired.token and acquired.task.run_id == run_id:
                return acquired.token
            if not acquired.token:
                time.sleep(0.1)
    finally:
        client.close()
    raise TimeoutError(f"the SuperLink did not start the run within {START_S:.0f} s")


@contextmanager
def _control(address: str, authority: bytes) -> Iterator[Any]:
    """A client of the SuperLink's control interface."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        address, False, authority, [RuntimeVersionHttpInterceptor("flwr")]
    )
    try:
        yield client
    finally:
        client.close()
