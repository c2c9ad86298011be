"""The figures of an experiment or of any runs.

This module selects the data of each figure; `figures` draws them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor._base.choice import require
from fedtailor.aggregation.accounting import WIRELESS_PRESETS
from fedtailor.lab.report import costs, figures
from fedtailor.lab.report.figures import Curve
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.stored import RunsByMethod, RunsByScenario, StoredRun
from fedtailor.lab.results.units import Unit
from fedtailor.protocol.diagnostics import Diagnostic, LineDiagnostic


def by_round(runs: RunsByScenario, path: Path) -> list[Path]:
    """Accuracy (or loss) on test, mean over clients, by round."""
    panels = {name: (methods, StoredRun.curve) for name, methods in runs.items()}
    return _lines(panels, runs, "round", path)


def by_bytes(runs: RunsByScenario, path: Path) -> list[Path]:
    """Accuracy (or loss) on test by traffic, without methods that send nothing."""
    panels = {
        name: (_with_traffic(methods), by_megabytes) for name, methods in runs.items()
    }
    return _lines(panels, runs, "MB down (multicast) and up", path, x_scale="log")


def by_time(runs: RunsByScenario, path: Path) -> list[Path]:
    """Accuracy (or loss) on test by time over a wireless network.

    Each scenario has a row of panels, one for each of the `WIRELESS_PRESETS`.
    """
    panels = {}
    for name, methods in runs.items():
        for system, network in WIRELESS_PRESETS.items():
            title = f"{name}\n{system}: rho={network.rho:g}"
            curve = partial(StoredRun.by_time, system=network)
            panels[title] = (_with_traffic(methods), curve)
    x_label = "time (in units of one model's downlink)"
    return _lines(
        panels, runs, x_label, path, columns=len(WIRELESS_PRESETS), x_scale="log"
    )


def histogram(runs: RunsByScenario, path: Path) -> list[Path]:
    """Histograms of the clients' accuracies (or losses) on test, over all seeds."""
    panels, x_labels = {}, []
    for name, methods in runs.items():
        if tested := _tested(methods):
            panels[name] = {}
            for label, seeds in tested.items():
                of_seeds = [_client_values(run) for run in seeds]
                panels[name][label] = np.concatenate(of_seeds)
            x_labels.append(f"test {_unit(methods).axis}, of a client (line: mean)")
    if not panels:
        return []
    return figures.histograms(panels, x_labels, path, labels=_style_order(runs))


def collaboration(runs: RunsByScenario, path: Path) -> list[Path]:
    """Who learns from whom: the first seed of the first row with this diagnostic."""
    return diagnostics(runs, path, only="collaboration")


def silhouette(runs: RunsByScenario, path: Path) -> list[Path]:
    """Silhouettes of k streams, for the first row whose method chooses k itself."""
    return diagnostics(runs, path, only="silhouette")


def diagnostics(
    runs: RunsByScenario, path: Path, *, only: str | None = None
) -> list[Path]:
    """The diagnostics of the methods (`Algorithm.diagnostics`), one panel for each.

    Args:
        runs: runs of all rows.
        path: path of the figure, without suffix.
        only: draw only the diagnostic of this name, for the first row of each scenario
            that has it. By default all diagnostics without a figure of their own are
            drawn, for all rows.
    """
    panels: dict[str, figures.Panel] = {}
    for scenario, methods in runs.items():
        for label, seeds in _with_runs(methods).items():
            for name, first in seeds[0].diagnostics.items():
                if only is None:
                    is_selected = name not in ("collaboration", "silhouette")
                    title = f"{scenario}, {label}\n{first.title}"
                else:
                    is_selected = name == only and scenario not in panels
                    title = scenario
                if not is_selected or _is_empty(first):
                    continue
                diagnostics_of_seeds = [
                    run.diagnostics[name] for run in seeds if name in run.diagnostics
                ]
                panels[title] = figures.Panel(
                    first, diagnostics_of_seeds, seeds[0].groups()
                )
    return figures.diagnostics(panels, path) if panels else []


