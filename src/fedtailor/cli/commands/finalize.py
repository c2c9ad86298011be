"""`fedtailor finalize RESULTS`: what a comparison chose, refitted on all rows."""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedtailor._base.printable import say
from fedtailor.cli.options import parse
from fedtailor.cli.output import write_text
from fedtailor.engine.storage.final_models import (
    DEFAULT_FOLDER,
    FinalModels,
    read_final,
)
from fedtailor.engine.storage.run_files import COMPARISON_INDEX


@dataclass(frozen=True)
class Options:
    """Train the method that `fedtailor compare TABLE` recommends on all rows of the table,
    those of training, validation and test, and write the models into one directory.

    `fedtailor predict`, `export`, `card` and `enroll` take that directory, and the
    results themselves.
    """

    results: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS")]
    """The directory with the results of the comparison."""
    experiment: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")
    ] = None
    """Which comparison (default: the only one)."""
    out: Path | None = None
    """A new directory for the models (default: RESULTS/EXPERIMENT/model, where older ones
    are replaced)."""
    method: str | None = None
    """Refit this method for all clients, instead of what is recommended."""
    use: Literal["per-client", "for-all"] = "per-client"
    """For each client what the decision says about it, or for all the one method that
    it recommends.
    """
    table: Path | None = None
    """Where the table is now, if it was moved."""
    keep_test: bool = False
    """Do not train on the test rows of the first split: sets and intervals (`predict
    --coverage`) are then a promise of these models.
    """
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""
    json: bool = False
    """Print one JSON object: where the models are, and which client uses which."""


def finalize(arguments: list[str]) -> int:
    """Refits the chosen methods on all rows."""
    options = parse(Options, arguments, "fedtailor finalize")
    directory = write_final(
        options.results,
        options.experiment,
        out=options.out,
        method=options.method,
        use=options.use,
        table=options.table,
        keep_test=options.keep_test,
        model=options.model,
        quiet=options.json,
    )
    if options.json:
        content = {"directory": str(directory), **asdict(read_final(directory))}
        write_text(json.dumps(content, allow_nan=False, indent=1), None)
    return 0


def write_final(
    results: Path,
    experiment: str | None,
    *,
    out: Path | None = None,
    method: str | None = None,
    use: Literal["per-client", "for-all"] = "per-client",
    table: Path | None = None,
    keep_test: bool = False,
    model: str | None = None,
    quiet: bool = False,
    stopped: str = "stopped; nothing was written",
) -> Path:
    """Refits the chosen methods, and says where the models are.

    Args:
        stopped: what is said if the user interrupts it.
        quiet: whether to say nothing else.
        results, experiment, out, method, use, table, keep_test, model: see `Options`.
    """
    from fedtailor.cli.progress import explain_interrupt, progress_of
    from fedtailor.deployment.finalizing import finalize as refit
    from fedtailor.lab.experiments.option_text import given_model

    with explain_interrupt(stopped):
        directory, record = refit(
            results,
            experiment,
            out,
            method=method,
            use=use,
            table=table,
            keep_test=keep_test,
            model=given_model(model),
            follow=progress_of,
        )
    if not quiet:
        _say_record(directory, record)
    return directory


def say_models(results: Path, experiment: str, *, is_final: bool) -> None:
    """Says where the final models of a comparison are, or how they are made."""
    if is_final:
        directory = results / experiment / DEFAULT_FOLDER
        _say_record(directory, read_final(directory))
        return
    one = sum(1 for _ in results.glob(f"*/{COMPARISON_INDEX}")) == 1
    say(
        "To refit it on all rows and write the models: fedtailor finalize"
        f" {results}{'' if one else f' {experiment}'}"
    )


def _say_record(directory: Path, record: FinalModels) -> None:
    methods = dict.fromkeys(it.method for it in record.clients.values())
    client = next(iter(record.clients))
    trained = f"all {record.rows:,} rows"
    if record.kept:
        trained = f"{record.rows:,} rows, without {record.kept:,} test rows"
    say(
        f"The models, refitted on {trained} ({', '.join(methods)}): {directory}",
        f"fedtailor predict {directory} ROWS.csv --client {shlex.quote(client)}",
    )
