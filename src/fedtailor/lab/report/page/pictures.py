"""Static drawings as SVG or PNG inside the page.

Figures in files and in notebooks are matplotlib's (`report.figures`, `plot`). These two
drawings are written out, since they are parts of a page: they take its colours, also in
dark mode and in print, larger letters on phones, and say their values where one points.
matplotlib's SVG has none of that, and is 4 to 6 times as large for 10 to 200 clients
(16, 40 and 170 kB instead of 3, 9 and 35) and takes 0.1 to 0.6 s for a drawing. Matrices of
many clients, which nobody reads entry by entry, are its images.
"""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray

from fedtailor._base.printable import one_line
from fedtailor.lab.report.page.parts import Picture

MAX_NAMED_CLIENTS = 40
"""Maximum number of clients that are drawn with names."""
NAMED_ENDS = 15
"""Of more clients, this many best and this many worst ones are drawn with names."""
MAX_PIXELS = 300
"""Maximum number of rows and columns in the image of a matrix."""
_ROW, _ROW_UNNAMED = 22, 3
"""Height of a client's row in pixels, with and without a name."""
_LEFT, _WIDTH, _AXIS = 130, 520, 36
"""Width of the names, width of the drawing and height of the axis, in pixels."""


@dataclass(frozen=True)
class Gain:
    """One client's gain and interval in the displayed unit; positive means better."""

    client: str
    gain: float
    low: float
    high: float
    verdict: str


def axis_range(gains: Sequence[Gain]) -> tuple[float, float]:
    """The limits of an axis that contains all gains with their intervals, and 0."""
    numbers = [0.0]
    for gain in gains:
        numbers += [gain.low, gain.high, gain.gain]
    finite = [number for number in numbers if np.isfinite(number)]
    low, high = min(finite), max(finite)
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def forest(
    title: str,
    unit: str,
    gains: Sequence[Gain],
    axis_limits: tuple[float, float],
    most: int = 200,
) -> Picture:
    """Draws a forest plot: gains with their intervals, best first.

    Of more than `MAX_NAMED_CLIENTS` clients the best and the worst ones have names, and
    thin lines between them show the others.

    Args:
        title: title of the picture.
        unit: unit of the gains.
        gains: the gains; those that are not finite are omitted.
        axis_limits: limits of the axis, see `axis_range`.
        most: maximum number of clients that are drawn. Of more clients, those between
            the best and the worst ones are drawn at equal distances of their ranks.
    """
    finite = (gain for gain in gains if np.isfinite(gain.gain))
    ordered = sorted(finite, key=lambda gain: -gain.gain)
    drawn, note = _drawn(ordered, most)
    low, high = axis_limits
    right = _WIDTH - 10
    bottom = sum(_ROW if named else _ROW_UNNAMED for _, named in drawn)
    height = bottom + _AXIS

    def x_of(value: float) -> float:
        """The x coordinate of a gain."""
        return round(_LEFT + (right - _LEFT) * (value - low) / (high - low), 1)

    # The grid comes first, so that the gains are drawn over it.
    elements = []
    for tick in _ticks(low, high):
        css_class, x = "zero" if tick == 0 else "grid", x_of(tick)
        elements.append(
            f'<line class="{css_class}" x1="{x}" x2="{x}" y1="0" y2="{bottom}"/>'
        )
        text = _signed(tick)
        elements.append(f'<text class="tick" x="{x}" y="{bottom + 14}">{text}</text>')
    text = f"gain over training alone, {_escaped(unit)}"
    middle = (_LEFT + right) / 2
    elements.append(f'<text class="tick" x="{middle}" y="{height - 4}">{text}</text>')
    top = 0.0
    for gain, named in drawn:
        row_height = _ROW if named else _ROW_UNNAMED
        y = top + row_height / 2
        top += row_height
        css_class, text = gain.verdict.replace(" ", "-"), _escaped(_tooltip(gain))
        elements.append(f'<g class="{css_class}"><title>{text}</title>')
        if named:
            name = _escaped(_short_name(gain.client))
            elements.append(
                f'<text class="name" x="{_LEFT - 8}" y="{y + 4}">{name}</text>'
            )
        if np.isfinite(gain.low) and np.isfinite(gain.high):
            x1, x2 = x_of(gain.low), x_of(gain.high)
            elements.append(f'<line x1="{x1}" x2="{x2}" y1="{y}" y2="{y}"/>')
        radius = 4 if named else 1.5
        elements.append(f'<circle cx="{x_of(gain.gain)}" cy="{y}" r="{radius}"/></g>')
    markup = (
        f'<svg class="forest" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{_escaped(title)}">'
        f"{''.join(elements)}</svg>"
    )
    return Picture(title, markup, note)


