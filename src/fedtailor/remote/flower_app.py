"""A federation as a plain Flower app, which `flwr run` starts.

It is for users who run Flower already. The module of the app imports two names: `from
fedtailor.remote.flower_app import client, server`. Flower starts a process for each
message, so a client has no cache, and every request holds all vectors.

Only public names of Flower are used. It tells an app the numbers of nodes, and not who
they are. So each node is asked first, and proves by the key of its kit which client it is.
"""

import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.memory import save_memory
from fedtailor._base.printable import say
from fedtailor.engine.storage.run_directory import MANIFEST
from fedtailor.remote.client.audit import AuditLog
from fedtailor.remote.client.client import audit_of, responder_of
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.statistics import Statistics
from fedtailor.remote.keys.keys import is_signed_by, signature
from fedtailor.remote.keys.kit import COORDINATOR, JOB, read_certificates, read_kit
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.service import RUN_DIRECTORY, WAIT_S, Connection
from fedtailor.remote.serving import agreed_statistics, ready_clients
from fedtailor.remote.wire.fingerprints import Origins
from fedtailor.remote.wire.run_log import FEDERATION, Lines
from fedtailor.remote.wire.transport import Responder, answer_message
from fedtailor.remote.wire.waits import MAX_WAIT_S, check_wait

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "WARNING",
}
"""Environment variables for Flower, which has to find them when it is imported.

With them Flower connects only to the addresses that it is given, and installs nothing.
"""

require(
    find_spec("flwr") is not None and find_spec("cryptography") is not None,
    "a Flower app needs Flower; run: pip install 'fedtailor[flower]'",
)
os.environ.update(SETTINGS)
logging.getLogger("flwr").setLevel(logging.ERROR)

from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

client, server = ClientApp(), ServerApp()

MESSAGE_TYPE = "query"
"""Flower's message type; the task of a request is part of the body."""

_RECORD, _BODY = "fedtailor", "body"
_CHALLENGE, _NAME, _SIGNATURE = "challenge", "name", "signature"


def wrap(**values: str | bytes) -> RecordDict:
    """The content of a Flower message."""
    return RecordDict({_RECORD: ConfigRecord(dict(values))})


def unwrap(message: Message) -> Mapping[str, Any]:
    """What a Flower message holds; nothing if it is none of ours."""
    if not message.has_content():  # it carries an error
        return {}
    record = message.content.get(_RECORD)
    return record if isinstance(record, ConfigRecord) else {}


def _bytes(values: Mapping[str, Any], name: str) -> bytes:
    """A value; no bytes, which nobody can decode, if there is none."""
    value = values.get(name)
    return value if isinstance(value, bytes) else b""


@client.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the coordinator.

    The node's configuration names the client's kit and its file (`kit`, `data`).
    """
    save_memory()
    # Flower sends the texts of exceptions to the server, so none may get that far.
    settings, values = context.node_config, unwrap(message)
    if _CHALLENGE in values:
        return Message(_proof(settings, values), reply_to=message)
    with Lines(say).of(FEDERATION):
        body = answer_message(
            _bytes(values, _BODY),
            lambda request: _responder(settings).answer(request),
            record=lambda *answer: _open_audit(_setting(settings, "kit"))(*answer),
        )
    return Message(wrap(body=body), reply_to=message)


def _proof(settings: Mapping[str, Any], values: Mapping[str, Any]) -> RecordDict:
    """The client's name, and a signature that proves it to the coordinator."""
    try:
        kit = read_kit(Path(_setting(settings, "kit")))
        signed = signature(kit.pem, _signed(_bytes(values, _CHALLENGE)))
    except Exception as error:
        say(f"this node cannot say which client it is: {error}")
        return wrap()
    return wrap(name=kit.name, signature=signed)


def _signed(challenge: bytes) -> bytes:
    """What a node signs: nothing that could mean anything elsewhere."""
    return b"node of a fedtailor federation: " + challenge


def _responder(settings: Mapping[str, Any]) -> Responder:
    """The client of a node's configuration.

    Raises:
        ValueError: a setting is missing, or a file is not valid.
    """
    return _open_responder(_setting(settings, "kit"), _setting(settings, "data"))


def _setting(settings: Mapping[str, Any], name: str) -> str:
    require(
        name in settings,
        f'start the SuperNode with --node-config \'kit="DIR" data="FILE"\'; {name} is'
        " missing",
    )
    return str(settings[name])


@cache
def _open_audit(kit: str) -> AuditLog:
    return audit_of(Path(kit))


@cache
def _open_responder(kit_directory: str, data: str) -> Responder:
    kit = read_kit(Path(kit_directory))
    store = ClientStore(kit.state, kit.job.identity)
    return responder_of(kit, store, Path(data))


