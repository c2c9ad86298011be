"""The tables of an experiment."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from fedtailor.engine.storage.comparison_index import CandidateRun
from fedtailor.lab.report import costs
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.measures import MEASURES, Measure, mean_of_runs
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.tables import Cell, Number, ReportTable, mean_of, published
from fedtailor.lab.results.units import Unit, unit_of

SPREAD_MEASURES = ("mean", "worst", "worst10", "std", "unseen")
"""The columns of `client_spread_table`."""

RANKED_MEASURES = frozenset(
    {"mean", "weighted", "worst", "worst10", "largest10", "unseen", "best_val"}
)
"""Measures whose best row is marked: all but the deviation and `max_test`."""

NO_VALUE = "-"
NOT_RUN = "not run"
DEFAULT_SETTINGS = "as it is"

BASELINE_ROW = "(nothing learned)"
"""Label of the baseline, which predicts a client's majority class or mean target."""


def tables(experiment: StoredExperiment) -> dict[str, ReportTable]:
    """Makes all tables of an experiment.

    Returns:
        File name -> table. There is one table for each measure and unit, two or three
        for each scenario, and one with the settings chosen on validation data.
    """
    index = experiment.index
    result: dict[str, ReportTable] = {}
    sorted_scenarios = sorted(
        index.scenarios, key=lambda scenario: experiment.unit(scenario).label
    )
    metrics = list(index.metrics)
    if experiment.lacks_unseen:
        # It would have no number.
        metrics.remove("unseen")
    for metric in metrics:
        for unit, scenarios in groupby(sorted_scenarios, key=experiment.unit):
            # A table has a single unit.
            name = metric if metric not in result else slug(f"{metric} {unit.label}")
            _add_table(result, name, measure_table(experiment, metric, [*scenarios]))
    for scenario in index.scenarios:
        prefix = slug(scenario)
        spread_table = client_spread_table(experiment, scenario)
        _add_table(result, f"{prefix}-clients", spread_table)
        beside = trained_baselines_table(experiment, scenario)
        if beside is not None:
            _add_table(result, f"{prefix}-baselines", beside)
        metrics_table = other_metrics_table(experiment, scenario)
        if metrics_table is not None:
            _add_table(result, f"{prefix}-metrics", metrics_table)
        _add_table(result, f"{prefix}-costs", cost_table(experiment, scenario))
        has_reference = costs.reference(experiment.runs[scenario]) is not None
        if "accuracy-by-time" in index.figures and has_reference:
            time_table = equal_time_table(experiment, scenario)
            _add_table(result, f"{prefix}-by-time", time_table)
    if index.candidates:
        _add_table(result, "chosen", choice_table(experiment))
    return result


def redundant_tables(experiment: StoredExperiment) -> set[str]:
    """The names of tables whose numbers `client_spread_table` also shows.

    The set is empty if there are several scenarios or published figures.
    """
    index = experiment.index
    # `client_spread_table` omits methods that were not run.
    complete = all(
        _finished_labels(experiment, scenario) == index.algorithms
        for scenario in index.scenarios
    )
    if len(index.scenarios) > 1 or index.published or not complete:
        return set()
    return {
        name for name in index.metrics if name in SPREAD_MEASURES and name != "unseen"
    }


def measure_table(
    experiment: StoredExperiment, name: str, scenarios: Sequence[str]
) -> ReportTable:
    """A table of one measure, with a row per algorithm and a column per scenario.

    Where the source of the experiment publishes figures, they have their own columns.

    Args:
        experiment: the index and its runs.
        name: name of the measure, see `MEASURES`.
        scenarios: the columns; all must have the same unit.
    """
    measure = MEASURES[name]
    published_by_scenario = experiment.index.published.get(name, {})
    unit = experiment.unit(scenarios[0])
    labels = experiment.index.algorithms

    # Add the columns one by one; the baseline is the last row.
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
        baseline.append(baseline_cell(experiment, scenario, measure))

        if scenario in published_by_scenario:
            published_figures = published_by_scenario[scenario]
            is_one_of_many = len(scenarios) > 1
            columns.append(f"{scenario},\npublished" if is_one_of_many else "published")
            for label, row in zip(labels, rows, strict=True):
                row.append(published(published_figures.get(label, NO_VALUE)))
            baseline.append(NO_VALUE)

    # Omit the baseline if no run has stored it.
    if any(value != NO_VALUE for value in baseline[1:]):
        rows.append(baseline)
    return ReportTable(
        f"Test {unit.label}: {measure.title}",
        columns,
        rows,
        higher_is_better=higher_is_better if name in RANKED_MEASURES else {},
    )


