"""Drawings as SVG or PNG inside the page.

They are there without any script, and print sharply.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray

from fedtailor.report.page.parts import Picture

MAX_NAMED_CLIENTS = 40
"""More clients than this are drawn without their names."""
MAX_PIXELS = 300
"""An image of a matrix has at most so many lines and columns."""
_ROW, _ROW_UNNAMED = 22, 5
"""Height of a client's line, in pixels, with a name and without."""
# In the units of the drawing.
_LEFT, _WIDTH, _AXIS = 130, 520, 36
"""Widths of the names and of the whole drawing, height of the axis."""


@dataclass(frozen=True)
class Gain:
    """One client's gain with its interval, in the unit that is shown.

    Positive is better.
    """

    client: str
    gain: float
    low: float
    high: float
    verdict: str


def extent(gains: Sequence[Gain]) -> tuple[float, float]:
    """Both ends of an axis that shows all these gains with their intervals, and 0."""
    numbers = [0.0]
    for gain in gains:
        numbers += [gain.low, gain.high, gain.gain]
    finite = [number for number in numbers if np.isfinite(number)]
    low, high = min(finite), max(finite)
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def forest(
    title: str, unit: str, gains: Sequence[Gain], shown: tuple[float, float]
) -> Picture:
    """Gains with their intervals, best first, around the line of no gain.

    Args:
        title: of the picture.
        unit: of the gains.
        gains: those that are not finite are left out.
        shown: both ends of the axis, see `extent`.
    """
    finite = (gain for gain in gains if np.isfinite(gain.gain))
    ordered = sorted(finite, key=lambda gain: -gain.gain)
    named = len(ordered) <= MAX_NAMED_CLIENTS
    row, left = (_ROW, _LEFT) if named else (_ROW_UNNAMED, 10)
    right = _WIDTH - 10
    low, high = shown
    bottom = row * len(ordered)
    height = bottom + _AXIS

    def at(value: float) -> float:
        """The x of a gain."""
        return round(left + (right - left) * (value - low) / (high - low), 1)

    # The grid first, so that the gains are drawn over it.
    marks = []
    for tick in _ticks(low, high):
        kind, x = "zero" if tick == 0 else "grid", at(tick)
        marks.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="0" y2="{bottom}"/>')
        text = _signed(tick)
        marks.append(f'<text class="tick" x="{x}" y="{bottom + 14}">{text}</text>')
    text = f"gain over training alone, {escape(unit)}"
    middle = (left + right) / 2
    marks.append(f'<text class="tick" x="{middle}" y="{height - 4}">{text}</text>')
    for number, gain in enumerate(ordered):
        y = row * number + row / 2
        kind, text = gain.verdict.replace(" ", "-"), escape(_said(gain))
        marks.append(f'<g class="{kind}"><title>{text}</title>')
        if named:
            name = escape(_short(gain.client))
            marks.append(f'<text class="name" x="{left - 8}" y="{y + 4}">{name}</text>')
        if np.isfinite(gain.low) and np.isfinite(gain.high):
            x1, x2 = at(gain.low), at(gain.high)
            marks.append(f'<line x1="{x1}" x2="{x2}" y1="{y}" y2="{y}"/>')
        radius = 4 if named else 2
        marks.append(f'<circle cx="{at(gain.gain)}" cy="{y}" r="{radius}"/></g>')
    markup = (
        f'<svg class="forest" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{escape(title, quote=True)}">'
        f"{''.join(marks)}</svg>"
    )
    note = f"{len(ordered)} clients, best first; hover over a line for its client."
    return Picture(title, markup, "" if named else note)


def matrix(
    title: str, values: Shaped[ndarray, "m m"], names: Sequence[str], note: str = ""
) -> Picture:
    """Numbers between clients.

    Each is a square that shows its value when a reader hovers over it. For many clients
    it is an image.
    """
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = 0.0, 1.0
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
    scaled = (numbers - low) / ((high - low) or 1.0)
    # A rest of rounding reads badly.
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
    side = 600 / max(count, 8)
    left, text = 130, min(side * 0.7, 13)
    marks = []
    for i in range(count):
        y = round(i * side, 2)
        middle = round(y + side / 2 + text / 3, 2)
        marks.append(
            f'<text class="name" x="{left - 6}" y="{middle}" font-size="{text:.1f}">'
            f"{escape(_short(names[i]))}</text>"
        )
        for j in range(count):
            x = round(left + j * side, 2)
            fill = _colour(scaled[i, j])
            said = escape(f"{names[i]} from {names[j]}: {numbers[i, j]:.4g}")
            marks.append(
                f'<rect x="{x}" y="{y}" width="{side:.2f}" height="{side:.2f}"'
                f' fill="{fill}"><title>{said}</title></rect>'
            )
    height = round(count * side, 1)
    width = left + height
    markup = (
        f'<svg class="matrix" style="max-width:{width}px" viewBox="0 0 {width}'
        f' {height}" role="img"'
        f' aria-label="{escape(title, quote=True)}">{"".join(marks)}</svg>'
    )
    return Picture(title, markup, note)


def _image(title: str, scaled: Float[ndarray, "m m"]) -> str:
    """A matrix of shares from 0 to 1 as a PNG inside an element."""
    from matplotlib import colormaps
    from matplotlib.image import imsave

    # Blocks of clients become one pixel, their mean: more of them would make the page
    # too large to send.
    block = -(-len(scaled) // MAX_PIXELS)
    starts = np.arange(0, len(scaled), block)
    counts = np.diff(starts, append=len(scaled))
    of_rows = np.add.reduceat(np.nan_to_num(scaled), starts, axis=0)
    sums = np.add.reduceat(of_rows, starts, axis=1)
    means = sums / np.outer(counts, counts)
    file = io.BytesIO()
    imsave(file, colormaps["Blues"](means), format="png")
    data = base64.b64encode(file.getvalue()).decode()
    return (
        f'<img class="matrix" alt="{escape(title, quote=True)}"'
        f' src="data:image/png;base64,{data}">'
    )


def _colour(share: float) -> str:
    """From white to dark blue; grey where there is no number."""
    if not np.isfinite(share):
        return "#ccc"
    light, dark = np.array([247, 251, 255]), np.array([8, 48, 107])
    red, green, blue = (light + share * (dark - light)).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _ticks(low: float, high: float) -> list[float]:
    """About six round numbers between two, 0 among them."""
    # The step is 1, 2 or 5 times a power of ten.
    raw = (high - low) / 6
    power = 10 ** np.floor(np.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = int(np.ceil(low / step))
    last = int(np.floor(high / step))
    return [round(float(k * step), 10) for k in range(first, last + 1)]


def _signed(tick: float) -> str:
    return f"{tick:+g}" if tick else "0"


def _said(gain: Gain) -> str:
    interval = f"[{gain.low:+.3g}, {gain.high:+.3g}]"
    return f"{gain.client}: {gain.gain:+.3g} {interval}, {gain.verdict}"


def _short(name: str) -> str:
    return name if len(name) <= 17 else f"{name[:16]}…"
