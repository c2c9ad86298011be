"""`fedtailor federation`: train over machines that keep their own data.

Each command imports what it needs when it runs: a client should hold little in memory.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from fedtailor._base.choice import MachineFailed, require
from fedtailor._base.memory import save_memory
from fedtailor._base.printable import csv_of_frame, say, say_block, say_status
from fedtailor.cli.commands._federation_admin import (
    DirArgument,
    KitArgument,
    RenewOptions,
    RevokeOptions,
    StatusOptions,
    names_of,
    renew,
    revoke,
    status,
)
from fedtailor.cli.commands._federation_boost import Boost, boost
from fedtailor.cli.commands._federation_describe import Describe, describe
from fedtailor.cli.commands._federation_fit import Fit, fit
from fedtailor.cli.names import HELP
from fedtailor.cli.options import as_option, check_counts, parse
from fedtailor.cli.output import check_not_input, write_text
from fedtailor.remote.wire.waits import MAX_WAIT_S, check_wait

if TYPE_CHECKING:
    import polars as pl

    from fedtailor.engine.storage import PersonalModel
    from fedtailor.engine.training import Callback, Training
    from fedtailor.remote.client.policy import Policy
    from fedtailor.remote.job.job import Job, Schema
    from fedtailor.remote.job.statistics import Statistics
    from fedtailor.remote.keys.kit import Kit

USAGE = """usage: fedtailor federation COMMAND [options]

Train over machines that keep their own data (docs/federation.md).

  init DIR --clients a,b --address HOST:PORT   make a federation: its job, keys and certificates
  describe DIR                                 what the clients' columns hold, before training
  describe KIT --data FILE                     what this client would send for that
  serve DIR                                    coordinate it
  boost DIR                                    boosted trees from sums over clients
  fit DIR                                      a regression from sums over clients
  join KIT --data FILE                         take part in it as a client
  predict KIT --data FILE                      predict with this client's own model
  policy KIT                                   what this client allows, and what it has answered and spent
  audit KIT                                    the messages that left this client
  simulate DIR --data FILE ...                 run the same job on this machine
  status DIR                                   what its coordinator is doing
  renew DIR [--clients a,b]                    renew its certificate, or clients' keys
  revoke DIR CLIENT                            do not let a client in any more

`fedtailor federation COMMAND --help` says more."""


@dataclass(frozen=True)
class InitOptions:
    """Make a federation's directory, or add clients to an existing one. Nothing is
    overwritten.
    """

    dir: DirArgument
    """Directory of the federation."""
    clients: str
    """Names of the clients, separated by commas."""
    address: str | None = None
    """HOST:PORT where clients reach the coordinator (new federations)."""
    job: Path | None = None
    """A job file to copy; without it a template is written, to be edited (new
    federations).
    """
    data: Path | None = None
    """A table such as clients have, from which the template's columns are filled in: all
    clients read its categories, and means and deviations to two digits.
    """
    target: str | None = None
    """With --data: the column to predict."""
    event: str | None = None
    """With --data, for survival: the column that says whether the event was seen;
    --target then names the column of times.
    """
    time: str | None = None
    """With --data, for series: the column of times, which orders the rows of a window."""
    window: int | None = None
    """With --data and --time: how many rows a window has; each window is an example."""
    step: int | None = None
    """With --window: rows between the beginnings of two windows to train on."""


@dataclass(frozen=True)
class ServeOptions:
    """Coordinate a federation: open its port, wait for the clients, train."""

    dir: DirArgument
    """Directory of the federation."""
    listen: str = "0.0.0.0"
    """Address to listen on; all of this machine's by default."""
    wait: float = 600.0
    """Seconds to wait for the clients."""
    patience: float = 3600.0
    """How many seconds to retry a round that too few clients answer."""
    most_rows: int = 10_000_000
    """A client that says that it has more rows is left out."""
    compile_time: float = 300.0
    """Seconds that the first exchange of each kind waits beyond the deadline, as clients
    compile then."""
    monitor: str | None = None
    """Serve /health and /metrics (Prometheus) at PORT of this machine, or HOST:PORT."""
    log_level: str = "info"
    """What is logged: debug, info or warning."""
    log_file: Path | None = None
    """Append the log to this file, too."""
    evaluate_every: int = 1
    """Have clients evaluate after every n-th round, and after the last (where the job
    lets them).
    """
    track: tuple[str, ...] = ()
    """Show the run in experiment trackers, too: mlflow, tensorboard, wandb (offline).
    """
    resume: bool = False
    """Continue the run in DIR/run."""
    check: bool = False
    """Only connect all clients, print who has connected, and end."""

    def __post_init__(self) -> None:
        check_counts(self, "evaluate_every", "most_rows")
        check_wait(as_option("wait"), self.wait)
        for name in ("patience", "compile_time"):
            seconds = getattr(self, name)
            require(
                0 <= seconds <= MAX_WAIT_S,
                f"{as_option(name)} is {seconds:g} seconds; it must be between 0 and"
                f" {MAX_WAIT_S:.0f}",
            )