def _is_empty(diagnostic: Diagnostic) -> bool:
    """Whether a diagnostic has no points."""
    return isinstance(diagnostic, LineDiagnostic) and not len(diagnostic.x)


def fairness(runs: RunsByScenario, path: Path) -> list[Path]:
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
    return figures.scatter(panels, x_labels, y_labels, path, labels=_style_order(runs))


def sweep(experiment: StoredExperiment, path: Path) -> list[Path]:
    """The mean over clients as a function of a parameter that the experiment varies.

    Published figures are drawn dashed.
    """
    index, panels, x_labels, y_labels = experiment.index, {}, [], []
    for algorithm, parameter_sweep in index.sweeps.items():
        for scenario in index.scenarios:
            runs, unit = experiment.runs[scenario], experiment.unit(scenario)
            published_figures = index.published.get("mean", {}).get(scenario, {})
            # Points of the figure: (value of the parameter, mean, deviation).
            our_points: list[tuple[str, float, float]] = []
            published_points: list[tuple[str, float, float]] = []
            for value, label in parameter_sweep.rows.items():
                means = [
                    unit.scale * run.spread()["mean"]
                    for run in runs.get(label, ())
                    if run.is_tested
                ]
                if means:
                    std = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
                    our_points.append((value, float(np.mean(means)), std))
                match = re.search(
                    r"\d+\.?\d*|\.\d+", str(published_figures.get(label, ""))
                )
                if match:
                    published_points.append((value, float(match[0]), 0.0))
            if not our_points:
                continue
            curves = {"here": our_points}
            if published_points:
                curves["published"] = published_points
            panels[f"{algorithm}, {scenario}"] = curves
            x_labels.append(parameter_sweep.parameter)
            y_labels.append(f"test {unit.axis}")
    if not panels:
        return []
    columns = min(len(index.scenarios), len(panels))
    return figures.error_bars(panels, x_labels, y_labels, path, columns=columns)


TESTED_RUN = "a finished run with test rows"


@dataclass(frozen=True)
class Figure:
    """A figure that an experiment can request by name.

    Attributes:
        draw: (experiment, path without suffix) -> written files; none if the runs lack
            the data.
        needs: the data that the figure needs, for a message.
    """

    draw: Callable[[StoredExperiment, Path], list[Path]]
    needs: str


def _from_runs(
    draw: Callable[[RunsByScenario, Path], list[Path]],
) -> Callable[[StoredExperiment, Path], list[Path]]:
    return lambda experiment, path: draw(experiment.runs, path)


FIGURES: Mapping[str, Figure] = {
    "accuracy-by-round": Figure(_from_runs(by_round), TESTED_RUN),
    "accuracy-by-bytes": Figure(
        _from_runs(by_bytes), f"{TESTED_RUN} in which something travels"
    ),
    "accuracy-by-time": Figure(
        _from_runs(by_time), f"{TESTED_RUN} in which something travels"
    ),
    "histogram": Figure(_from_runs(histogram), TESTED_RUN),
    "collaboration": Figure(
        _from_runs(collaboration),
        "a finished run of a method that weighs clients (ucfl)",
    ),
    "silhouette": Figure(
        _from_runs(silhouette),
        "a finished run of a method that chooses its number of streams (ucfl)",
    ),
    "diagnostics": Figure(
        _from_runs(diagnostics),
        "a finished run of a method that tells more about itself (afl)",
    ),
    "fairness": Figure(_from_runs(fairness), TESTED_RUN),
    "sweep": Figure(sweep, "finished runs of an algorithm with a varied parameter"),
}


