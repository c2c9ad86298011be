"""The tables of an experiment."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from fedtailor.report import costs
from fedtailor.report.experiment import Candidate, Experiment
from fedtailor.report.measures import MEASURES, Measure
from fedtailor.report.tables import Cell, Number, Table, published
from fedtailor.report.units import Unit

SPREAD = ("mean", "worst", "worst10", "std", "unseen")
"""The measures of the table of a single scenario."""

JUDGED = frozenset(
    {"mean", "weighted", "worst", "worst10", "largest10", "unseen", "best_val"}
)
"""Measures whose best row is marked.

The deviation is not among them, nor is what was chosen on test data.
"""

NOTHING = "-"
NOT_RUN = "not run"
ONLY_SETTING = "as it is"

BASELINE_ROW = "(nothing learned)"
"""The row of the baseline: each client's majority class, or the mean of its targets."""


def tables(experiment: Experiment) -> dict[str, Table]:
    """All tables of an experiment, by the name of their file.

    Returns:
        One table for each metric (and unit), two or three for each scenario, and what
        was chosen on validation data.
    """
    index = experiment.index
    by_name: dict[str, Table] = {}
    by_unit = sorted(
        index.scenarios, key=lambda scenario: experiment.unit(scenario).label
    )
    for metric in index.metrics:
        for unit, scenarios in groupby(by_unit, key=experiment.unit):
            # Numbers of different units do not belong into one table.
            name = metric if metric not in by_name else slug(f"{metric} {unit.label}")
            _add(by_name, name, main(experiment, metric, [*scenarios]))
    for scenario in index.scenarios:
        prefix = slug(scenario)
        _add(by_name, f"{prefix}-clients", over_clients(experiment, scenario))
        _add(by_name, f"{prefix}-costs", traffic_and_time(experiment, scenario))
        has_reference = costs.reference(experiment.runs[scenario]) is not None
        if "accuracy-by-time" in index.figures and has_reference:
            _add(by_name, f"{prefix}-by-time", at_equal_time(experiment, scenario))
    if index.candidates:
        _add(by_name, "chosen", chosen(experiment))
    return by_name


def repeated(experiment: Experiment) -> set[str]:
    """The names of tables whose numbers the table over clients shows as well.

    There are some only for a single scenario without published figures.
    """
    index = experiment.index
    # The table over clients leaves out methods that were not run.
    complete = all(
        _present(experiment, scenario) == index.algorithms
        for scenario in index.scenarios
    )
    if len(index.scenarios) > 1 or index.published or not complete:
        return set()
    return {name for name in index.metrics if name in SPREAD and name != "unseen"}


def main(experiment: Experiment, name: str, scenarios: Sequence[str]) -> Table:
    """One measure, algorithms x scenarios, with the published figures beside ours.

    Args:
        experiment: the index and its runs.
        name: of the measure, see `MEASURES`.
        scenarios: the columns; all have the same unit.
    """
    measure = MEASURES[name]
    published_by_scenario = experiment.index.published.get(name, {})
    unit = experiment.unit(scenarios[0])
    labels = experiment.index.algorithms

    # The table grows column by column; the baseline becomes its last row.
    columns = ["algorithm"]
    rows: list[list[Cell]] = [[label] for label in labels]
    baseline: list[Cell] = [BASELINE_ROW]
    higher_is_better = {}
    for scenario in scenarios:
        higher_is_better[len(columns)] = unit.higher_is_better
        header = f"{scenario},\n{measure.warning}" if measure.warning else scenario
        columns.append(header)
        for label, row in zip(labels, rows, strict=True):
            row.append(cell(experiment, scenario, label, measure))
        baseline.append(nothing_learned(experiment, scenario, measure))

        if scenario in published_by_scenario:
            figures = published_by_scenario[scenario]
            several = len(scenarios) > 1
            columns.append(f"{scenario},\npublished" if several else "published")
            for label, row in zip(labels, rows, strict=True):
                row.append(published(figures.get(label, NOTHING)))
            baseline.append(NOTHING)

    # A baseline that no run has kept has no row.
    if any(value != NOTHING for value in baseline[1:]):
        rows.append(baseline)
    return Table(
        f"Test {unit.label}: {measure.title}",
        columns,
        rows,
        higher_is_better=higher_is_better if name in JUDGED else {},
    )