@dataclass(frozen=True)
class JoinOptions:
    """Take part in a federation as a client, until stopped with Ctrl-C."""

    kit: KitArgument
    """The kit that the coordinator made for this client, with the job file in it."""
    data: Path | None = None
    """The client's examples: .csv, .tsv or .parquet."""
    log_level: str = "info"
    """What is logged: debug, info or warning."""
    log_file: Path | None = None
    """Append the log to this file, too."""
    init_policy: bool = False
    """Only write KIT/policy.toml, what this client allows, with safe values to be
    edited.
    """

    def __post_init__(self) -> None:
        require(
            self.init_policy or self.data is not None,
            "say which examples this client has: --data FILE",
        )


@dataclass(frozen=True)
class PolicyOptions:
    """Print what this client allows, and what it has answered and spent."""

    kit: KitArgument
    """The client's kit."""


@dataclass(frozen=True)
class AuditOptions:
    """Print the messages that left this client: time (UTC), run, round, kind, bytes, the
    beginning of the SHA-256, and for a refusal its code.
    """

    kit: KitArgument
    """The client's kit."""
    last: int = 20
    """Number of messages."""
    json: bool = False
    """Print all of them as JSON lines, with whole digests."""

    def __post_init__(self) -> None:
        check_counts(self, "last")


@dataclass(frozen=True)
class PredictOptions:
    """Predict with the personal model that the training left at this client."""

    kit: KitArgument
    """The client's kit."""
    data: Path
    """Examples with the columns of the job; the target may be missing."""
    out: Path | None = None
    """Write the predictions to this .csv instead of the standard output."""
    probabilities: bool = False
    """Write the probability of every class, too."""
    times: tuple[float, ...] = ()
    """For survival: the times at which to write the share without the event."""
    coverage: float | None = None
    """Write sets of classes, or intervals of a number, that contain the truth in this share
    of rows, such as 0.9: from this client's own validation rows.
    """


@dataclass(frozen=True)
class SimulateOptions:
    """Run a federation's job on this machine, with one file for each client."""

    dir: DirArgument
    """Directory of the federation."""
    data: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]
    """The clients' files, in the order of their names."""
    out: Path | None = None
    """Keep the run in this directory."""
    replay: Path | None = None
    """For a job with asynchronous clients: take their answers as this run over machines
    took them (DIR/run).
    """


def federation(arguments: list[str]) -> int:
    """Runs a command for federations of machines."""
    if not arguments or arguments[0] in HELP:
        say_block(USAGE)
        return 0 if arguments else 2
    name, *rest = arguments
    require(
        name in COMMANDS,
        f"there is no command federation {name}; the commands are"
        f" {', '.join(COMMANDS)}",
    )
    options, run = COMMANDS[name]
    for argument in rest:
        option = argument.partition("=")[0].replace("_", "-")
        require(
            option not in ("--weight", "--class-weights"),
            f"{option}: rows of machines all count the same; leave it out, or simulate"
            f" weights with `fedtailor compare TABLE.csv {option}`",
        )
    # All commands use the same settings, so that a simulation and the machines compile
    # the same programs.
    save_memory()
    try:
        return run(parse(options, rest, f"fedtailor federation {name}"))
    except MachineFailed:
        raise
    except (RuntimeError, TimeoutError) as error:
        raise ValueError(str(error)) from error