def client_spread_table(experiment: StoredExperiment, scenario: str) -> ReportTable:
    """A table of the distribution of one scenario's results over clients.

    The columns are the mean, the worst client, the worst 10 %, the deviation, the mean
    over unseen clients if there are any, and the rounds that were trained if that was
    until the validation loss had converged.
    """
    runs, unit = experiment.runs[scenario], experiment.unit(scenario)
    has_unseen = any(
        run.clients["unseen"].any() for seeds in runs.values() for run in seeds
    )
    names = [name for name in SPREAD_MEASURES if name != "unseen" or has_unseen]
    measures = [MEASURES[name] for name in names]

    rows: list[list[Cell]] = []
    for label in _finished_labels(experiment, scenario):
        cells = [cell(experiment, scenario, label, measure) for measure in measures]
        rows.append([label, *cells])
    if experiment.baselines[scenario]:
        cells = [baseline_cell(experiment, scenario, measure) for measure in measures]
        rows.append([BASELINE_ROW, *cells])
    columns = ["algorithm", *(measure.header for measure in measures)]
    if experiment.index.until_converged:
        columns.append("rounds")
        for row in rows:
            row.append(_rounds_text(runs.get(str(row[0]), ())))
    return ReportTable(
        f"{scenario}: test {unit.label}, over clients",
        columns,
        rows,
        higher_is_better={
            column: unit.higher_is_better
            for column, name in enumerate(names, 1)
            if name in RANKED_MEASURES
        },
    )


def trained_baselines_table(
    experiment: StoredExperiment, scenario: str
) -> ReportTable | None:
    """A table of the baselines that were trained on the same rows as the methods.

    Returns:
        The table, with the measures of `client_spread_table`; None if there are none.
    """
    baselines = experiment.trained_baselines(scenario)
    if not baselines:
        return None
    unit = experiment.unit(scenario)
    measures = [MEASURES[name] for name in SPREAD_MEASURES if name != "unseen"]
    rows: list[list[Cell]] = []
    for baseline in baselines:
        row: list[Cell] = [baseline.title]
        row += [_cell_of(baseline.runs, unit, measure) for measure in measures]
        row.append("yes" if baseline.about.needs_pooled_data else NO_VALUE)
        rows.append(row)
    columns = ["baseline", *(measure.header for measure in measures)]
    return ReportTable(
        f"{scenario}: test {unit.label} of baselines on the same rows, over clients",
        [*columns, "needs\npooled rows"],
        rows,
    )


def other_metrics_table(
    experiment: StoredExperiment, scenario: str
) -> ReportTable | None:
    """A table of the metrics other than the one that the runs are judged by.

    The columns are that metric, those that the runs were asked for, the accuracy, and
    for a regression the R2 of all test rows together.

    Returns:
        The table; None if there is no metric but that of the runs.
    """
    labels = _finished_labels(experiment, scenario)
    runs = experiment.runs[scenario]
    first = next((seeds[0] for label in labels if (seeds := runs[label])), None)
    if first is None:
        return None
    names = [first.metric, *first.other_metrics]
    has_r2 = first.r2_of_all_rows is not None
    if len(names) == 1 and not has_r2:
        return None

    def row(label: str, seeds: Sequence[StoredRun]) -> list[Cell]:
        cells: list[Cell] = [label]
        for name in names:
            means = [run.mean_of(name) for run in seeds]
            known = [mean for mean in means if mean is not None]
            of_runs = mean_of_runs(seeds, name)
            cells.append(unit_of(name).number(known, of_runs) if known else NO_VALUE)
        if has_r2:
            shares = [run.r2_of_all_rows for run in seeds]
            known = [share for share in shares if share is not None]
            cells.append(mean_of(known) if known else NO_VALUE)
        return cells

    rows = [row(label, runs[label]) for label in labels]
    if experiment.baselines[scenario]:
        rows.append(row(BASELINE_ROW, experiment.baselines[scenario]))
    columns = ["algorithm", *(unit_of(name).label for name in names)]
    directions = {
        number: unit_of(name).higher_is_better for number, name in enumerate(names, 1)
    }
    if has_r2:
        directions[len(columns)] = True
        columns.append("R2 of\nall rows")
    return ReportTable(
        f"{scenario}: measured on test, mean over clients",
        columns,
        rows,
        higher_is_better=directions,
    )