def draw(experiment: StoredExperiment, directory: Path) -> tuple[list[Path], list[str]]:
    """Draws all figures of an experiment.

    Returns:
        The written files, and a message for each figure that was not drawn.
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


"""Algorithm -> its runs on one scenario."""


def _lines(
    panels: Mapping[str, tuple[RunsByMethod, Callable[[StoredRun], Curve]]],
    runs: RunsByScenario,
    x_label: str,
    path: Path,
    *,
    columns: int | None = None,
    x_scale: figures.Scale = "linear",
) -> list[Path]:
    """Draws a curve of each method in each panel, in the displayed unit.

    Panels without tested runs are omitted.
    """
    curves, y_labels = {}, []
    for title, (methods, curve) in panels.items():
        if tested := _tested(methods):
            unit = _unit(methods)
            y_labels.append(f"test {unit.axis}")
            curves[title] = {}
            for label, seeds in tested.items():
                by_seed = []
                for run in seeds:
                    points = curve(run)
                    by_seed.append({x: unit.scale * y for x, y in points.items()})
                curves[title][label] = by_seed
    if not curves:
        return []
    return figures.lines(
        curves,
        x_label,
        y_labels,
        path,
        columns=columns,
        labels=_style_order(runs),
        highlighted=highlighted(runs),
        x_scale=x_scale,
    )


def highlighted(runs: RunsByScenario) -> list[str]:
    """The rows that a figure draws with bands.

    These are FedAvg as the reference, and the rows with the best final test results on
    average over scenarios.

    Returns:
        At most `figures.MAX_BANDS` labels, in the order of all rows.
    """
    # Relative ranks, one for each scenario; 0 is best in any unit.
    ranks: dict[str, list[float]] = {}
    for methods in runs.values():
        tested = _tested(methods)
        if not tested:
            continue
        final = {}
        for label, seeds in tested.items():
            means = [run.spread()["mean"] for run in seeds]
            final[label] = float(np.mean(means))
        higher_is_better = _unit(tested).higher_is_better
        ordered = sorted(final, key=final.__getitem__, reverse=higher_is_better)
        for rank, label in enumerate(ordered):
            ranks.setdefault(label, []).append(rank / len(ordered))
    references = (costs.reference(methods) for methods in runs.values())
    highlighted_labels = [label for label in references if label is not None][:1]
    best = sorted(
        set(ranks) - set(highlighted_labels),
        key=lambda label: (float(np.mean(ranks[label])), label),
    )
    highlighted_labels += best[: figures.MAX_BANDS - len(highlighted_labels)]
    return [label for label in _labels(runs) if label in highlighted_labels]


def _style_order(runs: RunsByScenario) -> list[str]:
    """All algorithms that have a run, the highlighted ones first.

    The position of a label determines its style in all figures. The first styles differ
    in colour.
    """
    highlighted_labels = highlighted(runs)
    return [
        *highlighted_labels,
        *(label for label in _labels(runs) if label not in highlighted_labels),
    ]


def _labels(runs: RunsByScenario) -> list[str]:
    """All algorithms that have a run, in the order of appearance."""
    return figures.all_labels(
        {name: _with_runs(methods) for name, methods in runs.items()}
    )


def _with_runs(methods: RunsByMethod) -> RunsByMethod:
    return {label: seeds for label, seeds in methods.items() if seeds}


def _tested(methods: RunsByMethod) -> RunsByMethod:
    """The runs with test results; methods without any are omitted."""
    tested = {}
    for label, seeds in methods.items():
        tested[label] = [run for run in seeds if run.is_tested]
    return _with_runs(tested)


def _with_traffic(methods: RunsByMethod) -> RunsByMethod:
    """The methods that send something in training."""
    return {
        label: seeds
        for label, seeds in methods.items()
        if seeds and not seeds[0].is_silent
    }


def _unit(methods: RunsByMethod) -> Unit:
    # The runs of a scenario are measured alike: the first one says how.
    first, *_ = _with_runs(methods).values()
    return first[0].unit


def _client_values(run: StoredRun) -> np.ndarray:
    return run.unit.scale * run.scores()["value"].to_numpy()


def by_megabytes(run: StoredRun) -> dict[float, float]:
    return {count / 1e6: value for count, value in run.by_bytes().items()}