def _init(options: InitOptions) -> int:
    from fedtailor.remote.client.policy import default_policy_note
    from fedtailor.remote.job.job import read_job
    from fedtailor.remote.job.job_template import columns_of
    from fedtailor.remote.keys.keys import require_packages
    from fedtailor.remote.keys.kit import (
        COORDINATOR,
        JOB,
        make_federation,
        read_certificates,
    )
    from fedtailor.remote.service import check_client_count

    require_packages()
    require(
        (options.data is None) == (options.target is None),
        "give --data FILE and --target COLUMN together",
    )
    columns, of_table = None, ("event", "time", "window", "step")
    given = {name: getattr(options, name) for name in of_table}
    for name in of_table:
        require(
            given[name] is None or options.data is not None,
            f"{as_option(name)} is for a table; give it with --data FILE",
        )
    names = names_of(options.clients)
    if options.data is not None and options.target is not None:
        columns, notes = columns_of(
            options.data, options.target, clients=names, **given
        )
        for note in notes:
            say(note)
    created_names = make_federation(
        options.dir,
        names,
        address=options.address,
        job=options.job,
        columns=columns,
    )
    say(f"Made {options.dir} with kits for {', '.join(created_names)}.")
    if options.data is not None and options.job is None:
        _say_if_clients_write_otherwise(options.data, read_job(options.dir / JOB))
    say(f"1. Edit {options.dir / JOB}: columns, model, method, rounds.")
    say(
        f"2. Copy {options.dir / JOB} and one kit of {options.dir / 'kits'} to each"
        " client, over a channel you trust:"
    )
    say("   a kit holds the client's private key. Then remove the kits here.")
    say(
        f"3. Keep {options.dir / 'coordinator' / 'ca.key'} secret; it is needed only to"
        " make new certificates."
    )
    say(
        f"Start: fedtailor federation serve {options.dir}; at each client: fedtailor"
        " federation join KIT --data FILE"
    )
    # A job that the user has begun to edit may not be valid yet; `serve` says so.
    with suppress(ValueError):
        job = read_job(options.dir / JOB)
        if line := default_policy_note(job):
            say(f"Note: {line}")
        try:
            check_client_count(job, len(read_certificates(options.dir / COORDINATOR)))
        except ValueError as error:
            say(f"Note: {error}")
    return 0


def _say_if_clients_write_otherwise(data: Path, job: "Job") -> None:
    """Say what a client would say to a file that is written as this table."""
    from fedtailor.remote.job.statistics import read_table

    try:
        read_table(data, job.schema)
    except ValueError as error:
        say(f"Clients write their files otherwise than {data.name}: {error}")


def _serve(options: ServeOptions) -> int:
    from fedtailor.cli.progress import explain_interrupt
    from fedtailor.lab.trackers import find_trackers
    from fedtailor.remote.service import RUN_DIRECTORY, connected
    from fedtailor.remote.serving import check_run, ready_clients, serve
    from fedtailor.remote.wire.run_log import COORDINATOR_LOG, RunLog
    from fedtailor.remote.wire.transport import TooFewClients

    log = RunLog(options.log_level, options.log_file)
    if options.check:
        with (
            log.of(COORDINATOR_LOG),
            connected(options.dir, host=options.listen) as connection,
        ):
            ready_clients(connection, wait=options.wait, most_rows=options.most_rows)
        return 0
    check_run(options.dir, resume=options.resume)
    trackers = find_trackers(
        options.track,
        options.dir / RUN_DIRECTORY,
        experiment="federation",
        run=options.dir.resolve().name,
    )
    advice = f"continue with fedtailor federation serve {options.dir} --resume"
    with ExitStack() as stack, explain_interrupt(f"stopped; {advice}"):
        try:
            run = serve(
                options.dir,
                listen=options.listen,
                resume=options.resume,
                wait=options.wait,
                patience=options.patience,
                most_rows=options.most_rows,
                compile_time=options.compile_time,
                monitor=options.monitor,
                evaluate_every=options.evaluate_every,
                callbacks=(_progress(stack, options.dir), *trackers),
                log=log,
            )
        except TooFewClients as error:
            raise ValueError(f"{error}; {advice}") from None
    _print_scores(run.training, options.dir / RUN_DIRECTORY)
    return 0


