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
"""The measures whose best row is marked. Not the deviation, and not what was chosen on
test data.
"""

NOTHING = "-"
NOT_RUN = "not run"
ONLY_SETTING = "as it is"

BASELINE_ROW = "(nothing learned)"
"""The row of the baseline: each client's majority class, or the mean of its targets."""


def tables(experiment: Experiment) -> dict[str, Table]:
    """All tables by (file) name: one for each metric, two for each scenario, and what
    was chosen on val.
    """
    by_name: dict[str, Table] = {}
    by_unit = sorted(
        experiment.index.scenarios, key=lambda scenario: experiment.unit(scenario).label
    )
    for name in experiment.index.metrics:
        for unit, scenarios in groupby(by_unit, key=experiment.unit):
            # Of several units each has a table of its own.
            wanted = name if name not in by_name else slug(f"{name} {unit.label}")
            _add(by_name, wanted, main(experiment, name, [*scenarios]))
    for scenario in experiment.index.scenarios:
        _add(by_name, f"{slug(scenario)}-clients", over_clients(experiment, scenario))
        _add(by_name, f"{slug(scenario)}-costs", traffic_and_time(experiment, scenario))
        if (
            "accuracy-by-time" in experiment.index.figures
            and costs.reference(experiment.runs[scenario]) is not None
        ):
            _add(
                by_name,
                f"{slug(scenario)}-by-time",
                at_equal_time(experiment, scenario),
            )
    if experiment.index.candidates:
        _add(by_name, "chosen", chosen(experiment))
    return by_name


def repeated(experiment: Experiment) -> set[str]:
    """The names of tables whose numbers the table over clients has, too: of a single
    scenario, without figures of a source beside them."""
    index = experiment.index
    complete = all(
        _present(experiment, scenario) == index.algorithms
        for scenario in index.scenarios
    )
    if len(index.scenarios) > 1 or index.published or not complete:
        return set()  # the table over clients leaves out methods that were not run
    return {name for name in index.metrics if name in SPREAD and name != "unseen"}


def main(experiment: Experiment, name: str, scenarios: Sequence[str]) -> Table:
    """One measure: algorithms x scenarios (of one unit), the published figures beside
    ours.
    """
    measure, theirs = MEASURES[name], experiment.index.published.get(name, {})
    unit, better = experiment.unit(scenarios[0]), {}
    columns, labels = ["algorithm"], experiment.index.algorithms
    rows: list[list[Cell]] = [[label] for label in labels]
    lowest: list[Cell] = [BASELINE_ROW]
    for scenario in scenarios:
        better[len(columns)] = unit.higher_is_better
        columns.append(
            f"{scenario},\n{measure.warning}" if measure.warning else scenario
        )
        for label, row in zip(labels, rows, strict=True):
            row.append(cell(experiment, scenario, label, measure))
        lowest.append(nothing_learned(experiment, scenario, measure))
        if scenario in theirs:
            columns.append(
                f"{scenario},\npublished" if len(scenarios) > 1 else "published"
            )
            for label, row in zip(labels, rows, strict=True):
                row.append(published(theirs[scenario].get(label, NOTHING)))
            lowest.append(NOTHING)
    if any(cell != NOTHING for cell in lowest[1:]):
        rows.append(lowest)
    judged = better if name in JUDGED else {}
    return Table(
        f"Test {unit.label}: {measure.title}", columns, rows, higher_is_better=judged
    )


def over_clients(experiment: Experiment, scenario: str) -> Table:
    """How one scenario's clients fare: mean, worst, worst 10 %, deviation, and unseen
    ones where there are any.
    """
    runs, unit = experiment.runs[scenario], experiment.unit(scenario)
    newcomers = any(
        run.clients["unseen"].any() for seeds in runs.values() for run in seeds
    )
    names = [name for name in SPREAD if name != "unseen" or newcomers]
    rows: list[list[Cell]] = [
        [label, *(cell(experiment, scenario, label, MEASURES[name]) for name in names)]
        for label in _present(experiment, scenario)
    ]
    if experiment.baselines[scenario]:
        rows.append(
            [
                BASELINE_ROW,
                *(
                    nothing_learned(experiment, scenario, MEASURES[name])
                    for name in names
                ),
            ]
        )
    columns = ["algorithm", *(MEASURES[name].header for name in names)]
    better = {
        place: unit.higher_is_better
        for place, name in enumerate(names, 1)
        if name in JUDGED
    }
    return Table(
        f"{scenario}: test {unit.label}, over clients",
        columns,
        rows,
        higher_is_better=better,
    )


def traffic_and_time(experiment: Experiment, scenario: str) -> Table:
    """What one scenario's methods cost: streams, models and megabytes, seconds a round,
    and time to FedAvg's best.
    """
    runs = experiment.runs[scenario]
    reference = costs.reference(runs)
    references = [] if reference is None else runs[reference]
    times = costs.TIME_HEADERS if references else []
    columns = [
        "algorithm",
        "streams",
        "models\ndown",
        "models\nup",
        "MB\ndown",
        "MB\nup",
        "s a\nround",
        *times,
    ]
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
        rows.append(row + (costs.times(seeds, references) if references else []))
    time = "" if reference is None else f"; {costs.time_title(reference, references)}"
    title = f"{scenario}: traffic (down: multicast){time}"
    return Table(title, columns, rows, note=costs.TIME_NOTE if references else "")