def over_clients(experiment: Experiment, scenario: str) -> Table:
    """How one scenario's clients fare.

    The columns are mean, worst, worst 10 % and deviation, and the mean over unseen
    clients where there are any.
    """
    runs, unit = experiment.runs[scenario], experiment.unit(scenario)
    has_unseen = any(
        run.clients["unseen"].any() for seeds in runs.values() for run in seeds
    )
    names = [name for name in SPREAD if name != "unseen" or has_unseen]
    measures = [MEASURES[name] for name in names]

    rows: list[list[Cell]] = []
    for label in _present(experiment, scenario):
        cells = [cell(experiment, scenario, label, measure) for measure in measures]
        rows.append([label, *cells])
    if experiment.baselines[scenario]:
        cells = [nothing_learned(experiment, scenario, measure) for measure in measures]
        rows.append([BASELINE_ROW, *cells])
    return Table(
        f"{scenario}: test {unit.label}, over clients",
        ["algorithm", *(measure.header for measure in measures)],
        rows,
        higher_is_better={
            column: unit.higher_is_better
            for column, name in enumerate(names, 1)
            if name in JUDGED
        },
    )


def traffic_and_time(experiment: Experiment, scenario: str) -> Table:
    """What one scenario's methods cost.

    The columns are streams, models and megabytes, seconds a round, and, where there is
    FedAvg, the time to its best result.
    """
    runs = experiment.runs[scenario]
    reference = costs.reference(runs)
    references = [] if reference is None else runs[reference]
    columns = ["algorithm", "streams", "models\ndown", "models\nup"]
    columns += ["MB\ndown", "MB\nup", "s a\nround"]
    title = f"{scenario}: traffic (down: multicast)"
    if reference is not None:
        columns += costs.TIME_HEADERS
        title += f"; {costs.time_title(reference, references)}"

    rows: list[list[Cell]] = []
    for label in _present(experiment, scenario):
        seeds = runs[label]
        if not seeds:
            rows.append([label, *[NOTHING] * (len(columns) - 1)])
            continue
        streams = float(np.mean([run.ledger.last_streams() for run in seeds]))
        row: list[Cell] = [label, Number(streams, f"{streams:.3g}")]
        row += [*costs.models(seeds), *costs.megabytes(seeds)]
        row.append(costs.average([run.seconds_per_round for run in seeds], digits=3))
        if references:
            row += costs.times(seeds, references)
        rows.append(row)
    return Table(title, columns, rows, note=costs.TIME_NOTE if references else "")


def at_equal_time(experiment: Experiment, scenario: str) -> Table:
    """How good one scenario's methods are when FedAvg's rounds are over.

    There is a column for each of the `WIRELESS_PRESETS`.
    """
    runs, unit = experiment.runs[scenario], experiment.unit(scenario)
    reference = costs.reference(runs)
    assert reference is not None, "the table is asked for where there is FedAvg"
    ends = costs.ends(runs[reference])
    rows: list[list[Cell]] = [
        [label, *costs.reached_by(ends, runs[label])]
        for label in _present(experiment, scenario)
        if runs[label]
    ]
    headers = [header.removeprefix("time\n") for header in costs.TIME_HEADERS]
    columns = ["algorithm", *headers]
    return Table(
        f"{scenario}: test {unit.label}, when {reference}'s rounds are over",
        columns,
        rows,
        higher_is_better=dict.fromkeys(range(1, len(columns)), unit.higher_is_better),
        note=costs.TIME_NOTE,
    )