def cost_table(experiment: StoredExperiment, scenario: str) -> ReportTable:
    """A table of the costs of one scenario's methods.

    The columns are streams, models and megabytes, seconds per round, and, if FedAvg was
    run, the time to FedAvg's best result.
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
    for label in _finished_labels(experiment, scenario):
        seeds = runs[label]
        if not seeds:
            rows.append([label, *[NO_VALUE] * (len(columns) - 1)])
            continue
        streams = float(np.mean([run.ledger.last_streams() for run in seeds]))
        row: list[Cell] = [label, Number(streams, f"{streams:.3g}")]
        row += [*costs.models_sent(seeds), *costs.megabytes(seeds)]
        row.append(costs.average([run.seconds_per_round for run in seeds], digits=3))
        if references:
            row += costs.times_to_target(seeds, references)
        rows.append(row)
    return ReportTable(title, columns, rows, note=costs.TIME_NOTE if references else "")


def equal_time_table(experiment: StoredExperiment, scenario: str) -> ReportTable:
    """A table of one scenario's results at the time when FedAvg's last round ends.

    There is one column for each of the `WIRELESS_PRESETS`. FedAvg must have been run.
    """
    runs, unit = experiment.runs[scenario], experiment.unit(scenario)
    reference = costs.reference(runs)
    assert reference is not None, "FedAvg was not run"
    end_times = costs.end_times(runs[reference])
    rows: list[list[Cell]] = [
        [label, *costs.values_at_end(end_times, runs[label])]
        for label in _finished_labels(experiment, scenario)
        if runs[label]
    ]
    headers = [header.removeprefix("time\n") for header in costs.TIME_HEADERS]
    columns = ["algorithm", *headers]
    return ReportTable(
        f"{scenario}: test {unit.label}, when {reference}'s rounds are over",
        columns,
        rows,
        higher_is_better=dict.fromkeys(range(1, len(columns)), unit.higher_is_better),
        note=costs.TIME_NOTE,
    )


def choice_table(experiment: StoredExperiment) -> ReportTable:
    """A table of the settings chosen on validation data, and of their grids."""
    index = experiment.index
    rows = []
    for scenario in index.scenarios:
        unit, total = experiment.unit(scenario), index.scenarios[scenario].rounds
        for label in index.algorithms:
            # Settings as text -> the candidates with these settings, one for each seed.
            grid: dict[str, list[CandidateRun]] = {}
            for candidate in index.candidates:
                if (candidate.scenario, candidate.algorithm) == (scenario, label):
                    text = format_parameters(candidate.parameters) or DEFAULT_SETTINGS
                    grid.setdefault(text, []).append(candidate)
            if not grid:
                continue
            grid_texts = [
                f"{text}: {_validation_text(experiment, seeds, unit)}"
                f"{_left_out_text(seeds, total)}"
                for text, seeds in grid.items()
            ]
            chosen_settings = ", ".join(_chosen_settings(grid)) or NO_VALUE
            rows.append([scenario, label, chosen_settings, "; ".join(grid_texts)])
    columns = ["scenario", "algorithm", "chosen", "grid: on val"]
    return ReportTable(
        "Chosen by the mean over clients on validation data", columns, rows, text=4
    )


def cell(
    experiment: StoredExperiment, scenario: str, label: str, measure: Measure
) -> Cell:
    """A cell with mean ± deviation over seeds.

    If seeds are missing, the cell also has the number of seeds and the number of runs
    that diverged.
    """
    runs = experiment.runs[scenario][label]
    diverged = experiment.diverged[scenario, label]
    values = [value for run in runs if (value := measure.compute(run)) is not None]
    if values:
        mean = None if measure.of_runs is None else measure.of_runs(runs)
        number = experiment.unit(scenario).number(values, mean)
        text = number.text
        if len(values) < len(experiment.index.seeds):
            text += f" [{len(values)}]"
        if diverged:
            text += f", {diverged} diverged"
        return replace(number, text=text, diverged=diverged)
    if runs:
        return NO_VALUE
    if diverged:
        return Number(float("nan"), "diverged", runs=0, diverged=diverged)
    return NOT_RUN if experiment.skipped(scenario, label) else NO_VALUE


def baseline_cell(
    experiment: StoredExperiment, scenario: str, measure: Measure
) -> Cell:
    """A cell with the result of a model that ignores the inputs, over seeds."""
    return _cell_of(experiment.baselines[scenario], experiment.unit(scenario), measure)


def _cell_of(runs: Sequence[StoredRun], unit: Unit, measure: Measure) -> Cell:
    """A cell with a measure of the runs that have it."""
    stored_values = [measure.compute(run) for run in runs]
    values = [value for value in stored_values if value is not None]
    if not values:
        return NO_VALUE
    return unit.number(
        values, None if measure.of_runs is None else measure.of_runs(runs)
    )


def format_parameters(parameters: Mapping[str, Any]) -> str:
    """Formats parameters as "lam 0.1, sgd.lr 0.05"."""
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def slug(text: str) -> str:
    """Converts a label to a file name."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def _add_table(tables: dict[str, ReportTable], name: str, table: ReportTable) -> None:
    """Adds a table under a name that no other table has.

    Two labels may differ only in characters that `slug` drops. The second one then gets
    a numeric suffix.
    """
    name = name.strip("-")
    unused_name, suffix = name, 1
    while unused_name in tables:
        suffix += 1
        unused_name = f"{name}-{suffix}"
    tables[unused_name] = table


