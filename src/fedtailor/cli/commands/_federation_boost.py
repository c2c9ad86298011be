"""`fedtailor federation boost`: boosted trees from sums over clients."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from fedtailor._base.choice import require
from fedtailor._base.printable import say, say_status
from fedtailor.cli.options import as_option
from fedtailor.remote.wire.waits import check_wait


@dataclass(frozen=True)
class Boost:
    """Boost trees over the clients of a federation, from sums behind masks, as the table
    [boosting] of the job says. The shared trees are written to DIR/boosted; each client
    may add trees of its own, and keeps its model.
    """

    dir: tyro.conf.Positional[Path]
    """Directory of the federation."""
    resume: bool = False
    """Go on after the last round of trees of a boosting that ended early."""
    listen: str = "0.0.0.0"
    """Address to listen on; all of this machine's by default."""
    wait: float = 600.0
    """Seconds to wait for the clients."""
    patience: float = 600.0
    """How many seconds to retry a step that a client does not answer."""

    def __post_init__(self) -> None:
        check_wait(as_option("wait"), self.wait)
        check_wait(as_option("patience"), self.patience)


def boost(options: Boost) -> int:
    """Boosts trees over the clients."""
    from fedtailor.cli.progress import explain_interrupt
    from fedtailor.remote.job.job import read_job
    from fedtailor.remote.keys.kit import JOB
    from fedtailor.remote.server.boosting import FOLDER, boost_clients, check_place
    from fedtailor.remote.serving import prepared
    from fedtailor.remote.wire.transport import TooFewClients

    job = read_job(options.dir / JOB)
    directory = options.dir / FOLDER
    require(
        job.boosting is not None,
        f"{options.dir / JOB} has no table [boosting]; add it, and give all clients the"
        " new file",
    )
    check_place(directory, resume=options.resume)
    advice = (
        "rounds of trees that were complete are kept: continue with fedtailor federation"
        f" boost {options.dir} --resume"
    )
    assert job.boosting is not None
    most = job.boosting.settings.trees
    with prepared(options.dir, host=options.listen, wait=options.wait) as (
        connection,
        rows,
        statistics,
    ):
        try:
            with explain_interrupt(f"stopped; {advice}"):
                model = boost_clients(
                    job,
                    connection.transport,
                    rows,
                    directory,
                    statistics=statistics,
                    resume=options.resume,
                    patience=options.patience,
                    after_round=lambda rounds: say_status(
                        f"{rounds} of {most} rounds of trees"
                    ),
                )
        except TooFewClients as error:
            raise ValueError(f"{error}; {advice}") from None
    if not model.trees:
        say(
            "No tree helps on validation rows. If targets are numbers below a thousandth, use"
            " other units: sums over machines round each row's square to 2^-40."
        )
    say(
        f"{len(model.trees)} rounds of shared trees, as many as validation rows say:"
        f" {directory}",
        f"fedtailor predict {directory} ROWS.csv; clients: fedtailor federation predict",
    )
    return 0
