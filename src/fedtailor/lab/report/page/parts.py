"""The parts of a page as plain data, from which `render` makes the page."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedtailor.lab.results.tables import ReportTable


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: name of the line.
        x: [n] ascending.
        y: [n].
        colour: index of one of the page's colours, so that a method can have the same
            colour in all charts. None uses the line's position in the chart. -1 is grey
            and dashed, for a reference line.
        low: [n] lower end of a band around the line, or empty.
        high: [n] upper end of the band, or empty.
        shown: whether the line is one of the few in front, with a band; None for the
            first six lines.
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
    """Lines over an axis.

    Attributes:
        title: title above the chart.
        x_label: label of the x axis.
        y_label: label of the y axis.
        series: the lines.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]


@dataclass(frozen=True)
class Picture:
    """A static drawing, which needs no script.

    Attributes:
        title: title above the drawing.
        markup: SVG, or an image with inline data. It is trusted and not escaped.
        note: explanation below the drawing.
    """

    title: str
    markup: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One heading and the contents below it, in the order of the attributes.

    Attributes:
        title: the heading.
        paragraphs: plain text, in which commands stand between backticks.
        warnings: plain text, displayed in a box.
        pictures: static drawings.
        charts: lines over an axis.
        tables: tables.
        settings: pairs of names and values.
        folded: sections that show only their title until a reader opens them:
            details, and what is too long to be printed.
    """

    title: str
    paragraphs: Sequence[str] = ()
    warnings: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[ReportTable] = ()
    settings: Sequence[tuple[str, str]] = ()
    folded: Sequence["Section"] = ()


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: title of the page.
        subtitle: one line below the title.
        parts: heading (label of a scenario) -> sections. The heading of a single part
            is omitted.
        appendix: sections after all parts.
    """

    title: str
    subtitle: str
    parts: dict[str, list[Section]] = field(default_factory=dict)
    appendix: Sequence[Section] = ()
