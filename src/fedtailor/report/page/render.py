"""A page's HTML.

Everything that it needs is inside, and its policy forbids the browser to ask for
anything.
"""

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedtailor._files import reason, replacing
from fedtailor.protocol import require
from fedtailor.report.figures import MAX_BANDS
from fedtailor.report.page.parts import Chart, Page
from fedtailor.report.tables import Cell, Number, Table

MAX_BYTES = 3_000_000
"""A page is smaller than this: it can be sent by mail, and opens on a telephone."""


def render(page: Page) -> str:
    """The page as HTML text.

    Raises:
        ValueError: it is larger than `MAX_BYTES`.
    """
    # Labels are the user's: all text is escaped, and a name that the template has and
    # the page has not is an error.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "flat": _flat,
        "sort_key": _sort_key,
        "numeric": _numeric,
        "chart_json": _chart_json,
    }
    # `</` cannot stand inside a script or a style; none of these files has it, which
    # the tests check.
    inlined = {name: Markup(_asset(file)) for name, file in _ASSETS.items()}
    text = environment.from_string(_asset("page.html.j2")).render(page=page, **inlined)
    size = len(text.encode())
    require(
        size < MAX_BYTES,
        f"the page has {size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:g}; "
        "compare fewer scenarios or methods, or use --out",
    )
    return text


def write_page(page: Page, path: Path) -> Path:
    """Write the page whole or not at all.

    Returns:
        Its path.

    Raises:
        ValueError: it cannot be written, or is too large.
    """
    require(
        not path.is_dir(),
        f"{path} is a directory; name a file, such as {path / 'report.html'}",
    )
    text = render(page)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write to {path}: {reason(error)}; name another file"
        ) from None
    return path


_ASSETS = {
    "style": "page.css",
    "plot_style": "uPlot.min.css",
    "plot_script": "uPlot.iife.min.js",
    "script": "page.js",
}


def _asset(name: str) -> str:
    return (files("fedtailor.report.page") / "assets" / name).read_text(
        encoding="utf-8"
    )


def _flat(text: str) -> str:
    return " ".join(text.split())


def _numeric(table: Table) -> list[bool]:
    """Which columns hold numbers: those are aligned to the right."""
    return [
        any(isinstance(row[column], Number) for row in table.rows)
        for column in range(len(table.columns))
    ]


def _sort_key(cell: Cell) -> str:
    """What a column is sorted by: a number where there is one.

    Empty for a number that is not known.
    """
    if isinstance(cell, Number):
        return f"{cell.mean:.10g}" if math.isfinite(cell.mean) else ""
    return cell


def _chart_json(chart: Chart) -> Markup:
    """A chart for the page's script.

    `<` is written so that no label can end the script's element.
    """
    series = []
    for place, line in enumerate(chart.series):
        entry: dict[str, Any] = {
            "label": line.label,
            "x": _numbers(line.x),
            "y": _numbers(line.y),
            "colour": place if line.colour is None else line.colour,
            "shown": place < MAX_BANDS if line.shown is None else line.shown,
        }
        if len(line.low):
            entry |= {"low": _numbers(line.low), "high": _numbers(line.high)}
        series.append(entry)
    data = {
        "title": chart.title,
        "x": chart.x_label,
        "y": chart.y_label,
        "series": series,
    }
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _numbers(values: Any) -> list[float | None]:
    """Six digits are more than a pixel shows; what is no number is a gap."""
    return [
        float(f"{value:.6g}") if math.isfinite(value) else None
        for value in map(float, values)
    ]