class FlowerTransport:
    """Carries messages over a grid of Flower (implements `Transport`).

    Args:
        grid: grid of the run.
        certificates: of the clients (PEM), by name; other nodes are not asked.
    """

    def __init__(self, grid: Grid, certificates: Mapping[str, bytes]) -> None:
        self.origins, self.revoked = Origins(), set[str]()
        self._grid, self._certificates = grid, certificates
        self._nodes: dict[int, str] = {}  # names of nodes; empty = not proven
        self._online: dict[str, int] = {}  # the node of each client
        self._challenges: dict[str, tuple[int, bytes]] = {}  # by id of the message
        self._sent: dict[str, str] = {}  # clients, by id of the message
        self._num_lost = dict.fromkeys(certificates, 0)

    def online(self) -> Mapping[str, str]:
        """The clients whose nodes are connected, each with a number that changes if a
        message was lost.
        """
        present = set(self._grid.get_node_ids())
        for node in present - set(self._nodes):
            self._nodes[node], challenge = "", secrets.token_bytes(32)
            if number := self._push(node, wrap(challenge=challenge)):
                self._challenges[number] = node, challenge
            else:
                del self._nodes[node]
        # The node that came last, if one was started again.
        self._online = {
            name: node for node, name in self._nodes.items() if name and node in present
        }
        return {
            name: f"{node} {self._num_lost[name]}"
            for name, node in self._online.items()
        }

    def expect(self, size: int) -> None:
        """Nothing is refused for its size."""

    def send(self, client: str, body: bytes) -> None:
        """Send a message to a client."""
        node = self._online[client]
        if number := self._push(node, wrap(body=body)):
            self._sent[number] = client
        else:
            self._num_lost[client] += 1

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """The answers since the last call."""
        for reply in self._grid.pull_messages([*self._sent, *self._challenges]):
            values, number = unwrap(reply), reply.metadata.reply_to_message_id
            if number in self._challenges:
                node, challenge = self._challenges.pop(number)
                if reply.has_error():  # its process was ended; it is asked again
                    del self._nodes[node]
                else:
                    self._prove(node, challenge, values)
            elif (name := self._sent.pop(number, None)) is None:
                continue
            elif reply.has_error():  # Flower replies for a client that is gone
                self._num_lost[name] += 1
            else:
                yield name, _bytes(values, _BODY)

    def _push(self, node: int, content: RecordDict) -> str | None:
        """Send a message to a node; its id, or None if Flower does not take it."""
        message = Message(content, node, MESSAGE_TYPE, ttl=MAX_WAIT_S)
        return next(iter(self._grid.push_messages([message])), None)

    def _prove(self, node: int, challenge: bytes, values: Mapping[str, Any]) -> None:
        """Believe a node that it is a client, if it has that client's key."""
        certificate = self._certificates.get(str(values.get(_NAME)))
        if certificate is not None and is_signed_by(
            certificate, _signed(challenge), _bytes(values, _SIGNATURE)
        ):
            self._nodes[node] = str(values[_NAME])
        else:
            say(f"node {node} has the key of no client; it is not asked")


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Coordinate a federation.

    The app's configuration names its directory (`federation`).
    """
    save_memory()
    with Lines(say).of(FEDERATION):
        _coordinate(grid, context)


def _coordinate(grid: Grid, context: Context) -> None:
    settings: dict[str, Any] = dict(context.run_config)
    require(
        "federation" in settings,
        'name the federation\'s directory: federation = "DIR" in'
        " [tool.flwr.app.config]",
    )
    directory = Path(str(settings["federation"]))
    job = read_job(directory / JOB)
    wait = float(settings.get("wait", WAIT_S))
    require(
        job.spec.privacy.sums is None,
        "secure_aggregation needs clients that last from message to message; a plain"
        " Flower app starts a process for each: use fedtailor federation serve and"
        " join",
    )
    check_wait("wait", wait)
    certificates = read_certificates(directory / COORDINATOR)
    transport = FlowerTransport(grid, certificates)
    connection = Connection(job, tuple(certificates), transport)
    rows = ready_clients(connection, wait=wait)
    run = directory / RUN_DIRECTORY
    # A run that is resumed continues with the same preprocessing.
    resume = (run / MANIFEST).exists()
    coordinator = directory / COORDINATOR
    known = Statistics.load(coordinator, job.schema) if resume else None
    statistics = agreed_statistics(
        connection, rows, coordinator, wait=wait, known=known
    )
    coordinate(
        job,
        transport,
        rows,
        run,
        resume=resume,
        statistics=statistics,
        use_caches=False,
    )