def _progress(stack: ExitStack, directory: Path) -> "Callback":
    """Shows the progress from the first round until the end of a block.

    Args:
        stack: the block.
        directory: the federation's directory.
    """
    from fedtailor.cli.progress import progress_of
    from fedtailor.engine.training import AfterRound
    from fedtailor.remote.job.job import read_job
    from fedtailor.remote.keys.kit import JOB

    class Progress(AfterRound):
        def __init__(self) -> None:
            pass

        def on_start(self, training: "Training", rounds: int) -> None:
            title = read_job(directory / JOB).title
            show = stack.enter_context(progress_of(title, rounds))
            super().__init__(show)

    return Progress()


def _print_scores(training: "Training", directory: Path | None) -> None:
    """Prints the score of each client's personal model on the client's test rows."""
    metric = training.metric.name
    for unseen, newcomer_note in ((False, ""), (True, " (newcomer)")):
        evaluations = [
            evaluation
            for evaluation in training.metrics.evaluations
            if evaluation.metric == metric
            and evaluation.split == "test"
            and evaluation.unseen == unseen
        ]
        if not evaluations:
            continue
        last = evaluations[-1]
        for client, value in zip(last.clients, last.values, strict=True):
            name = training.client_names[client]
            say(f"{name}: {metric} {value:.4f}{newcomer_note}")
    directory_note = "" if directory is None else f"; the run is in {directory}"
    say(f"{training.round} rounds done{directory_note}")


def _join(options: JoinOptions) -> int:
    from fedtailor.remote.keys.keys import require_packages
    from fedtailor.remote.keys.kit import read_kit
    from fedtailor.remote.service import join
    from fedtailor.remote.wire.run_log import RunLog

    if options.init_policy:
        return _init_policy(read_kit(options.kit))
    assert options.data is not None
    require_packages()
    # What a client says goes to the standard output, as it has no other output.
    log = RunLog(options.log_level, options.log_file, show=say)
    join(read_kit(options.kit), options.data, log=log)
    return 0


def _init_policy(kit: "Kit") -> int:
    """Writes the default policy, and says whether the job keeps to it."""
    from fedtailor.remote.client.policy import read_policy, write_policy

    path = write_policy(kit.directory, kit.job)
    # One whose file did not fit has left an empty directory with a lock.
    if any(path.is_file() and path.name != ".lock" for path in kit.state.rglob("*")):
        say(
            f"Note: {kit.state} already exists, with the secrets of this client's noise."
            " A kit comes without one: remove it, unless this client has joined before."
        )
    policy, allows = read_policy(kit.directory), ""
    with suppress(ValueError):
        policy.check_job(kit.job)
        allows = ", which allows the job of this kit as it stands"
    say(f"Made {path}{allows}; edit it as you like. It says:")
    _say_policy(policy, kit.job)
    return 0


def _say_policy(policy: "Policy", job: "Job") -> None:
    """Prints what a policy allows, and whether it allows the job."""
    from fedtailor.remote.client.promises import said

    for line in (*policy.describe(job), *said(policy, job)):
        say(f"  {line}")
    try:
        policy.check_job(job)
    except ValueError as error:
        say(f"As it stands, {error}.")


