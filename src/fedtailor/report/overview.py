"""The first part of a report: what was run."""

import polars as pl

from fedtailor.models import logistic
from fedtailor.report.experiment import Budget, Experiment, ScenarioUse, Skipped
from fedtailor.report.stored import StoredRun
from fedtailor.training.metrics import PRIVACY


def title(experiment: Experiment) -> str:
    """The headline."""
    return f"{experiment.index.name}: {experiment.index.title}"


def facts(experiment: Experiment) -> list[str]:
    """What was run: source, note, size, every scenario, machine; a paragraph each."""
    index, done = experiment.index, experiment.done
    finished = done == index.runs
    seeds = ", ".join(map(str, index.seeds))
    progress = (
        f"{done} runs" if finished else f"unfinished: {done} of {index.runs} runs"
    )
    if index.candidates:
        progress += ", those made to choose settings included"

    facts = []
    if index.source:
        facts.append(f"Source: {index.source}")
    if index.note:
        facts.append(f"Differences: {index.note}")
    took = duration(index.seconds)
    facts.append(f"Size: {index.size}; seeds {seeds}; {progress}; {took}")
    for label, used in index.scenarios.items():
        every = [run for runs in experiment.runs[label].values() for run in runs]
        facts.append(_scenario(label, used, every[0] if every else None))
    facts += _privacy(experiment)
    if done < index.runs or experiment.diverged:
        facts.append(
            f"Means over fewer than the {len(index.seeds)} seeds say over how many: [n]"
        )
    if index.budget is not None:
        facts.append(_budget(index.budget))
    if len(index.seeds) > 1:
        facts.append("Numbers are means over the seeds ± their standard deviation")
    facts.append(f"Machine: {index.machine}")
    facts += [_skipped(skipped) for skipped in index.skipped]
    facts.append(f"Versions: {_versions(experiment)}")
    return facts


def _versions(experiment: Experiment) -> str:
    """What made the runs: the versions that their manifests name.

    Where these differ, each is followed by its number of runs.
    """
    packages = experiment.versions
    if not packages:
        versions = experiment.index.versions
        return ", ".join(f"{name} {version}" for name, version in versions.items())
    parts, mixed = [], []
    for name, runs_by_version in packages.items():
        if len(runs_by_version) == 1:
            parts.append(f"{name} {next(iter(runs_by_version))}")
            continue
        counts = [
            f"{version} ({runs} runs)"
            for version, runs in sorted(runs_by_version.items())
        ]
        parts.append(f"{name} {' and '.join(counts)}")
        mixed.append(name)
    text = ", ".join(parts)
    if mixed:
        text += f"; these runs were made by different versions of {', '.join(mixed)}"
    return text


def _budget(budget: Budget) -> str:
    return (
        f"Budget: {budget.rounds:,} rounds instead of {budget.full:,}: methods and"
        " settings were halved on validation data of the first seed, and the last two"
        " methods were trained to the end"
    )


def _skipped(skipped: Skipped) -> str:
    where = f"{skipped.algorithm} on {skipped.scenario}"
    if skipped.seed is not None:
        where += f", seed {skipped.seed}"
    if skipped.parameters:
        settings = (f"{name} {value}" for name, value in skipped.parameters.items())
        where += f" ({', '.join(settings)})"
    return f"Not run: {where}: {skipped.why}"


def duration(seconds: float) -> str:
    """Wall time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _scenario(label: str, used: ScenarioUse, run: StoredRun | None) -> str:
    """Data, clients, model and rounds; clients and samples as in the first run."""
    # Options that are not given say nothing to a reader: a table has twenty of them.
    arguments = ", ".join(
        f"{name}={value}"
        for name, value in used.arguments.items()
        if value not in (None, [], False)
    )
    parts = [f"{used.use}({arguments})"]
    if run is not None:
        seen = run.clients.filter(~pl.col("unseen"))
        unseen = run.clients.filter(pl.col("unseen"))
        parts.append(f"{len(seen)} clients with {_samples(seen)}")
        if len(unseen):
            parts.append(f"{len(unseen)} unseen clients with {_samples(unseen)}")
    linear = ", which is linear" if used.model == repr(logistic()) else ""
    parts.append(f"model {used.model}{linear}")
    parts.append(f"{used.rounds} rounds")
    parts.append(f"{_reporters(used)} report in a round")
    return f"Scenario {label}: {'; '.join(parts)}"


def _privacy(experiment: Experiment) -> list[str]:
    """What methods with a guarantee of differential privacy gave away.

    Of each method and scenario, the largest epsilon of a client and seed.
    """
    lines = []
    for scenario, rows in experiment.runs.items():
        for label, runs in rows.items():
            largest: dict[str, float] = {}
            for run in runs:
                private = (pl.col("split") == PRIVACY) & (
                    pl.col("round") == pl.col("round").max()
                )
                last = run.metrics.filter(private)
                maxima = last.group_by("metric").agg(pl.col("value").max())
                for name, value in maxima.sort("metric").iter_rows():
                    largest[name] = max(value, largest.get(name, 0.0))
            if largest:
                told = ", ".join(
                    f"{name.replace('_', ' ')} {value:.2f}"
                    for name, value in largest.items()
                )
                lines.append(f"Privacy of {label} on {scenario}: at most {told}")
    return lines


def _samples(clients: pl.DataFrame) -> str:
    """The samples of some clients together, by split."""
    sizes = {split: clients[split].sum() for split in ("train", "val", "test")}
    parts = [f"{size:,} {split}" for split, size in sizes.items() if size]
    return f"{', '.join(parts)} samples"


def _reporters(used: ScenarioUse) -> str:
    # 1 is one client, 1.0 all of them.
    if isinstance(used.participation, int):
        share = f"{used.participation} clients"
    elif used.participation == 1:
        return "all clients"
    else:
        share = f"{100 * used.participation:g} % of the clients"
    return f"{share}, drawn by their samples," if used.sampling == "samples" else share
