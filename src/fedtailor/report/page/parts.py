"""What a page consists of, as plain data.

Whoever has such data can have a page made of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedtailor.report.tables import Table


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: its name.
        x, y: [n] each, x ascending.
        colour: which of the page's colours; None: the place in the chart. A method
            keeps its colour in all charts. -1: grey and dashed, for what is there to
            compare with.
        low, high: [n] the ends of a band around the line; empty for none.
        shown: whether it is there before a reader switches it on; None: if it is one of
            the first six.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int | None = None
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    shown: bool | None = None


@dataclass(frozen=True)
class Chart:
    """Curves that a reader can hover over and switch on and off.

    Attributes:
        title: what stands above it.
        x_label, y_label: what stands at the axes.
        series: the lines.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]


@dataclass(frozen=True)
class Picture:
    """A drawing that is there without any script.

    Attributes:
        title: what stands above it.
        markup: SVG, or an image with its data inside; it is trusted and not escaped.
        note: how to read it.
    """

    title: str
    markup: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One heading and what stands below it, in this order.

    Attributes:
        title: the heading.
        paragraphs: sentences; where something is missing, the one that says what.
        warnings: sentences that are set apart.
        pictures, charts, tables: drawings, curves, tables.
        settings: names and values.
    """

    title: str
    paragraphs: Sequence[str] = ()
    warnings: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    settings: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: the headline.
        subtitle: one line below it.
        parts: a heading of its own (a scenario's label) -> its sections. With a single
            part its heading is left out.
        appendix: sections after all parts.
    """

    title: str
    subtitle: str
    parts: dict[str, list[Section]] = field(default_factory=dict)
    appendix: Sequence[Section] = ()
