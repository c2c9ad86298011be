"""`run`: train one algorithm on one federation, in memory or with a run directory."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.memory import check_memory
from fedtailor._base.printable import name_of
from fedtailor.aggregation.accounting import Ledger
from fedtailor.aggregation.pipelines import Byzantine
from fedtailor.data.federation import Federation, FederationShard
from fedtailor.engine.executors import (
    DeviceExecutor,
    Place,
    Settings,
    ShardExecutor,
    executor_kind,
)
from fedtailor.engine.runs.baseline import baseline, data_warnings
from fedtailor.engine.runs.result import Run
from fedtailor.engine.runs.row_outcomes import outcomes_of_splits
from fedtailor.engine.storage import (
    Checkpoints,
    Interrupted,
    RunDirectory,
    interrupts,
    manifest,
)
from fedtailor.engine.storage.run_files import (
    BASELINE,
    CLIENTS,
    LEDGER,
    ROWS,
    VALIDATION,
    clients,
)
from fedtailor.engine.training import (
    MOST_ROUNDS,
    AsynchronousServer,
    Callback,
    Participation,
    Privacy,
    RunSpec,
    Training,
    UntilConverged,
    as_participation,
)
from fedtailor.engine.training.binding import bind, describe_argument
from fedtailor.engine.training.callbacks import as_callbacks
from fedtailor.engine.training.privacy import promises_privacy
from fedtailor.engine.training.rounds import ExecutorT
from fedtailor.engine.training.spec import require_count
from fedtailor.models import Architecture, Model
from fedtailor.models.metrics import Metric
from fedtailor.protocol import Algorithm, Diverged, Exchanges, Executor, Pipeline, drive

_MAX_KEPT_BYTES = 1 << 25
"""The most that a run directory spends on personal models."""


@dataclass(frozen=True)
class Store:
    """Where a run is stored, and which parts of it; the attributes are arguments of `run`.

    Example:
        >>> from pathlib import Path
        >>> from fedtailor.engine.runs import Store
        >>> Store(Path("run"), resume=True).checkpoint_every
        10
    """

    directory: Path
    resume: bool = False
    checkpoint_every: int = 10
    keep_rows: bool = False
    keep_models: bool = True
    origin: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        require_count("checkpoint_every", self.checkpoint_every)


def run(
    algorithm: Algorithm,
    federation: Federation | FederationShard,
    model: Model | Architecture,
    rounds: int,
    *,
    seed: int = 0,
    participation: Participation | float | int = Participation(),  # noqa: B008 (frozen)
    until_converged: bool = False,
    evaluate_every: int = 1,
    evaluate_clients: int | None = None,
    uplink: Pipeline = (),
    downlink: Pipeline = (),
    metrics: Sequence[str | Metric] = (),
    privacy: Privacy = Privacy(),  # noqa: B008 (frozen)
    asynchronous: AsynchronousServer | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    callbacks: Sequence[Callback] = (),
    progress: Callable[[Training, bool], bool | None] | None = None,
    directory: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int = 10,
    keep_rows: bool = False,
    keep_models: bool = True,
    origin: Mapping[str, Any] | None = None,
) -> Run:
    """Train `algorithm` for all clients of `federation`.

    Args:
        algorithm: the method with its hyper-parameters.
        federation: who holds which data; or this process's shard of it, where several
            processes train it together (`fedtailor.data.federation.shard`).
        model: a `Model`, or an architecture that is bound to the federation's inputs
            and classes.
        rounds: communication rounds (at least 1).
        seed: of everything random; equal seeds give equal results.
        participation: which clients report in a round: a `Participation`, a share of the
            seen clients (up to 1) or a number of them (from 2; `Participation(count=1)` is
            a single one).
        until_converged: end as soon as the mean validation loss over clients has
            converged (the rule is `fedtailor.statistics.decision.movement`), after
            `rounds` rounds at the latest.
        evaluate_every: evaluate all personal models after every n-th round (and after
            the last).
        evaluate_clients: evaluate so many of the seen and so many of the unseen clients,
            the same in every round, drawn by the seed; None = all. In a large population
            evaluating all takes longer than training; the summary then has an interval
            of the mean over all seen clients.
        uplink: transforms of what clients send, in this order (`fedtailor.aggregation.pipelines`).
        downlink: transforms of what the server sends, likewise.
        metrics: what to measure in addition to the loss and the accuracy ("roc_auc",
            "balanced_accuracy", ...; see `fedtailor.models.metrics`). The run is judged by the
            first one. By default a regression on a table is judged by its RMSE, in the
            target's own unit, and any other run by accuracy, or by the loss if there are
            no classes.
        privacy: what of clients the server sees: `Privacy(secure_aggregation=True)` gives
            it sums over clients only, as a federation of machines with it would.
        asynchronous: a server that does not wait for late clients
            (`AsynchronousServer`); None = it waits for all clients of a round.
        settings: devices, chunk size, debugging.
        callbacks: follow the run, and may stop it (`fedtailor.engine.training.Callback`).
        progress: a plain function `(training, evaluated)` as one more callback.
        directory: the run directory to write; it is created if it does not exist, and
            must be empty unless `resume`. None = nothing is written.
        resume: continue the run that the directory holds, to `rounds` rounds; start one
            if it is empty.
        checkpoint_every: save after every n-th round (and after the last, about once a
            minute, and on Ctrl-C or SIGTERM).
        keep_rows: write the outcome of every test row to `rows.parquet` in the directory
            (see `Run.row_outcomes`), and of every validation row to
            `validation.parquet`.
        keep_models: write the personal models of all clients into the directory if they
            take less than 32 MiB. Larger ones are computed again from the run's data when
            they are needed.
        origin: the scenario that the data came from, as
            `fedtailor.lab.scenarios.scenario.Scenario.origin` returns it. It is written
            into the directory, so that the data can be found again. A table knows its
            own origin.

    Returns:
        The finished run: metrics, ledger, personal models.

    Raises:
        ValueError: something does not fit together, in one line.
        Diverged: a model became NaN or infinite (with a directory, the round before is
            saved).
        Interrupted: Ctrl-C, with a directory: the last finished round is saved.

    Example:
        >>> run = ft.run(ft.Ditto(), federation, ft.models.logistic(), rounds=2)
        >>> run.summary().rounds
        2
    """
    spec = RunSpec(
        algorithm,
        model,
        rounds,
        seed=seed,
        participation=as_participation(participation),
        uplink=uplink,
        downlink=downlink,
        metrics=metrics,
        evaluate_every=evaluate_every,
        evaluate_clients=evaluate_clients,
        privacy=privacy,
        until_converged=until_converged,
        asynchronous=asynchronous,
    )
    require(
        directory is not None or not keep_rows,
        "keep_rows writes into the run's directory; name one, or ask the "
        "run for row_outcomes()",
    )
    require(
        directory is not None or not resume,
        "resume continues the run of a directory; name it with directory",
    )
    require(
        directory is None or isinstance(directory, str | os.PathLike),
        f"directory is {describe_argument(directory)}; it must be the path of a directory",
    )
    store = None
    if directory is not None:
        store = Store(
            Path(directory), resume, checkpoint_every, keep_rows, keep_models, origin
        )
    followers = as_callbacks(callbacks, progress)
    executor = executor_of(federation, model, settings, directory)
    spec = replace(spec, model=executor.model)
    return run_on(executor, spec, callbacks=followers, store=store)


def run_on(
    executor: Executor,
    spec: RunSpec,
    *,
    callbacks: Sequence[Callback] = (),
    store: Store | None = None,
) -> Run:
    """Do a run with the clients of any executor, wherever they are.

    Args:
        executor: answers for the clients (`fedtailor.protocol.Executor`).
        spec: what the run is, with a bound model (`Architecture.bind`).
        callbacks: follow the run, and may stop it.
        store: where the run is kept; None = nothing is written.

    Raises:
        ValueError, Diverged, Interrupted: as `run`.

    Example:
        >>> from fedtailor.engine.runs import run_on
        >>> from fedtailor.engine.training import RunSpec
        >>> spec = RunSpec(ft.Local(), run.training.model, rounds=1)
        >>> run_on(run.executor, spec).summary().algorithm
        'local'
    """
    exchanges = run_exchanges(spec, executor, callbacks=callbacks, store=store)
    try:
        return drive(exchanges, executor)
    except Diverged as error:
        raise _explained(error, spec.uplink) from None


def executor_of(
    federation: Federation | FederationShard,
    model: Model | Architecture,
    settings: Settings,
    directory: Path | str | None = None,
    place: Place | None = None,
) -> DeviceExecutor:
    """The executor that simulates a federation as `settings` say.

    Its model is `model`, bound to the federation's inputs and targets. `place` says where
    the examples are already, if they are.

    Raises:
        ValueError: a single model does not fit into this machine.
    """
    require(
        isinstance(settings, Settings),
        f"settings is {settings!r}; give fedtailor.Settings(...), or nothing",
    )
    own = federation.own if isinstance(federation, FederationShard) else federation
    model = bind(model, own)
    check_memory(
        model.size,
        np.dtype(model.precision.parameters).itemsize,
        f"a model of {model.size:,} numbers",
    )
    folder = None if directory is None else Path(directory)
    if isinstance(federation, FederationShard):
        return ShardExecutor(federation, model, settings, directory=folder)
    executor_class = executor_kind(settings)
    return executor_class(federation, model, settings, directory=folder, place=place)


def simulate(
    algorithm: Algorithm,
    federation: Federation | FederationShard,
    model: Model | Architecture,
    *,
    seed: int = 0,
    participation: Participation | float | int = Participation(),  # noqa: B008 (frozen)
    uplink: Pipeline = (),
    downlink: Pipeline = (),
    metrics: Sequence[str | Metric] = (),
    evaluate_clients: int | None = None,
    privacy: Privacy = Privacy(),  # noqa: B008 (frozen)
    asynchronous: AsynchronousServer | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    directory: Path | str | None = None,
) -> Training[DeviceExecutor]:
    """A training that the caller advances round by round; arguments are as for `run`.

    Returns:
        A `Training` whose `executor` simulates the federation. `directory` holds the file
        of states that do not fit into memory.

    Example:
        >>> from fedtailor.engine.runs import simulate
        >>> training = simulate(ft.FedAvg(), federation, ft.models.logistic())
        >>> training.round
        0
    """
    spec = RunSpec(
        algorithm,
        model,
        MOST_ROUNDS,
        seed=seed,
        participation=as_participation(participation),
        uplink=uplink,
        downlink=downlink,
        metrics=metrics,
        evaluate_clients=evaluate_clients,
        privacy=privacy,
        asynchronous=asynchronous,
    )
    executor = executor_of(federation, model, settings, directory)
    return create_training(replace(spec, model=executor.model), executor)


def create_training(spec: RunSpec, executor: ExecutorT) -> Training[ExecutorT]:
    """A `Training` with the default metrics of its data, recorded in their unit.

    Args:
        spec: what the run is, with a bound model.
        executor: answers for the clients.
    """
    methods = [method for method, _ in spec.algorithm.phases()]
    # Reading all examples takes seconds if there are millions.
    is_private = promises_privacy(methods, spec.uplink)
    data = executor.data.digest if is_private else ""
    return Training(spec, executor, data=data)


def run_exchanges(
    spec: RunSpec,
    executor: ExecutorT,
    *,
    callbacks: Sequence[Callback] = (),
    store: Store | None = None,
    stopped: threading.Event | None = None,
    create: Callable[[RunSpec, ExecutorT], Training[ExecutorT]] | None = None,
) -> Exchanges[Run]:
    """`run` as a generator of exchanges, which any executor can answer.

    Args:
        spec: what the run is, with a bound model.
        executor: answers for the clients.
        callbacks: follow the run, and may stop it.
        store: where the run is kept; None = nothing is written.
        stopped: an event that asks all runs to save their state and end, if several runs
            are driven together.
        create: makes the training of the bound spec; None = `create_training`.

    Returns:
        The exchanges of the whole run, whose return value is the finished `Run`.

    Example:
        >>> from fedtailor.protocol import drive
        >>> from fedtailor.engine.runs import run_exchanges
        >>> from fedtailor.engine.training import RunSpec
        >>> spec = RunSpec(ft.Local(), run.training.model, rounds=1)
        >>> drive(run_exchanges(spec, run.executor), run.executor).summary().rounds
        1
    """
    data = executor.data
    require(
        store is None or not store.keep_rows or isinstance(data, Federation),
        "keep_rows needs the rows of all clients, and this process has those of its own;"
        " leave it out, and open the directory in one process for rows",
    )
    spec = spec.bound(data.default_metrics)
    # The training is created before anything is written, because the method may refuse
    # its settings for these clients.
    training = (create or create_training)(spec, executor)
    if spec.until_converged:
        callbacks = (*callbacks, UntilConverged())
    if store is None:
        yield from train_until(training, spec.rounds, spec.evaluate_every, callbacks)
        return (yield from finished_run(training, executor))

    # The manifest describes the run. A directory that holds another run is refused before
    # anything is written.
    directory = RunDirectory(store.directory)
    run_settings = manifest(
        spec,
        data,
        machine=executor.machine,
        origin=data.origin_in(store.directory) or store.origin,
    )
    has_checkpoint = directory.open(run_settings, store.resume)
    try:
        if has_checkpoint:
            directory.load(training)
        else:
            # Checkpoints carry a digest of the table of clients, so it comes first.
            directory.write_table(CLIENTS, clients(data))
            assert isinstance(spec.model, Model)
            directory.write_frozen(spec.model)
            if data.preprocessing is not None:
                directory.write_preprocessing(data.preprocessing)
        with interrupts() if stopped is None else nullcontext(stopped) as stop:
            checkpoints = Checkpoints(directory, store.checkpoint_every, stop)
            followers = (checkpoints, *callbacks)
            try:
                yield from train_until(
                    training, spec.rounds, spec.evaluate_every, followers, stop
                )
            except Interrupted:
                # The signal may have come after `checkpoints` saw this round.
                checkpoints.on_end(training)
                raise
            except Diverged as error:
                # The round before is saved. The summary says how the run ended, so that
                # a comparison does not train it again.
                directory.save(training)
                directory.write_summary(
                    {
                        "rounds": spec.rounds,
                        "diverged": str(error),
                        "seconds": training.seconds,
                        "core_seconds": training.core_seconds,
                    }
                )
                raise
        run = yield from finished_run(training, executor)
        yield from _write_results(directory, store, run, spec.rounds)
        return run
    finally:
        directory.close()


def _stops(callback: Callback, answer: Any) -> bool:
    """Whether a callback's answer ends the run.

    Raises:
        ValueError: it is neither True, False nor None, as that of `file.write` is not.
    """
    require(
        answer is None or isinstance(answer, bool | np.bool_),
        f"{name_of(callback)} returned {describe_argument(answer)}; a callback returns"
        " True to end the run, and else None or False",
    )
    return bool(answer)


def _explained(error: Diverged, uplink: Pipeline) -> Diverged:
    """The error, which names another cause if an attack makes clients send such numbers."""
    attacks = {each.attack for each in uplink if isinstance(each, Byzantine)}
    if attacks.isdisjoint(("nan", "huge")):
        return error
    cause = "the simulated attack: put a robust-mean before byzantine"
    return Diverged(
        error.client, error.round, step=error.step, doing=error.doing, cause=cause
    )


def _write_results(
    directory: RunDirectory, store: Store, run: Run, rounds: int
) -> Exchanges[None]:
    """Write the results of a finished run.

    All of them follow from the final checkpoint: a process that is killed here leaves an
    unfinished run, which `resume` finishes without training a round. The summary is
    written last, so that a directory with a summary is complete.
    """
    training, model = run.training, run.model
    directory.write_table(LEDGER, run.ledger.frame())  # now with the final delivery
    directory.write_diagnostics(training.algorithm.diagnostics(training.server))
    summary = {
        **run.summary().as_dict(),
        "training_seconds": sum(training.round_seconds),
        "asked_rounds": rounds,
    }
    names = run.executor.data.names
    size_of_models = (
        len(names) * model.size * np.dtype(model.precision.parameters).itemsize
    )
    if store.keep_models and size_of_models <= _MAX_KEPT_BYTES:
        # These are computed here because lock-step can answer several runs together.
        yield from run.compute_personal(range(len(names)))
        directory.write_models(run.personal_models().values())
    if store.keep_rows:
        outcomes = yield from outcomes_of_splits(training, run.executor)
        directory.write_table(ROWS, outcomes["test"])
        directory.write_table(VALIDATION, outcomes["val"])
        measured = training.measured
        directory.write_table(BASELINE, baseline(run.federation, model, measured))
        summary["warnings"] = data_warnings(run.federation, model)
    directory.write_summary(summary)


def train_until(
    training: Training,
    rounds: int,
    evaluate_every: int = 1,
    callbacks: Sequence[Callback] = (),
    stopped: threading.Event | None = None,
) -> Exchanges[None]:
    """Continue a new or restored training until `rounds` rounds are done, or until a
    callback stops it.

    Raises:
        ValueError: the training is already past `rounds`.
        Interrupted: `stopped` was set; the callbacks have seen the last round.

    Example:
        >>> from fedtailor.protocol import drive
        >>> from fedtailor.engine.runs import simulate, train_until
        >>> training = simulate(ft.FedAvg(), federation, ft.models.logistic())
        >>> drive(train_until(training, rounds=2), training.executor)
        >>> training.round
        2
    """
    require(
        training.round <= rounds,
        f"the run has already done {training.round} rounds, more than the {rounds}"
        " asked for",
    )
    try:
        stop = any(
            [
                _stops(callback, callback.on_start(training, rounds))
                for callback in callbacks
            ]
        )
        while training.round < rounds and not stop:
            started, used = perf_counter(), process_time()
            yield from training.next_round()
            trained = perf_counter()
            evaluated = training.round % evaluate_every == 0 or training.round == rounds
            if evaluated:
                yield from training.evaluation()
            training.record_time(
                trained - started, perf_counter() - started, process_time() - used
            )
            # A list, not a generator: `any` would end at the first callback that stops
            # the run, and those after it must see the round too.
            stop = any(
                [
                    _stops(callback, callback.after_round(training, evaluated))
                    for callback in callbacks
                ]
            )
            if stop and not evaluated:
                yield from training.evaluation()
            if stopped is not None and stopped.is_set():
                raise Interrupted
        for callback in callbacks:
            callback.on_end(training)
    except BaseException as error:
        for callback in callbacks:
            callback.close(error)
        raise
    for callback in callbacks:
        callback.close(None)


def finished_run(training: Training[Any], executor: Executor) -> Exchanges[Run]:
    """The run, whose ledger includes the delivery of the final models."""
    # The ledger is a copy: the training may continue, and its own ledger must hold the
    # costs of its rounds only.
    ledger = Ledger.from_frame(training.ledger.frame())
    yield from training.deliver(ledger)
    return Run(training, executor, ledger)
