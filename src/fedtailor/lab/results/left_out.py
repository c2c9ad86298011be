"""Methods that halving left out, and their test results at that time."""

from collections.abc import Mapping, Sequence

import polars as pl

from fedtailor.engine.storage.comparison_index import CandidateRun
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.stored import StoredRun


def left_out_methods(
    experiment: StoredExperiment, scenario: str
) -> dict[str, CandidateRun]:
    """The methods that halving did not train to the end.

    Returns:
        label -> the candidate that was left out last; the best one if there are
        several.
    """
    if experiment.index.budget is None:
        return {}
    candidates = [
        candidate
        for candidate in experiment.index.candidates
        if candidate.scenario == scenario
    ]
    chosen = {candidate.algorithm for candidate in candidates if candidate.chosen}
    left_out = [
        candidate
        for candidate in candidates
        if candidate.algorithm not in chosen and candidate.val is not None
    ]
    # The last candidate of an algorithm in this order remains in the dict.
    left_out.sort(key=lambda candidate: (candidate.rounds or 0, candidate.val or 0.0))
    return {candidate.algorithm: candidate for candidate in left_out}


def tests_when_left_out(
    experiment: StoredExperiment,
    runs: Mapping[str, Sequence[StoredRun]],
    left_out: Mapping[str, CandidateRun],
    total_rounds: int,
) -> list[pl.DataFrame]:
    """Test values of seen clients after the rounds in which methods were left out.

    The values are those of the methods that were left out, and of all other methods in
    the same round. Another comparison may have continued a run since then; its later
    values are ignored.

    Args:
        experiment: the index and its runs.
        runs: label -> complete runs.
        left_out: see `left_out_methods`.
        total_rounds: rounds of a complete run. The values after the last round are not
            returned for `runs`.

    Returns:
        Tables with the columns that `fedtailor.statistics.decision.best_method` takes.
    """
    last_rounds = {
        label: candidate.rounds_of(total_rounds)
        for label, candidate in left_out.items()
    }
    cut_rounds = set(last_rounds.values())
    # Methods that were left out have no values after that round.
    requests: list[tuple[str, StoredRun, set[int]]] = []
    for label, candidate in left_out.items():
        run = StoredRun(experiment.results / candidate.run)
        rounds = {number for number in cut_rounds if number <= last_rounds[label]}
        requests.append((label, run, rounds))
    requests += [
        (label, run, cut_rounds - {total_rounds})
        for label, seeds in runs.items()
        for run in seeds
    ]
    columns = ["client", "value", pl.col("round").cast(pl.Int32)]
    return [
        run.after("test", rounds).select(
            pl.lit(label).alias("method"), pl.lit(run.seed).alias("seed"), *columns
        )
        for label, run, rounds in requests
    ]
