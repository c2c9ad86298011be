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
from fedtailor.report.drawing import by_megabytes, highlighted
from fedtailor.report.figures import MAX_BANDS
from fedtailor.report.page.parts import Chart, Picture, Section, Series
from fedtailor.report.page.pictures import matrix
from fedtailor.report.stored import StoredRun
from fedtailor.report.tables import Cell, Number, Table
from fedtailor.report.units import Unit, unit_of

MAX_CLIENTS = 500
"""Lines of a table of clients here."""
MAX_POINTS = 400
"""Points of a line: more than pixels show nothing."""
_NOTHING = (
    "These methods tell nothing about themselves beyond their results, or their runs"
    " did not keep it."
)

Seeds = Sequence[StoredRun]
Curve = Mapping[int, float] | Mapping[float, float]


def curves(runs: Mapping[str, Seeds]) -> Section:
    """The metric on test by rounds and by traffic, and the loss on validation data."""
    unit = next(iter(runs.values()))[0].unit

    def validation_loss(run: StoredRun) -> Curve:
        return run.curve("val", "loss")

    by_round = _chart("Test, by round", "rounds done", runs, StoredRun.curve, unit)
    by_traffic = _chart(
        "Test, by traffic",
        "MB sent, down and up",
        runs,
        by_megabytes,
        unit,
        silent=False,
    )
    losses = _chart(
        "Validation loss, by round",
        "rounds done",
        runs,
        validation_loss,
        unit_of("loss"),
    )
    explanation = (
        "Means over clients (each counts the same) and seeds; bands, from the"
        f" lowest seed to the highest, for at most {MAX_BANDS} methods: FedAvg and"
        " those that end best on test. Point at a curve, or focus it and use the"
        " arrow keys, to read values; the boxes switch lines on and off."
    )
    charts = [chart for chart in (by_round, by_traffic, losses) if chart.series]
    return Section("Curves", [explanation], charts=charts)


def diagnostics(runs: Mapping[str, Seeds]) -> Section:
    """What each method tells about itself, for its first seed.

    For example, who learns from whom, or how well clients fall into groups.
    """
    pictures: list[Picture] = []
    charts: list[Chart] = []
    tables: list[Table] = []
    for label, seeds in runs.items():
        names = names_by_id(seeds[0])
        for diagnostic in seeds[0].diagnostics.values():
            part = _part(label, diagnostic, names)
            if isinstance(part, Picture):
                pictures.append(part)
            elif isinstance(part, Chart):
                charts.append(part)
            else:
                tables.append(part)
    paragraph = _NOTHING
    if pictures or charts or tables:
        first = next(iter(runs.values()))[0]
        paragraph = f"Of the first seed ({first.seed})."
    return Section(
        "What methods found",
        [paragraph],
        pictures=pictures,
        charts=charts,
        tables=tables,
    )


def names_by_id(run: StoredRun) -> list[str]:
    """The names of the seen clients in the order of ids, which diagnostics have."""
    names = run.seen_clients["client"].to_list()
    return [names[index] for index in np.argsort(client_ids(tuple(names)))]


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
        title, x_label: of the chart.
        runs: of all methods.
        curve: what is drawn of a run.
        unit: of y.
        silent: whether runs that sent nothing in training have a line, too.
    """
    series, with_bands = [], highlighted({"": runs})
    for colour, (label, seeds) in enumerate(runs.items()):
        of_seeds = [curve(run) for run in seeds if silent or not run.is_silent]
        of_seeds = [points for points in of_seeds if points]
        if of_seeds:
            # Where nothing was tested there is no best: the first ones then.
            banded = label in with_bands if with_bands else None
            series.append(_mean_line(label, of_seeds, unit.scale, colour, banded))
    return Chart(title, x_label, unit.axis, series)


def _mean_line(
    label: str, curves: Sequence[Curve], scale: float, colour: int, banded: bool | None
) -> Series:
    """The mean of curves at the same evaluations.

    x is a mean, too: bytes, for example, may differ from seed to seed.
    """
    count = min(map(len, curves))
    x = np.array([list(curve)[:count] for curve in curves])  # [seeds, evaluations]
    y = scale * np.array([list(curve.values())[:count] for curve in curves])
    # At most `MAX_POINTS` evaluations, the first and the last among them.
    points = np.linspace(0, count - 1, min(count, MAX_POINTS))
    points = np.unique(points.round().astype(int))
    mean_x, y = np.mean(x, axis=0)[points], y[:, points]
    low, high = (), ()
    if banded and len(curves) > 1:
        low = y.min(axis=0).tolist()
        high = y.max(axis=0).tolist()
    mean_y = y.mean(axis=0)
    return Series(
        label, mean_x.tolist(), mean_y.tolist(), colour, low, high, shown=banded
    )


def _part(
    label: str, diagnostic: Diagnostic, names: Sequence[str]
) -> Picture | Chart | Table:
    """A diagnostic as what shows it best."""
    title = f"{label}: {diagnostic.title}"
    if isinstance(diagnostic, MatrixDiagnostic):
        return matrix(title, diagnostic.values, names)
    if isinstance(diagnostic, TreeDiagnostic):
        return _tree(title, diagnostic)
    if not isinstance(diagnostic, LineDiagnostic):
        kind = type(diagnostic).__name__
        raise TypeError(f"a diagnostic is a matrix, a line or a tree, not {kind}")
    if diagnostic.x_label == "client":
        return _of_clients(title, diagnostic, names)
    return _line(title, diagnostic)


def _line(title: str, diagnostic: LineDiagnostic) -> Chart:
    """Numbers along an axis, with the chosen one in the title."""
    if diagnostic.chosen is not None:
        title = f"{title} (chosen: {diagnostic.chosen:g})"
    order = np.argsort(diagnostic.x, kind="stable")
    x, y = diagnostic.x[order].tolist(), diagnostic.y[order].tolist()
    series = Series(diagnostic.y_label, x, y)
    return Chart(title, diagnostic.x_label, diagnostic.y_label, [series])


def _of_clients(title: str, diagnostic: LineDiagnostic, names: Sequence[str]) -> Table:
    """One number for every client: they have names and no order along an axis."""
    rows: list[list[Cell]] = []
    for position, value in zip(diagnostic.x, diagnostic.y, strict=True):
        rows.append([names[int(position)], Number(float(value), f"{value:.4g}")])
    return Table(title, ["client", diagnostic.y_label], rows[:MAX_CLIENTS])


def _tree(title: str, diagnostic: TreeDiagnostic) -> Table:
    """Which cluster was divided when, and how many clients ended in each."""
    count = len(diagnostic.parent) + 1
    sizes = np.bincount(np.asarray(diagnostic.members, np.int64), minlength=count)
    # Cluster 0 is there from the start; split s makes cluster s + 1.
    parents = ["-", *map(str, diagnostic.parent)]
    rounds = ["-", *map(str, diagnostic.round)]
    rows = []
    for cluster, size in enumerate(sizes.tolist()):
        number = Number(size, str(size))
        rows.append([str(cluster), parents[cluster], rounds[cluster], number])
    columns = ["cluster", "split from", "in round", "clients in the end"]
    return Table(title, columns, rows, text=1)
