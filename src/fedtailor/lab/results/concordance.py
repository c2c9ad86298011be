"""The C-index of clients' test rows, with the pairs that it rests on."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from fedtailor._base.printable import join_names
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.models.tasks.times import comparisons
from fedtailor.statistics.decision import SCORES, metric_interval
from fedtailor.statistics.decision.row_scores import FEW_PAIRS
from fedtailor.statistics.decision.warnings import MAX_NAMES

COLUMNS = ("risk", "time", "event")


def survival_rows(run: StoredRun) -> pl.DataFrame | None:
    """The outcomes of a run's test rows; None if it is not survival data, or kept none."""
    if run.rows is None or not {*COLUMNS} <= {*run.rows.columns}:
        return None
    return run.rows


def few_pairs_warnings(run: StoredRun) -> list[str]:
    """Warns about clients whose test rows say nothing about who is at risk."""
    rows = survival_rows(run)
    if rows is None:
        return []
    few = []
    for name in rows["client"].unique(maintain_order=True):
        own = rows.filter(pl.col("client") == name)
        pairs = comparisons(own["time"], own["event"] > 0.5, own["risk"]).pairs
        if pairs < FEW_PAIRS:
            few.append(f"{name} ({pairs})")
    if not few:
        return []
    return [
        f"fewer than {FEW_PAIRS} comparable pairs of test rows: {join_names(few, MAX_NAMES)}: too"
        " few to say anything about these clients' C-index"
    ]


def concordance_table(runs: Mapping[str, Sequence[StoredRun]]) -> ReportTable:
    """The exact C-index of each client's test rows of the first seed, by method."""
    rows: list[list[Cell]] = []
    first = next(
        seeds[0] for seeds in runs.values() if survival_rows(seeds[0]) is not None
    )
    outcomes = survival_rows(first)
    assert outcomes is not None
    for name in outcomes["client"].unique(maintain_order=True):
        own = outcomes.filter(pl.col("client") == name)
        events = int((own["event"] > 0.5).sum())
        pairs = comparisons(own["time"], own["event"] > 0.5, own["risk"]).pairs
        row: list[Cell] = [
            name,
            Number(len(own), f"{len(own):,}"),
            Number(events, f"{events:,}"),
            Number(pairs, f"{pairs:,}"),
        ]
        for seeds in runs.values():
            tested = survival_rows(seeds[0])
            row.append(_cell(tested, name))
        rows.append(row)
    headers = ["client", "test\nrows", "events", "comparable\npairs", *runs]
    note = (
        "Harrell's C-index of the test rows of the first seed, with a 95 % interval over"
        " rows; few comparable pairs say nothing."
    )
    return ReportTable("C-index of each client", headers, rows, note=note)


def _cell(rows: pl.DataFrame | None, client: str) -> Cell:
    if rows is None:
        return "-"
    interval = metric_interval(
        rows.filter(pl.col("client") == client), SCORES["c_index"]
    )
    if not np.isfinite(interval.estimate):
        return "-"
    text = f"{interval.estimate:.3f} ({interval.low:.2f} to {interval.high:.2f})"
    return Number(interval.estimate, text)
