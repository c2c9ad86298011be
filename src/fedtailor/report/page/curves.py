"""Curves of training, and what methods tell about themselves."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl

from fedtailor.protocol import client_ids
from fedtailor.protocol.diagnostics import (
    Diagnostic,
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)
from fedtailor.report.drawing import featured
from fedtailor.report.figures import MOST_BANDS
from fedtailor.report.page.parts import Chart, Picture, Section, Series
from fedtailor.report.page.pictures import matrix
from fedtailor.report.stored import StoredRun
from fedtailor.report.tables import Cell, Number, Table
from fedtailor.report.units import Unit, unit_of

MOST_CLIENTS = 500
"""Lines of a table of clients here."""
MOST_POINTS = 400
"""Points of a line: more than pixels show nothing."""
_NOTHING = (
    "These methods tell nothing about themselves beyond their results, or their runs"
    " did not keep it."
)

Seeds = Sequence[StoredRun]
Curve = Mapping[int, float] | Mapping[float, float]


def curves(runs: Mapping[str, Seeds]) -> Section:
    """The run's metric on test by rounds and by traffic, and the loss on validation
    data by rounds.
    """
    unit = next(iter(runs.values()))[0].unit
    charts = [
        _chart("Test, by round", "rounds done", runs, lambda run: run.curve(), unit),
        _chart(
            "Test, by traffic",
            "MB sent, down and up",
            runs,
            _by_megabytes,
            unit,
            silent=False,
        ),
        _chart(
            "Validation loss, by round",
            "rounds done",
            runs,
            lambda run: run.curve("val", "loss"),
            unit_of("loss"),
        ),
    ]
    return Section(
        "Curves",
        [
            "Means over clients (each counts the same) and seeds; bands, from the"
            f" lowest seed to the highest, for at most {MOST_BANDS} methods: FedAvg and"
            " those that end best on test. Point at a curve, or focus it and use the"
            " arrow keys, to read values; the boxes switch lines on and off."
        ],
        charts=[chart for chart in charts if chart.series],
    )


def diagnostics(runs: Mapping[str, Seeds]) -> Section:
    """Who learns from whom, how well clients fall into groups, and the like, for the
    first seed of each method.
    """
    pictures: list[Picture] = []
    charts: list[Chart] = []
    tables: list[Table] = []
    for label, seeds in runs.items():
        names = names_by_id(seeds[0])
        for diagnostic in seeds[0].diagnostics.values():
            part = _part(label, diagnostic, names)
            for kind, kept in ((Picture, pictures), (Chart, charts), (Table, tables)):
                if isinstance(part, kind):
                    kept.append(part)  # type: ignore[arg-type]
    said = [_NOTHING]
    if pictures or charts or tables:
        first, *_ = next(iter(runs.values()))
        said = [f"Of the first seed ({first.seed})."]
    return Section(
        "What methods found", said, pictures=pictures, charts=charts, tables=tables
    )


def names_by_id(run: StoredRun) -> list[str]:
    """The names of the seen clients in the order of ids, which diagnostics have."""
    seen = run.clients.filter(~pl.col("unseen"))["client"].to_list()
    return [seen[place] for place in np.argsort(client_ids(tuple(seen)))]


def _chart(
    title: str,
    x_label: str,
    runs: Mapping[str, Seeds],
    curve: Callable[[StoredRun], Curve],
    unit: Unit,
    silent: bool = True,
) -> Chart:
    """One line a method: means over seeds, for some with the range of seeds as a band.

    Args:
        silent: whether runs that sent nothing in training have a line, too.
    """
    series, banded = [], featured({"": runs})
    for colour, (label, seeds) in enumerate(runs.items()):
        drawn = [curve(run) for run in seeds if silent or not run.silent]
        drawn = [points for points in drawn if points]
        if drawn:
            # where nothing was tested there is no best: the first ones then
            band = label in banded if banded else None
            series.append(_mean_line(label, drawn, unit.scale, colour, band))
    return Chart(title, x_label, unit.axis, series)


def _mean_line(
    label: str, drawn: Sequence[Curve], scale: float, colour: int, banded: bool | None
) -> Series:
    """The mean of curves at the same evaluation; x is a mean, too (of bytes, which may
    differ from seed to seed).
    """
    shortest = min(map(len, drawn))
    kept = np.unique(
        np.linspace(0, shortest - 1, min(shortest, MOST_POINTS)).round().astype(int)
    )
    x = np.mean([list(curve)[:shortest] for curve in drawn], axis=0)[kept]
    seeds = (
        scale * np.array([list(curve.values())[:shortest] for curve in drawn])[:, kept]
    )
    low, high = (), ()
    if banded and len(drawn) > 1:
        low = seeds.min(axis=0).tolist()
        high = seeds.max(axis=0).tolist()
    return Series(
        label, x.tolist(), seeds.mean(axis=0).tolist(), colour, low, high, shown=banded
    )


def _by_megabytes(run: StoredRun) -> Curve:
    return {spent / 1e6: value for spent, value in run.by_bytes().items()}


def _part(
    label: str, diagnostic: Diagnostic, names: Sequence[str]
) -> Picture | Chart | Table:
    title = f"{label}: {diagnostic.title}"
    if isinstance(diagnostic, MatrixDiagnostic):
        return matrix(title, diagnostic.values, names)
    if isinstance(diagnostic, LineDiagnostic):
        return (
            _of_clients(title, diagnostic, names)
            if diagnostic.x_label == "client"
            else _line(title, diagnostic)
        )
    if isinstance(diagnostic, TreeDiagnostic):
        return _tree(title, diagnostic)
    raise TypeError(
        f"a diagnostic is a matrix, a line or a tree, not {type(diagnostic).__name__}"
    )


def _line(title: str, diagnostic: LineDiagnostic) -> Chart:
    order = np.argsort(diagnostic.x, kind="stable")
    if diagnostic.chosen is not None:
        title = f"{title} (chosen: {diagnostic.chosen:g})"
    series = Series(
        diagnostic.y_label, diagnostic.x[order].tolist(), diagnostic.y[order].tolist()
    )
    return Chart(title, diagnostic.x_label, diagnostic.y_label, [series])


def _of_clients(title: str, diagnostic: LineDiagnostic, names: Sequence[str]) -> Table:
    """One number for every client: they have names and no order along an axis."""
    rows: list[list[Cell]] = []
    for position, value in zip(diagnostic.x, diagnostic.y, strict=True):
        rows.append([names[int(position)], Number(float(value), f"{value:.4g}")])
    return Table(title, ["client", diagnostic.y_label], rows[:MOST_CLIENTS])


def _tree(title: str, diagnostic: TreeDiagnostic) -> Table:
    """Which cluster was divided when, and how many clients ended in each."""
    count = len(diagnostic.parent) + 1
    made = {0: ("-", "-")} | {
        split + 1: (str(parent), str(at))
        for split, (parent, at) in enumerate(
            zip(diagnostic.parent, diagnostic.round, strict=True)
        )
    }
    sizes = np.bincount(np.asarray(diagnostic.members, np.int64), minlength=count)
    rows = [
        [str(cluster), *made[cluster], Number(int(sizes[cluster]), str(sizes[cluster]))]
        for cluster in range(count)
    ]
    return Table(
        title, ["cluster", "split from", "in round", "clients in the end"], rows, text=1
    )
