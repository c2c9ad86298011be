"""Validation scores of runs, which compare candidates."""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.engine.storage import Damaged, check
from fedtailor.engine.storage.run_files import METRICS, SUMMARY, ended_early, read_frame
from fedtailor.lab.results.stored import StoredRun
from fedtailor.models.metrics import Metric, find_metric


def validation_score(path: Path) -> float | None:
    """A finished run's validation score after its last round; higher is better.

    Returns:
        The mean over clients of the run's metric, negated if lower is better; None if
        the run diverged.

    Raises:
        ValueError: the scenario has no validation data.
    """
    run = StoredRun(path)
    if run.diverged:
        return None
    values = run.last("val")
    require(
        len(values) > 0,
        "a grid is chosen on validation data, and this scenario has none; remove the"
        " grid",
    )
    mean = values["value"].mean()
    assert isinstance(mean, float)
    return mean if find_metric(run.metric).higher_is_better else -mean


def client_scores(path: Path, rounds: int | None = None) -> NDArray[np.float64] | None:
    """A run's validation scores, one for each seen client, in the order of names.

    Args:
        path: directory of a finished run.
        rounds: after which round at the latest; None = the last one.

    Returns:
        The values of the run's metric, negated if lower is better; None if the run
        diverged or was refused.
    """
    if not (path / SUMMARY).exists():
        return None
    run = StoredRun(path)
    if run.diverged:
        return None
    scores = run.last("val", until=rounds).sort("client")["value"].to_numpy()
    if not len(scores) or not np.isfinite(scores).all():
        return None
    return scores if find_metric(run.metric).higher_is_better else -scores


def stored_score(path: Path, metric: Metric, rounds: int) -> float | None:
    """A run's validation score after a given round; higher is better.

    The run need not be finished.

    Returns:
        The score as in `validation_score`; None if the run was not evaluated after this
        round.

    Raises:
        Damaged: a file of the run is damaged.
    """
    if not (path / METRICS).exists():
        return None
    (finding,) = check(path)
    if not finding.whole:
        raise Damaged(finding.what)
    values = read_frame(path / METRICS).filter(
        (pl.col("split") == "val")
        & (pl.col("metric") == metric.name)
        & ~pl.col("unseen")
    )
    if has_ended(path):
        # It had converged in an earlier round, and would not have changed until this
        # one.
        rounds = min(rounds, values["round"].max() or 0)  # type: ignore[type-var]
    mean = values.filter(pl.col("round") == rounds)["value"].mean()
    if not isinstance(mean, float):
        return None
    return mean if metric.higher_is_better else -mean


def has_ended(path: Path) -> bool:
    """Whether a run ended before the rounds for which it was started, as its loss
    converged.
    """
    if not (path / SUMMARY).exists():
        return False
    run = StoredRun(path)
    return not run.diverged and ended_early(run.summary)


def has_diverged(path: Path) -> bool:
    """Whether a run ended because a value became NaN or infinite."""
    return (path / SUMMARY).exists() and StoredRun(path).diverged
