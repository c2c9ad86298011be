"""Reliability: accuracy of predictions by the model's confidence."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from fedtailor.lab.report.drawing import highlighted
from fedtailor.lab.report.figures import MAX_BANDS
from fedtailor.lab.report.page.parts import Chart, Series
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.tables import Cell, ReportTable, mean_of
from fedtailor.models.metrics import CalibrationError

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
    # Together with the grey line at most `MAX_BANDS` lines are in front.
    highlighted_labels = highlighted({"": runs})[: MAX_BANDS - 1]
    series = []
    for colour, (label, seeds) in enumerate(runs.items()):
        confidence, correct = _predictions(seeds)
        bins = _bins(confidence)
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


def reliability_table(runs: Mapping[str, Sequence[StoredRun]]) -> ReportTable | None:
    """A table of how sure each method is of its predictions, and how often right.

    The numbers are those of all test rows of a seed together, and their mean over seeds.

    Returns:
        The table, or None if no run has stored confidences.
    """
    rows: list[list[Cell]] = []
    for label, seeds in runs.items():
        by_seed = [_predictions([run]) for run in seeds]
        known = [(sure, right) for sure, right in by_seed if len(sure)]
        if not known:
            continue
        measures = np.array(
            [
                (sure.mean(), right.mean(), _calibration_error(sure, right))
                for sure, right in known
            ]
        )
        numbers = [mean_of(100 * column, digits=1) for column in measures.T]
        rows.append([label, *numbers])
    if not rows:
        return None
    return ReportTable(
        "All test rows together, %",
        ["method", "mean\nprobability", "right", "calibration\nerror (↓ better)"],
        rows,
        higher_is_better={3: False},
        note=(
            "Mean probability: of the predicted class. Calibration error: how far the"
            " lines of the diagram are from the grey one, mean over test rows (Guo et"
            " al. 2017); few test rows make it larger."
        ),
    )


def _calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """The expected calibration error of predictions, in the bins of the diagram."""
    bins = _bins(confidence)
    statistic = {
        "count": np.bincount(bins, minlength=BINS),
        "correct": np.bincount(bins, correct, BINS),
        "confidence": np.bincount(bins, confidence, BINS),
    }
    return CalibrationError(bins=BINS).result(statistic)


def _bins(confidence: np.ndarray) -> np.ndarray:
    """The bin of each confidence. Bin b holds those in (b / BINS, (b + 1) / BINS]."""
    return np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)


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
