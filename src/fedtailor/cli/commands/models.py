"""`fedtailor models RUN|RESULTS`: the personal models of runs, client by client, with
what they reach.
"""

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedtailor._base.printable import say, say_block
from fedtailor.cli.options import parse


@dataclass(frozen=True)
class Options:
    """List the personal models that a run holds, or each run of a comparison."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|RESULTS")]
    """A run directory, the results of `fedtailor compare`, or one experiment in them.
    """
    client: str | None = None
    """Only the models of this client, over all runs, seed by seed (each has its own
    split), the best on its validation data first."""
    json: bool = False
    """Print one JSON array instead of tables."""


def models(arguments: list[str]) -> int:
    """Prints the list of personal models."""
    options = parse(Options, arguments, "fedtailor models")
    from fedtailor.deployment.listing import list_models

    entries = list_models(options.path, options.client)
    if options.client is not None:
        entries.sort(key=_sort_key)
    if options.json:
        say_block(json.dumps(entries, indent=2, allow_nan=False))
    elif options.client is not None:
        _show(f"{options.client}: models", entries, of_client=True)
    else:
        by_run = groupby(entries, key=lambda entry: entry["run"])
        for number, (run, run_entries) in enumerate(by_run):
            if number:
                say("")
            _show(run, list(run_entries), of_client=False)
    return 0


def _sort_key(entry: dict[str, Any]) -> tuple[str, int, bool, float]:
    """The key that sorts runs on the same rows by validation score, best first.

    Runs without a validation score come last.
    """
    value = entry["on_val"]
    if value is None:
        return entry["scenario"], entry["seed"], True, 0.0
    loss = -value if entry["higher_is_better"] else value
    return entry["scenario"], entry["seed"], False, loss


def _show(title: str, entries: list[dict[str, Any]], *, of_client: bool) -> None:
    from fedtailor.lab.results.tables import ReportTable
    from fedtailor.lab.results.units import unit_of

    unit = unit_of(entries[0]["metric"])

    def describe(entry: dict[str, Any]) -> str:
        return f"{entry['scenario']}: {entry['algorithm']}, seed {entry['seed']}"

    def format_value(value: float | None) -> str:
        return "-" if value is None else f"{unit.scale * value:.{unit.digits}f}"

    rows = []
    for entry in entries:
        if of_client:
            names = [describe(entry), entry["run"]]
        else:
            newcomer = " (newcomer)" if entry["unseen"] else ""
            names = [f"{entry['client']}{newcomer}", entry["model"]]
        sizes = [f"{entry[split]:,}" for split in ("train", "val", "test")]
        rows.append(
            [
                *names,
                *sizes,
                format_value(entry["on_val"]),
                format_value(entry["on_test"]),
            ]
        )
    name_columns = ["client", "predicts with"]
    if of_client:
        name_columns = ["model of", "run"]
    else:
        title = f"{title}: {describe(entries[0])}"
    table = ReportTable(
        f"{title}; {unit.label}, after the last round",
        [*name_columns, "train", "val", "test", "on val", "on test"],
        rows,
        text=2,
    )
    table.show()
