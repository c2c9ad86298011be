"""The two sides of a federation as processes.

The coordinator starts a SuperLink, greets its clients and has them agree on the
preprocessing; a client joins and answers until it is told to stop.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor.federation import Federation
from fedtailor.protocol import require
from fedtailor.remote.client_store import ClientStore
from fedtailor.remote.flower import require_flower
from fedtailor.remote.job import Job, read_job
from fedtailor.remote.job_work import AGREED, HELLO, INPUTS, STATISTICS, JobWork
from fedtailor.remote.kit import COORDINATOR, JOB, Kit, read_public_keys
from fedtailor.remote.messages import ArraySpec, Request
from fedtailor.remote.processes import running_superlink
from fedtailor.remote.statistics import Statistics, as_array, from_arrays, together
from fedtailor.remote.transport import Collected, Responder, Transport, Work, exchange

HELLO_ANSWER = {"rows": ArraySpec((3,), "int64")}


@dataclass(frozen=True)
class Connection:
    """What a coordinator needs to ask its clients.

    Attributes:
        job: of the federation.
        clients: names of all that have keys.
        transport: carries messages to them.
    """

    job: Job
    clients: tuple[str, ...]
    transport: Transport


@contextmanager
def connected(
    directory: Path, *, host: str = "0.0.0.0", tell: Callable[[str], None] = print
) -> Iterator[Connection]:
    """Start a SuperLink that knows the clients' keys; it ends with the block.

    Args:
        directory: of the federation (`make_federation`).
        host: address to listen on.
        tell: is given lines for the user.

    Yields:
        The connection over it.

    Raises:
        ValueError: Flower or a file is missing or wrong, or the port is taken.
        RuntimeError: the SuperLink did not start.
    """
    require_flower()
    from fedtailor.remote.flower_server import GridTransport, open_grid, register

    job, coordinator = read_job(directory / JOB), directory / COORDINATOR
    public = read_public_keys(coordinator)
    check_crowd(job, len(public))
    with running_superlink(coordinator, job.port, host=host) as link:
        keys = register(link.address, link.authority, public)
        with open_grid(link.address, link.authority, link.secret) as grid:
            transport = GridTransport(grid, keys, link.check, tell)
            yield Connection(job, tuple(keys), transport)


def check_crowd(job: Job, clients: int) -> None:
    """Refuse a job that wants more clients than there are, before anybody waits for it.

    Args:
        job: of the federation.
        clients: how many have a kit.

    Raises:
        ValueError: with the setting that wants more.
    """
    wanted = {"minimum": job.minimum, "participation": job.participation.count or 0}
    for name, count in wanted.items():
        require(
            count <= clients,
            f"{JOB}: {name} is {count}, and {clients} clients have a kit; lower it, or"
            " add clients",
        )


def greet(
    connection: Connection, *, wait: float, tell: Callable[[str], None] = print
) -> Collected:
    """Ask all clients whether they are ready.

    Args:
        connection: to the clients.
        wait: seconds after which those that have not answered are left out.
        tell: is given lines for the user.

    Returns:
        The replies, each with the client's numbers of rows ("rows" [3]).

    Raises:
        TooFewClients: fewer answered than the job's minimum.
    """
    deadline, identity = time.time() + wait, connection.job.identity
    requests = {
        name: Request(identity, 0, 0, HELLO, name, deadline=deadline)
        for name in connection.clients
    }
    return exchange(
        connection.transport,
        requests,
        HELLO_ANSWER,
        minimum=connection.job.minimum,
        tell=tell,
    )


def agree(
    job: Job,
    transport: Transport,
    names: Iterable[str],
    wait: float,
    known: Statistics | None = None,
    tell: Callable[[str], None] = print,
) -> Statistics | None:
    """Have clients agree on the preprocessing of their tables.

    Args:
        job: of the federation.
        transport: carries messages to the clients.
        names: of the clients that answered the greeting.
        wait: seconds that each of the messages may take.
        known: what was agreed before, to be sent again; by default all clients'
            statistics are asked for.
        tell: is given lines for the user.

    Returns:
        The statistics of all clients' tables; None where the job takes tables as they
        stand.

    Raises:
        TooFewClients: a client did not answer: its rows would be missing.
        ValueError: a column holds nothing to learn from, or what a client sent is not
            valid.
    """
    if not job.schema.federated:
        return None
    # Sums are taken in this order, whoever answers first: floating-point sums depend on
    # it, and everything that follows depends on them.
    order = sorted(names)

    def ask(
        task: str, expected: Mapping[str, ArraySpec], **arrays: np.ndarray
    ) -> Collected:
        deadline = time.time() + wait
        requests = {
            name: Request(
                job.identity, 0, 0, task, name, deadline=deadline, arrays=arrays
            )
            for name in order
        }
        return exchange(transport, requests, expected, minimum=len(order), tell=tell)

    def ask_statistics(task: str, **arrays: np.ndarray) -> list[Statistics]:
        expected = {STATISTICS: ArraySpec((None,), "uint8")}
        replies = ask(task, expected, **arrays).replies
        parts = []
        for name in order:
            try:
                part = from_arrays(replies[name].arrays, job.schema)
                require(
                    task != INPUTS or part.inputs is not None,
                    "the message holds no sums of products",
                )
            except ValueError as error:
                raise ValueError(f"client {name}: {error}") from None
            parts.append(part)
        return parts

    agreed = known
    if agreed is None:
        agreed = together(ask_statistics(STATISTICS))
        # Statistics that cannot be used are refused here, before any client stores them.
        agreed.preprocessing(job.schema)
        if agreed.lacks_inputs(job.schema):
            parts = ask_statistics(INPUTS, statistics=as_array(agreed))
            agreed = agreed.with_inputs(parts)
    ask(AGREED, {}, statistics=as_array(agreed))
    return agreed


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
        make_work: makes what answers the requests of rounds, from the kit, the client's
            examples and its store; `ClientWork` by default.
        tell: is given lines for the user.

    Raises:
        ValueError: Flower is missing, the file does not fit the job, another process
            takes part with this kit, or the coordinator is not that of the kit or
            refuses the key.
    """
    require_flower()
    from fedtailor.remote.flower_client import (
        FleetConnection,
        answer_messages,
        read_key,
    )

    stop = threading.Event()
    make = None if make_work is None else partial(make_work, kit)
    with ClientStore(kit.state, kit.job.identity) as store, _stop_on_signals(stop):
        work = JobWork(kit.job, kit.name, data, store, make)
        tell(
            f"{kit.name}: {work.sizes.sum()} rows of {data.name} fit the job"
            f" {kit.job.title!r}"
        )
        respond = Responder(kit.job.identity, kit.name, work, work.common_vectors)
        connection = FleetConnection(kit.job.address, kit.authority, read_key(kit.key))
        answer_messages(
            connection, respond, memory=store.directory / "node", stop=stop, tell=tell
        )


@contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and Ctrl-C; a second signal interrupts at once."""

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt("stopped")
        stop.set()

    old = {
        number: signal.signal(number, handle)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
