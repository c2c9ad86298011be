"""Drawings as SVG or PNG inside the page: they are there without any script, and print
sharply.
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

MOST_NAMED = 40
"""More clients than this are drawn without their names."""
MOST_PIXELS = 300
"""An image of a matrix has at most so many lines and columns."""
_ROW, _ROW_UNNAMED = 22, 5
"""Height of a client's line, in pixels, with a name and without."""
_LEFT, _WIDTH, _AXIS = 130, 520, 36
"""Widths of the names and of the whole drawing, height of the axis, in the units of the
drawing.
"""


@dataclass(frozen=True)
class Gain:
    """One client's gain with its interval, in the unit that is shown; positive is
    better.
    """

    client: str
    gain: float
    low: float
    high: float
    verdict: str


def extent(gains: Sequence[Gain]) -> tuple[float, float]:
    """From where to where an axis goes that shows all these gains with their intervals,
    and 0.
    """
    ends = [
        end
        for gain in gains
        for end in (gain.low, gain.high, gain.gain)
        if np.isfinite(end)
    ]
    lowest, highest = min([*ends, 0.0]), max([*ends, 0.0])
    margin = 0.05 * (highest - lowest) or 1.0
    return lowest - margin, highest + margin


def forest(
    title: str, unit: str, gains: Sequence[Gain], shown: tuple[float, float]
) -> Picture:
    """Gains with their intervals, best first, around the line of no gain, on the axis
    `shown` (see `extent`).
    """
    ordered = sorted(
        (gain for gain in gains if np.isfinite(gain.gain)), key=lambda gain: -gain.gain
    )
    named = len(ordered) <= MOST_NAMED
    row, left = (_ROW, _LEFT) if named else (_ROW_UNNAMED, 10)
    lowest, highest = shown
    height = row * len(ordered) + _AXIS

    def at(value: float) -> float:
        return round(
            left + (_WIDTH - left - 10) * (value - lowest) / (highest - lowest), 1
        )

    marks = []
    for tick in _ticks(lowest, highest):
        kind = "zero" if tick == 0 else "grid"
        marks.append(
            f'<line class="{kind}" x1="{at(tick)}" x2="{at(tick)}" y1="0"'
            f' y2="{height - _AXIS}"/>'
        )
        marks.append(
            f'<text class="tick" x="{at(tick)}"'
            f' y="{height - _AXIS + 14}">{_signed(tick)}</text>'
        )
    middle = (left + _WIDTH - 10) / 2
    marks.append(
        f'<text class="tick" x="{middle}" y="{height - 4}">gain over training alone,'
        f" {escape(unit)}</text>"
    )
    for number, gain in enumerate(ordered):
        y = row * number + row / 2
        marks.append(
            f'<g class="{gain.verdict.replace(" ", "-")}"><title>{escape(_said(gain))}</title>'
        )
        if named:
            marks.append(
                f'<text class="name" x="{left - 8}"'
                f' y="{y + 4}">{escape(_short(gain.client))}</text>'
            )
        if np.isfinite(gain.low) and np.isfinite(gain.high):
            marks.append(
                f'<line x1="{at(gain.low)}" x2="{at(gain.high)}" y1="{y}" y2="{y}"/>'
            )
        marks.append(
            f'<circle cx="{at(gain.gain)}" cy="{y}" r="{4 if named else 2}"/></g>'
        )
    markup = (
        f'<svg class="forest" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{escape(title, quote=True)}">'
        f"{''.join(marks)}</svg>"
    )
    note = (
        ""
        if named
        else f"{len(ordered)} clients, best first; hover over a line for its client."
    )
    return Picture(title, markup, note)


def matrix(
    title: str, values: Shaped[ndarray, "m m"], names: Sequence[str], note: str = ""
) -> Picture:
    """Numbers between clients: squares with their values to hover over, or, for many
    clients, an image.
    """
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = (
        (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    )
    scaled = (numbers - low) / ((high - low) or 1.0)
    low = (
        0.0 if abs(low) < 1e-6 * abs(high) else low
    )  # what is left of rounding reads badly
    legend = (
        f"Row: who uses; column: whose, in the same order. Light is {low:.3g}, dark is"
        f" {high:.3g}."
    )
    note = f"{note} {legend}".strip()
    if len(numbers) > MOST_NAMED:
        return Picture(
            title,
            _image(title, scaled),
            f"{note} {len(numbers)} clients in the order of their ids.",
        )
    size, side = len(numbers), 600 / max(len(numbers), 8)
    left, text = 130, min(side * 0.7, 13)
    marks = []
    for i in range(size):
        y = round(i * side, 2)
        middle = round(y + side / 2 + text / 3, 2)
        marks.append(
            f'<text class="name" x="{left - 6}" y="{middle}" font-size="{text:.1f}">'
            f"{escape(_short(names[i]))}</text>"
        )
        for j in range(size):
            x = round(left + j * side, 2)
            said = f"{names[i]} from {names[j]}: {numbers[i, j]:.4g}"
            fill = _colour(scaled[i, j])
            marks.append(
                f'<rect x="{x}" y="{y}" width="{side:.2f}" height="{side:.2f}"'
                f' fill="{fill}"><title>{escape(said)}</title></rect>'
            )
    whole = round(size * side, 1)
    markup = (
        f'<svg class="matrix" style="max-width:{left + whole}px" viewBox="0 0'
        f' {left + whole} {whole}" role="img"'
        f' aria-label="{escape(title, quote=True)}">{"".join(marks)}</svg>'
    )
    return Picture(title, markup, note)


def _image(title: str, scaled: Float[ndarray, "m m"]) -> str:
    from matplotlib import colormaps
    from matplotlib.image import imsave

    file = io.BytesIO()
    # blocks of clients become one pixel: more of them would make the page too large to
    # send
    starts = np.arange(0, len(scaled), -(-len(scaled) // MOST_PIXELS))
    counts = np.diff(starts, append=len(scaled))
    of_rows = np.add.reduceat(np.nan_to_num(scaled), starts, axis=0)
    sums = np.add.reduceat(of_rows, starts, axis=1)
    imsave(file, colormaps["Blues"](sums / np.outer(counts, counts)), format="png")
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
    raw = (high - low) / 6
    power = 10 ** np.floor(np.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = int(np.ceil(low / step))
    last = int(np.floor(high / step))
    return [round(float(k * step), 10) for k in range(first, last + 1)]


def _signed(tick: float) -> str:
    return f"{tick:+g}" if tick else "0"


def _said(gain: Gain) -> str:
    return (
        f"{gain.client}: {gain.gain:+.3g} [{gain.low:+.3g}, {gain.high:+.3g}],"
        f" {gain.verdict}"
    )


def _short(name: str) -> str:
    return name if len(name) <= 17 else f"{name[:16]}…"