def _policy(options: PolicyOptions) -> int:
    from fedtailor.remote.client.client import account_of
    from fedtailor.remote.client.policy import POLICY, read_policy
    from fedtailor.remote.client.store import is_running
    from fedtailor.remote.keys.kit import read_kit

    kit = read_kit(options.kit)
    has_file = (kit.directory / POLICY).exists()
    say(
        f"{kit.name}: {kit.directory / POLICY}"
        if has_file
        else f"{kit.name} has no {POLICY}, and these defaults apply:"
    )
    _say_policy(read_policy(kit.directory), kit.job)
    if is_running(kit.state, kit.job.identity):
        say(
            "This client is running, by the policy that it was started with: if that was"
            " another one, stop it and start it again."
        )
    for line in account_of(kit).describe():
        say(line)
    return 0


def _audit(options: AuditOptions) -> int:
    import json

    from fedtailor.remote.client.audit import read_audit
    from fedtailor.remote.client.client import account_of
    from fedtailor.remote.keys.kit import read_kit
    from fedtailor.remote.wire.request_kind import TRAINING

    kit = read_kit(options.kit)
    entries = list(read_audit(kit.state))
    if options.json:
        for entry in entries:
            say_block(json.dumps(entry))
        return 0
    say("time (UTC)      run     round  kind              bytes  sha256  refused")
    for entry in entries[-options.last :]:
        time = entry["time"][5:19].replace("T", " ")
        # Other tasks than those of training belong to the rounds that are done.
        round = entry["round"] + (entry["kind"] in TRAINING)
        line = (
            f"{time:<14}  {entry['run'][:6]:<6}  {round:>5}"
            f"  {entry['kind']:<11}  {entry['bytes']:>10,}  {entry['sha256'][:6]}"
            f"  {entry.get('refused', '')}"
        )
        say(line.rstrip())
    refusals = sum("refused" in entry for entry in entries)
    total = sum(entry["bytes"] for entry in entries)
    say(
        f"{len(entries)} messages with {total:,} bytes left {kit.name}, {refusals} of"
        " them refusals"
    )
    for line in account_of(kit).describe():
        say(line)
    return 0


def _predict(options: PredictOptions) -> int:
    import polars as pl

    from fedtailor.data.tables.windows import windows_to_predict
    from fedtailor.remote.client.round_requests import PERSONAL, load_own
    from fedtailor.remote.client.store import ClientStore
    from fedtailor.remote.job.plan import plan_of
    from fedtailor.remote.job.statistics import Statistics, read_table
    from fedtailor.remote.job.table import read_rows
    from fedtailor.remote.keys.kit import read_kit

    check_not_input(options.out, options.data)
    kit = read_kit(options.kit)
    directory = ClientStore(kit.state, kit.job.identity).directory
    schema = kit.job.schema
    has_statistics = schema.preprocessing != "none"
    statistics = Statistics.load(directory, schema) if has_statistics else None
    path = directory / PERSONAL
    is_prepared = statistics is not None or not has_statistics
    require(
        path.is_dir() and is_prepared,
        f"{options.kit} holds no personal model yet; it is stored when the training"
        " ends",
    )
    model = load_own(path, plan_of(kit.job, statistics).model, kit.name)
    if statistics is None:
        rows = read_rows(options.data, schema, target=False)
    else:
        rows = read_table(options.data, schema, target=False).rows(statistics)
    index = np.arange(len(rows.x))
    if schema.windowing is not None:
        assert rows.times is not None
        index = windows_to_predict(rows.times, schema.windowing)
    table = predictions_of(
        model,
        rows.x[index],
        schema,
        statistics,
        options.probabilities,
        options.times,
        None
        if options.coverage is None
        else _threshold(path, kit.name, options.coverage),
    )
    if schema.windowing is not None:
        ends = [
            pl.Series("row", index[:, 0] + 1),
            pl.Series("last_row", index[:, -1] + 1),
        ]
        table = pl.DataFrame([*ends, *table.drop("row")])
    write_text(csv_of_frame(table), options.out)
    return 0


