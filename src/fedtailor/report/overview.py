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
    """One paragraph each: source, note, size, every scenario, machine."""
    index = experiment.index
    done, seeds = experiment.done, ", ".join(map(str, index.seeds))
    progress = (
        f"{done} runs"
        if done == index.runs
        else f"unfinished: {done} of {index.runs} runs"
    )
    choosing = ", those made to choose settings included" if index.candidates else ""
    fewer = done < index.runs or experiment.diverged
    facts = [
        f"Source: {index.source}" if index.source else "",
        f"Differences: {index.note}" if index.note else "",
        (
            f"Size: {index.size}; seeds {seeds}; {progress}{choosing};"
            f" {duration(index.seconds)}"
        ),
        *(
            _scenario(label, used, _any(experiment, label))
            for label, used in index.scenarios.items()
        ),
        *_privacy(experiment),
        (
            f"Means over fewer than the {len(index.seeds)} seeds say over how many: [n]"
            if fewer
            else ""
        ),
        _budget(index.budget),
        (
            "Numbers are means over the seeds ± their standard deviation"
            if len(index.seeds) > 1
            else ""
        ),
        f"Machine: {index.machine}",
        *(_skipped(skipped) for skipped in index.skipped),
        f"Versions: {_versions(experiment)}",
    ]
    return [fact for fact in facts if fact]


def _versions(experiment: Experiment) -> str:
    """What made the runs: the versions that their manifests name, with numbers of runs
    where they differ.
    """
    packages = experiment.versions
    if not packages:
        return ", ".join(
            f"{name} {version}" for name, version in experiment.index.versions.items()
        )
    parts = []
    for name, versions in packages.items():
        counts = [
            f"{version} ({runs} runs)" for version, runs in sorted(versions.items())
        ]
        parts.append(
            f"{name}"
            f" {' and '.join(counts) if len(counts) > 1 else next(iter(versions))}"
        )
    mixed = [name for name, versions in packages.items() if len(versions) > 1]
    warning = (
        f"; these runs were made by different versions of {', '.join(mixed)}"
        if mixed
        else ""
    )
    return ", ".join(parts) + warning


def _budget(budget: Budget | None) -> str:
    if budget is None:
        return ""
    return (
        f"Budget: {budget.rounds:,} rounds instead of {budget.full:,}: methods and"
        " settings were halved on validation data of the first seed, and the last two"
        " methods were trained to the end"
    )


def _skipped(skipped: Skipped) -> str:
    seed = "" if skipped.seed is None else f", seed {skipped.seed}"
    settings = ", ".join(
        f"{name} {value}" for name, value in skipped.parameters.items()
    )
    return (
        f"Not run: {skipped.algorithm} on"
        f" {skipped.scenario}{seed}{f' ({settings})' if settings else ''}:"
        f" {skipped.why}"
    )


def duration(seconds: float) -> str:
    """Wall time in the unit that suits it."""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _scenario(label: str, used: ScenarioUse, run: StoredRun | None) -> str:
    """Data, clients, model and rounds; clients and samples as in the first run."""
    # what is not given says nothing to a reader: a table has twenty options
    given = {
        name: value
        for name, value in used.arguments.items()
        if value not in (None, [], False)
    }
    parts = [
        f"{used.use}({', '.join(f'{name}={value}' for name, value in given.items())})"
    ]
    if run is not None:
        seen, unseen = (
            run.clients.filter(pl.col("unseen") == newcomer)
            for newcomer in (False, True)
        )
        parts.append(f"{len(seen)} clients with {_samples(seen)}")
        if len(unseen):
            parts.append(f"{len(unseen)} unseen clients with {_samples(unseen)}")
    model = (
        f"{used.model}, which is linear"
        if used.model == repr(logistic())
        else used.model
    )
    parts += [
        f"model {model}",
        f"{used.rounds} rounds",
        f"{_reporters(used)} report in a round",
    ]
    return f"Scenario {label}: {'; '.join(parts)}"


def _privacy(experiment: Experiment) -> list[str]:
    """What methods with a guarantee of differential privacy gave away: the largest
    epsilon of a client and seed.
    """
    lines = []
    for scenario, rows in experiment.runs.items():
        for label, runs in rows.items():
            largest: dict[str, float] = {}
            for run in runs:
                last = run.metrics.filter(
                    (pl.col("split") == PRIVACY)
                    & (pl.col("round") == pl.col("round").max())
                )
                for name, value in (
                    last.group_by("metric")
                    .agg(pl.col("value").max())
                    .sort("metric")
                    .iter_rows()
                ):
                    largest[name] = max(value, largest.get(name, 0.0))
            told = ", ".join(
                f"{name.replace('_', ' ')} {value:.2f}"
                for name, value in largest.items()
            )
            lines += (
                [f"Privacy of {label} on {scenario}: at most {told}"] if told else []
            )
    return lines


def _samples(clients: pl.DataFrame) -> str:
    """The samples of some clients together, by split."""
    sizes = {split: clients[split].sum() for split in ("train", "val", "test")}
    return (
        ", ".join(f"{size:,} {split}" for split, size in sizes.items() if size)
        + " samples"
    )


def _reporters(used: ScenarioUse) -> str:
    if not isinstance(used.participation, int) and used.participation == 1:
        return "all clients"
    whole = isinstance(used.participation, int)
    share = (
        f"{used.participation} clients"
        if whole
        else f"{100 * used.participation:g} % of the clients"
    )
    return f"{share}, drawn by their samples," if used.sampling == "samples" else share


def _any(experiment: Experiment, scenario: str) -> StoredRun | None:
    return next(
        (run for runs in experiment.runs[scenario].values() for run in runs), None
    )
