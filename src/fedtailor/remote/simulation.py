"""A job simulated on one machine, as its federation trains."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedtailor.executors import Settings
from fedtailor.federation import Federation
from fedtailor.remote.job import Job
from fedtailor.remote.plan import plan_of
from fedtailor.remote.statistics import Statistics
from fedtailor.runs import Run
from fedtailor.runs.run import Store, executor_of, run_on
from fedtailor.training import Callback


def simulate_job(
    job: Job,
    clients: Federation,
    statistics: Statistics | None = None,
    *,
    directory: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train by a job on all clients' rows, to the bit as the clients would.

    Models are measured even if the job lets clients send no scores.

    Args:
        job: the job.
        clients, statistics: as `read_all` returns them.
        directory: where the run is kept; None = nowhere.
        callbacks: follow the run.

    Raises:
        ValueError: as `fedtailor.run`.
    """
    # The settings of a client's executor.
    settings = Settings(devices=1, canonical=True)
    plan = plan_of(job, statistics)
    executor = executor_of(clients, plan.model, settings, directory)
    spec = replace(
        job.spec,
        model=executor.model,
        metrics=plan.requested_metrics,
        privacy=replace(job.spec.privacy, evaluate=True),
    )
    store = None if directory is None else Store(directory)
    return run_on(executor, spec, callbacks=callbacks, store=store)
