"""The reliability diagram: accuracy of predictions by the model's confidence."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from fedtailor.report.drawing import highlighted
from fedtailor.report.figures import MAX_BANDS
from fedtailor.report.page.parts import Chart, Series
from fedtailor.report.stored import StoredRun

BINS = 10
"""Number of equally wide bins of confidence."""
MIN_BIN_ROWS = 20
"""Bins with fewer test rows are omitted, because their accuracy is too uncertain."""

RELIABILITY = (
    f"The diagram puts all test rows of clients that train, of all seeds, into {BINS}"
    " bins by the probability of the predicted class; bins of fewer than"
    f" {MIN_BIN_ROWS} rows are left out. Below the grey line a model is too sure of"
    " itself, above it too little."
)


def reliability(runs: Mapping[str, Sequence[StoredRun]]) -> Chart | None:
    """A chart of accuracy by confidence, with a line for each method.

    Returns:
        The chart, or None if no run has stored confidences. Regressions have none, and
        runs of fedtailor before 0.2 did not store them.
    """
    # Together with the grey line at most `MAX_BANDS` lines are visible at first.
    highlighted_labels = highlighted({"": runs})[: MAX_BANDS - 1]
    series = []
    for colour, (label, seeds) in enumerate(runs.items()):
        confidence, correct = _predictions(seeds)
        # Bin b holds the confidences in (b / BINS, (b + 1) / BINS].
        bins = np.ceil(confidence * BINS).astype(int) - 1
        bins = np.clip(bins, 0, BINS - 1)
        count = np.bincount(bins, minlength=BINS)
        has_rows = count >= MIN_BIN_ROWS
        if not has_rows.any():
            continue
        x = 100 * np.bincount(bins, confidence, BINS)[has_rows] / count[has_rows]
        y = 100 * np.bincount(bins, correct, BINS)[has_rows] / count[has_rows]
        series.append(
            Series(
                label, x.tolist(), y.tolist(), colour, shown=label in highlighted_labels
            )
        )
    if not series:
        return None
    low = min(line.x[0] for line in series)
    high = max(line.x[-1] for line in series)
    perfect = Series("as sure as right", [low, high], [low, high], -1, shown=True)
    return Chart(
        "Reliability on test",
        "probability of the predicted class, %",
        "right, %",
        [perfect, *series],
    )


def _predictions(seeds: Sequence[StoredRun]) -> tuple[np.ndarray, np.ndarray]:
    """Predictions on the test rows of the seen clients, over all seeds.

    Returns:
        The confidences [n], and whether the predictions were correct [n].
    """
    columns = ["confidence", "correct"]
    frames = []
    for run in seeds:
        if run.rows is not None and set(columns) <= set(run.rows.columns):
            rows = run.rows.join(run.seen_clients, on="client", how="semi")
            frames.append(rows.select(columns))
    if not frames:
        return np.zeros(0), np.zeros(0)
    rows = pl.concat(frames).filter(pl.col("confidence").is_finite())
    confidence, correct = (
        rows[column].cast(pl.Float64).to_numpy() for column in columns
    )
    return confidence, correct
