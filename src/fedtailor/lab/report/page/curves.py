"""The sections of a page with training curves and with diagnostics of methods."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedtailor.lab.report.drawing import by_megabytes, highlighted
from fedtailor.lab.report.figures import MAX_BANDS, Curve
from fedtailor.lab.report.page.parts import Chart, Picture, Section, Series
from fedtailor.lab.report.page.pictures import matrix
from fedtailor.lab.results.stored import Seeds, StoredRun
from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.lab.results.units import Unit, unit_of
from fedtailor.protocol import client_ids
from fedtailor.protocol.diagnostics import (
    Diagnostic,
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)

MAX_CLIENTS = 500
"""Maximum number of rows of a table of clients."""
MAX_POINTS = 400
"""Maximum number of points of a line."""
_NO_DIAGNOSTICS = (
    "These methods tell nothing about themselves beyond their results, or their runs"
    " did not keep it."
)


def curves(runs: Mapping[str, Seeds]) -> Section:
    """The section with curves of the test metric and of the validation loss."""
    unit = next(iter(runs.values()))[0].unit

    def validation_loss(run: StoredRun) -> Curve:
        return run.curve("val", "loss")

    by_round = _mean_chart("Test, by round", "rounds done", runs, StoredRun.curve, unit)
    by_traffic = _mean_chart(
        "Test, by traffic",
        "MB sent, down and up",
        runs,
        by_megabytes,
        unit,
        include_silent=False,
    )
    losses = _mean_chart(
        "Validation loss, by round",
        "rounds done",
        runs,
        validation_loss,
        unit_of("loss"),
    )
    explanation = (
        "Means over clients (each counts the same) and seeds; bands, from the"
        f" lowest seed to the highest, for at most {MAX_BANDS} methods: FedAvg and"
        " those that end best on test."
    )
    charts = [chart for chart in (by_round, by_traffic, losses) if chart.series]
    return Section("Curves", [explanation], charts=charts)


def diagnostics(runs: Mapping[str, Seeds]) -> Section:
    """The section with the diagnostics of each method, for its first seed."""
    pictures: list[Picture] = []
    charts: list[Chart] = []
    tables: list[ReportTable] = []
    for label, seeds in runs.items():
        names = names_by_id(seeds[0])
        for diagnostic in seeds[0].diagnostics.values():
            part = _diagnostic_part(label, diagnostic, names)
            if isinstance(part, Picture):
                pictures.append(part)
            elif isinstance(part, Chart):
                charts.append(part)
            else:
                tables.append(part)
    paragraph = _NO_DIAGNOSTICS
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
    """The names of the seen clients in the order of ids, as in diagnostics."""
    names = run.seen_clients["client"].to_list()
    return [names[index] for index in np.argsort(client_ids(tuple(names)))]


def _mean_chart(
    title: str,
    x_label: str,
    runs: Mapping[str, Seeds],
    curve: Callable[[StoredRun], Curve],
    unit: Unit,
    include_silent: bool = True,
) -> Chart:
    """A chart with the mean curve of each method, some with a band of the seeds' range.

    Args:
        title: title of the chart.
        x_label: label of the x axis.
        runs: label -> runs of the method.
        curve: the function that returns the curve of a run.
        unit: unit of y.
        include_silent: whether to include methods that send nothing in training.
    """
    series, highlighted_labels = [], highlighted({"": runs})
    for colour, (label, seeds) in enumerate(runs.items()):
        curves_of_seeds = [
            curve(run) for run in seeds if include_silent or not run.is_silent
        ]
        curves_of_seeds = [points for points in curves_of_seeds if points]
        if curves_of_seeds:
            # Without tests no method is highlighted; None selects the first six lines.
            has_band = label in highlighted_labels if highlighted_labels else None
            series.append(
                _mean_line(label, curves_of_seeds, unit.scale, colour, has_band)
            )
    return Chart(title, x_label, unit.axis, series)


def _mean_line(
    label: str,
    curves: Sequence[Curve],
    scale: float,
    colour: int,
    has_band: bool | None,
) -> Series:
    """Averages x and y of the curves at each evaluation.

    x may differ from seed to seed, for example if it is a number of bytes.
    """
    count = min(map(len, curves))
    x = np.array([list(curve)[:count] for curve in curves])  # [seeds, evaluations]
    y = scale * np.array([list(curve.values())[:count] for curve in curves])
    # At most `MAX_POINTS` evaluations, including the first and the last one.
    points = np.linspace(0, count - 1, min(count, MAX_POINTS))
    points = np.unique(points.round().astype(int))
    mean_x, y = np.mean(x, axis=0)[points], y[:, points]
    low, high = (), ()
    if has_band and len(curves) > 1:
        low = y.min(axis=0).tolist()
        high = y.max(axis=0).tolist()
    mean_y = y.mean(axis=0)
    return Series(
        label, mean_x.tolist(), mean_y.tolist(), colour, low, high, shown=has_band
    )


def _diagnostic_part(
    label: str, diagnostic: Diagnostic, names: Sequence[str]
) -> Picture | Chart | ReportTable:
    """Converts a diagnostic to a picture, a chart or a table."""
    title = f"{label}: {diagnostic.title}"
    if isinstance(diagnostic, MatrixDiagnostic):
        return matrix(title, diagnostic.values, names)
    if isinstance(diagnostic, TreeDiagnostic):
        return _tree_table(title, diagnostic)
    if not isinstance(diagnostic, LineDiagnostic):
        kind = type(diagnostic).__name__
        raise TypeError(f"a diagnostic is a matrix, a line or a tree, not {kind}")
    if diagnostic.x_label == "client":
        return _client_table(title, diagnostic, names)
    return _line_chart(title, diagnostic)


def _line_chart(title: str, diagnostic: LineDiagnostic) -> Chart:
    """A chart of numbers along an axis, with the chosen x in the title."""
    if diagnostic.chosen is not None:
        title = f"{title} (chosen: {diagnostic.chosen:g})"
    order = np.argsort(diagnostic.x, kind="stable")
    x, y = diagnostic.x[order].tolist(), diagnostic.y[order].tolist()
    series = Series(diagnostic.y_label, x, y)
    return Chart(title, diagnostic.x_label, diagnostic.y_label, [series])


def _client_table(
    title: str, diagnostic: LineDiagnostic, names: Sequence[str]
) -> ReportTable:
    """A table with one number for each client."""
    rows: list[list[Cell]] = []
    for position, value in zip(diagnostic.x, diagnostic.y, strict=True):
        rows.append([names[int(position)], Number(float(value), f"{value:.4g}")])
    return ReportTable(title, ["client", diagnostic.y_label], rows[:MAX_CLIENTS])


def _tree_table(title: str, diagnostic: TreeDiagnostic) -> ReportTable:
    """A table of the splits of clusters and their final numbers of clients."""
    count = len(diagnostic.parent) + 1
    sizes = np.bincount(np.asarray(diagnostic.members, np.int64), minlength=count)
    # Cluster 0 exists from the start; split s creates cluster s + 1.
    parents = ["-", *map(str, diagnostic.parent)]
    rounds = ["-", *map(str, diagnostic.round)]
    rows = []
    for cluster, size in enumerate(sizes.tolist()):
        number = Number(size, str(size))
        rows.append([str(cluster), parents[cluster], rounds[cluster], number])
    columns = ["cluster", "split from", "in round", "clients in the end"]
    return ReportTable(title, columns, rows, text=1)
