"""What a run scored on validation data, by which candidates are compared."""

from pathlib import Path

import polars as pl

from fedtailor.metrics import Metric, find_metric
from fedtailor.protocol import require
from fedtailor.storage import Damaged, check
from fedtailor.storage.run_files import (
    METRICS,
    SUMMARY,
    read_frame,
    read_summary,
    require_unchanged,
)


def validation_score(path: Path) -> float | None:
    """A run's score on validation data after the last round: higher is better.

    Returns:
        The mean over clients of what the run is judged by, or minus it where lower is
        better; None if the run diverged.

    Raises:
        ValueError: the scenario has no validation data.
    """
    summary = read_summary(path / SUMMARY)
    if "diverged" in summary:
        return None
    metric = summary["metric"]
    require_unchanged(path / METRICS, summary)
    frame = read_frame(path / METRICS).filter(_is_validation(metric))
    require(
        len(frame) > 0,
        "a grid is chosen on validation data, and this scenario has none; remove the"
        " grid",
    )
    last = frame.filter(pl.col("round") == frame["round"].max())["value"].mean()
    assert isinstance(last, float)
    return last if find_metric(metric).higher_is_better else -last


def stored_score(path: Path, metric: Metric, rounds: int) -> float | None:
    """As `validation_score`, after some of a run's rounds.

    The run may have ended or not.

    Returns:
        None if it was not evaluated then.

    Raises:
        Damaged: the directory does not hold what was written to it.
    """
    if not (path / METRICS).exists():
        return None
    (state,) = check(path)
    if not state.whole:
        raise Damaged(state.what)
    is_wanted = _is_validation(metric.name) & (pl.col("round") == rounds)
    mean = read_frame(path / METRICS).filter(is_wanted)["value"].mean()
    if not isinstance(mean, float):
        return None
    return mean if metric.higher_is_better else -mean


def has_diverged(path: Path) -> bool:
    """Whether a run has ended because something became NaN or infinite."""
    return (path / SUMMARY).exists() and "diverged" in read_summary(path / SUMMARY)


def _is_validation(metric: str) -> pl.Expr:
    """The measurements of seen clients on their validation data."""
    return (pl.col("split") == "val") & (pl.col("metric") == metric) & ~pl.col("unseen")
