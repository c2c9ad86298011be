"""The processes of the coordinator and of a client.

The coordinator opens its port, waits for its clients, and has them agree on the
preprocessing. A client joins, and answers messages until it is stopped.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.printable import say
from fedtailor.aggregation.secure_sums import MIN_CLIENTS
from fedtailor.engine.client.private_steps import private_settings
from fedtailor.engine.storage.interrupts import Interrupted
from fedtailor.engine.storage.lock import ProcessLock, is_held
from fedtailor.engine.training.privacy import delta_of
from fedtailor.remote.client.client import account_of, responder_of
from fedtailor.remote.client.policy import read_policy
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.https import client as https_client
from fedtailor.remote.https.client import ClientStatus
from fedtailor.remote.https.server import HttpsTransport, serve_messages
from fedtailor.remote.job.agreement import check_own_sums
from fedtailor.remote.job.job import Job, read_job
from fedtailor.remote.job.statistics import (
    Statistics,
    add_statistics,
    as_array,
    statistics_from_arrays,
)
from fedtailor.remote.keys.keys import FEW_DAYS, days_left, require_packages
from fedtailor.remote.keys.kit import (
    COORDINATOR,
    JOB,
    Kit,
    first_to_end,
    read_certificates,
    read_kit,
)
from fedtailor.remote.server.monitor import STATUS, Monitor, Status, monitor_server
from fedtailor.remote.wire.fingerprints import Origins
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.releases import MAX_LENGTH, RELEASE, talk
from fedtailor.remote.wire.request_kind import AGREED, HELLO, STATISTICS
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines, RunLog, client_log
from fedtailor.remote.wire.transport import (
    ExchangeResult,
    PendingExchange,
    TooFewClients,
    Transport,
    send_and_receive,
)

RUN_DIRECTORY = "run"
"""Subdirectory of a federation's directory that contains its run."""

WAIT_S = 600.0
"""Seconds to wait for the clients, unless the coordinator says otherwise."""

MOST_ROWS = 10**7
"""The largest number of rows of a client that is believed, unless the coordinator says
otherwise: who claims more rows than all others together decides what all train.
"""

ARRIVAL_S = 30.0
"""Seconds that a client which comes while others train has to answer a greeting."""

SLOW_SHARE = 0.1
"""The share of this time after which it counts as waited for in vain, if it does not take
part. It is then greeted again only after twice as many rounds as the last time.
"""

FIRST_REMINDER_S, REMINDER_S = 30.0, 300.0
"""Seconds until a coordinator says first whom it waits for, and until it says so again."""

LARGE_SHARE = 0.9
"""The share of all training rows from which on a client is named."""


LOCK = ".serving"
"""File that a running coordinator locks."""

ORIGINS = "origins.json"
"""File of the coordinator with the origins of its clients' answers (see `origin`)."""


