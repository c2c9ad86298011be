"""Coordinates training over machines, up to the delivery of personal models.

The run directory has the same format as that of a simulated run.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.federation.checks import SPLITS
from fedtailor.engine.runs import Run
from fedtailor.engine.runs.run import Store, run_exchanges
from fedtailor.engine.storage import RunDirectory, interrupts
from fedtailor.engine.storage.run_files import (
    ANSWERS,
    CLIENTS,
    METRICS,
    answers,
    read_frame,
)
from fedtailor.engine.training import Callback, RunSpec, Training
from fedtailor.engine.training.asynchronous import check_buffer
from fedtailor.protocol import Clients, drive
from fedtailor.remote.job.data_facts import RemoteData
from fedtailor.remote.job.examples import template_of
from fedtailor.remote.job.job import Job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.statistics import Statistics
from fedtailor.remote.keys.secret import run_identity, secret_in
from fedtailor.remote.server.executor import RemoteExecutor, Rules, population_table
from fedtailor.remote.server.rounds import COMPILE_S, PATIENCE_S, RemoteTraining
from fedtailor.remote.wire.run_log import COORDINATOR_LOG
from fedtailor.remote.wire.transport import PendingExchange, Transport

SUMS = "sums.json"
"""File of a run with the weights of the secure sums that its clients remember, too."""

FindArrivals = Callable[
    [Collection[str], PendingExchange], Mapping[str, NDArray[np.int64]]
]
"""Maps the names of known clients, and the open requests to them, to the row counts [3]
of newcomers, by name.
"""


def coordinate(
    job: Job,
    transport: Transport,
    rows: Mapping[str, NDArray[np.int64]],
    directory: Path,
    *,
    resume: bool = False,
    statistics: Statistics | None = None,
    use_caches: bool = True,
    evaluate_every: int = 1,
    callbacks: Sequence[Callback] = (),
    patience: float = PATIENCE_S,
    compile_time: float = COMPILE_S,
    arrivals: FindArrivals = lambda known, late: {},
    stopped: threading.Event | None = None,
) -> Run:
    """Train by the job, and have each client store its personal model.

    Args:
        job: the job.
        transport: carries messages to the clients.
        rows: numbers of training, validation and test rows [3] of each client that is
            online, by name.
        directory: the run directory, for settings, measurements, the ledger, and a
            checkpoint after every round.
        resume: continue the run in `directory` with the clients that it started with;
            other clients that are online are served as newcomers.
        statistics: statistics of columns, pooled or of the job; None without
            preprocessing.
        use_caches: whether vectors that a client has cached are not sent again; this
            needs clients whose processes live longer than one message.
        evaluate_every: evaluate after every n-th round, and after the last.
        callbacks: called as in a simulation.
        patience: how many seconds to retry a round that too few clients answer.
        compile_time: seconds that the first exchange of each task waits in addition to
            the job's deadline.
        arrivals: called after each round with the names of all clients that are known, and
            the requests to them that are open; returns the numbers of rows [3] of others
            that have come, by name. They are served as newcomers.
        stopped: ends the run after its round when it is set; None = Ctrl-C and SIGTERM do.

    Returns:
        The run, whose personal models the clients keep.

    Raises:
        ValueError: arguments, files and clients do not fit together; in one line.
        TooFewClients: fewer clients than the minimum answered for `patience` seconds;
            all earlier rounds are saved.
        Interrupted: Ctrl-C; all completed rounds are saved.
    """
    job.check_trains()
    plan = plan_of(job, statistics)
    store = RunDirectory(directory)
    seen_rows = _stored_clients(directory) if resume else None
    if seen_rows is None:
        seen_rows = dict(rows)
    unseen_rows = {name: sizes for name, sizes in rows.items() if name not in seen_rows}
    for name in sorted(set(rows) & set(seen_rows)):
        if not np.array_equal(rows[name], seen_rows[name]):
            COORDINATOR_LOG.warning(
                f"client {name}: it has {_counts(rows[name])} rows now, and had"
                f" {_counts(seen_rows[name])} when the run began; it keeps the weight"
                " that it had"
            )
    # Measurements of an earlier start are also of newcomers that are away now.
    known = {**seen_rows, **rows}
    for name in _stored_newcomers(directory):
        known.setdefault(name, np.zeros(len(SPLITS), np.int64))
    preprocessing = None
    if statistics is not None:
        preprocessing = statistics.preprocessing(job.schema)
    data = RemoteData(
        job.title,
        job.identity,
        known,
        frozenset(seen_rows),
        preprocessing,
        plan.requested_metrics,
    )
    seen = _table(seen_rows, data.names)
    unseen = _table(unseen_rows, data.names)
    if job.spec.asynchronous is not None:
        check_buffer(job.spec.asynchronous, len(seen))
    if plan.sums is not None:
        plan.sums.check_client_count(
            plan.algorithm, job.spec.participation.reporters(len(seen)), len(seen)
        )
        if plan.sums.scope == "run" and job.minimum < len(seen):
            COORDINATOR_LOG.info(
                f"each round needs the answers of all {len(seen)} clients, as sums of"
                ' different clients show single ones; sum_scope = "round" in [privacy]'
                f" needs {job.minimum}, and hides a client in each round by itself only"
            )
    store.make()
    spec = replace(job.spec, model=plan.model, evaluate_every=evaluate_every)
    secret = secret_in(directory) if plan.coordinator_needs_secret else None
    with interrupts() if stopped is None else nullcontext(stopped) as stop:
        executor = RemoteExecutor(
            plan,
            seen,
            transport,
            template_of(job, statistics),
            data,
            unseen=unseen,
            rules=Rules(job.minimum, job.deadline, compile_time),
            run=run_identity(directory),
            use_caches=use_caches,
            stop=stop,
            history=directory / SUMS,
        )

        def create(spec: RunSpec, executor: RemoteExecutor) -> RemoteTraining:
            training = RemoteTraining(spec, executor, secret=secret)
            training.patience = patience
            return training

        exchanges = run_exchanges(
            spec,
            executor,
            callbacks=(
                *job.callbacks,
                *callbacks,
                _Newcomers(arrivals, unseen_rows),
                _Answers(store),
            ),
            # With a checkpoint after every round, clients need to keep few states, and a
            # coordinator that is killed loses at most one round.
            store=Store(directory, resume, checkpoint_every=1, keep_models=False),
            stopped=stop,
            create=create,
        )
        return drive(exchanges, executor)


def _counts(rows: NDArray[np.int64]) -> str:
    return " + ".join(str(count) for count in rows)


class _Newcomers(Callback):
    """Has clients that come while others train served as newcomers, from then on.

    Args:
        arrivals: returns the numbers of rows [3] of clients that have come since the
            last call, by name.
        rows: those of the newcomers so far; changed in place.
    """

    def __init__(
        self, arrivals: FindArrivals, rows: dict[str, NDArray[np.int64]]
    ) -> None:
        self._arrivals, self._rows = arrivals, rows

    def after_round(self, training: Training, evaluated: bool) -> None:
        assert isinstance(training, RemoteTraining)
        executor = training.executor
        known = {*executor.seen.names, *executor.unseen.names}
        arrived = self._arrivals(known, executor.late)
        if not arrived:
            return
        self._rows.update(arrived)
        names = [*executor.data.names]
        names += [name for name in arrived if name not in names]
        executor.set_unseen(_table(self._rows, names), arrived)


class _Answers(Callback):
    """Writes down whose answers each round took, if clients may be late."""

    def __init__(self, store: RunDirectory) -> None:
        self._store = store

    def on_end(self, training: Training) -> None:
        assert isinstance(training, RemoteTraining)
        if training.asynchronous is not None:
            names = training.executor.seen.names
            self._store.write_table(
                ANSWERS, answers(training.asynchronous.record, names)
            )


def _table(rows: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> Clients:
    """The table of some of the clients, with their indices in `names`."""
    train_sizes = [sizes[0] for sizes in rows.values()]
    table = population_table(tuple(rows), train_sizes)
    index = [names.index(name) for name in table.names]
    return replace(table, original_index=np.array(index, np.int64))


def _stored_newcomers(directory: Path) -> list[str]:
    """The clients that the run has measured and not trained."""
    path = directory / METRICS
    if not path.is_file():
        return []
    frame = read_frame(path)
    return frame.filter("unseen")["client"].unique(maintain_order=True).to_list()


def _stored_clients(directory: Path) -> dict[str, NDArray[np.int64]] | None:
    """The numbers of rows of the run's clients, by name; None if it has not started."""
    path = directory / CLIENTS
    if not path.is_file():
        return None
    frame = read_frame(path)
    return {
        row[0]: np.array(row[1:], np.int64)
        for row in frame.select("client", *SPLITS).iter_rows()
    }
