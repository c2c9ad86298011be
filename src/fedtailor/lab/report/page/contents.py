"""The contents of an experiment's page: the decision first, then the evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from fedtailor.lab.report import comparison, overview
from fedtailor.lab.report.page.background import data_card, protocol, settings_section
from fedtailor.lab.report.page.curves import curves, diagnostics
from fedtailor.lab.report.page.parts import Page, Picture, Section
from fedtailor.lab.report.page.pictures import Gain, axis_range, forest
from fedtailor.lab.report.page.reliability import (
    RELIABILITY,
    reliability,
    reliability_table,
)
from fedtailor.lab.report.page.survival import survival_section
from fedtailor.lab.results.coverage import COVERAGE, coverage_table
from fedtailor.lab.results.decision import Decision
from fedtailor.lab.results.decision_file import decisions_of
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.stored import Seeds, mean_sizes
from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.lab.results.thresholds import threshold_table, thresholds_of_stored
from fedtailor.lab.results.units import Unit, unit_of
from fedtailor.lab.results.verdict import Verdict

MAX_TABLE_ROWS = 2000
"""Maximum number of table rows with clients on a page, over all scenarios."""
MAX_PICTURES = 8
"""Maximum number of methods whose gains are drawn; the table has all methods."""
MAX_OPEN_ROWS = 60
"""A longer table of gains, or of what a method found, is folded."""
MAX_THRESHOLD_CLIENTS = 100
"""Maximum number of clients whose thresholds are listed; each has three lines."""
CALIBRATION = ("calibration_error", "brier", "log_loss")
"""Metrics of how well probabilities are calibrated."""


def page_of(experiment: StoredExperiment) -> Page:
    """Makes the page of an experiment, which may be unfinished.

    Raises:
        ValueError: a run directory is damaged.
    """
    scenarios = list(experiment.index.scenarios)
    lines = max(MAX_TABLE_ROWS // max(len(scenarios), 1), 50)
    decisions = decisions_of(experiment)
    return Page(
        title=overview.title(experiment),
        subtitle=_subtitle(experiment),
        parts={
            scenario: scenario_sections(
                experiment, scenario, decisions.get(scenario), lines
            )
            for scenario in scenarios
        },
        appendix=[
            _choice_section(experiment),
            Section("How it was run", overview.paragraphs(experiment)),
        ],
    )


def scenario_sections(
    experiment: StoredExperiment,
    scenario: str,
    decision: Decision | None,
    lines: int = MAX_TABLE_ROWS,
) -> list[Section]:
    """Makes the sections of one scenario.

    Args:
        experiment: the index and its runs.
        scenario: label of the scenario.
        decision: its decision; None if it has no finished run.
        lines: maximum number of rows of a table.
    """
    if decision is None:
        message = (
            "No run has ended that did not diverge: there is nothing to decide yet."
        )
        return [Section("Decision", [message])]
    runs = {label: seeds for label, seeds in experiment.runs[scenario].items() if seeds}
    first = next(iter(runs.values()))[0]
    clients = _truncated(client_table(scenario, runs, decision), lines)
    metrics_table = comparison.other_metrics_table(experiment, scenario)
    method_tables = [comparison.client_spread_table(experiment, scenario)]
    baselines_table = comparison.trained_baselines_table(experiment, scenario)
    method_tables += [] if baselines_table is None else [baselines_table]
    method_tables += [] if metrics_table is None else [metrics_table]
    evidence = [
        Section("Methods", tables=method_tables),
        Section("Clients", tables=[clients]),
        gains(scenario, decision, lines),
        curves(runs),
        fold_long_tables(diagnostics(runs)),
        costs(comparison.cost_table(experiment, scenario)),
        *calibration(runs),
        *thresholds(scenario, runs, decision),
        *sets(scenario, runs, decision),
        *survival_section(runs),
        data_card(experiment.index.scenarios[scenario], first),
        settings_section(runs),
        protocol(experiment, scenario, first),
    ]
    is_table = experiment.index.scenarios[scenario].use == "table"
    if decision.verdict is None or not is_table:
        return [Section("Decision", decision.conclusions, decision.warnings), *evidence]
    # A comparison of a table is made for its verdict: all else opens on demand.
    in_words = Section("All tests in words", decision.conclusions)
    return [
        *verdict_sections(decision.verdict, decision.warnings, lines),
        Section(
            "What the decision rests on",
            ["Each title opens its part."],
            folded=[in_words, *evidence],
        ),
    ]


def verdict_sections(
    verdict: Verdict, warnings: Sequence[str], lines: int = MAX_TABLE_ROWS
) -> list[Section]:
    """The decision with a picture, its evidence, a line for each client, and caveats.

    Args:
        verdict: what was decided.
        warnings: of the decision.
        lines: maximum number of rows of the table.
    """
    table = replace(
        verdict.table(),
        title=f"What each {verdict.nouns.one} should use and expect (95 % intervals)",
    )
    summary = [verdict.summary] if verdict.summary else []
    sections = [
        Section("Decision", [verdict.answer], pictures=verdict_pictures(verdict)),
        Section("Evidence", verdict.evidence, tables=[verdict.candidates_table()]),
        Section(
            f"{verdict.nouns.one.capitalize()} by {verdict.nouns.one}",
            summary,
            tables=[_truncated(table, lines)],
        ),
    ]
    caveats = [*verdict.warnings, *warnings]
    if caveats or verdict.advice:
        advice = [verdict.advice] if verdict.advice else []
        sections.append(Section("How sure it is", advice, caveats))
    return sections


def verdict_pictures(verdict: Verdict) -> list[Picture]:
    """What each client gains from sharing, sorted; empty if no gain is known."""
    scale, gains = verdict.unit.scale, []
    for it in verdict.clients:
        if it.gain is not None:
            gain, low, high = (scale * value for value in it.gain)
            gains.append(Gain(it.client, gain, low, high, it.verdict))
    # Where no score differs there is nothing to see.
    if not any(np.isfinite(gain.gain) and gain.gain for gain in gains):
        return []
    by = "sharing" if verdict.recommendation.of_client else verdict.shared
    title = f"What each {verdict.nouns.one} gains by {by}, with 95 % intervals"
    return [forest(title, verdict.unit.label, gains, axis_range(gains))]


def client_table(
    scenario: str, runs: Mapping[str, Seeds], decision: Decision
) -> ReportTable:
    """A table with one row for each client.

    The columns are its numbers of rows, the value of each method (mean over seeds), and
    the method that was chosen on its validation data.
    """
    first = next(iter(runs.values()))[0]
    unit, clients = first.unit, first.clients
    names = clients["client"].to_list()
    columns: dict[str, list[Cell]] = {"client": names}
    if clients["group"].is_not_null().any():
        columns["group"] = [
            "-" if group is None else _count_cell(group) for group in clients["group"]
        ]
    first_seeds = next(iter(runs.values()))
    for split in ("train", "test"):
        sizes = mean_sizes(first_seeds, split)
        columns[f"{split}\nrows"] = [_count_cell(sizes[name]) for name in names]
    if clients["unseen"].any():
        columns["trained"] = ["no" if unseen else "yes" for unseen in clients["unseen"]]
    headers, cells = list(columns), list(columns.values())
    # A method may have the name of a column, so the headers are no longer dict keys.
    for label, seeds in runs.items():
        values = client_values(seeds)
        headers.append(label)
        cells.append([_value_cell(values.get(name), unit) for name in names])
    if decision.choice is not None:
        chosen = _choices_by_client(decision)
        headers.append("chosen on\nvalidation data")
        cells.append([chosen.get(name, "-") for name in names])
    note = (
        "Means over seeds, on each client's own test rows. Whoever takes the best of"
        " several methods by these numbers gets one that is too good by the choice."
    )
    rows = [list(row) for row in zip(*cells, strict=True)]
    return ReportTable(
        f"{scenario}: test {unit.axis} of each client", headers, rows, note=note
    )


def client_values(seeds: Seeds) -> dict[str, float]:
    """Client (seen or unseen) -> last value on test, mean over seeds with a value."""
    frames = [
        run.scores(unseen=unseen).select("client", "value")
        for run in seeds
        for unseen in (False, True)
    ]
    scores = pl.concat(frames).filter(pl.col("value").is_not_nan())
    means = scores.group_by("client").agg(pl.col("value").mean())
    return dict(means.iter_rows())


def gains(scenario: str, decision: Decision, lines: int) -> Section:
    """The section about gains: a forest plot for each method, and a table."""
    title = "Gains over training alone"
    if decision.gains is None or decision.table is None:
        return Section(title, [decision.no_gains_reason])
    explanation = (
        "An interval that excludes 0 says that sharing helps (or hurts) this client;"
        " any other cannot tell."
    )
    unit = unit_of(decision.gain_metric)
    section = Section(
        title,
        [explanation],
        pictures=gain_pictures(decision.gains, unit, lines),
        tables=[_truncated(decision.table, lines)],
    )
    return fold_long_tables(section)


def gain_pictures(gains: pl.DataFrame, unit: Unit, lines: int) -> list[Picture]:
    """Draws a forest plot for each of the first `MAX_PICTURES` methods.

    Args:
        gains: see `fedtailor.statistics.decision.client_gains`.
        unit: unit of the gains.
        lines: maximum number of gains in all plots together.
    """
    gains_by_method: dict[str, list[Gain]] = {}
    parts = list(gains.group_by(["method"], maintain_order=True))
    for (method,), part in parts[:MAX_PICTURES]:
        gains_by_method[str(method)] = [
            Gain(
                row["client"],
                unit.scale * row["gain"],
                unit.scale * row["low"],
                unit.scale * row["high"],
                row["verdict"],
            )
            for row in part.iter_rows(named=True)
        ]
    # All plots have the same axis, so that they can be compared.
    axis_limits = axis_range(
        [
            gain
            for gains_of_method in gains_by_method.values()
            for gain in gains_of_method
        ]
    )
    pictures = []
    for method, gains_of_method in gains_by_method.items():
        title = f"{method}: gain of each client, 95 % interval"
        most = lines // MAX_PICTURES
        pictures.append(forest(title, unit.label, gains_of_method, axis_limits, most))
    return pictures


def fold_long_tables(section: Section) -> Section:
    """The section with its long tables folded: behind their titles, and not printed."""
    short = [table for table in section.tables if len(table.rows) <= MAX_OPEN_ROWS]
    folded = [
        Section(f"{table.title} ({len(table.rows):,} lines)", tables=[table])
        for table in section.tables
        if len(table.rows) > MAX_OPEN_ROWS
    ]
    return replace(section, tables=short, folded=[*section.folded, *folded])


def costs(table: ReportTable) -> Section:
    """The section about traffic and time.

    What everybody asks for is visible: megabytes and seconds. Models, streams and times
    over wireless networks are folded.

    Args:
        table: see `comparison.cost_table`.
    """
    columns = list(table.columns)
    plain = [0, *(columns.index(name) for name in ("MB\ndown", "MB\nup", "s a\nround"))]
    others = [0, *(number for number in range(len(columns)) if number not in plain)]
    title, _, time_title = table.title.partition("; ")
    visible = table.select(plain, title, {"s a\nround": "seconds\nper round"})
    details = replace(table.select(others, table.title), note=table.note)
    folded_title = "Numbers of models"
    if time_title:
        folded_title += ", and times over three wireless networks"
    return Section(
        "Costs", tables=[visible], folded=[Section(folded_title, tables=[details])]
    )


def calibration(runs: Mapping[str, Seeds]) -> list[Section]:
    """The section about the calibration of the predicted probabilities.

    Returns:
        One section; none if no run has probabilities, as those of regressions.
    """
    charts, paragraphs, tables = [], [], []
    chart, table = reliability(runs), reliability_table(runs)
    if chart is not None:
        charts, paragraphs = [chart], [RELIABILITY]
    if table is not None:
        tables.append(table)
    tables += _measured_calibration(runs)
    if not charts and not tables:
        return []
    return [Section("Calibration", paragraphs, charts=charts, tables=tables)]


def thresholds(
    scenario: str, runs: Mapping[str, Seeds], decision: Decision
) -> list[Section]:
    """The section about thresholds of two classes, of the method to use.

    Returns:
        One section; none if its first run has no validation rows of two classes.
    """
    label = _shown_method(runs, decision)
    first = runs[label][0]
    found = thresholds_of_stored(first)
    if not found:
        return []
    title = f"{scenario}: thresholds, {label}, seed {first.seed}"
    clients = first.clients["client"].to_list()
    paragraph = (
        "`fedtailor predict --threshold` predicts the second class from a probability on"
        " that validation rows chose. Final models of this method have these thresholds,"
        " which are of the first split."
    )
    table = threshold_table(title, found, clients, MAX_THRESHOLD_CLIENTS)
    return [fold_long_tables(Section("Thresholds", [paragraph], tables=[table]))]


def sets(scenario: str, runs: Mapping[str, Seeds], decision: Decision) -> list[Section]:
    """The section about sets and intervals, of the method to use.

    Returns:
        One section; none if its runs have stored no validation rows.
    """
    label = _shown_method(runs, decision)
    title = f"{scenario}: sets and intervals of {100 * COVERAGE:g} %, {label}"
    table = coverage_table(title, runs[label])
    if table is None:
        return []
    paragraph = (
        "`fedtailor predict --coverage` writes, for each row, the classes or the interval"
        " that hold the truth in a stated share of rows."
    )
    return [fold_long_tables(Section("What sets hold", [paragraph], tables=[table]))]


def _shown_method(runs: Mapping[str, Seeds], decision: Decision) -> str:
    """The method that is recommended; without a verdict, that with the best mean."""
    recommended = [decision.verdict.recommendation.method] if decision.verdict else []
    means = {} if decision.winner is None else decision.winner.means
    # Candidates that are no methods, such as trees, have no runs.
    return next(it for it in (*recommended, *means, *runs) if it in runs)


def _measured_calibration(runs: Mapping[str, Seeds]) -> list[ReportTable]:
    """A table of the metrics of calibration that were asked for, if there are any."""
    first = next(iter(runs.values()))[0]
    stored_metrics = set(first.metrics["metric"].unique())
    units_by_metric = {
        name: unit_of(name) for name in CALIBRATION if name in stored_metrics
    }
    if not units_by_metric:
        return []
    rows: list[list[Cell]] = []
    for label, seeds in runs.items():
        cells = [
            _last_mean(seeds, name, unit) for name, unit in units_by_metric.items()
        ]
        rows.append([label, *cells])
    units = list(units_by_metric.values())
    return [
        ReportTable(
            "On test, after the last round, mean over clients",
            ["method", *(unit.axis for unit in units)],
            rows,
            higher_is_better={
                column: unit.higher_is_better for column, unit in enumerate(units, 1)
            },
        )
    ]


def _last_mean(seeds: Seeds, metric: str, unit: Unit) -> Cell:
    """The last value of a metric on test, mean over seeds."""
    curves = [run.curve("test", metric) for run in seeds]
    values = [list(curve.values())[-1] for curve in curves if curve]
    finite_values = [value for value in values if np.isfinite(value)]
    return unit.number(finite_values) if finite_values else "-"


def _choices_by_client(decision: Decision) -> dict[str, str]:
    """Client -> the methods chosen for it, with numbers of seeds if seeds differ."""
    if decision.choice is None:
        return {}
    choices = {}
    for (client,), part in decision.choice.chosen.group_by(
        ["client"], maintain_order=True
    ):
        counts = part["method"].value_counts(sort=True).rows()
        if len(counts) == 1:
            ((name, _),) = counts
            choices[str(client)] = name
        else:
            choices[str(client)] = ", ".join(
                f"{name} ({seeds})" for name, seeds in counts
            )
    return choices


def _choice_section(experiment: StoredExperiment) -> Section:
    title = "Choice of settings"
    if not experiment.index.candidates:
        return Section(
            title, ["Nothing was chosen: every method ran with the settings above."]
        )
    return Section(title, tables=[comparison.choice_table(experiment)])


def _subtitle(experiment: StoredExperiment) -> str:
    """Numbers of methods, data sets and seeds, and whether all runs are finished."""
    index = experiment.index
    counts = {
        "method": len(index.algorithms),
        "data set": len(index.scenarios),
        "seed": len(index.seeds),
    }
    parts = [
        f"{count} {noun}" if count == 1 else f"{count} {noun}s"
        for noun, count in counts.items()
    ]
    state = "finished"
    if experiment.unfinished:
        state = experiment.unfinished
    return f"{', '.join(parts)}; {state}."


def _truncated(table: ReportTable, lines: int) -> ReportTable:
    """The first rows of a table, with a note about the omission."""
    count = len(table.rows)
    if count <= lines:
        return table
    truncation_note = (
        f"The first {lines} of {count} lines; `fedtailor report --out` writes all."
    )
    return replace(table.first(lines), note=f"{truncation_note} {table.note}".strip())


def _value_cell(value: float | None, unit: Unit) -> Cell:
    if value is None:
        return "-"
    displayed = unit.scale * value
    return Number(displayed, f"{displayed:.{unit.digits}f}")


def _count_cell(number: int) -> Number:
    return Number(number, f"{number:,}")