class Handle:
    """Stops a coordinator or a client, and says what it does, from another thread.

    Attributes:
        stopped: set by `stop`.
        status: what it does; None until it has begun.

    Example:
        >>> from fedtailor.remote import Handle
        >>> handle = Handle()
        >>> handle.stop()
        >>> handle.stopped.is_set()
        True
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.status: Status | ClientStatus | None = None

    def stop(self) -> None:
        """Have it end: a coordinator after this round, a client after this answer."""
        self.stopped.set()

    def check(self) -> None:
        """Raise `Interrupted` if it is to end."""
        if self.stopped.is_set():
            raise Interrupted("stopped")


@dataclass(frozen=True)
class Connection:
    """The coordinator's connection to its clients.

    Attributes:
        job: the job of the federation.
        clients: names of all clients that have certificates.
        transport: carries messages to them.
    """

    job: Job
    clients: tuple[str, ...]
    transport: Transport


@contextmanager
def connected(directory: Path, *, host: str = "0.0.0.0") -> Iterator[Connection]:
    """Open the port of a federation, and close it at the end of the block.

    Args:
        directory: directory of the federation (see `make_federation`).
        host: address to listen on.

    Yields:
        The connection to the clients.

    Raises:
        ValueError: a package or a file is missing, a file is not valid, or the port is
            in use.
    """
    require_packages()
    job, coordinator = read_job(directory / JOB), directory / COORDINATOR
    for name in ("ca.crt", "server.crt"):
        require(
            (coordinator / name).is_file(),
            f"{coordinator / name} is missing; make it with federation init",
        )
    names = tuple(read_certificates(coordinator))
    check_client_count(job, len(names))
    origins = Origins(coordinator / ORIGINS, job.identity)
    with (
        _only_one(coordinator),
        serve_messages(coordinator, job.port, host=host, origins=origins) as transport,
    ):
        yield Connection(job, names, transport)


@contextmanager
def monitored(
    coordinator: Path,
    connection: Connection,
    address: str | None = None,
) -> Iterator[Monitor]:
    """Keep the state of a coordinator in its directory, until the end of the block.

    Args:
        coordinator: directory of the coordinator.
        connection: connection to the clients.
        address: where `/health` and `/metrics` are served; None = nowhere.

    Raises:
        ValueError: the address is not valid or in use.
    """
    transport = connection.transport
    assert isinstance(transport, HttpsTransport)
    status = Status(
        title=connection.job.title,
        rounds=connection.job.spec.rounds,
    )
    # On a terminal a bar shows the progress.
    shown = {"shown": not sys.stderr.isatty()}
    monitor = Monitor(
        status,
        coordinator / STATUS,
        clients=lambda: (len(transport.port.names), len(transport.online())),
        certificate_days=lambda: first_to_end(coordinator)[0],
        check=transport.port.check,
        say=lambda line: COORDINATOR_LOG.info(line, extra=shown),
    )
    warnings = Lines(lambda line: monitor.warn(), logging.WARNING)
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.of(COORDINATOR_LOG))
            days, renewal = first_to_end(coordinator)
            if days < FEW_DAYS:
                COORDINATOR_LOG.warning(
                    f"a certificate is valid for {days} more days, {renewal}"
                )
            if address is not None:
                where = stack.enter_context(monitor_server(monitor, address))
                COORDINATOR_LOG.info(f"a monitor finds /health and /metrics at {where}")
            yield monitor
    finally:
        if monitor.status.state != "done":
            monitor.enter("stopped")


def is_served(coordinator: Path) -> bool:
    """Whether a coordinator runs in a directory."""
    return is_held(coordinator / LOCK)


@contextmanager
def _only_one(coordinator: Path) -> Iterator[None]:
    """Let no other coordinator run in a directory until the end of the block.

    Raises:
        ValueError: another one runs.
    """
    lock = ProcessLock(coordinator / LOCK)
    require(
        not lock.try_acquire(),
        f"another coordinator runs in {coordinator}; stop it first",
    )
    try:
        yield
    finally:
        lock.release()


def check_client_count(job: Job, clients: int) -> None:
    """Check that a job does not need more clients than there are.

    Args:
        job: the job.
        clients: number of clients that have a kit.

    Raises:
        ValueError: a setting needs more clients.
    """
    if job.spec.privacy.sums is not None:
        require(
            clients >= MIN_CLIENTS,
            f"{JOB}: secure_aggregation adds over {MIN_CLIENTS} clients or more, and"
            f" {clients} {'has' if clients == 1 else 'have'} a kit; add clients with"
            " fedtailor federation init, or agree with them to do without it",
        )
    required = {
        "minimum": job.minimum,
        "participation": job.spec.participation.count or 0,
        "buffer": 0 if job.spec.asynchronous is None else job.spec.asynchronous.buffer,
    }
    for name, count in required.items():
        require(
            count <= clients,
            f"{JOB}: {name} is {count}, and {clients} clients have a kit; lower it, or"
            " add clients",
        )


def wait_for_clients(
    connection: Connection,
    *,
    wait: float,
    most_rows: int = MOST_ROWS,
    handle: Handle | None = None,
    late: PendingExchange | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Wait until the clients are ready.

    A client that runs another release, or says that it has an impossible number of
    rows, or too many for the delta of the job's private steps, is named and left out.

    Args:
        connection: connection to the clients.
        wait: seconds to wait; clients that have not answered by then are left out.
        most_rows: the largest number of rows of a client that is believed.
        handle: ends the wait.
        late: see `send_and_receive`.

    Returns:
        Each client's numbers of training, validation and test rows [3]. They are what
        it has agreed to: weights are taken from them, until the training ends.

    Raises:
        TooFewClients: fewer clients answered than the job's minimum.
    """
    deadline, identity = time.time() + wait, connection.job.identity
    requests = {
        name: Request(
            identity,
            0,
            0,
            HELLO,
            name,
            deadline=deadline,
            algorithm={"release": RELEASE},
        )
        for name in connection.clients
    }
    expected = {
        "rows": ArraySpec((3,), "int64", 0, most_rows),
        "release": ArraySpec((None,), "uint8", most=MAX_LENGTH),
    }
    replies = send_and_receive(
        connection.transport,
        requests,
        expected,
        minimum=connection.job.minimum,
        waiting=_Reminder(wait, Handle() if handle is None else handle),
        late=late,
    ).replies
    rows = {}
    for name, reply in replies.items():
        counts = reply.arrays["rows"]
        release = reply.arrays["release"].tobytes().decode("ascii", "replace")
        if not talk(release, RELEASE):
            COORDINATOR_LOG.warning(
                f"client {name}: {Refusal.OTHER_RELEASE.explanation}; it is left out"
            )
        elif counts[0] < 1:
            COORDINATOR_LOG.warning(
                f"client {name}: it has no training rows; it is left out"
            )
        elif line := _beyond_delta(connection.job, int(counts[0])):
            COORDINATOR_LOG.warning(f"client {name}: {line}; it is left out")
        else:
            rows[name] = counts
    minimum = connection.job.minimum
    if len(rows) < minimum:
        raise TooFewClients(
            f"{len(rows)} of {len(requests)} clients are ready; the job's minimum is"
            f" {minimum}{see('errors#too-few-clients')}"
        )
    if note := share_note(rows):
        COORDINATOR_LOG.warning(note)
    return rows


