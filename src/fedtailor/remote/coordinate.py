"""A training over machines from its first round to the delivery of personal models, in
a run directory.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor.accounting import Ledger
from fedtailor.federation.checks import SPLITS
from fedtailor.protocol import Clients, Exchanges, drive
from fedtailor.remote.examples import template_of
from fedtailor.remote.executor import RemoteExecutor, Rules, client_table
from fedtailor.remote.job import Job
from fedtailor.remote.plan import Plan, plan_of
from fedtailor.remote.secret import secret_in
from fedtailor.remote.statistics import Statistics
from fedtailor.remote.transport import Transport
from fedtailor.runs import Run
from fedtailor.runs.run import train_until
from fedtailor.storage import Checkpoints, RunDirectory, interrupts
from fedtailor.storage.manifest import settings, versions
from fedtailor.storage.run_files import CLIENTS, LEDGER, read_frame
from fedtailor.training import Callback, Training


def coordinate(
    job: Job,
    transport: Transport,
    rows: Mapping[str, NDArray[np.int64]],
    directory: Path,
    *,
    resume: bool = False,
    agreed: Statistics | None = None,
    remember: bool = True,
    evaluate_every: int = 1,
    callbacks: Sequence[Callback] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Training[RemoteExecutor]:
    """Train as the job says, and have each client store its personal model.

    Args:
        job: of the federation.
        transport: carries messages to the clients.
        rows: of each client that is there: its numbers [3] of rows that train, validate
            and test.
        directory: keeps the run: settings, measurements, ledger, a checkpoint after
            every round.
        resume: go on with the run in `directory`, with the clients that began it;
            others that are there now are served as newcomers.
        agreed: what the clients' tables hold together, where the job asks for federated
            preprocessing.
        remember: name vectors that clients hold instead of sending them; clients are
            processes that last.
        evaluate_every: evaluate after every n-th round, and after the last.
        callbacks: look on.
        tell: is given a line for every answer that is refused, and for clients that are
            missing.

    Raises:
        ValueError: something does not fit together, in one line.
        TooFewClients: the minimum of clients is not there; everything up to the round
            before is saved.
        Interrupted: Ctrl-C; the last finished round is saved.
    """
    plan, store = plan_of(job, agreed), RunDirectory(directory)
    began = _began(directory) if resume else None
    seen_rows = dict(rows) if began is None else began
    seen = _table(seen_rows, 0)
    unseen = _table(
        {name: own for name, own in rows.items() if name not in seen_rows}, len(seen)
    )
    if plan.sums is not None:
        plan.sums.check_crowd(plan.algorithm, job.participation.reporters(len(seen)))
    continued = store.open(_manifest(job, plan, seen_rows, evaluate_every), resume)
    try:
        executor = RemoteExecutor(
            plan,
            seen,
            transport,
            template_of(job, agreed),
            unseen=unseen,
            rules=Rules(job.minimum, job.deadline),
            tell=tell,
            remember=remember,
        )
        training = Training(
            plan.algorithm,
            executor,
            plan.model,
            seed=plan.seed,
            participation=job.participation,
            uplink=plan.uplink,
            downlink=plan.downlink,
            secret=secret_in(directory) if plan.coordinator_needs_secret else None,
            target_scale=(
                1.0 if agreed is None else agreed.preprocessing(job.schema).target_scale
            ),
        )
        if continued:
            store.load(training)
        else:
            store.write_table(CLIENTS, _clients(seen_rows))
        with interrupts() as stop:
            every_round = Checkpoints(store, 1, stop)
            drive(
                train_until(
                    training,
                    job.rounds,
                    evaluate_every,
                    (every_round, *callbacks),
                    stop,
                ),
                executor,
            )
            ledger = Ledger.from_frame(training.ledger.frame())
            drive(_deliver(training, ledger), executor)
        store.write_table(LEDGER, ledger.frame())
        done = Run(cast(Any, training), cast(Any, executor), ledger).summary().as_dict()
        store.write_summary(
            {
                **done,
                "training_seconds": sum(training.round_seconds),
                "asked_rounds": job.rounds,
            }
        )
        return training
    finally:
        store.close()


def _deliver(training: Training[RemoteExecutor], ledger: Ledger) -> Exchanges[None]:
    """Have every client make its personal model, and store it where it is."""
    for table in (training.executor.seen, training.executor.unseen):
        services = yield from training.services(table, np.arange(len(table)), ledger)
        for service in services:
            yield from training.run_personal("personal", service)


def _table(rows: Mapping[str, NDArray[np.int64]], first: int) -> Clients:
    return client_table(tuple(rows), [own[0] for own in rows.values()], first=first)


def _began(directory: Path) -> dict[str, NDArray[np.int64]] | None:
    """Who took part when the run began; None if it never did."""
    path = directory / CLIENTS
    if not path.is_file():
        return None
    frame = read_frame(path)
    return {
        row[0]: np.array(row[1:], np.int64)
        for row in frame.select("client", *SPLITS).iter_rows()
    }


def _clients(rows: Mapping[str, NDArray[np.int64]]) -> pl.DataFrame:
    """Who takes part, in the form of simulated runs."""
    columns: dict[str, Any] = {
        "client": list(rows),
        "group": [None] * len(rows),
        "unseen": [False] * len(rows),
    }
    sizes = {
        split: [int(own[place]) for own in rows.values()]
        for place, split in enumerate(SPLITS)
    }
    return pl.DataFrame(columns | sizes, schema_overrides={"group": pl.Int64})


def _manifest(
    job: Job, plan: Plan, rows: Mapping[str, NDArray[np.int64]], every: int
) -> dict[str, Any]:
    """The settings of the run, in the form of simulated ones."""
    return {
        "run": {
            "seed": job.seed,
            "evaluate_every": every,
            "participation": settings(job.participation),
        },
        "algorithm": settings(plan.algorithm),
        **({"uplink": settings(plan.uplink)} if plan.uplink else {}),
        "model": settings(plan.model),
        "data": {
            "name": job.title,
            "clients": len(rows),
            "names": list(rows),
            "job": job.identity,
        },
        "versions": versions(),
    }
