"""Connects the coordinator to Flower's SuperLink, in place of a `ServerApp`.

It registers the clients' keys, and carries messages over the SuperLink's grid. The
process that trains does this itself. Flower would start another process, and call a
strategy that can send only one model. Here the training loop pushes to the grid and
pulls from it, and a run holds no code.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedtailor._base.choice import MachineFailed
from fedtailor._base.files import atomic_write
from fedtailor._base.printable import say
from fedtailor.remote.flower.common import MESSAGE_TYPE, unwrap, wrap
from fedtailor.remote.flower.grid_answers import (
    MalformedReply,
    PartialReply,
    ReplyLost,
    pull_new_replies,
)
from fedtailor.remote.flower.superlink import WAKE
from fedtailor.remote.keys.keys import registered_form
from fedtailor.remote.keys.kit import read_public_keys
from fedtailor.remote.wire.fingerprints import Origins
from fedtailor.remote.wire.run_log import info_of
from fedtailor.remote.wire.waits import MAX_WAIT_S

if TYPE_CHECKING:
    from flwr.app import Message

    from fedtailor.remote.flower.internals import (
        HttpGrid,
    )
    from fedtailor.remote.wire.transport import PendingExchange

T = TypeVar("T")

MAX_BUSY_S = 300.0
"""Seconds for which a busy SuperLink may fail to answer."""

RELOAD_S = 5.0
"""Seconds between two looks at the clients' keys."""

OVERHEAD = 2**16
"""Bytes that Flower adds to a message, at most."""

QUEUE = 2**26
"""Bytes of messages that are sent together, at most, or one message."""

MAX_START_S = 300.0
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
"""The files, by name, of the app that Flower requires for every run.

It is never run; a SuperNode that runs it prints what to do instead.
"""


@dataclass(frozen=True)
class _SentMessage:
    """The recipient of a message whose answer has not been announced yet."""

    client: str
    node_id: int


