"""The plan of a comparison: its runs, and how long those that are missing will take.

Some rounds of each setting are trained and timed. Nothing is written.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

from fedtailor.engine.runs.run import create_training, executor_of
from fedtailor.lab.experiments.bracketing import MAX_EXTENSIONS
from fedtailor.lab.experiments.choosing import finished_runs
from fedtailor.lab.experiments.compared_runs import ComparedRuns
from fedtailor.lab.experiments.experiment import Candidate, ComparedMethod
from fedtailor.protocol import Diverged

MIN_ROUNDS, MAX_ROUNDS = 2, 9
"""Timed rounds of a setting, of which the median counts: other work on the machine may
delay single ones.
"""
MIN_SECONDS, MAX_SECONDS = 0.2, 2.0
"""Times after which further rounds are not needed, or not affordable."""

MAX_PLAN_SECONDS = 60.0
"""Time after which no further setting is timed, whose times are then those of others."""

BeforeSetting = Callable[[ComparedMethod, Candidate], None]
"""A function that is called before each setting is timed."""


@dataclass(frozen=True)
class TimedSetting:
    """The times of one setting of a method in one scenario.

    Attributes:
        parameters: the values from the grid, by dotted name.
        compile_seconds: the first round, less what a later one takes: compiling, and a
            probe if the method begins with one.
        round_seconds: a later round.
        evaluation_seconds: an evaluation.
        core_seconds_of_round: core time of a later round, which other work on the
            machine hardly changes.
        core_seconds_of_evaluation: core time of an evaluation.
        error: why the setting cannot be trained, or "".
        is_timed: False if the time of a plan was over: the times are the means of the
            method's other settings, or of all that were timed.
    """

    parameters: Mapping[str, Any]
    compile_seconds: float = 0.0
    round_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    core_seconds_of_round: float = 0.0
    core_seconds_of_evaluation: float = 0.0
    error: str = ""
    is_timed: bool = True


@dataclass(frozen=True)
class PlannedRuns:
    """The runs of a method in a scenario.

    Attributes:
        scenario: label of the scenario.
        algorithm: label of the row.
        runs: number of runs, including those of the grid.
        finished: how many of them are in the result directory.
        rounds: rounds of a run, at most those if it ends early (`until_converged`).
        evaluations: evaluations of a run, likewise.
        settings: the settings of the grid; empty if all runs are finished.
        added_runs: the most runs that bracketing may add to the grid.
    """

    scenario: str
    algorithm: str
    runs: int
    finished: int
    rounds: int
    evaluations: int
    settings: tuple[TimedSetting, ...]
    added_runs: int = 0

    @property
    def compile_seconds(self) -> float:
        """Time of compiling all settings once."""
        return sum(setting.compile_seconds for setting in self.settings)

    @property
    def round_seconds(self) -> float:
        """Time of a round, as the mean over the settings."""
        return self._mean("round_seconds")

    @property
    def training_seconds(self) -> float:
        """Time of the missing runs, without compiling.

        Which setting will be chosen is not known yet, so each run takes the mean over
        the settings.
        """
        return (self.runs - self.finished) * self._seconds_of_run

    @property
    def added_seconds(self) -> float:
        """Time of the most runs that bracketing may add."""
        return self.added_runs * self._seconds_of_run

    @property
    def _seconds_of_run(self) -> float:
        return self.rounds * self.round_seconds + self.evaluations * self._mean(
            "evaluation_seconds"
        )

    @property
    def core_seconds(self) -> float:
        """Core time of the missing runs, without compiling."""
        seconds_of_run = self.rounds * self._mean(
            "core_seconds_of_round"
        ) + self.evaluations * self._mean("core_seconds_of_evaluation")
        return (self.runs - self.finished) * seconds_of_run

    def _mean(self, name: str) -> float:
        """The mean over the settings that can be trained; 0 if there are none."""
        values = [
            getattr(setting, name) for setting in self.settings if not setting.error
        ]
        return statistics.fmean(values) if values else 0.0


def plan_runs(
    runs: ComparedRuns, before: BeforeSetting | None = None
) -> Iterator[PlannedRuns]:
    """Time the settings of an experiment whose runs are missing: one of each method first,
    then the others, for `MAX_PLAN_SECONDS`, and the first in any case.

    Args:
        runs: the runs of the experiment.
        before: called before each setting is timed.

    Yields:
        The methods in the order of the tables.

    Raises:
        ValueError: data are missing, or the settings of the executor are wrong.
    """
    seeds, bracket = runs.experiment.file.seeds, runs.experiment.file.bracket
    methods = runs.experiment.methods
    totals = [len(seeds) + method.tried - 1 for method in methods]
    finished = [finished_runs(runs, method, seeds) for method in methods]
    missing = [
        (number, place)
        for number, method in enumerate(methods)
        if finished[number] < totals[number]
        for place in range(len(method.candidates))
    ]
    start = perf_counter()
    timed: dict[tuple[int, int], TimedSetting] = {}
    for number, place in sorted(missing, key=lambda one: (one[1] > 0, one)):
        if timed and perf_counter() - start > MAX_PLAN_SECONDS:
            break
        method = methods[number]
        candidate = method.candidates[place]
        if before is not None:
            before(method, candidate)
        timed[number, place] = _time_setting(runs, method, candidate, seeds[0])
    for number, method in enumerate(methods):
        own = [setting for (of, _), setting in timed.items() if of == number]
        settings = []
        for place, candidate in enumerate(method.candidates):
            if (number, place) in timed:
                settings.append(timed[number, place])
            elif (number, place) in missing:
                settings.append(_as_others(candidate, own or list(timed.values())))
        rounds = method.scenario.rounds
        yield PlannedRuns(
            scenario=method.scenario.label,
            algorithm=method.label,
            runs=totals[number],
            finished=finished[number],
            rounds=rounds,
            evaluations=-(-rounds // runs.evaluate_every(method.scenario)),
            settings=tuple(settings),
            added_runs=MAX_EXTENSIONS * len(bracket) if settings else 0,
        )


def _as_others(candidate: Candidate, others: list[TimedSetting]) -> TimedSetting:
    """A setting that takes as long as others on average."""
    good = [other for other in others if not other.error]

    def mean(name: str) -> float:
        return statistics.fmean(getattr(other, name) for other in good) if good else 0.0

    return TimedSetting(
        candidate.parameters,
        compile_seconds=mean("compile_seconds"),
        round_seconds=mean("round_seconds"),
        evaluation_seconds=mean("evaluation_seconds"),
        core_seconds_of_round=mean("core_seconds_of_round"),
        core_seconds_of_evaluation=mean("core_seconds_of_evaluation"),
        is_timed=False,
    )


def _time_setting(
    runs: ComparedRuns, method: ComparedMethod, candidate: Candidate, seed: int
) -> TimedSetting:
    """Train some rounds of a setting, and time them."""
    scenario = method.scenario
    federation = runs.data(scenario, seed)
    executor = executor_of(federation, scenario.model_of(candidate), runs.settings)
    # From here on errors are those of this setting, and others can be timed.
    try:
        training = create_training(
            runs.spec(method, candidate, seed, executor.model), executor
        )
        first = _times(training.advance)[0] + _times(training.evaluate)[0]
        evaluation, evaluation_core = _times(training.evaluate)
        rounds: list[tuple[float, float]] = []
        while _needs_more([wall for wall, _ in rounds]):
            # Also after the last round of a run, as such a round compiles nothing.
            rounds.append(_times(training.advance))
    except Diverged:
        return TimedSetting(candidate.parameters, error="diverges in its first rounds")
    except ValueError as error:
        return TimedSetting(candidate.parameters, error=str(error))
    later = statistics.median(wall for wall, _ in rounds)
    return TimedSetting(
        candidate.parameters,
        compile_seconds=max(first - later - evaluation, 0.0),
        round_seconds=later,
        evaluation_seconds=evaluation,
        core_seconds_of_round=statistics.median(core for _, core in rounds),
        core_seconds_of_evaluation=evaluation_core,
    )


def _needs_more(seconds: list[float]) -> bool:
    """Whether another round is to be timed."""
    total = sum(seconds)
    if len(seconds) < MIN_ROUNDS:
        return total < MAX_SECONDS
    return total < MIN_SECONDS and len(seconds) < MAX_ROUNDS


def _times(call: Callable[[], object]) -> tuple[float, float]:
    """Call a function, and return its seconds of wall time and of core time."""
    wall, core = perf_counter(), process_time()
    call()
    return perf_counter() - wall, process_time() - core
