"""The sections of a page about the data, the settings and the exact protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from fedtailor.engine.storage.comparison_index import ScenarioUse
from fedtailor.lab.report.page.parts import Section
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.stored import StoredRun
from fedtailor.statistics.decision.intervals import MIN_SEEDS


def data_card(scenario: ScenarioUse, run: StoredRun) -> Section:
    """The section about the data: clients, rows and groups."""
    data = run.manifest.get("data", {})
    entries = [("data", f"{data.get('name', scenario.use)} ({scenario.use})")]
    for name, value in scenario.arguments.items():
        if value not in (None, [], ()):
            entries.append((name, str(value)))
    unseen = int(run.clients["unseen"].sum())
    clients = f"{len(run.clients) - unseen} that train"
    if unseen:
        clients += f", {unseen} that never do"
    entries.append(("clients", clients))
    for split in ("train", "val", "test"):
        entries.append((f"{split} rows", _size_summary(run.clients[split])))
    groups = run.clients["group"].drop_nulls()
    if len(groups):
        entries.append(
            ("true groups", f"{groups.n_unique()} (methods do not see them)")
        )
    if "digest" in data:
        entries.append(("fingerprint", str(data["digest"])))
    return Section("Data set", settings=entries)


def settings_section(runs: Mapping[str, Sequence[StoredRun]]) -> Section:
    """The section with the settings of model and methods, for the first seed."""
    first = next(iter(runs.values()))[0]
    entries = [("model", flat_settings(first.manifest.get("model", {})))]
    for label, seeds in runs.items():
        manifest = seeds[0].manifest
        parts = [flat_settings(manifest.get("algorithm", {}))]
        for direction in ("uplink", "downlink"):
            if manifest.get(direction):
                parts.append(f"{direction}: {manifest[direction]}")
        entries.append((label, "; ".join(parts)))
    return Section("Settings", settings=entries)


def protocol(experiment: StoredExperiment, scenario: str, run: StoredRun) -> Section:
    """The section that defines the numbers: their model, round, split and weighting."""
    index, scenario_use = experiment.index, experiment.index.scenarios[scenario]
    interval = run.manifest.get("run", {}).get("evaluate_every", 1)
    curves = "every round" if interval == 1 else f"every {interval} rounds"
    reporters = f"{scenario_use.participation} clients"
    if not isinstance(scenario_use.participation, int):
        reporters = f"{100 * scenario_use.participation:g} % of the clients"
    seeds = f"{', '.join(map(str, index.seeds))}: of splits, initial models and batches"
    sampled_units = "test rows and seeds"
    if len(index.seeds) < MIN_SEEDS:
        seeds += f"; fewer than {MIN_SEEDS}, so nothing is said of other seeds"
        sampled_units = "test rows"
    choice_note = "nothing was chosen"
    if index.candidates:
        choice_note = (
            "by the mean over clients on validation rows, after the last round; never"
            " on test rows"
        )
    entries = {
        "which model": (
            "the personal model that the method gives a client in the end, on that"
            " client's own rows"
        ),
        "which round": f"the last one, {experiment.rounds_text(scenario)}; curves: {curves}",
        "which split": (
            "each client's own test rows; clients that never trained are left out of all"
            " means but their own"
        ),
        "which weighting": "every client counts the same in a mean, whatever its size",
        "metric": run.unit.axis,
        "seeds": seeds,
        "who trains": f"{reporters} in a round",
        "choice of settings": choice_note,
        "overall winner": (
            "paired test over clients and seeds as clusters, Holm's correction over all"
            " pairs"
        ),
        "gains": (
            f"paired over {sampled_units}, 95 % for one client and method; what seeds"
            " add is estimated from all clients; counts also after Holm's correction"
        ),
        "costs": (
            "down: multicast, a model for several clients counts once; probes and"
            " delivery included"
        ),
    }
    return Section("Exact protocol", settings=list(entries.items()))


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> str:
    """Formats nested settings on one line: "name ditto, sgd.lr 0.1"."""
    parts = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            parts.append(flat_settings(value, f"{prefix}{name}."))
        else:
            parts.append(f"{prefix}{name} {value}")
    return ", ".join(part for part in parts if part)


def _size_summary(sizes: pl.Series) -> str:
    """The total size, and the range and the median over clients."""
    values = sizes.to_numpy()
    total = values.sum()
    if not total:
        return "none"
    low, high, median = values.min(), values.max(), np.median(values)
    return f"{total:,}; of a client {low:,} to {high:,}, median {median:,.0f}"