class GridTransport:
    """Carries messages over a Flower grid (implements `Transport`).

    Args:
        grid: grid of a run that has started.
        keys: public key of each client (PEM, as the SuperLink lists it); nodes with
            other keys are ignored.
        check: raises `RuntimeError` if the SuperLink has ended.
        log: called with a line for every answer that another node than its client's has
            sent.
        largest_file: file that tells the SuperLink the size of the largest answer; None
            for a SuperLink that does not read one.
        origins: where the clients' answers came from, before.
        reload: returns the keys of all clients that are let in now; None if they are as
            before. It is called every few seconds.
        wake: called with the keys of the clients to which messages were sent.
    """

    def __init__(
        self,
        grid: "HttpGrid",
        keys: Mapping[str, bytes],
        check: Callable[[], None],
        log: Callable[[str], None] = say,
        largest_file: Path | None = None,
        origins: Origins | None = None,
        reload: Callable[[], Mapping[str, bytes] | None] = lambda: None,
        wake: Callable[[Collection[bytes]], None] = lambda keys: None,
    ) -> None:
        self._wake = wake
        self._reload, self._next_reload, self.revoked = reload, 0.0, set[str]()
        self.late: PendingExchange | None = None
        self.num_online = 0  # when `online` was called last
        self.origins = Origins() if origins is None else origins
        self._grid, self.check, self._log = grid, check, log
        self._largest_file, self._largest, self._written = largest_file, 0, 0
        self._names = {key: name for name, key in keys.items()}
        self._nodes: dict[str, int] = {}  # node id by client, when last online
        self._queue: dict[str, bytes] = {}  # bodies that are not sent yet, by client
        self._sent: dict[str, _SentMessage] = {}  # by id of the message
        self._partial: list[PartialReply] = []
        self._num_lost = dict.fromkeys(keys, 0)  # messages and answers, by client

    @property
    def num_registered(self) -> int:
        """The number of clients that are let in."""
        return len(self._names)

    def online(self) -> Mapping[str, str]:
        """The clients that are online, each with a connection id (see `Transport`).

        The id consists of the time of the connection, and of the number of messages and
        answers that were lost. So a client is asked again after a loss, even if it has
        stayed connected.
        """
        self._reload_keys()
        connection_ids: dict[str, str] = {}
        for node in self._retry(self._grid.get_nodes):
            name = self._names.get(node.public_key)
            if name is not None and node.status == "online":
                connection_ids[name] = (
                    f"{node.last_activated_at} {self._num_lost[name]}"
                )
                self._nodes[name] = node.node_id
        self.num_online = len(connection_ids)
        return connection_ids

    def _reload_keys(self) -> None:
        """Let other clients in, if the coordinator's directory names others."""
        if time.monotonic() < self._next_reload:
            return
        self._next_reload = time.monotonic() + RELOAD_S
        keys = self._reload()
        if keys is None:
            return
        before = set(self._names.values())
        self._names = {key: name for name, key in keys.items()}
        self._num_lost = dict.fromkeys(keys, 0) | self._num_lost
        self.revoked = (self.revoked | before) - set(keys)
        for name in sorted(set(keys) - before):
            info_of(self._log)(f"client {name} may join now")
        for name in sorted(before - set(keys)):
            info_of(self._log)(f"client {name} was revoked")

    def expect(self, size: int) -> None:
        """Let the SuperLink take answers of up to `size` bytes, and late ones to what was
        asked before.
        """
        # Flower's envelope holds the body once.
        self._largest = max(self._largest, size + OVERHEAD)
        if self._largest_file is not None and self._largest != self._written:
            with atomic_write(self._largest_file) as temporary:
                temporary.write_text(str(self._largest))
            self._written = self._largest

    def send(self, client: str, body: bytes) -> None:
        """Queue a message for a client, and push the queue if it is long.

        Raises:
            RuntimeError: the SuperLink takes no message of that size.
        """
        if sum(map(len, self._queue.values())) + len(body) > QUEUE:
            self._push()
        self._queue[client] = body
        # Drop an answer that is arriving: the client will answer this message.
        self._partial = [reply for reply in self._partial if reply.client != client]

    def _push(self) -> None:
        """Push the queue to the SuperLink, all messages in one call.

        Raises:
            RuntimeError: the SuperLink takes no message of that size.
        """
        from flwr.app import Message

        if not self._queue:
            return
        queue, self._queue = self._queue, {}
        sent = [_SentMessage(client, self._nodes[client]) for client in queue]
        messages = [
            Message(wrap(body), to.node_id, MESSAGE_TYPE, ttl=MAX_WAIT_S)
            for to, body in zip(sent, queue.values(), strict=True)
        ]
        message_ids = list(self._retry(lambda: self._grid.push_messages(messages)))
        if not message_ids:
            largest = max(map(len, queue.values()))
            raise RuntimeError(
                f"the SuperLink takes no message of {largest / 1e6:.0f} MB"
            )
        for message_id, to in zip(message_ids, sent, strict=True):
            if message_id is None:  # the client has gone offline
                self._num_lost[to.client] += 1
            else:
                self._sent[message_id] = to
        self._wake([key for key, name in self._names.items() if name in queue])

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """The answers that have arrived completely; lost ones are asked for again."""
        import httpx

        self._push()
        try:
            self._pull_announcements()
            complete = self._pull_replies()
        except httpx.HTTPError:
            # The SuperLink announces an answer once. The lost response may have held
            # the announcement of any answer, so all clients are asked again.
            for waiting in (*self._sent.values(), *self._partial):
                self._num_lost[waiting.client] += 1
            self._sent.clear()
            self._partial.clear()
            return
        for partial, reply in complete:
            if reply.has_error():  # Flower replies for a client that is gone
                self._num_lost[partial.client] += 1
            elif reply.metadata.src_node_id != partial.node_id:
                self._log(
                    f"a message in the name of client {partial.client} came from"
                    " another node; it is ignored"
                )
            else:
                yield partial.client, unwrap(reply)

    def _pull_announcements(self) -> None:
        """Move messages whose answers were announced from `_sent` to `_partial`."""
        if not self._sent:
            return
        announcements = pull_new_replies(self._grid, list(self._sent))
        for message_id, reply_id, tree in announcements:
            sent = self._sent.pop(message_id, None)
            if sent is not None:
                reply = PartialReply(sent.client, sent.node_id, reply_id, tree)
                self._partial.append(reply)

    def _pull_replies(self) -> list[tuple[PartialReply, "Message"]]:
        """Remove the answers that have arrived completely from `_partial`.

        Returns:
            Each such answer, and its message.
        """
        complete, incomplete = [], []
        for reply in self._partial:
            try:
                message = reply.poll(self._grid)
            except ReplyLost:
                self._num_lost[reply.client] += 1
                continue
            except MalformedReply as error:
                self._log(f"client {reply.client}: {error}")
                continue
            if message is None:
                incomplete.append(reply)
            else:
                complete.append((reply, message))
        self._partial = incomplete
        return complete

    def _retry(self, action: Callable[[], T]) -> T:
        """Call a function of the SuperLink, and call it again while that is busy.

        Raises:
            MachineFailed: the SuperLink has ended, or does not answer.
        """
        import httpx

        end = time.monotonic() + MAX_BUSY_S
        while True:
            try:
                return action()
            except httpx.HTTPError as error:
                self.check()
                # A status code is an answer, which another call would not change.
                if time.monotonic() >= end or isinstance(error, httpx.HTTPStatusError):
                    raise MachineFailed(
                        f"the SuperLink does not answer as it should: {error}"
                    ) from None
            time.sleep(0.5)


