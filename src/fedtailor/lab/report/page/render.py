"""Renders a page as HTML.

The page contains all scripts and styles. Its content security policy forbids the
browser to load anything else.
"""

import hashlib
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from fedtailor._base.choice import require
from fedtailor._base.files import atomic_write, reason
from fedtailor._base.printable import one_line
from fedtailor.lab.report.page.charts import image_of
from fedtailor.lab.report.page.parts import Page
from fedtailor.lab.results.tables import Cell, Number, ReportTable

MAX_BYTES = 3_000_000
"""Upper limit of a page's size, so that it can be sent by mail."""


def render(page: Page) -> str:
    """Renders a page as HTML.

    Raises:
        ValueError: it is larger than `MAX_BYTES`.
    """
    # Labels are user input, so all text is escaped. A name in the template that the
    # page does not define is an error.
    environment = Environment(
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "code": _with_code,
        "flat": _on_one_line,
        "sort_key": _sort_key,
        "numeric": _numeric,
        "image": image_of,
    }
    # `</` must not occur inside a script or a style. The tests check that none of these
    # files contains it.
    assets = {name: Markup(_asset(file)) for name, file in _ASSETS.items()}
    template = environment.from_string(_asset("page.html.j2"))
    text = template.render(page=page, policy=_policy(assets), **assets)
    size = len(text.encode())
    require(
        size < MAX_BYTES,
        f"the page has {size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:g}; "
        "compare fewer scenarios or methods, or use --out",
    )
    return text


def write_page(page: Page, path: Path) -> Path:
    """Writes a page atomically.

    Returns:
        The path of the page.

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
        with atomic_write(path) as file:
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write to {path}: {reason(error)}; name another file"
        ) from None
    return path


_ASSETS = {
    "style": "page.css",
    "script": "page.js",
}


def _asset(name: str) -> str:
    return (files("fedtailor.lab.report.page") / "assets" / name).read_text(
        encoding="utf-8"
    )


def _policy(assets: Mapping[str, str]) -> Markup:
    """The content security policy: the page's own scripts and styles, nothing else.

    The browser runs what has one of these digests, so no text that slipped into the
    page can be a script.
    """

    def digests(*names: str) -> str:
        content = (hashlib.sha256(assets[name].encode()).digest() for name in names)
        return " ".join(f"'sha256-{b64encode(one).decode()}'" for one in content)

    return Markup(
        f"default-src 'none'; script-src {digests('script')};"
        f" style-src {digests('style')}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _finalize(value: Any) -> Any:
    """Text from outside, as it prints; the page's own markup as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return one_line(value)


def _with_code(text: str) -> Markup:
    """A sentence, in which commands stand between backticks."""
    escaped = str(escape(one_line(text)))
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escaped))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _numeric(table: ReportTable) -> list[bool]:
    """Whether each column contains numbers; such columns are aligned to the right."""
    numeric = []
    for column in range(len(table.columns)):
        cells = [row[column] for row in table.rows]
        numeric.append(any(isinstance(cell, Number) for cell in cells))
    return numeric


def _sort_key(cell: Cell) -> str:
    """The key that sorts a column; empty for a number that is NaN."""
    if isinstance(cell, Number):
        return f"{cell.mean:.10g}" if math.isfinite(cell.mean) else ""
    return cell
