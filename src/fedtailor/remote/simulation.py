"""A job simulated on one machine, as its federation trains."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedtailor._base.choice import require
from fedtailor.data.federation import Federation
from fedtailor.engine.executors import DeviceExecutor, Settings
from fedtailor.engine.runs import Run
from fedtailor.engine.runs.run import Store, create_training, executor_of, run_exchanges
from fedtailor.engine.storage.run_files import ANSWERS, read_answers
from fedtailor.engine.training import Callback, RunSpec, Training
from fedtailor.protocol import drive
from fedtailor.remote.job.job import Job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.statistics import Statistics


def simulate_job(
    job: Job,
    clients: Federation,
    statistics: Statistics | None = None,
    *,
    directory: Path | None = None,
    callbacks: Sequence[Callback] = (),
    replay: Path | None = None,
) -> Run:
    """Train by a job on all clients' rows, to the bit as the clients would, but for noise.

    Models are measured even if the job lets clients send no scores. Where clients may be
    late, they are equally fast, or their answers are taken as a run of machines took them.

    Args:
        job: the job.
        clients, statistics: as `read_all` returns them.
        directory: where the run is kept; None = nowhere.
        callbacks: follow the run.
        replay: the directory of a run of machines, whose clients could be late; None = no
            clients are late.

    Raises:
        ValueError: as `fedtailor.run`; or `replay` does not fit the job.
    """
    job.check_trains()
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
    record = None
    if replay is not None:
        require(
            (replay / ANSWERS).is_file(),
            f"{replay} has no {ANSWERS}; name the directory of a finished run of machines"
            " whose job has asynchronous",
        )
        record = read_answers(replay / ANSWERS, executor.seen.names)
        require(
            job.spec.rounds <= record.steps,
            f"{replay} has the answers of {record.steps} rounds, and the job asks for"
            f" {job.spec.rounds}; ask for no more",
        )

    def create(spec: RunSpec, executor: DeviceExecutor) -> Training[DeviceExecutor]:
        training = create_training(spec, executor)
        if record is not None:
            training.replay(record)
        return training

    exchanges = run_exchanges(
        spec,
        executor,
        callbacks=(*job.callbacks, *callbacks),
        store=None if directory is None else Store(directory),
        create=create,
    )
    return drive(exchanges, executor)
