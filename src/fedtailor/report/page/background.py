"""What a reader needs to repeat the numbers, or to doubt them: the data, the settings,
the exact protocol.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from fedtailor.decision.intervals import LEAST_SEEDS
from fedtailor.report.experiment import Experiment, ScenarioUse
from fedtailor.report.page.parts import Section
from fedtailor.report.stored import StoredRun


def data_card(used: ScenarioUse, run: StoredRun) -> Section:
    """Who holds how much of what."""
    arguments = {
        name: value
        for name, value in used.arguments.items()
        if value not in (None, [], ())
    }
    data = run.manifest.get("data", {})
    seen, unseen = (
        run.clients.filter(pl.col("unseen") == newcomer) for newcomer in (False, True)
    )
    entries = [
        ("data", f"{data.get('name', used.use)} ({used.use})"),
        *((name, str(value)) for name, value in arguments.items()),
        (
            "clients",
            f"{len(seen)} that train"
            + (f", {len(unseen)} that never do" if len(unseen) else ""),
        ),
        *(
            (f"{split} rows", _sizes(run.clients[split]))
            for split in ("train", "val", "test")
        ),
    ]
    groups = run.clients["group"].drop_nulls()
    if len(groups):
        entries.append(
            ("true groups", f"{groups.n_unique()} (methods do not see them)")
        )
    if "digest" in data:
        entries.append(("fingerprint", str(data["digest"])))
    return Section("Data set", settings=entries)


def settings(runs: Mapping[str, Sequence[StoredRun]]) -> Section:
    """The model, and every method's settings as its first seed's run directory has
    them.
    """
    first = next(iter(runs.values()))[0]
    entries = [("model", flat(first.manifest.get("model", {})))]
    for label, seeds in runs.items():
        manifest = seeds[0].manifest
        parts = [flat(manifest.get("algorithm", {}))]
        parts += [
            f"{way}: {manifest[way]}"
            for way in ("uplink", "downlink")
            if manifest.get(way)
        ]
        entries.append((label, "; ".join(parts)))
    return Section("Settings", settings=entries)


def protocol(experiment: Experiment, scenario: str, run: StoredRun) -> Section:
    """Which model, which round, which split, which weighting: what a number on this
    page exactly means.
    """
    index, used = experiment.index, experiment.index.scenarios[scenario]
    every = run.manifest.get("run", {}).get("evaluate_every", 1)
    share = used.participation
    reporting = (
        f"{share} clients"
        if isinstance(share, int)
        else f"{100 * share:g} % of the clients"
    )
    seeds = ", ".join(map(str, index.seeds))
    few = (
        f"; fewer than {LEAST_SEEDS}, so nothing is said of other seeds"
        if len(index.seeds) < LEAST_SEEDS
        else ""
    )
    chosen = (
        "by the mean over clients on validation rows, after the last round; never on"
        " test rows"
        if index.candidates
        else "nothing was chosen"
    )
    return Section(
        "Exact protocol",
        settings=[
            (
                "which model",
                (
                    "the personal model that the method gives a client in the end, on"
                    " that client's own rows"
                ),
            ),
            (
                "which round",
                (
                    f"the last one, {used.rounds}; curves: every {every} rounds"
                    if every != 1
                    else f"the last one, {used.rounds}; curves: every round"
                ),
            ),
            (
                "which split",
                (
                    "each client's own test rows; clients that never trained count in"
                    " no mean but their own"
                ),
            ),
            (
                "which weighting",
                "every client counts the same in a mean, whatever its size",
            ),
            ("metric", run.unit.axis),
            ("seeds", f"{seeds}: of splits, initial models and batches{few}"),
            ("who trains", f"{reporting} in a round"),
            ("choice of settings", chosen),
            (
                "overall winner",
                (
                    "paired test over clients and seeds as clusters, Holm's correction"
                    " over all pairs"
                ),
            ),
            (
                "gains",
                (
                    "paired bootstrap over test"
                    f" rows{' and seeds' if len(index.seeds) >= LEAST_SEEDS else ''},"
                    " 95 % for one client and method, not corrected for their number"
                ),
            ),
            (
                "costs",
                (
                    "down: multicast, a model for several clients counts once; probes"
                    " and delivery included"
                ),
            ),
        ],
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> str:
    """Nested settings on one line: "name ditto, sgd.lr 0.1"."""
    parts = []
    for name, value in values.items():
        parts.append(
            flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else f"{prefix}{name} {value}"
        )
    return ", ".join(part for part in parts if part)


def _sizes(sizes: pl.Series) -> str:
    if not sizes.sum():
        return "none"
    values = sizes.to_numpy()
    return (
        f"{values.sum():,}; of a client {values.min():,} to {values.max():,}, median"
        f" {np.median(values):,.0f}"
    )