class KeyDirectory:
    """The clients' keys in the coordinator's directory, registered at the SuperLink.

    Args:
        coordinator: directory of the coordinator.
        address: "host:port" of the SuperLink.
        authority: PEM certificate of the federation's authority.
        log: called with lines for the user.

    Attributes:
        keys: the key of each client, as the SuperLink lists it (PEM).
    """

    def __init__(
        self,
        coordinator: Path,
        address: str,
        authority: bytes,
        log: Callable[[str], None] = say,
    ) -> None:
        self._coordinator, self._address = coordinator, address
        self._authority, self._log = authority, log
        self._public = read_public_keys(coordinator)
        self.keys = register_client(address, authority, self._public)

    def reload(self) -> dict[str, bytes] | None:
        """Register keys that are new, and unregister those that are gone.

        Returns:
            The keys of all clients; None if nothing has changed.
        """
        try:
            public = read_public_keys(self._coordinator)
            if public == self._public:
                return None
            changed = {
                name: key
                for name, key in public.items()
                if key != self._public.get(name)
            }
            added = register_client(self._address, self._authority, changed)
            kept = {name: key for name, key in self.keys.items() if name in public}
            keys = kept | added
            gone = set(self.keys.values()) - set(keys.values())
            unregister(self._address, self._authority, gone)
        except (ValueError, OSError) as error:
            # A key that is being written, or a mistake that the operator can mend.
            self._log(f"the clients' keys are as before: {error}")
            return None
        self._public, self.keys = public, keys
        return keys


def unregister(address: str, authority: bytes, keys: Collection[bytes]) -> None:
    """Remove public keys (PEM) from the SuperLink, and end their connections."""
    from fedtailor.remote.flower.internals import (
        ListNodesRequest,
        UnregisterNodeRequest,
    )

    if not keys:
        return
    with _control(address, authority) as control:
        for node in control.ListNodes(ListNodesRequest()).nodes_info:
            if node.public_key in keys:
                control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))