def _finished_labels(experiment: StoredExperiment, scenario: str) -> list[str]:
    """The algorithms with at least one finished run on a scenario."""
    runs, diverged = experiment.runs[scenario], experiment.diverged
    return [
        label
        for label in experiment.index.algorithms
        if runs[label] or diverged[scenario, label]
    ]


def _rounds_text(seeds: Sequence[StoredRun]) -> str:
    """The rounds of each seed's run, such as "65" or "65 to 120"."""
    rounds = sorted({int(run.summary["rounds"]) for run in seeds})
    if not rounds:
        return NO_VALUE
    return " to ".join(str(number) for number in dict.fromkeys((rounds[0], rounds[-1])))


def _validation_text(
    experiment: StoredExperiment, seeds: Sequence[CandidateRun], unit: Unit
) -> str:
    """The mean validation score over seeds; a loss is stored with a minus sign."""
    values = [candidate.val for candidate in seeds if candidate.val is not None]
    if not values:
        refused = any(experiment.refused(candidate) for candidate in seeds)
        return "refused" if refused else "diverged"
    sign = 1 if unit.higher_is_better else -1
    return unit.text([sign * float(np.mean(values))])


def _left_out_text(seeds: Sequence[CandidateRun], total: int) -> str:
    """The round in which halving left a candidate out, or ""."""
    rounds = [candidate.rounds for candidate in seeds if candidate.rounds is not None]
    return f" after {max(rounds)} rounds" if rounds and max(rounds) < total else ""


def _chosen_settings(grid: Mapping[str, Sequence[CandidateRun]]) -> Iterator[str]:
    """The chosen settings, each with its number of seeds if seeds differ."""
    chosen = {}
    for text, seeds in grid.items():
        count = sum(candidate.chosen for candidate in seeds)
        if count:
            chosen[text] = count
    for text, count in chosen.items():
        suffix = f" ({count} of {sum(chosen.values())} seeds)"
        yield text + suffix if len(chosen) > 1 else text
