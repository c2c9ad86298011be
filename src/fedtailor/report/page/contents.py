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

MOST_LINES = 2000
"""Lines of clients on a page, all scenarios together: more would neither be read nor
sent by mail.
"""
MOST_PICTURES = 8
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
    lines = max(MOST_LINES // max(len(scenarios), 1), 50)
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
    experiment: Experiment, scenario: str, lines: int = MOST_LINES
) -> list[Section]:
    """The sections of one scenario; `lines`: of its longest table."""
    runs = {label: seeds for label, seeds in experiment.runs[scenario].items() if seeds}
    decision = decide(experiment, scenario)
    if decision is None:
        return [
            Section(
                "Decision",
                [
                    "No run has ended that did not diverge: there is nothing to decide"
                    " yet."
                ],
            )
        ]
    return [
        Section("Decision", decision.sentences, decision.warnings),
        Section("Methods", tables=[comparison.over_clients(experiment, scenario)]),
        Section(
            "Clients", tables=[_short(client_table(scenario, runs, decision), lines)]
        ),
        gains(scenario, decision, lines),
        curves(runs),
        diagnostics(runs),
        Section("Costs", tables=[comparison.traffic_and_time(experiment, scenario)]),
        calibration(runs),
        data_card(experiment.index.scenarios[scenario], next(iter(runs.values()))[0]),
        settings(runs),
        protocol(experiment, scenario, next(iter(runs.values()))[0]),
    ]


def client_table(scenario: str, runs: Mapping[str, Seeds], decision: Decision) -> Table:
    """One line a client: its rows, every method's value (mean over seeds), and what
    validation data choose for it.
    """
    first = next(iter(runs.values()))[0]
    unit, clients = first.unit, first.clients
    columns: list[tuple[str, list[Cell]]] = [("client", clients["client"].to_list())]
    if clients["group"].is_not_null().any():
        columns.append(
            (
                "group",
                ["-" if group is None else _count(group) for group in clients["group"]],
            )
        )
    for split in ("train", "test"):
        columns.append((f"{split}\nrows", [_count(size) for size in clients[split]]))
    if clients["unseen"].any():
        columns.append(
            ("trained", ["no" if unseen else "yes" for unseen in clients["unseen"]])
        )
    for label, seeds in runs.items():
        values = client_values(seeds)
        columns.append(
            (label, [_value(values.get(client), unit) for client in clients["client"]])
        )
    if decision.choice is not None:
        chosen = _choices(decision)
        columns.append(
            (
                "chosen on\nvalidation data",
                [chosen.get(client, "-") for client in clients["client"]],
            )
        )
    rows = [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]
    note = (
        "Means over seeds, on each client's own test rows. Whoever takes the best of"
        " several methods by these numbers gets one that is too good by the choice."
    )
    return Table(
        f"{scenario}: test {unit.axis} of each client",
        [header for header, _ in columns],
        rows,
        note=note,
    )


def client_values(seeds: Seeds) -> dict[str, float]:
    """client -> its value on test after the last round, mean over the seeds that have
    one, seen and unseen.
    """
    scores = pl.concat(
        [
            run.scores(unseen=unseen).select("client", "value")
            for run in seeds
            for unseen in (False, True)
        ]
    )
    means = (
        scores.filter(pl.col("value").is_not_nan())
        .group_by("client")
        .agg(pl.col("value").mean())
    )
    return dict(means.iter_rows())


def gains(scenario: str, decision: Decision, lines: int) -> Section:
    """Who gains from sharing: drawn for each method, and as a table."""
    if decision.gains is None or decision.table is None:
        return Section("Gains over training alone", [decision.why_no_gains])
    unit = unit_of(decision.gain_metric)
    return Section(
        "Gains over training alone",
        [
            "An interval that excludes 0 says that sharing helps (or hurts) this"
            " client; any other cannot tell."
        ],
        pictures=gain_pictures(decision.gains, unit, lines),
        tables=[_short(decision.table, lines)],
    )


def gain_pictures(gains: pl.DataFrame, unit: Unit, lines: int) -> list[Picture]:
    """One drawing a method, of a frame as `fedtailor.decision.client_gains` gives
    it.
    """
    drawn: dict[str, list[Gain]] = {}
    for (method,), part in list(gains.group_by(["method"], maintain_order=True))[
        :MOST_PICTURES
    ]:
        drawn[str(method)] = [
            Gain(
                line["client"],
                unit.scale * line["gain"],
                unit.scale * line["low"],
                unit.scale * line["high"],
                line["verdict"],
            )
            for line in part.head(lines // MOST_PICTURES).iter_rows(named=True)
        ]
    # one axis for all methods, so that their drawings can be compared
    shown = extent([gain for of_method in drawn.values() for gain in of_method])
    return [
        forest(
            f"{method}: gain of each client, 95 % interval",
            unit.label,
            of_method,
            shown,
        )
        for method, of_method in drawn.items()
    ]


def calibration(runs: Mapping[str, Seeds]) -> Section:
    """Whether the predicted probabilities can be believed, where that was measured."""
    first = next(iter(runs.values()))[0]
    stored = set(first.metrics["metric"].unique())
    measured = [name for name in CALIBRATION if name in stored]
    drawn = reliability(runs)
    charts, said = ([drawn], [RELIABILITY]) if drawn is not None else ([], [])
    if not measured:
        said.append(
            "No number for it was measured in these runs; measure calibration_error,"
            " brier or log_loss."
        )
        return Section("Calibration", said, charts=charts)
    units = [unit_of(name) for name in measured]
    rows: list[list[Cell]] = []
    for label, seeds in runs.items():
        cells = [
            _last_mean(seeds, name, unit)
            for name, unit in zip(measured, units, strict=True)
        ]
        rows.append([label, *cells])
    title = "On test, after the last round, mean over clients"
    better = {place: unit.higher_is_better for place, unit in enumerate(units, 1)}
    table = Table(
        title, ["method", *(unit.axis for unit in units)], rows, higher_is_better=better
    )
    return Section("Calibration", said, charts=charts, tables=[table])


def _last_mean(seeds: Seeds, metric: str, unit: Unit) -> Cell:
    values = [
        list(curve.values())[-1]
        for run in seeds
        if (curve := run.curve("test", metric))
    ]
    known = [value for value in values if np.isfinite(value)]
    return unit.number(known) if known else "-"


def _choices(decision: Decision) -> dict[str, str]:
    """client -> the methods chosen for it, with the number of seeds where they
    differ.
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
    index = experiment.index
    state = (
        "finished"
        if experiment.done == index.runs
        else f"unfinished: {experiment.done} of {index.runs} runs"
    )
    counts = (
        (len(index.algorithms), "method"),
        (len(index.scenarios), "data set"),
        (len(index.seeds), "seed"),
    )
    said = ", ".join(f"{count} {what}" + "s" * (count != 1) for count, what in counts)
    return f"{said}; {state}."


def _short(table: Table, lines: int) -> Table:
    """A table's first lines, which say so."""
    if len(table.rows) <= lines:
        return table
    left_out = (
        f"The first {lines} of {len(table.rows)} lines; `fedtailor report --out` writes"
        " all."
    )
    return replace(
        table, rows=table.rows[:lines], note=f"{left_out} {table.note}".strip()
    )


def _value(value: float | None, unit: Unit) -> Cell:
    if value is None:
        return "-"
    shown = unit.scale * value
    return Number(shown, f"{shown:.{unit.digits}f}")


def _count(number: int) -> Number:
    return Number(number, f"{number:,}")