def _threshold(path: Path, name: str, coverage: float) -> float:
    """The largest score that sets and intervals take in.

    Raises:
        ValueError: the client had no validation rows, or the coverage is none.
    """
    from fedtailor.engine.storage.calibration_file import CALIBRATION, read_calibration
    from fedtailor.statistics.conformal import conformal_rank, require_coverage

    require_coverage(coverage)
    require(
        (path / CALIBRATION).exists(),
        "sets and intervals are from this client's validation rows, of classes or one"
        " number; the job has none",
    )
    threshold = read_calibration(path).own_threshold(name, coverage)
    rows = threshold.rows
    say_status(f"sets and intervals are from {rows} validation rows of {name}")
    if conformal_rank(rows, coverage) > rows:
        share = f"{100 * coverage:g} %"
        say_status(f"these are too few for {share}: everything is taken in")
    return threshold.value


def predictions_of(
    model: "PersonalModel",
    x: np.ndarray,
    schema: "Schema",
    statistics: "Statistics | None",
    probabilities: bool,
    times: Sequence[float] = (),
    threshold: float | None = None,
) -> "pl.DataFrame":
    """Predictions in the columns of `fedtailor predict`.

    Args:
        model: the client's personal model.
        x: inputs [n, ...].
        schema: the job's columns.
        statistics: the agreed preprocessing; None if the job has none.
        probabilities: whether to return the probability of every class.
        times: of survival, when to predict the share without the event.
        threshold: the largest score that sets and intervals take in, in the unit of the
            model's targets; None = none are asked for.

    Raises:
        ValueError: probabilities are asked of a regression, or curves of a model that has
            none.
    """
    import polars as pl

    from fedtailor.deployment.predictions import (
        check_times,
        columns_of_threshold,
        survival_columns,
    )

    def decode(values: np.ndarray) -> np.ndarray:
        if schema.classes:
            return np.array(schema.classes, object)[values]
        if statistics is None:
            return values
        return statistics.preprocessing(schema).decode(values)

    check_times(model.model.task, times)
    out = model.outputs(x)
    columns = model.model.task.prediction_columns(
        out, decode, probabilities=probabilities
    )
    columns |= survival_columns(model.model.task, out, times)
    if threshold is not None:
        scale = 1.0
        if statistics is not None:
            scale = statistics.preprocessing(schema).target_scale
        columns |= columns_of_threshold(
            model.model.task, out, scale * threshold, decode, columns.get("prediction")
        )
    return pl.DataFrame({"row": np.arange(1, len(out) + 1), **columns})


def _simulate(options: SimulateOptions) -> int:
    from fedtailor.cli.progress import progress_of
    from fedtailor.engine.training import AfterRound
    from fedtailor.remote.job.examples import read_all
    from fedtailor.remote.job.job import read_job
    from fedtailor.remote.job.statistics import correlation_note
    from fedtailor.remote.keys.kit import COORDINATOR, JOB, read_certificates
    from fedtailor.remote.simulation import simulate_job

    job = read_job(options.dir / JOB)
    names = list(read_certificates(options.dir / COORDINATOR))
    require(
        len(options.data) == len(names),
        f"{len(options.data)} files for {len(names)} clients; give one for each, in"
        f" this order: {', '.join(names)}",
    )
    clients, statistics = read_all(job, dict(zip(names, options.data, strict=True)))
    if line := correlation_note(job.schema):
        say(line)
    with progress_of(job.title, job.spec.rounds) as progress:
        finished = simulate_job(
            job,
            clients,
            statistics,
            directory=options.out,
            callbacks=[AfterRound(progress)],
            replay=options.replay,
        )
    _print_scores(finished.training, options.out)
    return 0


COMMANDS: dict[str, tuple[type, Callable[..., int]]] = {
    "init": (InitOptions, _init),
    "describe": (Describe, describe),
    "serve": (ServeOptions, _serve),
    "boost": (Boost, boost),
    "fit": (Fit, fit),
    "join": (JoinOptions, _join),
    "policy": (PolicyOptions, _policy),
    "audit": (AuditOptions, _audit),
    "predict": (PredictOptions, _predict),
    "simulate": (SimulateOptions, _simulate),
    "status": (StatusOptions, status),
    "renew": (RenewOptions, renew),
    "revoke": (RevokeOptions, revoke),
}
