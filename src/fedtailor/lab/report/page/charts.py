"""Charts of a page as images, which need no script: matplotlib's SVG."""

import io
import warnings
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedtailor._base.printable import one_line
from fedtailor.lab.report.figures import MAX_BANDS, SETTINGS, style
from fedtailor.lab.report.page.parts import Chart, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 5.6, 3.2
"""Inches of a chart, without its legend."""
FEW_POINTS = 12
"""Each point of a line with so few is marked."""


def image_of(chart: Chart) -> Markup:
    """A chart as an image whose file is part of the page."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Letters stay letters: the file is small, and the browser has signs of all languages.
    # Matplotlib warns of those that its own font lacks, which it measures with.
    settings = dict(SETTINGS)
    settings["svg.fonttype"] = "none"
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        columns = 3
        rows = -(-len(chart.series) // columns)
        # Not pyplot's figure, which would stay in memory.
        figure = Figure((WIDTH, HEIGHT + 0.2 * rows), layout="constrained")
        axes = figure.subplots()
        for index, line in enumerate(chart.series):
            _draw(axes, line, index)
        axes.set(xlabel=one_line(chart.x_label), ylabel=one_line(chart.y_label))
        axes.grid(alpha=0.25)
        figure.legend(
            axes.lines,
            [one_line(line.label) for line in chart.series],
            loc="outside lower center",
            ncols=min(columns, max(len(chart.series), 1)),
            frameon=False,
        )
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(
        f"{one_line(chart.title)}: {one_line(chart.y_label)} over"
        f" {one_line(chart.x_label)}",
        b64encode(file.getvalue()).decode(),
    )


def _draw(axes: "Axes", line: Series, index: int) -> None:
    """Draws a line: thin behind the others if it is none of those that are shown."""
    x, y = _numbers(line.x), _numbers(line.y)
    is_shown = index < MAX_BANDS if line.shown is None else line.shown
    look = style(index if line.colour is None else line.colour)
    if line.colour == -1:
        look = {"color": "#6e7781", "marker": "", "linestyle": (0, (5, 3))}
    if len(x) > FEW_POINTS:
        look["marker"] = ""
    if is_shown:
        look |= {"linewidth": 1.6, "markersize": 4}
    else:
        look |= {"linewidth": 0.8, "alpha": 0.6, "zorder": 1, "marker": ""}
    axes.plot(x, y, **look)
    if len(line.low) and is_shown:
        low, high = _numbers(line.low), _numbers(line.high)
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _numbers(values: Sequence[float]) -> NDArray[np.float64]:
    """As an array in which infinity is NaN, which matplotlib does not draw."""
    numbers = np.asarray(values, np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)
