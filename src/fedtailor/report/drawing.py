"""The figures of an experiment, and of any runs.

What is drawn is decided here; how it is drawn, in `figures`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor.accounting import WIRELESS_PRESETS
from fedtailor.protocol import require
from fedtailor.protocol.diagnostics import Diagnostic, LineDiagnostic
from fedtailor.report import costs, figures
from fedtailor.report.experiment import Experiment
from fedtailor.report.figures import Curve
from fedtailor.report.stored import Runs, StoredRun
from fedtailor.report.units import Unit


def by_round(runs: Runs, path: Path) -> list[Path]:
    """Accuracy (or loss) on test, mean over clients, by round."""
    panels = {name: (methods, StoredRun.curve) for name, methods in runs.items()}
    return _lines(panels, runs, "round", path)


def by_bytes(runs: Runs, path: Path) -> list[Path]:
    """The same by traffic. Methods that send nothing are left out."""
    panels = {
        name: (_talking(methods), _by_megabytes) for name, methods in runs.items()
    }
    return _lines(panels, runs, "MB down (multicast) and up", path, x_scale="log")


def by_time(runs: Runs, path: Path) -> list[Path]:
    """The same by time over a wireless network.

    Each scenario has a row of panels, one for each of the `WIRELESS_PRESETS`.
    """
    panels = {}
    for name, methods in runs.items():
        for system, network in WIRELESS_PRESETS.items():
            title = f"{name}\n{system}: rho={network.rho:g}"
            curve = partial(StoredRun.by_time, system=network)
            panels[title] = (_talking(methods), curve)
    x_label = "time (in units of one model's downlink)"
    return _lines(
        panels, runs, x_label, path, columns=len(WIRELESS_PRESETS), x_scale="log"
    )


def histogram(runs: Runs, path: Path) -> list[Path]:
    """The clients' own accuracies (or losses) on test after the last round.

    Those of all seeds are counted together.
    """
    panels, x_labels = {}, []
    for name, methods in runs.items():
        if tested := _tested(methods):
            panels[name] = {
                label: np.concatenate([_values(run) for run in seeds])
                for label, seeds in tested.items()
            }
            x_labels.append(f"test {_unit(methods).axis}, of a client (line: mean)")
    if not panels:
        return []
    return figures.histograms(panels, x_labels, path, labels=_by_look(runs))


def collaboration(runs: Runs, path: Path) -> list[Path]:
    """Who learns from whom: the first seed of the first row whose method says it."""
    return diagnostics(runs, path, only="collaboration")


def silhouette(runs: Runs, path: Path) -> list[Path]:
    """How well clients fall into k streams.

    Drawn for the first row whose method chooses k by itself.
    """
    return diagnostics(runs, path, only="silhouette")


def diagnostics(runs: Runs, path: Path, *, only: str | None = None) -> list[Path]:
    """What methods tell about themselves (`Algorithm.diagnostics`), a panel for each.

    Args:
        runs: of all rows.
        path: of the figure, without suffix.
        only: the diagnostic of that name, of the first row of each scenario that has
            it; by default those of all rows that no figure of their own shows.
    """
    panels: dict[str, figures.Panel] = {}
    for scenario, methods in runs.items():
        for label, seeds in _drawn(methods).items():
            for name, first in seeds[0].diagnostics.items():
                if only is None:
                    wanted = name not in ("collaboration", "silhouette")
                    title = f"{scenario}, {label}\n{first.title}"
                else:
                    wanted = name == only and scenario not in panels
                    title = scenario
                if not wanted or _is_empty(first):
                    continue
                every = [
                    run.diagnostics[name] for run in seeds if name in run.diagnostics
                ]
                panels[title] = figures.Panel(first, every, seeds[0].groups())
    return figures.diagnostics(panels, path) if panels else []


def _is_empty(diagnostic: Diagnostic) -> bool:
    """Whether a method had nothing to tell in the end."""
    return isinstance(diagnostic, LineDiagnostic) and not len(diagnostic.x)


def fairness(runs: Runs, path: Path) -> list[Path]:
    """The mean over clients against the mean over the worst tenth."""
    panels, x_labels, y_labels = {}, [], []
    for name, methods in runs.items():
        if tested := _tested(methods):
            unit = _unit(methods)
            x_labels.append(f"mean: test {unit.axis}")
            y_labels.append(f"worst 10 %: test {unit.axis}")
            panels[name] = {}
            for label, seeds in tested.items():
                spreads = [run.spread() for run in seeds]
                panels[name][label] = [
                    (unit.scale * spread["mean"], unit.scale * spread["worst10"])
                    for spread in spreads
                ]
    if not panels:
        return []
    return figures.scatter(panels, x_labels, y_labels, path, labels=_by_look(runs))


def sweep(experiment: Experiment, path: Path) -> list[Path]:
    """The mean over clients against a parameter that the experiment varies.

    The published figures are dashed.
    """
    index, panels, x_labels, y_labels = experiment.index, {}, [], []
    for algorithm, varied in index.sweeps.items():
        for scenario in index.scenarios:
            runs, unit = experiment.runs[scenario], experiment.unit(scenario)
            theirs = index.published.get("mean", {}).get(scenario, {})
            # Points of the figure: (value of the parameter, mean, deviation).
            measured: list[tuple[str, float, float]] = []
            published: list[tuple[str, float, float]] = []
            for value, label in varied.rows.items():
                means = [
                    unit.scale * run.spread()["mean"]
                    for run in runs.get(label, ())
                    if run.is_tested
                ]
                if means:
                    std = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
                    measured.append((value, float(np.mean(means)), std))
                figure = re.search(r"\d+\.?\d*|\.\d+", str(theirs.get(label, "")))
                if figure:
                    published.append((value, float(figure[0]), 0.0))
            if not measured:
                continue
            curves = {"here": measured}
            if published:
                curves["published"] = published
            panels[f"{algorithm}, {scenario}"] = curves
            x_labels.append(varied.parameter)
            y_labels.append(f"test {unit.axis}")
    if not panels:
        return []
    columns = min(len(index.scenarios), len(panels))
    return figures.error_bars(panels, x_labels, y_labels, path, columns=columns)


TESTED = "a finished run with test rows"


@dataclass(frozen=True)
class Figure:
    """What can be asked for by name.

    Attributes:
        draw: (experiment, path without suffix) -> files written, none where no run
            supports it.
        needs: what is missing then.
    """

    draw: Callable[[Experiment, Path], list[Path]]
    needs: str


def _of_runs(
    draw: Callable[[Runs, Path], list[Path]],
) -> Callable[[Experiment, Path], list[Path]]:
    return lambda experiment, path: draw(experiment.runs, path)


FIGURES: Mapping[str, Figure] = {
    "accuracy-by-round": Figure(_of_runs(by_round), TESTED),
    "accuracy-by-bytes": Figure(
        _of_runs(by_bytes), f"{TESTED} in which something travels"
    ),
    "accuracy-by-time": Figure(
        _of_runs(by_time), f"{TESTED} in which something travels"
    ),
    "histogram": Figure(_of_runs(histogram), TESTED),
    "collaboration": Figure(
        _of_runs(collaboration), "a finished run of a method that weighs clients (ucfl)"
    ),
    "silhouette": Figure(
        _of_runs(silhouette),
        "a finished run of a method that chooses its number of streams (ucfl)",
    ),
    "diagnostics": Figure(
        _of_runs(diagnostics),
        "a finished run of a method that tells more about itself (afl)",
    ),
    "fairness": Figure(_of_runs(fairness), TESTED),
    "sweep": Figure(sweep, "finished runs of an algorithm with a varied parameter"),
}


def draw(experiment: Experiment, directory: Path) -> tuple[list[Path], list[str]]:
    """Draw all figures of an experiment.

    Returns:
        The files, and a line for each figure that is left out.
    """
    written, left_out = [], []
    for name in experiment.index.figures:
        require(
            name in FIGURES,
            f"there is no figure {name!r}; figures are {', '.join(FIGURES)}",
        )
        files = FIGURES[name].draw(experiment, directory / name)
        written += files
        if not files:
            needs = FIGURES[name].needs
            left_out.append(f"Figure {name} is left out: it needs {needs}")
    return written, left_out


RunsByMethod = Mapping[str, Sequence[StoredRun]]
"""Algorithm -> its runs on one scenario."""


def _lines(
    panels: Mapping[str, tuple[RunsByMethod, Callable[[StoredRun], Curve]]],
    runs: Runs,
    x_label: str,
    path: Path,
    *,
    columns: int | None = None,
    x_scale: figures.Scale = "linear",
) -> list[Path]:
    """Curves of every panel's runs, in the unit that they are shown in.

    Panels without runs are left out.
    """
    curves, y_labels = {}, []
    for title, (methods, curve) in panels.items():
        if tested := _tested(methods):
            unit = _unit(methods)
            y_labels.append(f"test {unit.axis}")
            curves[title] = {}
            for label, seeds in tested.items():
                by_seed = [curve(run) for run in seeds]
                curves[title][label] = [
                    {x: unit.scale * y for x, y in points.items()} for points in by_seed
                ]
    if not curves:
        return []
    return figures.lines(
        curves,
        x_label,
        y_labels,
        path,
        columns=columns,
        labels=_by_look(runs),
        featured=featured(runs),
        x_scale=x_scale,
    )


def featured(runs: Runs) -> list[str]:
    """The rows that a figure draws with bands.

    These are FedAvg, to compare with, and the rows that end best on test, on average
    over scenarios.

    Returns:
        Their labels in the order of all rows, at most `figures.MOST_BANDS`.
    """
    # Relative ranks, one for each scenario: 0 is best, whatever the unit.
    ranks: dict[str, list[float]] = {}
    for methods in runs.values():
        tested = _tested(methods)
        if not tested:
            continue
        final = {
            label: float(np.mean([run.spread()["mean"] for run in seeds]))
            for label, seeds in tested.items()
        }
        higher_is_better = _unit(tested).higher_is_better
        ordered = sorted(final, key=final.__getitem__, reverse=higher_is_better)
        for rank, label in enumerate(ordered):
            ranks.setdefault(label, []).append(rank / len(ordered))
    references = (costs.reference(methods) for methods in runs.values())
    with_bands = [label for label in references if label is not None][:1]
    best = sorted(
        set(ranks) - set(with_bands),
        key=lambda label: (float(np.mean(ranks[label])), label),
    )
    with_bands += best[: figures.MOST_BANDS - len(with_bands)]
    return [label for label in _labels(runs) if label in with_bands]


def _by_look(runs: Runs) -> list[str]:
    """All algorithms that have a run, those with bands first.

    The order decides on the looks in all figures, and the first looks differ in colour.
    """
    first = featured(runs)
    return [*first, *(label for label in _labels(runs) if label not in first)]


def _labels(runs: Runs) -> list[str]:
    """All algorithms that have a run, in the order of appearance."""
    labels = (label for methods in runs.values() for label in _drawn(methods))
    return list(dict.fromkeys(labels))


def _drawn(methods: RunsByMethod) -> RunsByMethod:
    return {label: seeds for label, seeds in methods.items() if seeds}


def _tested(methods: RunsByMethod) -> RunsByMethod:
    """What can be drawn of test results: runs without test rows have none."""
    tested = {
        label: [run for run in seeds if run.is_tested]
        for label, seeds in methods.items()
    }
    return _drawn(tested)


def _talking(methods: RunsByMethod) -> RunsByMethod:
    """The methods that send something in training."""
    drawn = _drawn(methods)
    return {label: seeds for label, seeds in drawn.items() if not seeds[0].silent}


def _unit(methods: RunsByMethod) -> Unit:
    return next(run.unit for seeds in methods.values() for run in seeds)


def _values(run: StoredRun) -> np.ndarray:
    return run.unit.scale * run.scores()["value"].to_numpy()


def _by_megabytes(run: StoredRun) -> dict[float, float]:
    return {count / 1e6: value for count, value in run.by_bytes().items()}