def _drawn(ordered: Sequence[Gain], most: int) -> tuple[list[tuple[Gain, bool]], str]:
    """The gains that are drawn, each with whether it has a name, and a note on it.

    Args:
        ordered: all gains, best first.
        most: maximum number of gains that are drawn.
    """
    count = len(ordered)
    if count <= min(MAX_NAMED_CLIENTS, most):
        return [(gain, True) for gain in ordered], ""
    ends = max(min(NAMED_ENDS, most // 2), 1)
    between = ordered[ends : count - ends]
    ranks = np.linspace(0, len(between) - 1, min(len(between), max(most - 2 * ends, 0)))
    kept = [between[rank] for rank in np.unique(ranks.round().astype(int))]
    drawn = [(gain, True) for gain in ordered[:ends]]
    drawn += [(gain, False) for gain in kept]
    drawn += [(gain, True) for gain in ordered[count - ends :]]
    note = (
        f"{count} clients, best first; the {ends} best and the {ends} worst have their"
        " names here, and all of them in the table."
    )
    if len(kept) < len(between):
        note += f" Of the {len(between)} between them, {len(kept)} are drawn."
    return drawn, note


def matrix(
    title: str, values: Shaped[ndarray, "m m"], names: Sequence[str], note: str = ""
) -> Picture:
    """Draws a matrix between clients.

    Each entry is a square with its value as a tooltip. A matrix of more than
    `MAX_NAMED_CLIENTS` clients is an image.

    Args:
        title: title of the picture.
        values: the matrix.
        names: names of the clients.
        note: explanation of the matrix.
    """
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = 0.0, 1.0
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
    scaled = (numbers - low) / ((high - low) or 1.0)
    # Display a rounding error as 0.
    if abs(low) < 1e-6 * abs(high):
        low = 0.0
    legend = (
        f"Row: who uses; column: whose, in the same order. Light is {low:.3g}, dark is"
        f" {high:.3g}."
    )
    note = f"{note} {legend}".strip()
    count = len(numbers)
    if count > MAX_NAMED_CLIENTS:
        note = f"{note} {count} clients in the order of their ids."
        return Picture(title, _image(title, scaled), note)
    cell_size = 600 / max(count, 8)
    left, font_size = 130, min(cell_size * 0.7, 13)
    elements = []
    for i in range(count):
        y = round(i * cell_size, 2)
        middle = round(y + cell_size / 2 + font_size / 3, 2)
        elements.append(
            f'<text class="name" x="{left - 6}" y="{middle}"'
            f' font-size="{font_size:.1f}">'
            f"{_escaped(_short_name(names[i]))}</text>"
        )
        for j in range(count):
            x = round(left + j * cell_size, 2)
            fill = _matrix_color(scaled[i, j])
            tooltip = _escaped(f"{names[i]} from {names[j]}: {numbers[i, j]:.4g}")
            elements.append(
                f'<rect x="{x}" y="{y}" width="{cell_size:.2f}"'
                f' height="{cell_size:.2f}"'
                f' fill="{fill}"><title>{tooltip}</title></rect>'
            )
    height = round(count * cell_size, 1)
    width = left + height
    markup = (
        f'<svg class="matrix" width="{width}" viewBox="0 0 {width}'
        f' {height}" role="img"'
        f' aria-label="{_escaped(title)}">{"".join(elements)}</svg>'
    )
    return Picture(title, markup, note)


def _image(title: str, scaled: Float[ndarray, "m m"]) -> str:
    """Converts a matrix of numbers from 0 to 1 to an image element with PNG data."""
    from matplotlib import colormaps
    from matplotlib.image import imsave

    # A pixel is the mean over a block of clients, which limits the size of the page.
    block = -(-len(scaled) // MAX_PIXELS)
    starts = np.arange(0, len(scaled), block)
    counts = np.diff(starts, append=len(scaled))
    row_sums = np.add.reduceat(np.nan_to_num(scaled), starts, axis=0)
    sums = np.add.reduceat(row_sums, starts, axis=1)
    means = sums / np.outer(counts, counts)
    file = io.BytesIO()
    imsave(file, colormaps["Blues"](means), format="png")
    data = base64.b64encode(file.getvalue()).decode()
    return (
        f'<img class="matrix" alt="{_escaped(title)}"'
        f' src="data:image/png;base64,{data}">'
    )


def _matrix_color(share: float) -> str:
    """A colour from white (0) to dark blue (1); NaN is grey."""
    if not np.isfinite(share):
        return "#ccc"
    lightest, darkest = np.array([247, 251, 255]), np.array([8, 48, 107])
    red, green, blue = (lightest + share * (darkest - lightest)).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _ticks(low: float, high: float) -> list[float]:
    """About six round numbers in an interval, including 0."""
    # The step is 1, 2 or 5 times a power of ten.
    min_step = (high - low) / 6
    power = 10 ** np.floor(np.log10(min_step))
    step = next(
        factor * power for factor in (1, 2, 5, 10) if factor * power >= min_step
    )
    first = int(np.ceil(low / step))
    last = int(np.floor(high / step))
    return [round(float(k * step), 10) for k in range(first, last + 1)]


def _signed(tick: float) -> str:
    return f"{tick:+g}" if tick else "0"


def _tooltip(gain: Gain) -> str:
    interval = f"[{gain.low:+.3g}, {gain.high:+.3g}]"
    return f"{gain.client}: {gain.gain:+.3g} {interval}, {gain.verdict}"


def _short_name(name: str) -> str:
    return name if len(name) <= 17 else f"{name[:16]}…"


def _escaped(text: str) -> str:
    """A text for HTML, also inside an attribute."""
    return html.escape(one_line(text))
