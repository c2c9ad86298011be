"""`fedtailor compare FILE`: an experiment (methods, scenarios, seeds and grids), or a
table of your own.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from fedtailor.cli.commands.report import report
from fedtailor.cli.names import print_help_or_raise
from fedtailor.cli.options import (
    as_option,
    as_typed,
    as_typed_text,
    check_counts,
    check_seeds,
    parse,
)
from fedtailor.cli.own_table import TableComparisonOptions, prepare_table_experiment
from fedtailor.cli.progress import explain_interrupt, progress_over_runs
from fedtailor.executors import Settings
from fedtailor.experiments.compare import Comparison
from fedtailor.experiments.experiment import load
from fedtailor.protocol import require
from fedtailor.tables import ENDINGS

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
    seeds_at_once: int = 1
    """Seeds of a method to train as one cohort: where that fills the devices, it is
    faster.
    """
    budget: bool = False
    """Choose settings after a twelfth and two methods after three eighths of the
    rounds, on validation data: about a third of all rounds."""
    any_version: bool = False
    """Take runs that another version of fedtailor made, too; otherwise they are made
    anew.
    """
    canonical: bool = False
    """Aggregate in the order of clients, so that results do not depend on the number of
    devices.
    """
    track: tuple[str, ...] = ()
    """Show every run in experiment trackers, too: mlflow, tensorboard, wandb (offline).
    """
    json: bool = False
    """Print one JSON object instead of tables."""

    def __post_init__(self) -> None:
        check_counts(self, "devices", "seeds_at_once")


@dataclass(frozen=True)
class TableOptions(Options, TableComparisonOptions):
    """Options for a table of one's own."""

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
        parse(TableOptions, ["--help"], "fedtailor compare TABLE.csv")
        return code
    path, remaining = Path(arguments[0]), arguments[1:]
    program = f"fedtailor compare {path}"
    # The file is read again when runs are resumed, and a pipe can be read only once.
    require(
        path.is_file() or not path.exists(),
        f"{path} is no regular file; write it to one",
    )
    if path.name.lower().endswith(ENDINGS):
        options: Options = parse(TableOptions, remaining, program)
        assert isinstance(options, TableOptions)
        with as_typed():
            experiment, description = prepare_table_experiment(path, options)
        description = as_typed_text(description)
        print(description, file=sys.stderr if options.json else sys.stdout)
    else:
        require(
            path.suffix == ".toml",
            f"{path} is neither an experiment (.toml) nor a table"
            f" ({', '.join(ENDINGS)})",
        )
        options = parse(Options, remaining, program)
        experiment = load(path, quick=options.quick)
    with (
        progress_over_runs(experiment.name, experiment.runs) as progress,
        explain_interrupt("stopped; the same command goes on where it was"),
    ):
        comparison = Comparison(
            experiment,
            options.out,
            Settings(devices=options.devices, canonical=options.canonical),
            progress,
            options.seeds_at_once,
            path,
            options.any_version,
            options.track,
            options.budget,
        )
        index = comparison.run()
    # Print the same tables as `fedtailor report`.
    format_options = ["--format", "json"] if options.json else []
    return report([str(options.out), index.parent.name, *format_options])
