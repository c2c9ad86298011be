"""`fedtailor models RUN|RESULTS`: the personal models of runs, client by client, with
what they reach.
"""

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro

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
    """Print who has a model where."""
    options = parse(Options, arguments, "fedtailor models")
    from fedtailor.deployment.listing import list_models

    found = list_models(options.path, options.client)
    if options.client is not None:
        found.sort(key=_rank)
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    elif options.client is not None:
        _show(f"{options.client}: models", found, of_client=True)
    else:
        for number, (run, entries) in enumerate(
            groupby(found, key=lambda entry: entry["run"])
        ):
            print("\n" * (number > 0), end="")
            _show(run, list(entries), of_client=False)
    return 0


def _rank(entry: dict[str, Any]) -> tuple[str, int, bool, float]:
    """Best on validation data first, among runs on the same rows; what was not measured
    last.
    """
    value = entry["on_val"]
    loss = 0.0 if value is None else -value if entry["higher_is_better"] else value
    return entry["scenario"], entry["seed"], value is None, loss


def _show(title: str, entries: list[dict[str, Any]], *, of_client: bool) -> None:
    from fedtailor.report.tables import Table
    from fedtailor.report.units import unit_of

    first = entries[0]
    unit = unit_of(first["metric"])
    what = [
        f"{one['scenario']}: {one['algorithm']}, seed {one['seed']}" for one in entries
    ]
    rows = [
        [
            (
                label
                if of_client
                else one["client"] + (" (newcomer)" if one["unseen"] else "")
            ),
            one["run"] if of_client else one["model"],
            *(f"{one[split]:,}" for split in ("train", "val", "test")),
            *(
                "-" if one[on] is None else f"{unit.scale * one[on]:.{unit.digits}f}"
                for on in ("on_val", "on_test")
            ),
        ]
        for label, one in zip(what, entries, strict=True)
    ]
    heads = ("model of", "run") if of_client else ("client", "predicts with")
    shown = title if of_client else f"{title}: {what[0]}"
    Table(
        f"{shown}; {unit.label}, after the last round",
        [*heads, "train", "val", "test", "on val", "on test"],
        rows,
        text=2,
    ).show()