def at_equal_time(experiment: Experiment, scenario: str) -> Table:
    """How good one scenario's methods are when FedAvg's rounds are over, over several
    wireless networks.
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
    better = dict.fromkeys(range(1, 1 + len(costs.TIME_HEADERS)), unit.higher_is_better)
    title = f"{scenario}: test {unit.label}, when {reference}'s rounds are over"
    headers = [header.removeprefix("time\n") for header in costs.TIME_HEADERS]
    return Table(
        title,
        ["algorithm", *headers],
        rows,
        higher_is_better=better,
        note=costs.TIME_NOTE,
    )


def chosen(experiment: Experiment) -> Table:
    """What was chosen on val, and from which grid."""
    rows = []
    for scenario in experiment.index.scenarios:
        unit = experiment.unit(scenario)
        for label in experiment.index.algorithms:
            grid: dict[str, list[Candidate]] = {}
            for candidate in experiment.index.candidates:
                if (candidate.scenario, candidate.algorithm) == (scenario, label):
                    grid.setdefault(
                        settings(candidate.parameters) or ONLY_SETTING, []
                    ).append(candidate)
            if grid:
                whole = experiment.index.scenarios[scenario].rounds
                tried = [
                    f"{name}: {_on_val(tries, unit)}{_stopped(tries, whole)}"
                    for name, tries in grid.items()
                ]
                rows.append(
                    [
                        scenario,
                        label,
                        ", ".join(_winners(grid)) or NOTHING,
                        "; ".join(tried),
                    ]
                )
    columns = ["scenario", "algorithm", "chosen", "grid: on val"]
    return Table(
        "Chosen by the mean over clients on validation data", columns, rows, text=4
    )


def cell(experiment: Experiment, scenario: str, label: str, measure: Measure) -> Cell:
    """Mean ± deviation over seeds; where a seed is missing, over how many, and how many
    diverged.
    """
    runs, diverged = (
        experiment.runs[scenario][label],
        experiment.diverged[scenario, label],
    )
    values = [value for run in runs if (value := measure.of(run)) is not None]
    if not values:
        if not runs and not diverged and experiment.skipped(scenario, label):
            return NOT_RUN
        return (
            Number(float("nan"), "diverged", runs=0, diverged=diverged)
            if diverged and not runs
            else NOTHING
        )
    number = experiment.unit(scenario).number(values)
    fewer = f" [{len(values)}]" if len(values) < len(experiment.index.seeds) else ""
    text = number.text + fewer + (f", {diverged} diverged" if diverged else "")
    return replace(number, text=text, diverged=diverged)


def nothing_learned(experiment: Experiment, scenario: str, measure: Measure) -> Cell:
    """What a model that learns nothing from the inputs reaches; mean ± deviation over
    seeds.
    """
    values = [
        value
        for run in experiment.baselines[scenario]
        if (value := measure.of(run)) is not None
    ]
    return experiment.unit(scenario).number(values) if values else NOTHING


def settings(parameters: Mapping[str, Any]) -> str:
    """Parameters as "lam 0.1, sgd.lr 0.05"."""
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def slug(text: str) -> str:
    """A file name of a label."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def _add(tables: dict[str, Table], name: str, table: Table) -> None:
    """Put a table under a name that no other table has: labels may differ in characters
    only that no name holds.
    """
    number, free = 1, name.strip("-")
    while free in tables:
        number += 1
        free = f"{name.strip('-')}-{number}"
    tables[free] = table


def _present(experiment: Experiment, scenario: str) -> list[str]:
    """The algorithms that have ended at least one run on a scenario."""
    runs, diverged = experiment.runs[scenario], experiment.diverged
    return [
        label
        for label in experiment.index.algorithms
        if runs[label] or diverged[scenario, label]
    ]


def _on_val(tries: Sequence[Candidate], unit: Unit) -> str:
    """Mean over seeds, as shown: a loss without the sign that makes higher better."""
    values = [candidate.val for candidate in tries if candidate.val is not None]
    sign = 1 if unit.higher_is_better else -1
    return unit.text([sign * float(np.mean(values))]) if values else "diverged"


def _stopped(tries: Sequence[Candidate], whole: int) -> str:
    """After how many rounds a candidate was left out, if it was."""
    rounds = [candidate.rounds for candidate in tries if candidate.rounds is not None]
    return f" after {max(rounds)} rounds" if rounds and max(rounds) < whole else ""


def _winners(grid: Mapping[str, Sequence[Candidate]]) -> Iterator[str]:
    """The settings that were chosen; with the number of seeds where seeds differ."""
    won = {
        name: sum(candidate.chosen for candidate in tries)
        for name, tries in grid.items()
    }
    chosen = {name: count for name, count in won.items() if count}
    for name, count in chosen.items():
        yield (
            name
            if len(chosen) == 1
            else f"{name} ({count} of {sum(chosen.values())} seeds)"
        )