def _beyond_delta(job: Job, rows: int) -> str:
    """Say that a client has more training rows than the delta of private steps allows.

    Args:
        job: the job.
        rows: number of training rows of the client.

    Returns:
        The line; empty if it does not.
    """
    for method, _ in job.spec.algorithm.phases():
        for sgd in private_settings(method):
            if delta_of(sgd) * rows >= 1:
                return (
                    f"it has {rows} training rows, and dp_delta, {delta_of(sgd):g}, has"
                    " to be below one over their number"
                )
    return ""


class _Reminder:
    """Says now and then which clients are waited for, and what may keep them away.

    Args:
        wait: seconds that are waited in all.
        handle: ends the wait.
    """

    def __init__(self, wait: float, handle: Handle) -> None:
        self._handle = handle
        # A short wait is half over when the first line comes.
        self._next = time.monotonic() + min(FIRST_REMINDER_S, wait / 2)

    def __call__(self, pending: PendingExchange) -> None:
        """Look at an exchange that is not complete.

        Raises:
            Interrupted: the handle says so.
        """
        self._handle.check()
        away = [name for name, sent_on in pending.open.items() if sent_on is None]
        if not away or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + REMINDER_S
        COORDINATOR_LOG.info(
            f"not connected yet: {', '.join(away)}. The line with which their"
            " `fedtailor federation join` ended says why: one whose policy does not"
            " allow the job, or whose file does not fit it, does not connect"
        )


