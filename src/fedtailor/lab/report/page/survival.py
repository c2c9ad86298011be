"""The section of survival on a page: curves of clients, and their C-index."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from fedtailor.lab.report.page.parts import Chart, Section, Series
from fedtailor.lab.results.concordance import concordance_table, survival_rows
from fedtailor.lab.results.stored import StoredRun
from fedtailor.models.tasks.times import life_table, log_rank


def survival_section(runs: Mapping[str, Sequence[StoredRun]]) -> list[Section]:
    """The section of survival: none of other tasks.

    Curves are those of test rows of the first seed, which are the same for all methods.
    """
    found = (survival_rows(seeds[0]) for seeds in runs.values())
    first = next((rows for rows in found if rows is not None), None)
    if first is None:
        return []
    paragraphs = [
        "Curves are Kaplan and Meier's, of each client's test rows of the first seed."
    ]
    grid = np.unique(first["time"].to_numpy())
    tables, lines = {}, []
    for name in first["client"].unique(maintain_order=True):
        rows = first.filter(pl.col("client") == name)
        table = life_table(rows["time"], rows["event"] > 0.5, grid)
        tables[name] = table
        low, high = table.interval()
        # Nothing is known of a client after the last row that is under observation.
        known = table.at_risk > 0
        lines.append(
            Series(
                name,
                grid[known].tolist(),
                table.curve[known].tolist(),
                low=low[known].tolist(),
                high=high[known].tolist(),
            )
        )
    if len(tables) > 1:
        test = log_rank(list(tables.values()))
        shown = "<0.0001" if test.p < 1e-4 else f"{test.p:.4f}"
        verdict = (
            "their curves are shown to differ"
            if test.p < 0.05
            else "no difference of their curves is shown"
        )
        paragraphs.append(
            f"Log-rank test of {len(tables)} clients: chi-squared {test.statistic:.1f},"
            f" p {shown}: {verdict}."
        )
    chart = Chart("Without the event", "time", "share without the event", lines)
    return [
        Section(
            "Survival",
            paragraphs,
            charts=[chart],
            tables=[concordance_table(runs)],
        )
    ]
