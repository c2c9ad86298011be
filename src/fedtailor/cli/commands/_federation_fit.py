"""`fedtailor federation fit`: a regression from sums over clients."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from fedtailor._base.choice import require
from fedtailor.cli.commands.fit import check_output, write_regression
from fedtailor.cli.options import as_option
from fedtailor.remote.wire.waits import check_wait


@dataclass(frozen=True)
class Fit:
    """Fit a regression over the clients of a federation, from sums behind masks, as the
    table [regression] of the job says, to all rows of the clients.
    """

    dir: tyro.conf.Positional[Path]
    """Directory of the federation."""
    level: float = 0.95
    """The level of confidence intervals."""
    format: Literal["text", "csv", "latex", "json"] = "text"
    """What is printed; csv has ten digits, json all, with the covariance."""
    out: Path | None = None
    """Write a file instead."""
    listen: str = "0.0.0.0"
    """Address to listen on; all of this machine's by default."""
    wait: float = 600.0
    """Seconds to wait for the clients."""
    patience: float = 600.0
    """How many seconds to retry a sum that a client does not answer."""

    def __post_init__(self) -> None:
        check_output(self.level, self.format, self.out)
        check_wait(as_option("wait"), self.wait)
        check_wait(as_option("patience"), self.patience)


def fit(options: Fit) -> int:
    """Fits a regression over the clients."""
    from fedtailor.cli.progress import explain_interrupt
    from fedtailor.remote.job.job import read_job
    from fedtailor.remote.keys.kit import JOB
    from fedtailor.remote.server.regression import fit_clients
    from fedtailor.remote.serving import prepared
    from fedtailor.remote.wire.transport import TooFewClients

    job = read_job(options.dir / JOB)
    require(
        job.regression is not None,
        f"{options.dir / JOB} has no table [regression]; add it, and give all clients the"
        " new file",
    )
    with prepared(options.dir, host=options.listen, wait=options.wait) as (
        connection,
        rows,
        statistics,
    ):
        try:
            with explain_interrupt("stopped; nothing is kept, fit again"):
                fitted, notes = fit_clients(
                    job,
                    connection.transport,
                    list(rows),
                    statistics=statistics,
                    patience=options.patience,
                )
        except TooFewClients as error:
            raise ValueError(f"{error}; fit again when all clients are there") from None
    write_regression(
        fitted, notes, job.schema.target, options.level, options.format, options.out
    )
    return 0