class Greeter:
    """Greets the clients that come while others train.

    Args:
        connection: connection to the clients.
        statistics: the pooled statistics that the others have agreed to.
        most_rows: see `wait_for_clients`.
    """

    def __init__(
        self,
        connection: Connection,
        statistics: Statistics | None,
        *,
        most_rows: int = MOST_ROWS,
    ) -> None:
        # One that does not answer ends nothing.
        job = replace(connection.job, minimum=0)
        self._connection = replace(connection, job=job)
        self._statistics, self._most_rows = statistics, most_rows
        self._greeted: dict[str, str] = {}  # connection ids, by client
        # How often a client was waited for in vain, and how often it is passed over now:
        # the others wait meanwhile.
        self._slow: dict[str, int] = {}
        self._passed: dict[str, int] = {}

    def __call__(
        self, known: Collection[str], late: PendingExchange | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Greet clients that are online, each once on every connection that it makes; one
        that does not answer more and more seldom.

        Args:
            known: names of the clients that take part.
            late: requests to them that are open.

        Returns:
            The numbers of rows [3] of others that are ready now, by name.
        """
        job, transport = self._connection.job, self._connection.transport
        ready = {}
        for name, connection_id in transport.online().items():
            if name in known or self._greeted.get(name) == connection_id:
                continue
            if self._passed.get(name, 0):
                self._passed[name] -= 1
                continue
            self._greeted[name] = connection_id
            begun = time.monotonic()
            only = replace(self._connection, clients=(name,))
            rows = wait_for_clients(
                only,
                wait=ARRIVAL_S,
                most_rows=self._most_rows,
                late=late,
            )
            try:
                agree_on_preprocessing(
                    job, transport, rows, ARRIVAL_S, self._statistics, late
                )
            except TooFewClients:
                rows = {}
            if not rows and time.monotonic() - begun > SLOW_SHARE * ARRIVAL_S:
                self._slow[name] = self._slow.get(name, 0) + 1
                self._passed[name] = 2 ** self._slow[name] - 1
            for client in rows:
                COORDINATOR_LOG.info(
                    f"client {client} has come, and is served as a newcomer"
                )
            ready |= rows
        return ready


def share_note(rows: Mapping[str, NDArray[np.int64]]) -> str | None:
    """Name a client that has nearly all training rows, as its model decides.

    Args:
        rows: numbers of rows [3] of each client.

    Returns:
        The line; None if there is no such client, or there are fewer than three.
    """
    total = sum(int(counts[0]) for counts in rows.values())
    for name, counts in rows.items():
        share = int(counts[0]) / total
        if len(rows) > 2 and share > LARGE_SHARE:
            return (
                f"client {name} says that it has {share:.0%} of all training rows, so"
                " that methods that weigh by rows train its model; if that is not so,"
                " stop, and set --most-rows"
            )
    return None


def agree_on_preprocessing(
    job: Job,
    transport: Transport,
    names: Collection[str] | Mapping[str, NDArray[np.int64]],
    wait: float,
    known: Statistics | None = None,
    late: PendingExchange | None = None,
) -> Statistics | None:
    """Have clients agree on the preprocessing of their tables.

    Args:
        job: the job.
        transport: carries messages to the clients.
        names: names of the clients that are ready; with the numbers of rows [3] that
            they have agreed to, if these are to be compared.
        wait: seconds to wait for the answers to each message.
        known: pooled statistics of an earlier call, to be sent again. Without them all
            clients are asked for their statistics.
        late: see `send_and_receive`.

    Returns:
        The statistics of columns, pooled or of the job; None without
        preprocessing.

    Raises:
        TooFewClients: a client did not answer, so that its rows would be missing.
        ValueError: a column has no values, or a client's statistics are not valid.
    """
    if job.schema.preprocessing == "job":
        return Statistics.of_job(job.schema)
    if not job.schema.federated or not names:
        return known
    # Floating-point sums depend on the order of the terms, so it is always the same.
    order = sorted(names)

    def request(
        task: str, expected: Mapping[str, ArraySpec], **arrays: np.ndarray
    ) -> ExchangeResult:
        deadline = time.time() + wait
        requests = {
            name: Request(
                job.identity, 0, 0, task, name, deadline=deadline, arrays=arrays
            )
            for name in order
        }
        return send_and_receive(
            transport, requests, expected, minimum=len(order), late=late
        )

    def request_statistics() -> list[Statistics]:
        expected = {STATISTICS: ArraySpec((None,), "uint8")}
        replies = request(STATISTICS, expected).replies
        parts = []
        for name in order:
            try:
                part = statistics_from_arrays(replies[name].arrays, job.schema)
                check_own_sums(part, job.schema)
                if isinstance(names, Mapping):
                    part.check_rows(int(names[name][0]), job.schema)
            except ValueError as error:
                raise ValueError(f"client {name}: {error}") from None
            parts.append(part)
        return parts

    statistics = known
    if statistics is None:
        statistics = add_statistics(request_statistics())
        # Raise an error about unusable statistics before any client stores them.
        statistics.preprocessing(job.schema)
    request(AGREED, {}, statistics=as_array(statistics))
    return statistics


def join(
    kit: Kit | Path | str,
    data: Path | str,
    *,
    handle: Handle | None = None,
    log: RunLog | None = None,
) -> None:
    """Take part in a federation as a client, until stopped.

    `fedtailor federation join` does no more.

    Args:
        kit: kit of this client, or its directory.
        data: the client's file: .csv, .tsv or .parquet.
        handle: says what the client does, and stops it, from another thread; without one
            SIGTERM and Ctrl-C stop it.
        log: where it says what it does; by default on the standard output.

    Raises:
        ValueError: a package is missing, the client's policy does not allow the job,
            the file does not fit it, another process uses this kit, the server is not
            the coordinator of the kit, or it refuses the client's certificate.

    Example:
        >>> import threading
        >>> from fedtailor.remote import Handle, join
        >>> handle = Handle()
        >>> arguments = ["kits/north", "patients.csv"]
        >>> thread = threading.Thread(target=join, args=arguments, kwargs={"handle": handle})
        >>> handle.stop()  # ends it when it has been started
    """
    require_packages()
    if not isinstance(kit, Kit):
        kit = read_kit(Path(kit))
    data, status = Path(data), ClientStatus(kit.name)
    stop = threading.Event() if handle is None else handle.stopped
    if handle is not None:
        handle.status = status
    log, said = log or RunLog(show=say), client_log(kit.name)
    with log.of(said):
        said.info(f"policy of {kit.name}:")
        policy = read_policy(kit.directory)
        for line in policy.describe(kit.job):
            said.info(f"  {line}")
        policy.check_job(kit.job)  # before a directory is made for states
        days = days_left(kit.pem.read_bytes())
        if days < FEW_DAYS:
            said.warning(
                f"this client's certificate is valid for {days} more days; ask the"
                f" coordinator for another: fedtailor federation renew DIR --clients {kit.name}"
            )
        signals = _stop_on_signals(stop) if handle is None else nullcontext()
        with ClientStore(kit.state, kit.job.identity) as store, signals:
            responder = responder_of(kit, store, data)
            https_client.answer_messages(
                https_client.Connection(kit),
                responder,
                stop=stop,
                status=status,
                is_over=lambda: responder.last_task == "personal",
            )
            for line in account_of(kit).describe():
                said.info(line)


@contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and Ctrl-C; a second signal raises `KeyboardInterrupt`.

    Only the main thread can; in others nothing sets it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

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
