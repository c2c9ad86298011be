"""What `federation serve` and `federation boost` do before their first round."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor._base.printable import say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedtailor.remote.job.statistics import Statistics
    from fedtailor.remote.service import Connection


def ready_clients(
    connection: "Connection",
    *,
    wait: float,
    most_rows: int | None = None,
    log: Callable[[str], None] = say,
) -> "dict[str, NDArray[np.int64]]":
    """Waits for the clients, and says who is ready.

    Args:
        connection: connection to the clients.
        wait, log: see `wait_for_clients`.
        most_rows: likewise; None = its default.

    Returns:
        The numbers of rows [3] of each client.
    """
    from fedtailor.remote.client.policy import default_policy_note
    from fedtailor.remote.service import MOST_ROWS, wait_for_clients

    job = connection.job
    say(f"{job.title}: waiting for {', '.join(connection.clients)} at {job.address}")
    if line := default_policy_note(job):
        say(line)
    most_rows = MOST_ROWS if most_rows is None else most_rows
    rows = wait_for_clients(connection, wait=wait, most_rows=most_rows, log=log)
    for name, counts in rows.items():
        say(f"{name}: {counts.sum()} rows")
    say(f"{len(rows)} of {len(connection.clients)} clients are ready")
    return rows


def agreed_statistics(
    connection: "Connection",
    rows: "Mapping[str, NDArray[np.int64]]",
    coordinator: Path,
    *,
    wait: float,
    known: "Statistics | None",
    log: Callable[[str], None] = say,
) -> "Statistics | None":
    """Has the clients agree on the preprocessing, and saves it.

    Args:
        connection: connection to the clients.
        rows: the numbers of rows [3] of each client.
        coordinator: directory of the coordinator.
        wait, known, log: see `agree_on_preprocessing`.

    Returns:
        The pooled statistics of all clients' tables; None without federated
        preprocessing.

    Raises:
        ValueError: a client did not answer.
    """
    from fedtailor.remote.service import agree_on_preprocessing
    from fedtailor.remote.wire.transport import TooFewClients

    job, transport = connection.job, connection.transport
    try:
        statistics = agree_on_preprocessing(job, transport, rows, wait, known, log)
    except TooFewClients as error:
        raise ValueError(
            f"{error}: the preprocessing needs all that are there; start again"
        ) from None
    if statistics is not None:
        statistics.save(coordinator)
    return statistics
