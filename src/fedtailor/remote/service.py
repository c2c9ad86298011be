"""The two sides of a federation as they run: a coordinator's connection to its clients, and a client that answers."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtailor.client.pool import split_sizes
from fedtailor.federation import Federation
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.examples import federation_of
from fedtailor.remote.flower import require_flower
from fedtailor.remote.job import Job, read_job
from fedtailor.remote.kit import JOB, Kit, read_public_keys
from fedtailor.remote.messages import ArraySpec, Request
from fedtailor.remote.plan import plan_of
from fedtailor.remote.processes import running_superlink
from fedtailor.remote.table import read_rows
from fedtailor.remote.transport import Collected, Responder, Transport, Work, exchange
from fedtailor.remote.work import ClientWork

HELLO = "hello"
"""The task that asks a client whether it is ready: it answers how many rows it trains, validates and tests on."""

HELLO_ANSWER = {"rows": ArraySpec((3,), "int64")}


@dataclass(frozen=True)
class Connection:
    """A coordinator that is connected.

    Attributes:
        job: of the federation.
        clients: all that have keys, by name.
        transport: carries messages to them.
    """

    job: Job
    clients: tuple[str, ...]
    transport: Transport


@contextmanager
def connected(directory: Path, *, host: str = "0.0.0.0", tell: Callable[[str], None] = print) -> Iterator[Connection]:
    """Start a federation's coordinator: a SuperLink that knows the clients' keys, and a grid over it.

    Args:
        directory: of the federation (`make_federation`).
        host: address to listen on.
        tell: is given lines for the user.

    Raises:
        ValueError: Flower or a file is missing or wrong, or the port is taken.
        RuntimeError: the SuperLink did not start.
    """
    require_flower()
    from fedtailor.remote.flower_server import GridTransport, open_grid, register

    job, coordinator = read_job(directory / JOB), directory / "coordinator"
    public = read_public_keys(coordinator)
    with running_superlink(coordinator, job.port, host=host) as link:
        keys = register(link.address, link.authority, public)
        with open_grid(link.address, link.authority, link.secret) as grid:
            yield Connection(job, tuple(keys), GridTransport(grid, keys, link.check, tell))


def greet(connection: Connection, *, wait: float, tell: Callable[[str], None] = print) -> Collected:
    """Ask all clients whether they are ready, and wait for them for `wait` seconds; each answers its numbers of rows.

    Raises:
        TooFewClients: fewer are there than the job's minimum.
    """
    deadline, identity = time.time() + wait, connection.job.identity
    requests = {name: Request(identity, 0, 0, HELLO, name, deadline=deadline) for name in connection.clients}
    return exchange(connection.transport, requests, HELLO_ANSWER, minimum=connection.job.minimum, tell=tell)


def join(
    kit: Kit,
    data: Path,
    *,
    make_work: Callable[[Kit, Federation, ClientStore], Work] | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Take part in a federation until the process is told to stop (SIGTERM, or Ctrl-C).

    Args:
        kit: of this client.
        data: its file.
        make_work: from the kit, its own examples and its store to what answers requests other than "hello"; by default
            what the job's method does.
        tell: is given lines for the user.

    Raises:
        ValueError: Flower is missing, the file does not fit the job, another process takes part with this kit, or the
            coordinator is not the kit's or refuses the key.
    """
    require_flower()
    from fedtailor.remote.flower_client import FleetConnection, answer_messages, read_key

    rows = read_rows(data, kit.job.schema)
    tell(f"{kit.name}: {len(rows.y)} rows of {data.name} fit the job {kit.job.title!r}")
    own, stop = federation_of(kit.job, {kit.name: rows}), threading.Event()
    make = _work_of_method if make_work is None else make_work
    with ClientStore(kit.state, kit.job.identity) as store, _stopping(stop):
        work = _answering(own, make(kit, own, store))
        respond = Responder(kit.job.identity, kit.name, work, plan_of(kit.job).common_vectors)
        connection = FleetConnection(kit.job.address, kit.authority, read_key(kit.key))
        answer_messages(connection, respond, memory=store.directory / "node", stop=stop, tell=tell)


def _work_of_method(kit: Kit, own: Federation, store: ClientStore) -> Work:
    return ClientWork(plan_of(kit.job), own, store)


def _answering(own: Federation, other: Work) -> Work:
    """Answers "hello" here, and everything else by `other`."""

    def work(request: Request) -> Mapping[str, np.ndarray]:
        if request.task == HELLO:
            return {"rows": split_sizes(own)[0].astype(np.int64)}
        return other(request)

    return work


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and Ctrl-C; a second Ctrl-C interrupts at once."""

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt("stopped")
        stop.set()

    old = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
