"""A page of made-up numbers, with everything that a page can hold, and names that would
break careless HTML.
"""

from dataclasses import replace

import numpy as np

from fedtailor.lab.report.page import Chart, Page, Section, Series
from fedtailor.lab.report.page.pictures import Gain, axis_range, forest, matrix
from fedtailor.lab.results.tables import Number, ReportTable

HOSTILE = "</script><b>x</b> & \"y\" 'z'"
SERIES = 8
VALUES = {"b": 9.5, "a10": 100.0, HOSTILE: -3.0, "a9": float("nan"), "c": -20.0}


def table(rows=None) -> ReportTable:
    """Clients with a number each; one has none."""
    lines = [
        [name, Number(value, f"{value:.1f}"), "helps"]
        for name, value in (rows or VALUES).items()
    ]
    return ReportTable("Clients", ["client", "test\naccuracy", "sharing"], lines)


def charts(series: int = SERIES) -> list[Chart]:
    """A chart with curves of unequal x, and one with a single line."""
    lines = [
        Series(
            HOSTILE if k == 0 else f"method {k}",
            [1 + k / 10, 2 + k / 10, 3 + k / 10],
            [k, k + 0.5, float("nan")],
        )
        for k in range(series)
    ]
    lines[1] = replace(lines[1], low=[-40, -40, float("nan")], high=[60, 60, 60])
    return [
        Chart("Many", "rounds", "accuracy, %", lines),
        Chart("One", "MB", "loss", [Series("one", [1], [2])]),
    ]


def gains(clients: int) -> list[Gain]:
    """As many gains, of all three verdicts."""
    verdicts = ("helps", "hurts", "cannot tell")
    return [
        Gain(
            HOSTILE if k == 0 else f"client {k}",
            k - 2.0,
            k - 3.0,
            k - 1.0,
            verdicts[k % 3],
        )
        for k in range(clients)
    ]


def page(clients: int = 5, parts: int = 1) -> Page:
    """The page; of many clients where wanted."""
    rows = {**VALUES, **{f"client {k}": k / 7 for k in range(clients - len(VALUES))}}
    values = np.random.default_rng(0).random((clients, clients))
    names = [*rows]
    found = gains(clients)
    sections = [
        Section("Decision", ["Nothing is better.", HOSTILE], warnings=["few rows"]),
        Section(
            "Gains",
            pictures=[forest("Gains", "accuracy, %", found, axis_range(found))],
            tables=[table(rows)],
        ),
        Section("Curves", charts=charts()),
        Section(
            "Found",
            pictures=[matrix("Weights", values, names)],
            settings=[("seed", "0"), (HOSTILE, HOSTILE)],
        ),
    ]
    return Page(
        "A page",
        HOSTILE,
        {f"scenario {k}": sections for k in range(parts)},
        [Section("Machine", ["2 cores"])],
    )
