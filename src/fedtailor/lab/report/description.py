"""The description of clients' tables, for the person who looks after the data."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from fedtailor._base.printable import markdown_text, one_line
from fedtailor.data.tables.description import (
    QUANTILES,
    Description,
    quantile,
)
from fedtailor.lab.report.page.parts import Chart, Page, Section, Series
from fedtailor.lab.results.tables import Number, ReportTable
from fedtailor.statistics.diagnosis.drift import Drift, drifts

MOST_DRIFTS, MOST_PAIRS, MOST_NAMES = 20, 10, 6
BARS = "▁▂▃▄▅▆▇█"


def sentences(description: Description) -> list[str]:
    """What the description is of, and what it says, in sentences."""
    rows = description.rows
    lines = [
        f"{len(rows)} client{'' if len(rows) == 1 else 's'} with {sum(rows.values()):,}"
        f" rows, {len(description.kinds)} columns."
    ]
    if description.least > 1:
        lines.append(
            f"No count of fewer than {description.least} rows is shown: such a bin or"
            " category is added to another one."
        )
    if description.noise is not None:
        noise = description.noise
        lines.append(
            f"Every count has Gaussian noise of deviation {noise.deviation:.3g}: epsilon"
            f" {noise.epsilon:g} for each row (delta {noise.delta:g}). Means, deviations"
            " and quantiles follow from these counts."
        )
    if len(rows) > 1:
        found = [entry for entry in drifts(description) if entry.differs]
        lines.append(_finding(found))
    return lines


def _finding(found: Sequence[Drift]) -> str:
    if not found:
        return "No column of a client is shown to differ from the others'."
    of_column: dict[str, list[str]] = {}
    for entry in found:
        of_column.setdefault(entry.column, []).append(entry.client)
    parts = []
    for column, clients in list(of_column.items())[:MOST_NAMES]:
        shown = ", ".join(clients[:MOST_NAMES])
        more = len(clients) - MOST_NAMES
        parts.append(f"{column} ({shown}{f' and {more} more' if more > 0 else ''})")
    more = len(of_column) - MOST_NAMES
    if more > 0:
        parts.append(f"{more} more columns")
    return f"Differ from the other clients: {'; '.join(parts)}."


def description_tables(
    description: Description, *, all_rows: bool = False
) -> dict[str, ReportTable]:
    """The tables of a description, by file name.

    Args:
        description: the description.
        all_rows: whether to list all comparisons and pairs.
    """
    result = {"columns": _columns(description)}
    if description.edges:
        result["numbers"] = _numbers(description)
    categories = _categories(description)
    if categories.rows:
        result["categories"] = categories
    result["clients"] = _clients(description)
    if len(description.clients) > 1:
        result["drift"] = _drift(description, all_rows)
    pairs = _pairs(description, all_rows)
    if pairs.rows:
        result["correlations"] = pairs
    return result


def as_markdown(description: Description) -> str:
    """The description as Markdown."""
    parts = ["# Description of the clients' tables"]
    parts.append(
        "\n".join(f"- {markdown_text(line)}" for line in sentences(description))
    )
    parts += [
        table.markdown().rstrip() for table in description_tables(description).values()
    ]
    return "\n\n".join(parts) + "\n"


def description_as_dict(description: Description) -> dict[str, object]:
    """The description as a dict for JSON: all counts and sums, and what follows."""
    shown = description_tables(description, all_rows=True)
    return {
        "sentences": sentences(description),
        "tables": {name: table.as_dict() for name, table in shown.items()},
        "description": description.model_dump(mode="json"),
    }


def description_page(description: Description, title: str) -> Page:
    """The description as a page, with a histogram of each column by client."""
    shown = description_tables(description)
    sections = [
        Section(shown[name].title, tables=[_untitled(shown[name])])
        for name in ("drift", "columns", "numbers", "categories", "correlations")
        if name in shown
    ]
    charts = [_chart(description, name) for name in description.edges]
    if charts:
        sections.append(Section("Histograms by client", charts=charts))
    sections.append(
        Section(shown["clients"].title, tables=[_untitled(shown["clients"])])
    )
    overview = Section("In short", paragraphs=sentences(description))
    return Page(
        title,
        "what the columns hold, and where clients differ; no row was looked at",
        {"": [overview, *sections]},
    )


def _untitled(table: ReportTable) -> ReportTable:
    return ReportTable("", table.columns, table.rows, table.text, note=table.note)


def _chart(description: Description, column: str) -> Chart:
    """Shares of rows by bin, one line for each client."""
    edges = np.array(description.edges[column])
    width = edges[1] - edges[0]
    middles = [*(edges - width / 2).tolist(), float(edges[-1] + width / 2)]
    lines = []
    for client in description.clients:
        rows = description.histogram(column, [client])
        shares = rows / max(int(rows.sum()), 1)
        lines.append(Series(client, middles, shares.tolist()))
    return Chart(column, column, "share of the client's rows", lines)


def _columns(description: Description) -> ReportTable:
    rows = []
    for name, kind in description.kinds.items():
        total = description.total(name)
        cells = total.count + total.missing
        rows.append(
            [
                name,
                kind,
                Number(cells, f"{cells:,}"),
                _percent(total.missing / cells if cells else math.nan),
            ]
        )
    return ReportTable("Columns", ["column", "kind", "rows", "missing"], rows, text=2)


def _numbers(description: Description) -> ReportTable:
    headers = ["column", "histogram", "mean", "sd"]
    headers += [f"{level:.0%}" for level in QUANTILES]
    rows = []
    for name, edges in description.edges.items():
        total, counts = description.total(name), description.histogram(name)
        is_date = description.kinds[name] == "date"
        row: list[str | Number] = [name, bars(counts)]
        if is_date:
            row += [_date(total.mean), f"{total.deviation:.3g} d"]
        else:
            row += [_number(total.mean), _number(total.deviation)]
        exact = description.quantiles.get(name)
        for place, level in enumerate(QUANTILES):
            if exact is not None:
                value, sign, text = exact[place], "", f"{exact[place]:.4g}"
            else:
                value, sign = quantile(edges, counts, level)
                text = _rounded(value, edges[1] - edges[0])
            text = _date(value) if is_date else text
            is_text = bool(sign) or is_date
            row.append(f"{sign}{text}" if is_text else Number(value, text))
        rows.append(row)
    note = "histogram: 20 bins around the mean, the outer two open."
    if not description.quantiles:
        note += " Quantiles are read from it, to the width of a bin."
    return ReportTable("Numbers", headers, rows, text=2, note=note)


def _categories(description: Description) -> ReportTable:
    rows = []
    for name, kind in description.kinds.items():
        if name in description.edges or kind in ("number", "date"):
            continue
        cells = description.categories(name, description.clients)
        missing = cells.pop("missing")
        total = sum(cells.values()) + missing
        named = {
            label.removeprefix("= "): count for label, count in cells.items() if count
        }
        in_order = sorted(named, key=named.__getitem__, reverse=True)
        parts = [
            f"{label} {_share(named[label] / total)}" for label in in_order[:MOST_NAMES]
        ]
        if missing:
            parts.append(f"missing {_share(missing / total)}")
        if len(in_order) > MOST_NAMES:
            parts.append(f"{len(in_order) - MOST_NAMES} more")
        rows.append([name, ", ".join(parts)])
    note = "yes: true, or 1 in a column of 0 and 1."
    return ReportTable(
        "Categories",
        ["column", "shares of rows"],
        rows,
        text=2,
        note=note if "boolean" in description.kinds.values() else "",
    )


def _clients(description: Description) -> ReportTable:
    judged = drifts(description) if len(description.clients) > 1 else []
    rows = []
    for client in description.clients:
        sums = description.sums[client].values()
        cells = sum(part.count + part.missing for part in sums)
        missing = sum(part.missing for part in sums)
        own = [entry for entry in judged if entry.client == client]
        differ = sum(entry.differs for entry in own)
        rows.append(
            [
                client,
                Number(description.rows[client], f"{description.rows[client]:,}"),
                _percent(missing / cells if cells else math.nan),
                Number(differ, f"{differ} of {len(own)}"),
            ]
        )
    headers = ["client", "rows", "cells\nmissing", "columns that\ndiffer"]
    return ReportTable("Clients", headers, rows)


def _drift(description: Description, all_rows: bool) -> ReportTable:
    judged = drifts(description)
    shown = judged if all_rows else [entry for entry in judged if entry.differs]
    left_out = len(judged) - len(shown)
    if not all_rows and len(shown) > MOST_DRIFTS:
        left_out += len(shown) - MOST_DRIFTS
        shown = shown[:MOST_DRIFTS]
    rows = [
        [
            entry.column,
            entry.client,
            "differs" if entry.differs else "cannot tell",
            _percent(entry.moved),
            _percent(entry.by_chance),
            _mean(description, entry.column, entry.here),
            _mean(description, entry.column, entry.there),
            _percent(entry.missing_here),
            _percent(entry.missing_there),
        ]
        for entry in shown
    ]
    headers = [
        "column",
        "client",
        "",
        "moved",
        "by\nchance",
        "mean\nhere",
        "mean\nothers",
        "missing\nhere",
        "missing\nothers",
    ]
    note = (
        "moved: share of the client's rows that would have to be in another bin or"
        " category to be spread as the others' rows are; by chance: as much is expected"
        " of rows from one place. differs: chi-squared test, 5 % for all lines together"
        " (Holm)."
    )
    if left_out:
        note += f" {left_out} more comparisons: --json."
    return ReportTable(
        "Drift: one client against all others", headers, rows, text=3, note=note
    )


def _pairs(description: Description, all_rows: bool) -> ReportTable:
    found = description.correlations
    shown = found if all_rows else found[:MOST_PAIRS]
    rows = [
        [
            pair.first,
            pair.second,
            Number(pair.r, f"{pair.r:.2f}"),
            f"{pair.low:.2f} to {pair.high:.2f}",
        ]
        for pair in shown
    ]
    note = "Missing cells count as the mean."
    if len(found) > len(shown):
        note += f" {len(found) - len(shown)} weaker pairs: --json."
    return ReportTable(
        "Correlations, the strongest first",
        ["column", "column ", "r", "95 % interval"],
        rows,
        text=2,
        note=note,
    )


def bars(counts: Sequence[int] | np.ndarray) -> str:
    """A histogram in one line of text; a blank is an empty bin."""
    most = max(int(count) for count in counts)
    if most == 0:
        return ""
    text = ""
    for count in counts:
        height = math.ceil(int(count) / most * len(BARS))
        text += BARS[height - 1] if height else " "
    return text


def _mean(description: Description, column: str, value: float) -> str | Number:
    if column not in description.edges and description.kinds[column] != "boolean":
        return "-"
    if description.kinds[column] == "date":
        return _date(value)
    return _number(value)


def _number(value: float) -> Number:
    return Number(value, "-" if math.isnan(value) else f"{value:.4g}")


def _rounded(value: float, width: float) -> str:
    """A number to the first decimal that a bin of this width can tell apart."""
    digits = max(0, math.ceil(-math.log10(width)))
    return f"{round(value, digits) + 0.0:.{digits}f}"


def _percent(share: float) -> Number:
    return Number(100 * share, "-" if math.isnan(share) else _share(share))


def _share(share: float) -> str:
    """A share in per cent; only none reads 0 %, and only all reads 100 %."""
    percent = 100 * share
    if 0 < percent < 0.05:
        return "<0.1 %"
    if 99.95 <= percent < 100:
        return ">99.9 %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def _date(days: float) -> str:
    """A date from days since 1970; a dash where there is none."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)
    except (OverflowError, ValueError):
        return "-"
    return one_line(f"{moment:%Y-%m-%d}")
