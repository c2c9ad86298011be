"""The two sides of a federation as they run: a coordinator's connection to its clients,
and a client that answers.
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
def connected(
    directory: Path, *, host: str = "0.0.0.0", tell: Callable[[str], None] = print
) -> Iterator[Connection]:
    """Start a federation's coordinator: a SuperLink that knows the clients' keys, and a
    grid over it.

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

    job, coordinator = read_job(directory / JOB), directory / COORDINATOR
    public = read_public_keys(coordinator)
    check_crowd(job, len(public))
    with running_superlink(coordinator, job.port, host=host) as link:
        keys = register(link.address, link.authority, public)
        with open_grid(link.address, link.authority, link.secret) as grid:
            yield Connection(
                job, tuple(keys), GridTransport(grid, keys, link.check, tell)
            )


def check_crowd(job: Job, clients: int) -> None:
    """Refuse a job that no round of this federation could fulfil, before anybody waits
    for it.

    Raises:
        ValueError: it wants more clients than have a kit.
    """
    for name, wanted in (
        ("minimum", job.minimum),
        ("participation", job.participation.count or 0),
    ):
        said = (
            f"{JOB}: {name} is {wanted}, and {clients} clients have a kit; lower it, or"
            " add clients"
        )
        require(wanted <= clients, said)


def greet(
    connection: Connection, *, wait: float, tell: Callable[[str], None] = print
) -> Collected:
    """Ask all clients whether they are ready, and wait for them for `wait` seconds;
    each answers its numbers of rows.

    Raises:
        TooFewClients: fewer are there than the job's minimum.
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
    """Have clients agree on the preprocessing of their tables; None where the job takes
    tables as they stand.

    Args:
        names: of the clients that are there.
        wait: seconds that each of the messages may take.
        known: what was agreed before, to be told again; else all clients' statistics
            are asked for.

    Raises:
        TooFewClients: a client did not answer: its rows would be missing.
        ValueError: a column holds nothing to learn from, or what a client sent is not
            valid.
    """
    if not job.schema.federated:
        return None
    order = sorted(names)

    def ask(
        task: str, expected: Mapping[str, ArraySpec], **arrays: np.ndarray
    ) -> Collected:
        requests = {
            name: Request(
                job.identity,
                0,
                0,
                task,
                name,
                deadline=time.time() + wait,
                arrays=arrays,
            )
            for name in order
        }
        return exchange(transport, requests, expected, minimum=len(order), tell=tell)

    def hear(task: str, **arrays: np.ndarray) -> list[Statistics]:
        found, parts = (
            ask(task, {STATISTICS: ArraySpec((None,), "uint8")}, **arrays).replies,
            [],
        )
        for name in order:
            try:
                told = from_arrays(found[name].arrays, job.schema)
                require(
                    task != INPUTS or told.inputs is not None,
                    "the message holds no sums of products",
                )
                parts.append(told)
            except ValueError as error:
                raise ValueError(f"client {name}: {error}") from None
        return parts

    if known is None:
        known = together(hear(STATISTICS))
        known.preprocessing(
            job.schema
        )  # what cannot be used is said before anybody is told
        if known.lacks_inputs(job.schema):
            known = known.with_inputs(hear(INPUTS, statistics=as_array(known)))
    ask(AGREED, {}, statistics=as_array(known))
    return known


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
        make_work: from the kit, its own examples and its store to what answers requests
            other than "hello"; by default what the job's method does.
        tell: is given lines for the user.

    Raises:
        ValueError: Flower is missing, the file does not fit the job, another process
            takes part with this kit, or the coordinator is not the kit's or refuses the
            key.
    """
    require_flower()
    from fedtailor.remote.flower_client import (
        FleetConnection,
        answer_messages,
        read_key,
    )

    stop = threading.Event()
    with ClientStore(kit.state, kit.job.identity) as store, _stopping(stop):
        work = JobWork(
            kit.job,
            kit.name,
            data,
            store,
            None if make_work is None else partial(make_work, kit),
        )
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
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and Ctrl-C; a second Ctrl-C interrupts at once."""

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
