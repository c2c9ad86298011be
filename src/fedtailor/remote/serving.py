"""What a coordinator does from its first word to the delivery of models, in one call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.printable import say
from fedtailor.engine.runs import Run
from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.engine.training import Callback
from fedtailor.remote.client.policy import default_policy_note
from fedtailor.remote.job.statistics import Statistics, correlation_note
from fedtailor.remote.keys.kit import COORDINATOR
from fedtailor.remote.server.coordinate import coordinate
from fedtailor.remote.server.rounds import COMPILE_S, PATIENCE_S
from fedtailor.remote.service import (
    MOST_ROWS,
    RUN_DIRECTORY,
    WAIT_S,
    Connection,
    Greeter,
    Handle,
    agree_on_preprocessing,
    connected,
    monitored,
    wait_for_clients,
)
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines, RunLog
from fedtailor.remote.wire.transport import TooFewClients


@contextmanager
def prepared(
    directory: Path, *, host: str, wait: float
) -> Iterator[tuple[Connection, dict[str, NDArray[np.int64]], Statistics | None]]:
    """Open the port of a federation, and wait until clients are there and prepared.

    Args:
        directory: the federation's directory.
        host: address to listen on.
        wait: seconds to wait for the clients.

    Yields:
        The connection; the numbers of rows [3] of each client that is ready, by name; and
        the statistics of columns, pooled or of the job; None without preprocessing.

    Raises:
        ValueError: see `connected`; or no client came.
    """
    coordinator = directory / COORDINATOR
    with (
        Lines().of(COORDINATOR_LOG),
        connected(directory, host=host) as connection,
    ):
        rows = ready_clients(connection, wait=wait)
        statistics = agreed_statistics(
            connection,
            rows,
            coordinator,
            wait=wait,
            known=Statistics.load(coordinator, connection.job.schema),
        )
        yield connection, rows, statistics


def serve(
    directory: Path | str,
    *,
    listen: str = "0.0.0.0",
    resume: bool = False,
    wait: float = WAIT_S,
    patience: float = PATIENCE_S,
    most_rows: int = MOST_ROWS,
    compile_time: float = COMPILE_S,
    monitor: str | None = None,
    evaluate_every: int = 1,
    callbacks: Sequence[Callback] = (),
    handle: Handle | None = None,
    log: RunLog | None = None,
    tell: Callable[[str], None] = say,
) -> Run:
    """Coordinate a federation: open its port, wait for the clients, train, and have each
    store its personal model. `fedtailor federation serve` does no more.

    Args:
        directory: the federation's directory, as `fedtailor federation init` makes it. The
            run is kept in its subdirectory `run`.
        listen: address to listen on; all of this machine's by default.
        resume: continue the existing run.
        wait: seconds to wait for the clients.
        patience: how many seconds to retry a round that too few clients answer.
        most_rows: a client that says that it has more rows is left out.
        compile_time: seconds that the first exchange of each task waits beyond the job's
            deadline, as clients compile then.
        monitor: where /health and /metrics are served: "PORT" of this machine, or
            "HOST:PORT"; None = nowhere.
        evaluate_every: evaluate after every n-th round, and after the last.
        callbacks: follow the run, and may stop it, as in a simulation.
        handle: says what the coordinator does, and stops it, from another thread.
        log: the log; by default one on the standard error.
        tell: called with lines about who has connected.

    Returns:
        The run, whose personal models the clients keep.

    Raises:
        ValueError: arguments, files and clients do not fit together; in one line.
        TooFewClients: too few clients answered for `patience` seconds; all earlier rounds
            are saved.
        Interrupted: Ctrl-C, or the handle's `stop`; all completed rounds are saved.

    Example:
        >>> import threading
        >>> from fedtailor.remote import Handle, serve
        >>> handle = Handle()
        >>> arguments = {"handle": handle, "monitor": "9472"}
        >>> thread = threading.Thread(target=serve, args=["wards"], kwargs=arguments)
        >>> handle.status is None  # until it is started: thread.start()
        True
    """
    directory = Path(directory)
    handle = Handle() if handle is None else handle
    check_run(directory, resume=resume)
    coordinator = directory / COORDINATOR
    with ExitStack() as stack:
        stack.enter_context((log or RunLog()).of(COORDINATOR_LOG))
        connection = stack.enter_context(connected(directory, host=listen))
        connection.job.check_trains()
        monitored_run = stack.enter_context(monitored(coordinator, connection, monitor))
        handle.status = monitored_run.status
        rows = ready_clients(
            connection,
            wait=wait,
            most_rows=most_rows,
            handle=handle,
            tell=tell,
        )
        job = connection.job
        statistics = agreed_statistics(
            connection,
            rows,
            coordinator,
            wait=wait,
            known=Statistics.load(coordinator, job.schema) if resume else None,
        )
        if line := correlation_note(job.schema):
            tell(line)
        run = coordinate(
            job,
            connection.transport,
            rows,
            directory / RUN_DIRECTORY,
            resume=resume,
            statistics=statistics,
            evaluate_every=evaluate_every,
            callbacks=(monitored_run, *callbacks),
            compile_time=compile_time,
            patience=patience,
            arrivals=Greeter(connection, statistics, most_rows=most_rows),
            stopped=handle.stopped,
        )
        monitored_run.enter("done")
    return run


def check_run(directory: Path, *, resume: bool) -> None:
    """Check that there is a run to continue if `resume`, and none otherwise.

    Raises:
        ValueError: a run exists and is not to be continued, or there is none.
    """
    has_run = (directory / RUN_DIRECTORY / MANIFEST).exists()
    require(
        resume or not has_run,
        f"{directory / RUN_DIRECTORY} already holds a run; --resume continues it",
    )
    require(
        has_run or not resume,
        f"there is no run to continue in {directory}; leave out --resume",
    )


def ready_clients(
    connection: Connection,
    *,
    wait: float,
    most_rows: int = MOST_ROWS,
    handle: Handle | None = None,
    tell: Callable[[str], None] = say,
) -> dict[str, NDArray[np.int64]]:
    """Wait for the clients, and say who is ready.

    Args:
        connection: connection to the clients.
        wait, most_rows: see `wait_for_clients`.
        handle: ends the wait.
        tell: called with the lines.

    Returns:
        The numbers of rows [3] of each client.
    """
    job = connection.job
    tell(f"{job.title}: waiting for {', '.join(connection.clients)} at {job.address}")
    if line := default_policy_note(job):
        tell(line)
    rows = wait_for_clients(connection, wait=wait, most_rows=most_rows, handle=handle)
    for name, counts in rows.items():
        tell(f"{name}: {counts.sum()} rows")
    tell(f"{len(rows)} of {len(connection.clients)} clients are ready")
    return rows


def agreed_statistics(
    connection: Connection,
    rows: Mapping[str, NDArray[np.int64]],
    coordinator: Path,
    *,
    wait: float,
    known: Statistics | None,
) -> Statistics | None:
    """Have the clients agree on the preprocessing, and save it.

    Args:
        connection: connection to the clients.
        rows: the numbers of rows [3] of each client.
        coordinator: directory of the coordinator.
        wait, known: see `agree_on_preprocessing`.

    Returns:
        The statistics of columns, pooled or of the job; None without
        preprocessing.

    Raises:
        ValueError: a client did not answer.
    """
    job, transport = connection.job, connection.transport
    try:
        statistics = agree_on_preprocessing(job, transport, rows, wait, known)
    except TooFewClients as error:
        raise ValueError(
            f"{error}: the preprocessing needs all that are there; start again"
        ) from None
    if statistics is not None:
        statistics.save(coordinator)
    return statistics