def chosen(experiment: Experiment) -> Table:
    """What was chosen on val, and from which grid."""
    index = experiment.index
    rows = []
    for scenario in index.scenarios:
        unit, total = experiment.unit(scenario), index.scenarios[scenario].rounds
        for label in index.algorithms:
            # Settings as text -> the candidates with them, one for each seed.
            grid: dict[str, list[Candidate]] = {}
            for candidate in index.candidates:
                if (candidate.scenario, candidate.algorithm) == (scenario, label):
                    text = settings(candidate.parameters) or ONLY_SETTING
                    grid.setdefault(text, []).append(candidate)
            if not grid:
                continue
            tried = [
                f"{text}: {_on_val(seeds, unit)}{_stopped(seeds, total)}"
                for text, seeds in grid.items()
            ]
            winners = ", ".join(_winners(grid)) or NOTHING
            rows.append([scenario, label, winners, "; ".join(tried)])
    columns = ["scenario", "algorithm", "chosen", "grid: on val"]
    return Table(
        "Chosen by the mean over clients on validation data", columns, rows, text=4
    )


def cell(experiment: Experiment, scenario: str, label: str, measure: Measure) -> Cell:
    """Mean ± deviation over seeds.

    Where seeds are missing, the cell says over how many the mean is, and how many runs
    diverged.
    """
    runs = experiment.runs[scenario][label]
    diverged = experiment.diverged[scenario, label]
    values = [value for run in runs if (value := measure.of(run)) is not None]
    if values:
        number = experiment.unit(scenario).number(values)
        text = number.text
        if len(values) < len(experiment.index.seeds):
            text += f" [{len(values)}]"
        if diverged:
            text += f", {diverged} diverged"
        return replace(number, text=text, diverged=diverged)
    if runs:
        return NOTHING
    if diverged:
        return Number(float("nan"), "diverged", runs=0, diverged=diverged)
    return NOT_RUN if experiment.skipped(scenario, label) else NOTHING


def nothing_learned(experiment: Experiment, scenario: str, measure: Measure) -> Cell:
    """What a model that learns nothing from the inputs reaches, over seeds."""
    reached = [measure.of(run) for run in experiment.baselines[scenario]]
    values = [value for value in reached if value is not None]
    return experiment.unit(scenario).number(values) if values else NOTHING


def settings(parameters: Mapping[str, Any]) -> str:
    """Parameters as "lam 0.1, sgd.lr 0.05"."""
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def slug(text: str) -> str:
    """A label as the name of a file."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def _add(tables: dict[str, Table], name: str, table: Table) -> None:
    """Put a table under a name that no other table has.

    Two labels may differ only in characters that `slug` drops; the second one gets a
    number.
    """
    name = name.strip("-")
    number, free = 1, name
    while free in tables:
        number += 1
        free = f"{name}-{number}"
    tables[free] = table


def _present(experiment: Experiment, scenario: str) -> list[str]:
    """The algorithms that have ended at least one run on a scenario."""
    runs, diverged = experiment.runs[scenario], experiment.diverged
    return [
        label
        for label in experiment.index.algorithms
        if runs[label] or diverged[scenario, label]
    ]


def _on_val(seeds: Sequence[Candidate], unit: Unit) -> str:
    """Mean over seeds, as shown: a loss without the sign that makes higher better."""
    values = [candidate.val for candidate in seeds if candidate.val is not None]
    if not values:
        return "diverged"
    sign = 1 if unit.higher_is_better else -1
    return unit.text([sign * float(np.mean(values))])


def _stopped(seeds: Sequence[Candidate], total: int) -> str:
    """After how many rounds a candidate was left out, if it was."""
    rounds = [candidate.rounds for candidate in seeds if candidate.rounds is not None]
    return f" after {max(rounds)} rounds" if rounds and max(rounds) < total else ""


def _winners(grid: Mapping[str, Sequence[Candidate]]) -> Iterator[str]:
    """The settings that were chosen, with the number of seeds where seeds differ."""
    wins = {
        text: sum(candidate.chosen for candidate in seeds)
        for text, seeds in grid.items()
    }
    chosen = {text: count for text, count in wins.items() if count}
    for text, count in chosen.items():
        several = f" ({count} of {sum(chosen.values())} seeds)"
        yield text + several if len(chosen) > 1 else text
