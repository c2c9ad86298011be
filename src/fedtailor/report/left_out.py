"""Methods that halving has left out, and what they had reached by then."""

import math
from collections.abc import Mapping, Sequence

import polars as pl

from fedtailor.report.experiment import Candidate, Experiment
from fedtailor.report.stored import StoredRun


def left_out_methods(experiment: Experiment, scenario: str) -> dict[str, Candidate]:
    """The rows that halving did not train to the end.

    Returns:
        label -> the setting that was left out last; of several, the best.
    """
    tried = [it for it in experiment.index.candidates if it.scenario == scenario]
    chosen = {it.algorithm for it in tried if it.chosen}
    left_out: dict[str, Candidate] = {}
    if experiment.index.budget is None:
        return left_out
    for candidate in sorted(
        tried, key=lambda it: (it.rounds or 0, -math.inf if it.val is None else it.val)
    ):
        if candidate.algorithm not in chosen and candidate.val is not None:
            left_out[candidate.algorithm] = candidate
    return left_out


def tests_when_left_out(
    experiment: Experiment,
    runs: Mapping[str, Sequence[StoredRun]],
    left_out: Mapping[str, Candidate],
    whole: int,
) -> list[pl.DataFrame]:
    """Test values of seen clients after the rounds in which methods were left out.

    There are those of the methods left out, and of all others at that time. A run may
    have gone on since, for another comparison: what it measured later is left aside.

    Args:
        experiment, runs: see `fedtailor.report.decision.decide`.
        left_out: see `left_out_methods`.
        whole: rounds of a whole run. Those of `runs` are known after it.

    Returns:
        Frames with the columns that `fedtailor.decision.best_method` takes.
    """
    last = {label: candidate.rounds_of(whole) for label, candidate in left_out.items()}
    cuts = set(last.values())
    # A method that was left out is measured up to then, all others after every cut.
    wanted: list[tuple[str, StoredRun, set[int]]] = []
    for label, candidate in left_out.items():
        run = StoredRun(experiment.results / candidate.run)
        wanted.append((label, run, {cut for cut in cuts if cut <= last[label]}))
    wanted += [
        (label, run, cuts - {whole}) for label, seeds in runs.items() for run in seeds
    ]
    columns = ["client", "value", pl.col("round").cast(pl.Int32)]
    return [
        run.after("test", rounds).select(
            pl.lit(label).alias("method"), pl.lit(run.seed).alias("seed"), *columns
        )
        for label, run, rounds in wanted
    ]