def register_client(
    address: str, authority: bytes, public_keys: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Register the clients' public keys at the SuperLink.

    Args:
        address: "host:port" of the SuperLink.
        authority: PEM certificate of the federation's authority.
        public_keys: the key of each client, in OpenSSH format.

    Returns:
        The key of each client, in the format in which the SuperLink lists it (PEM).

    Raises:
        ValueError: a key is not valid, or the SuperLink does not accept it.
    """
    import httpx

    from fedtailor.remote.flower.internals import (
        ApiErrorCode,
        FlowerError,
        RegisterNodeRequest,
    )

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


def waker(grid: "HttpGrid") -> Callable[[Collection[bytes]], None]:
    """What wakes the polls of clients at our SuperLink (see `superlink.HeldPolls`).

    Args:
        grid: grid of the run, whose connection is used.

    Returns:
        A function of the clients' keys (PEM).
    """
    import httpx

    client = grid._runtime_client

    def wake(keys: Collection[bytes]) -> None:
        # Without it the clients find their messages a little later.
        with suppress(httpx.HTTPError):
            client._client.post(f"{client._base_url}{WAKE}", content=b"\0".join(keys))

    return wake


@contextmanager
def open_grid(address: str, authority: bytes, secret: bytes) -> Iterator["HttpGrid"]:
    """Start a run at the SuperLink, and act as its server until the end of the block.

    Args:
        address: "host:port" of the SuperLink, on this machine.
        authority: PEM certificate of the federation's authority.
        secret: authorizes this process to execute runs. No other process has it, so
            runs that others start are never executed.

    Yields:
        The grid, which carries messages to the clients.

    Raises:
        MachineFailed: the SuperLink did not start the run.
    """
    from fedtailor.remote.flower.internals import (
        HeartbeatSender,
        HttpGrid,
        PullTaskInputRequest,
        PushTaskOutputRequest,
        SubStatus,
        TaskIdentity,
        make_task_heartbeat_fn_http,
        run_from_proto,
    )

    token = _acquire(address, authority, secret, _start_run(address, authority))
    grid = HttpGrid(address, False, authority, token=token)
    # Flower's invoker would retry without end, and exit this process on a 401.
    grid._retry_invoker = None
    runtime = grid._runtime_client
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
    heartbeat.start()
    try:
        task = runtime.PullTaskInput(PullTaskInputRequest())
        # Flower's messages take their source from these process-wide attributes.
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
    """Start a run.

    Returns:
        The id of the run.
    """
    from fedtailor.remote.flower.internals import (
        Fab,
        StartRunRequest,
        build_fab_from_files,
        fab_to_proto,
    )

    bundle, _ = build_fab_from_files(APP)
    fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
    with _control(address, authority) as control:
        return control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id


def _acquire(address: str, authority: bytes, secret: bytes, run_id: int) -> str:
    """Acquire the server task of a run.

    Tasks of other runs may be acquired first; they are not executed.

    Returns:
        The task's token.

    Raises:
        TimeoutError: the SuperLink did not start the run.
    """
    from fedtailor.remote.flower.internals import (
        AcquireTaskRequest,
        RuntimeHttpClient,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
        TaskType,
    )

    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
    )
    client = RuntimeHttpClient.from_server_address(
        address, False, authority, [RuntimeVersionHttpInterceptor("SuperExec"), signed]
    )
    end = time.monotonic() + MAX_START_S
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
    raise MachineFailed(
        f"the SuperLink did not start the run within {MAX_START_S:.0f} s"
    )


@contextmanager
def _control(address: str, authority: bytes) -> Iterator[Any]:
    """A client of the SuperLink's control interface."""
    from fedtailor.remote.flower.internals import (
        ControlHttpClient,
        RuntimeVersionHttpInterceptor,
    )

    client = ControlHttpClient.from_server_address(
        address, False, authority, [RuntimeVersionHttpInterceptor("flwr")]
    )
    try:
        yield client
    finally:
        client.close()
