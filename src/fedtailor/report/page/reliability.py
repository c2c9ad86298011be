"""The reliability diagram: how often predictions are right, by the model's confidence."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from fedtailor.report.drawing import highlighted
from fedtailor.report.figures import MAX_BANDS
from fedtailor.report.page.parts import Chart, Series
from fedtailor.report.stored import StoredRun

BINS = 10
"""Equally wide bins of confidence."""
MIN_BIN_ROWS = 20
"""Bins with fewer test rows are left out: their accuracy is mostly chance."""

RELIABILITY = (
    f"The diagram puts all test rows of clients that train, of all seeds, into {BINS}"
    f" bins by the probability of the predicted class; bins of fewer than {MIN_BIN_ROWS}"
    " rows are left out. Below the grey line a model is too sure of itself, above it"
    " too little."
)


def reliability(runs: Mapping[str, Sequence[StoredRun]]) -> Chart | None:
    """Accuracy by confidence, a line for each method.

    Returns:
        None where no run has kept confidences: regressions have none, nor have runs of
        fedtailor before 0.2.
    """
    # With the grey line there are no more lines at first than anywhere else.
    shown = highlighted({"": runs})[: MAX_BANDS - 1]
    series = []
    for colour, (label, seeds) in enumerate(runs.items()):
        confidence, correct = _outcomes(seeds)
        # Bin b holds the confidences in (b / BINS, (b + 1) / BINS].
        bins = np.ceil(confidence * BINS).astype(int) - 1
        bins = np.clip(bins, 0, BINS - 1)
        count = np.bincount(bins, minlength=BINS)
        enough = count >= MIN_BIN_ROWS
        if not enough.any():
            continue
        x = 100 * np.bincount(bins, confidence, BINS)[enough] / count[enough]
        y = 100 * np.bincount(bins, correct, BINS)[enough] / count[enough]
        series.append(
            Series(label, x.tolist(), y.tolist(), colour, shown=label in shown)
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


def _outcomes(seeds: Sequence[StoredRun]) -> tuple[np.ndarray, np.ndarray]:
    """Predictions on the seen clients' test rows, of all seeds.

    Returns:
        [n] each: the confidence, and whether the prediction was right.
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
