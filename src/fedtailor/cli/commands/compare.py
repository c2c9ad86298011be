"""`fedtailor compare FILE`: an experiment (methods, scenarios, seeds and grids), or a
table of your own.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.printable import say, say_block
from fedtailor.cli.advice import as_typed, as_typed_text
from fedtailor.cli.commands.finalize import say_models, write_final
from fedtailor.cli.names import print_help_or_raise
from fedtailor.cli.options import (
    as_option,
    check_counts,
    check_seeds,
    parse,
)
from fedtailor.cli.progress import (
    explain_interrupt,
    progress_over_runs,
    progress_over_settings,
)
from fedtailor.cli.table_experiment import (
    TableComparisonOptions,
    is_cross_validated,
    prepare_table_experiment,
)
from fedtailor.data.tables import ENDINGS
from fedtailor.engine.executors import Settings
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import (
    Experiment,
    in_precision,
    load_experiment,
)
from fedtailor.lab.experiments.plan import MAX_PLAN_SECONDS, PlannedRuns
from fedtailor.lab.experiments.sharding import Shard
from fedtailor.lab.report.comparison import format_parameters
from fedtailor.lab.report.document import show
from fedtailor.lab.report.overview import core_hours, duration
from fedtailor.lab.results.experiment import experiments
from fedtailor.lab.results.tables import ReportTable
from fedtailor.models.precision import FileDType

USAGE = "fedtailor compare EXPERIMENT.toml|TABLE.csv|TABLE.parquet [options]"


@dataclass(frozen=True)
class Options:
    """Options for an experiment file."""

    out: Path = Path("fedtailor-results")
    """Where runs and the index go; runs that are already there are not repeated."""
    quick: bool = False
    """The quick size, where the file has one."""
    devices: int | None = None
    """Devices to use (all by default)."""
    seeds_at_once: int | None = None
    """Seeds of a method to train as one cohort: where that fills the devices, it is
    faster (default: 1; all seeds of a table that is cross-validated by default).
    """
    budget: bool = False
    """Choose settings after a twelfth and two methods after three eighths of the
    rounds, on validation data: about a third of all rounds."""
    shard: str | None = None
    """Share the runs with other processes on this machine or others that see OUT: 2/4 is
    the second of four. Each ends when all runs are done.
    """
    any_version: bool = False
    """Take runs that another version of fedtailor made, too; otherwise they are made
    again.
    """
    precision: FileDType | None = None
    """The type of the models' numbers, in training and in messages: bfloat16 halves
    the messages, and sums stay in float32 (default: the experiment's, or float32)."""
    canonical: bool = False
    """Aggregate in the order of clients, so that results do not depend on the number of
    devices.
    """
    track: tuple[str, ...] = ()
    """Show every run in experiment trackers, too: mlflow, tensorboard, wandb (offline).
    """
    plan: bool = False
    """Print the runs and about how long they take, instead of starting them: some rounds
    of each setting are timed, and nothing is written.
    """
    details: bool = False
    """Print all tables of a comparison on a table: costs, settings, gains of all methods.
    """
    json: bool = False
    """Print one JSON object instead of tables."""

    def __post_init__(self) -> None:
        check_counts(self, "devices", "seeds_at_once")


@dataclass(frozen=True)
class OwnTableOptions(Options, TableComparisonOptions):
    """Options for a table of one's own."""

    finalize: bool = False
    """Refit what is chosen on all rows, and write the models to OUT/TABLE/model, which
    `fedtailor predict`, `export`, `card` and `enroll` take."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "rounds")
        check_seeds("seeds", *(self.seeds or ()))
        for name in ("algorithms", "seeds", "lr"):
            require(
                getattr(self, name) != (),
                f"{as_option(name)} is empty; name one or more",
            )


def compare(arguments: list[str]) -> int:
    """Runs an experiment and prints its tables."""
    if not arguments or arguments[0].startswith("-"):
        code = print_help_or_raise(
            arguments,
            USAGE,
            "An experiment file has its own settings, and takes the options up to --json"
            " only: fedtailor compare EXPERIMENT.toml --help",
        )
        parse(OwnTableOptions, ["--help"], "fedtailor compare TABLE.csv")
        return code
    path, remaining = Path(arguments[0]), arguments[1:]
    program = f"fedtailor compare {path}"
    # The file is read again when runs are resumed, and a pipe can be read only once.
    require(
        path.is_file() or not path.exists(),
        f"{path} is not a regular file; write it to one",
    )
    if path.name.lower().endswith(ENDINGS):
        options: Options = parse(OwnTableOptions, remaining, program)
        assert isinstance(options, OwnTableOptions)
        with as_typed():
            experiment, description = prepare_table_experiment(path, options)
        description = as_typed_text(description)
        say_block(description, file=sys.stderr if options.json else sys.stdout)
    else:
        require(
            path.suffix == ".toml",
            f"{path} is neither an experiment (.toml) nor a table"
            f" ({', '.join(ENDINGS)})",
        )
        options = parse(Options, remaining, program)
        experiment = load_experiment(path, quick=options.quick)
    comparison = Comparison(
        in_precision(experiment, options.precision),
        options.out,
        Settings(devices=options.devices, canonical=options.canonical),
        at_once=_at_once(options, experiment),
        source=path,
        any_version=options.any_version,
        track=options.track,
        budget=options.budget,
        shard=None if options.shard is None else Shard.parse(options.shard),
    )
    if options.plan:
        return _print_plan(comparison, options)
    with (
        progress_over_runs(experiment.name, experiment.runs) as progress,
        explain_interrupt("stopped; the same command continues where it stopped"),
    ):
        comparison.progress = progress
        index = comparison.run()
    name = index.parent.name
    (stored,) = experiments(options.out, [name])
    show(stored, "json" if options.json else "terminal", details=options.details)
    if isinstance(options, OwnTableOptions) and options.finalize:
        from fedtailor.deployment.finalizing import is_current

        if not is_current(stored):
            write_final(
                options.out,
                name,
                model=options.model if ".py:" in options.model else None,
                quiet=True,
                stopped="stopped while the chosen models were refitted; the comparison"
                " is kept, and the same command continues",
            )
    if isinstance(options, OwnTableOptions) and not options.json:
        say_models(options.out, name, is_final=options.finalize)
    return 0


def _at_once(options: Options, experiment: Experiment) -> int:
    """The seeds to train as one cohort: where a table is small, rounds take longer to
    start than to compute.
    """
    if options.seeds_at_once is not None:
        return options.seeds_at_once
    small = isinstance(options, OwnTableOptions) and is_cross_validated(
        options, experiment
    )
    return len(experiment.file.seeds) if small and options.shard is None else 1


def _print_plan(comparison: Comparison, options: Options) -> int:
    """Times the settings of an experiment, and prints its runs."""
    experiment = comparison.experiment
    settings = sum(len(method.candidates) for method in experiment.methods)
    with progress_over_settings(experiment.name, settings) as progress:
        plan = list(comparison.plan(progress))
    devices = options.devices or Settings().mesh().size
    content = _plan_as_dict(experiment.name, plan, devices)
    if options.json:
        say_block(json.dumps(content))
        return 0
    title = f"{experiment.name}: {content['runs']} runs"
    if content["added_runs"]:
        title += f" and up to {content['added_runs']} more to bracket the best settings"
    if content["finished"]:
        title += f", {content['finished']} of them finished"
    ends_early = experiment.file.until_converged
    headers = [
        "rounds,\nat most" if header == "rounds" and ends_early else header
        for header in PLAN_HEADERS
    ]
    ReportTable(
        title, headers, [_plan_cells(planned) for planned in plan], text=2
    ).show()
    for planned in plan:
        for setting in planned.settings:
            if setting.error:
                parameters = format_parameters(setting.parameters)
                label = ", ".join(filter(None, [planned.algorithm, parameters]))
                say(f"{label} on {planned.scenario}: {setting.error}")
    timed = [setting.is_timed for planned in plan for setting in planned.settings]
    if not all(timed):
        say(
            f"{sum(timed)} of {len(timed)} settings were timed in {MAX_PLAN_SECONDS:.0f} s;"
            " the others are taken to need as much as those of their method, or as all."
        )
    unit = "device" if devices == 1 else "devices"
    how_long = "At most" if ends_early else "About"
    say(
        f"{how_long} {duration(content['training_seconds'])} on {devices} {unit} as busy as"
        f" now ({core_hours(content['core_hours'])});"
        f" compiling: {duration(content['compile_seconds'])}."
    )
    if content["added_runs"]:
        say(f"Runs that are added: at most {duration(content['added_seconds'])} more.")
    if ends_early:
        say(
            "A training ends when its validation loss has converged, often much earlier."
        )
    return 0


PLAN_HEADERS = (
    *("scenario", "method", "runs", "done", "rounds", "s a\nround"),
    *("compile", "left"),
)


def _plan_cells(planned: PlannedRuns) -> list[str]:
    """The cells of a method's runs in the table of a plan."""
    counts = [str(count) for count in (planned.runs, planned.finished, planned.rounds)]
    times = ["-", "-", "-"]
    if planned.finished < planned.runs:
        times = [
            f"{planned.round_seconds:.2g}",
            duration(planned.compile_seconds),
            duration(planned.training_seconds),
        ]
    return [planned.scenario, planned.algorithm, *counts, *times]


def _plan_as_dict(name: str, plan: list[PlannedRuns], devices: int) -> dict[str, Any]:
    """A plan as a dict for JSON."""
    return {
        "name": name,
        "runs": sum(planned.runs for planned in plan),
        "finished": sum(planned.finished for planned in plan),
        "added_runs": sum(planned.added_runs for planned in plan),
        "training_seconds": sum(planned.training_seconds for planned in plan),
        "added_seconds": sum(planned.added_seconds for planned in plan),
        "compile_seconds": sum(planned.compile_seconds for planned in plan),
        "devices": devices,
        "core_hours": sum(planned.core_seconds for planned in plan) / 3600,
        "entries": [
            asdict(planned)
            | {
                "training_seconds": planned.training_seconds,
                "added_seconds": planned.added_seconds,
                "core_seconds": planned.core_seconds,
            }
            for planned in plan
        ],
    }
