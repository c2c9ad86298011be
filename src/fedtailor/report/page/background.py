"""What a reader needs to repeat the numbers, or to doubt them.

That is the data, the settings and the exact protocol.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from fedtailor.decision.intervals import MIN_SEEDS
from fedtailor.report.experiment import Experiment, ScenarioUse
from fedtailor.report.page.parts import Section
from fedtailor.report.stored import StoredRun


def data_card(used: ScenarioUse, run: StoredRun) -> Section:
    """Who holds how much of what."""
    data = run.manifest.get("data", {})
    entries = [("data", f"{data.get('name', used.use)} ({used.use})")]
    for name, value in used.arguments.items():
        if value not in (None, [], ()):
            entries.append((name, str(value)))
    unseen = int(run.clients["unseen"].sum())
    clients = f"{len(run.clients) - unseen} that train"
    if unseen:
        clients += f", {unseen} that never do"
    entries.append(("clients", clients))
    for split in ("train", "val", "test"):
        entries.append((f"{split} rows", _sizes(run.clients[split])))
    groups = run.clients["group"].drop_nulls()
    if len(groups):
        entries.append(
            ("true groups", f"{groups.n_unique()} (methods do not see them)")
        )
    if "digest" in data:
        entries.append(("fingerprint", str(data["digest"])))
    return Section("Data set", settings=entries)


def settings(runs: Mapping[str, Sequence[StoredRun]]) -> Section:
    """The model, and every method's settings, as the first seed's manifest has them."""
    first = next(iter(runs.values()))[0]
    entries = [("model", flat(first.manifest.get("model", {})))]
    for label, seeds in runs.items():
        manifest = seeds[0].manifest
        parts = [flat(manifest.get("algorithm", {}))]
        for direction in ("uplink", "downlink"):
            if manifest.get(direction):
                parts.append(f"{direction}: {manifest[direction]}")
        entries.append((label, "; ".join(parts)))
    return Section("Settings", settings=entries)


def protocol(experiment: Experiment, scenario: str, run: StoredRun) -> Section:
    """What a number on this page exactly means.

    That is: which model, which round, which split, which weighting.
    """
    index, used = experiment.index, experiment.index.scenarios[scenario]
    every = run.manifest.get("run", {}).get("evaluate_every", 1)
    curves = "every round" if every == 1 else f"every {every} rounds"
    reporting = f"{used.participation} clients"
    if not isinstance(used.participation, int):
        reporting = f"{100 * used.participation:g} % of the clients"
    seeds = f"{', '.join(map(str, index.seeds))}: of splits, initial models and batches"
    resampled = "test rows and seeds"
    if len(index.seeds) < MIN_SEEDS:
        seeds += f"; fewer than {MIN_SEEDS}, so nothing is said of other seeds"
        resampled = "test rows"
    chosen = "nothing was chosen"
    if index.candidates:
        chosen = (
            "by the mean over clients on validation rows, after the last round; never"
            " on test rows"
        )
    entries = {
        "which model": (
            "the personal model that the method gives a client in the end, on that"
            " client's own rows"
        ),
        "which round": f"the last one, {used.rounds}; curves: {curves}",
        "which split": (
            "each client's own test rows; clients that never trained count in no mean"
            " but their own"
        ),
        "which weighting": "every client counts the same in a mean, whatever its size",
        "metric": run.unit.axis,
        "seeds": seeds,
        "who trains": f"{reporting} in a round",
        "choice of settings": chosen,
        "overall winner": (
            "paired test over clients and seeds as clusters, Holm's correction over all"
            " pairs"
        ),
        "gains": (
            f"paired bootstrap over {resampled}, 95 % for one client and method, not"
            " corrected for their number"
        ),
        "costs": (
            "down: multicast, a model for several clients counts once; probes and"
            " delivery included"
        ),
    }
    return Section("Exact protocol", settings=list(entries.items()))


def flat(values: Mapping[str, Any], prefix: str = "") -> str:
    """Nested settings on one line: "name ditto, sgd.lr 0.1"."""
    parts = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            parts.append(flat(value, f"{prefix}{name}."))
        else:
            parts.append(f"{prefix}{name} {value}")
    return ", ".join(part for part in parts if part)


def _sizes(sizes: pl.Series) -> str:
    """The sum, and the range of clients."""
    values = sizes.to_numpy()
    total = values.sum()
    if not total:
        return "none"
    low, high, median = values.min(), values.max(), np.median(values)
    return f"{total:,}; of a client {low:,} to {high:,}, median {median:,.0f}"
