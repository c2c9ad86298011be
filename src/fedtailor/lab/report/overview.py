"""The overview at the start of a report: what was run."""

import polars as pl

from fedtailor.engine.storage.comparison_index import ScenarioUse, Skipped
from fedtailor.engine.training.metrics import PRIVACY
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.stored import StoredRun
from fedtailor.models import linear, logistic


def title(experiment: StoredExperiment) -> str:
    """The title of a report."""
    name, text = experiment.index.name, experiment.index.title
    # A table of one's own has its name in the title.
    return text if text.startswith(name) else f"{name}: {text}"


def paragraphs(experiment: StoredExperiment) -> list[str]:
    """Paragraphs about what was run, such as source, scenarios and versions."""
    index, done = experiment.index, experiment.done
    seeds = ", ".join(map(str, index.seeds))
    progress = experiment.unfinished or f"{done} runs"
    if index.candidates:
        progress += ", those made to choose settings included"

    paragraphs = []
    if index.source:
        paragraphs.append(f"Source: {index.source}")
    if index.note:
        paragraphs.append(f"Differences: {index.note}")
    took = duration(index.seconds)
    if index.core_seconds is not None:
        took += f", {core_hours(index.core_seconds / 3600)}"
    paragraphs.append(f"Size: {index.size}; seeds {seeds}; {progress}; {took}")
    for label, scenario in index.scenarios.items():
        all_runs = [run for runs in experiment.runs[label].values() for run in runs]
        rounds, first = experiment.rounds_text(label), next(iter(all_runs), None)
        paragraphs.append(_scenario(label, scenario, rounds, first))
    paragraphs += _privacy(experiment)
    if experiment.unfinished or experiment.diverged:
        paragraphs.append(
            f"Means over fewer than the {len(index.seeds)} seeds say over how many: [n]"
        )
    if experiment.lacks_unseen:
        paragraphs.append(
            "The table of unseen clients is left out, as all clients train: name some that"
            " never do (unseen = 0.2 in a scenario of the file)"
        )
    if index.budget is not None:
        paragraphs.append(
            f"Budget: {index.budget.rounds:,} rounds instead of {index.budget.full:,}:"
            " methods and settings were halved on validation data of the first seed,"
            " and the last two methods were trained to the end"
        )
    if len(index.seeds) > 1:
        paragraphs.append("Numbers are means over the seeds ± their standard deviation")
    paragraphs.append(f"Machine: {index.machine}")
    paragraphs += [_skipped(skipped) for skipped in index.skipped]
    paragraphs.append(f"Versions: {_versions(experiment)}")
    return paragraphs


def _versions(experiment: StoredExperiment) -> str:
    """The versions of packages in the manifests of the runs.

    If the versions of a package differ, each has its number of runs.
    """
    packages = experiment.versions
    if not packages:
        versions = experiment.index.versions
        return ", ".join(f"{name} {version}" for name, version in versions.items())
    parts, mixed_packages = [], []
    for name, runs_by_version in packages.items():
        if len(runs_by_version) == 1:
            parts.append(f"{name} {next(iter(runs_by_version))}")
            continue
        counts = [
            f"{version} ({runs} runs)"
            for version, runs in sorted(runs_by_version.items())
        ]
        parts.append(f"{name} {' and '.join(counts)}")
        mixed_packages.append(name)
    text = ", ".join(parts)
    if mixed_packages:
        names = ", ".join(mixed_packages)
        text += f"; these runs were made by different versions of {names}"
    return text


def _skipped(skipped: Skipped) -> str:
    subject = f"{skipped.algorithm} on {skipped.scenario}"
    if skipped.seed is not None:
        subject += f", seed {skipped.seed}"
    if skipped.parameters:
        settings = (f"{name} {value}" for name, value in skipped.parameters.items())
        subject += f" ({', '.join(settings)})"
    return f"Not run: {subject}: {skipped.why}"


def duration(seconds: float) -> str:
    """Formats a wall time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def core_hours(hours: float) -> str:
    """Formats hours of one core, to two digits."""
    return f"{float(f'{hours:.2g}'):g} core hours"


def _scenario(
    label: str, scenario: ScenarioUse, rounds: str, run: StoredRun | None
) -> str:
    """Data, clients, model and rounds of a scenario; clients are those of a run."""
    # Omit options that are not set: a table has twenty of them.
    arguments = ", ".join(
        f"{name}={value}"
        for name, value in scenario.arguments.items()
        if value not in (None, [], False)
    )
    parts = [f"{scenario.use}({arguments})"]
    if run is not None:
        seen = run.seen_clients
        unseen = run.clients.filter(pl.col("unseen"))
        parts.append(f"{len(seen)} clients with {_sample_counts(seen)}")
        if len(unseen):
            parts.append(f"{len(unseen)} unseen clients with {_sample_counts(unseen)}")
    is_linear = scenario.model in (str(linear()), str(logistic()))
    linear_note = ", which is linear" if is_linear else ""
    parts.append(f"model {scenario.model}{linear_note}")
    parts.append(rounds)
    parts.append(f"{_reporters(scenario)} report in a round")
    return f"Scenario {label}: {'; '.join(parts)}"


def _privacy(experiment: StoredExperiment) -> list[str]:
    """The largest epsilons over clients and seeds of differentially private methods."""
    lines = []
    for scenario, rows in experiment.runs.items():
        for label, runs in rows.items():
            largest: dict[str, float] = {}
            for run in runs:
                is_final_epsilon = (pl.col("split") == PRIVACY) & (
                    pl.col("round") == pl.col("round").max()
                )
                last = run.metrics.filter(is_final_epsilon)
                maxima = last.group_by("metric").agg(pl.col("value").max())
                for name, value in maxima.sort("metric").iter_rows():
                    largest[name] = max(value, largest.get(name, 0.0))
            if largest:
                epsilons = ", ".join(
                    f"{name.replace('_', ' ')} {value:.2f}"
                    for name, value in largest.items()
                )
                lines.append(f"Privacy of {label} on {scenario}: at most {epsilons}")
    return lines


def _sample_counts(clients: pl.DataFrame) -> str:
    """The total numbers of samples of some clients, by split."""
    sizes = {split: clients[split].sum() for split in ("train", "val", "test")}
    parts = [f"{size:,} {split}" for split, size in sizes.items() if size]
    return f"{', '.join(parts)} samples"


def _reporters(scenario: ScenarioUse) -> str:
    # The integer 1 means one client, the float 1.0 all clients.
    if isinstance(scenario.participation, int):
        reporters = f"{scenario.participation} clients"
    elif scenario.participation == 1:
        return "all clients"
    else:
        reporters = f"{100 * scenario.participation:g} % of the clients"
    sampling_note = (
        ", drawn by their samples," if scenario.sampling == "samples" else ""
    )
    return f"{reporters}{sampling_note}"
