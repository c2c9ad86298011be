"""What the page of an experiment says: the decision first, then what it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from fedtailor.report import comparison, overview
from fedtailor.report.decision import Decision, decide
from fedtailor.report.experiment import Experiment
from fedtailor.report.page.background import data_card, protocol, settings
from fedtailor.report.page.curves import curves, diagnostics
from fedtailor.report.page.parts import Page, Picture, Section
from fedtailor.report.page.pictures import Gain, extent, forest
from fedtailor.report.page.reliability import RELIABILITY, reliability
from fedtailor.report.stored import StoredRun
from fedtailor.report.tables import Cell, Number, Table
from fedtailor.report.units import Unit, unit_of

MAX_TABLE_ROWS = 2000
"""Lines of clients on a page, all scenarios together.

More would neither be read nor sent by mail.
"""
MAX_PICTURES = 8
"""Methods whose gains are drawn; the table has them all."""
CALIBRATION = ("calibration_error", "brier", "log_loss")
"""Metrics that say whether probabilities can be believed."""

Seeds = Sequence[StoredRun]


def page_of(experiment: Experiment) -> Page:
    """The page of an experiment, finished or not.

    Raises:
        ValueError: a run directory is damaged.
    """
    scenarios = list(experiment.index.scenarios)
    lines = max(MAX_TABLE_ROWS // max(len(scenarios), 1), 50)
    return Page(
        title=overview.title(experiment),
        subtitle=_subtitle(experiment),
        parts={
            scenario: scenario_sections(experiment, scenario, lines)
            for scenario in scenarios
        },
        appendix=[
            _chosen(experiment),
            Section("How it was run", overview.facts(experiment)),
        ],
    )


def scenario_sections(
    experiment: Experiment, scenario: str, lines: int = MAX_TABLE_ROWS
) -> list[Section]:
    """The sections of one scenario.

    Args:
        experiment: its index and runs.
        scenario: the label.
        lines: of its longest table.
    """
    decision = decide(experiment, scenario)
    if decision is None:
        nothing = (
            "No run has ended that did not diverge: there is nothing to decide yet."
        )
        return [Section("Decision", [nothing])]
    runs = {label: seeds for label, seeds in experiment.runs[scenario].items() if seeds}
    first = next(iter(runs.values()))[0]
    clients = _short(client_table(scenario, runs, decision), lines)
    return [
        Section("Decision", decision.conclusions, decision.warnings),
        Section(
            "Methods", tables=[comparison.client_spread_table(experiment, scenario)]
        ),
        Section("Clients", tables=[clients]),
        gains(scenario, decision, lines),
        curves(runs),
        diagnostics(runs),
        Section("Costs", tables=[comparison.cost_table(experiment, scenario)]),
        calibration(runs),
        data_card(experiment.index.scenarios[scenario], first),
        settings(runs),
        protocol(experiment, scenario, first),
    ]


def client_table(scenario: str, runs: Mapping[str, Seeds], decision: Decision) -> Table:
    """One line a client.

    The columns are its rows, every method's value (mean over seeds), and what
    validation data choose for it.
    """
    first = next(iter(runs.values()))[0]
    unit, clients = first.unit, first.clients
    names = clients["client"].to_list()
    columns: dict[str, list[Cell]] = {"client": names}
    if clients["group"].is_not_null().any():
        columns["group"] = [
            "-" if group is None else _count(group) for group in clients["group"]
        ]
    for split in ("train", "test"):
        columns[f"{split}\nrows"] = [_count(size) for size in clients[split]]
    if clients["unseen"].any():
        columns["trained"] = ["no" if unseen else "yes" for unseen in clients["unseen"]]
    headers, cells = list(columns), list(columns.values())
    # A method may be called like a column: from here on headers need not differ.
    for label, seeds in runs.items():
        values = client_values(seeds)
        headers.append(label)
        cells.append([_value(values.get(name), unit) for name in names])
    if decision.choice is not None:
        chosen = _choices(decision)
        headers.append("chosen on\nvalidation data")
        cells.append([chosen.get(name, "-") for name in names])
    note = (
        "Means over seeds, on each client's own test rows. Whoever takes the best of"
        " several methods by these numbers gets one that is too good by the choice."
    )
    rows = [list(row) for row in zip(*cells, strict=True)]
    return Table(
        f"{scenario}: test {unit.axis} of each client", headers, rows, note=note
    )


def client_values(seeds: Seeds) -> dict[str, float]:
    """client -> its value on test after the last round, mean over seeds that have one.

    Seen and unseen clients are in it.
    """
    frames = [
        run.scores(unseen=unseen).select("client", "value")
        for run in seeds
        for unseen in (False, True)
    ]
    scores = pl.concat(frames).filter(pl.col("value").is_not_nan())
    means = scores.group_by("client").agg(pl.col("value").mean())
    return dict(means.iter_rows())


def gains(scenario: str, decision: Decision, lines: int) -> Section:
    """Who gains from sharing: drawn for each method, and as a table."""
    title = "Gains over training alone"
    if decision.gains is None or decision.table is None:
        return Section(title, [decision.no_gains_reason])
    explanation = (
        "An interval that excludes 0 says that sharing helps (or hurts) this client;"
        " any other cannot tell."
    )
    unit = unit_of(decision.gain_metric)
    return Section(
        title,
        [explanation],
        pictures=gain_pictures(decision.gains, unit, lines),
        tables=[_short(decision.table, lines)],
    )


def gain_pictures(gains: pl.DataFrame, unit: Unit, lines: int) -> list[Picture]:
    """One drawing a method, at most `MAX_PICTURES`.

    Args:
        gains: as `fedtailor.decision.client_gains` gives them.
        unit: that they are shown in.
        lines: of all drawings together.
    """
    by_method: dict[str, list[Gain]] = {}
    parts = list(gains.group_by(["method"], maintain_order=True))
    for (method,), part in parts[:MAX_PICTURES]:
        rows = part.head(lines // MAX_PICTURES).iter_rows(named=True)
        by_method[str(method)] = [
            Gain(
                row["client"],
                unit.scale * row["gain"],
                unit.scale * row["low"],
                unit.scale * row["high"],
                row["verdict"],
            )
            for row in rows
        ]
    # One axis for all methods, so that their drawings can be compared.
    axis = extent([gain for drawn in by_method.values() for gain in drawn])
    pictures = []
    for method, drawn in by_method.items():
        title = f"{method}: gain of each client, 95 % interval"
        pictures.append(forest(title, unit.label, drawn, axis))
    return pictures


def calibration(runs: Mapping[str, Seeds]) -> Section:
    """Whether the predicted probabilities can be believed, where that was measured."""
    title = "Calibration"
    diagram = reliability(runs)
    charts, paragraphs = [], []
    if diagram is not None:
        charts, paragraphs = [diagram], [RELIABILITY]
    first = next(iter(runs.values()))[0]
    stored = set(first.metrics["metric"].unique())
    measured = {name: unit_of(name) for name in CALIBRATION if name in stored}
    if not measured:
        paragraphs.append(
            "No number for it was measured in these runs; measure calibration_error,"
            " brier or log_loss."
        )
        return Section(title, paragraphs, charts=charts)
    rows: list[list[Cell]] = []
    for label, seeds in runs.items():
        cells = [_last_mean(seeds, name, unit) for name, unit in measured.items()]
        rows.append([label, *cells])
    units = list(measured.values())
    table = Table(
        "On test, after the last round, mean over clients",
        ["method", *(unit.axis for unit in units)],
        rows,
        higher_is_better={
            column: unit.higher_is_better for column, unit in enumerate(units, 1)
        },
    )
    return Section(title, paragraphs, charts=charts, tables=[table])


def _last_mean(seeds: Seeds, metric: str, unit: Unit) -> Cell:
    """A metric on test after the last round that has it; mean over seeds."""
    curves = [run.curve("test", metric) for run in seeds]
    values = [list(curve.values())[-1] for curve in curves if curve]
    known = [value for value in values if np.isfinite(value)]
    return unit.number(known) if known else "-"


def _choices(decision: Decision) -> dict[str, str]:
    """client -> the methods chosen for it.

    Where seeds differ, each method has its number of seeds.
    """
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


def _chosen(experiment: Experiment) -> Section:
    title = "Choice of settings"
    if not experiment.index.candidates:
        return Section(
            title, ["Nothing was chosen: every method ran with the settings above."]
        )
    return Section(title, tables=[comparison.chosen(experiment)])


def _subtitle(experiment: Experiment) -> str:
    """How much was compared, and whether it is finished."""
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
    if experiment.done != index.runs:
        state = f"unfinished: {experiment.done} of {index.runs} runs"
    return f"{', '.join(parts)}; {state}."


def _short(table: Table, lines: int) -> Table:
    """A table's first lines, with a note that says so."""
    count = len(table.rows)
    if count <= lines:
        return table
    cut = f"The first {lines} of {count} lines; `fedtailor report --out` writes all."
    return replace(table, rows=table.rows[:lines], note=f"{cut} {table.note}".strip())


def _value(value: float | None, unit: Unit) -> Cell:
    if value is None:
        return "-"
    shown = unit.scale * value
    return Number(shown, f"{shown:.{unit.digits}f}")


def _count(number: int) -> Number:
    return Number(number, f"{number:,}")
