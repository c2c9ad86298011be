"""A federation as a plain Flower app, which `flwr run` starts.

It is for users who run Flower already. The module of the app imports two names: `from
fedtailor.remote.flower_app import client, server`. Flower starts a process for each
message, so a client has no cache, and every request holds all vectors.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor._base.choice import require
from fedtailor._base.memory import save_memory
from fedtailor._base.printable import say
from fedtailor.engine.storage.run_directory import MANIFEST
from fedtailor.remote.client.audit import AuditLog
from fedtailor.remote.client.client import audit_of, responder_of
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.flower.common import require_flower, unwrap, wrap
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.statistics import Statistics
from fedtailor.remote.keys.keys import registered_form
from fedtailor.remote.keys.kit import COORDINATOR, JOB, read_kit, read_public_keys
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.wire.transport import Responder, answer_message
from fedtailor.remote.wire.waits import check_wait

require_flower()  # sets Flower's environment before its first import

from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

from fedtailor.remote.flower.server import GridTransport  # noqa: E402
from fedtailor.remote.service import (  # noqa: E402
    Connection,
    agree_on_preprocessing,
    wait_for_clients,
)

if TYPE_CHECKING:
    from fedtailor.remote.flower.internals import (
        HttpGrid,
    )

client, server = ClientApp(), ServerApp()

WAIT_S = 600.0
"""Seconds that the coordinator waits for clients, unless the app sets `wait`."""


@client.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the coordinator.

    The node's configuration names the client's kit and its file (`kit`, `data`).
    """
    save_memory()
    # Flower sends the texts of exceptions to the server, so none may get that far.
    settings = context.node_config
    body = answer_message(
        unwrap(message),
        lambda request: _responder(settings).answer(request),
        say,
        lambda *answer: _open_audit(_setting(settings, "kit"))(*answer),
    )
    return Message(wrap(body), reply_to=message)


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
    return responder_of(kit, store, Path(data), log=say)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Coordinate a federation.

    The app's configuration names its directory (`federation`).
    """
    save_memory()
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
    keys = {
        name: registered_form(key)
        for name, key in read_public_keys(directory / COORDINATOR).items()
    }
    http: HttpGrid = grid  # which lists nodes with their keys
    transport = GridTransport(http, keys, lambda: None)
    rows = wait_for_clients(Connection(job, tuple(keys), transport), wait=wait)
    run = directory / "run"
    # A run that is resumed continues with the same preprocessing.
    resume = (run / MANIFEST).exists()
    known = Statistics.load(directory / COORDINATOR, job.schema) if resume else None
    statistics = agree_on_preprocessing(job, transport, rows, wait, known)
    if statistics is not None:
        statistics.save(directory / COORDINATOR)
    coordinate(
        job,
        transport,
        rows,
        run,
        resume=resume,
        statistics=statistics,
        use_caches=False,
        log=say,
    )
