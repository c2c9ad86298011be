"""What a comparison decides: who gains from sharing, which method is best, and what to
know before believing it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from fedtailor.decision import (
    SCORES,
    Choice,
    Winner,
    best_method,
    choose_by_validation,
    client_gains,
    warn_few_validation_rows,
    warn_grid_edges,
    warn_still_falling,
)
from fedtailor.decision.warnings import named
from fedtailor.report.experiment import Experiment
from fedtailor.report.left_out import left_out_methods, tests_when_left_out
from fedtailor.report.stored import StoredRun
from fedtailor.report.tables import Cell, Number, Table
from fedtailor.report.units import Unit, unit_of
from fedtailor.storage.run_files import SUMMARY

ALONE = "local"
"""The method that trains every client alone."""
NO_TEST = (
    "There are no test data by which {} could be told, so nothing is said of which"
    " method is best or who gains; keep some rows for testing."
)
MOST_LINES = 60
"""Tables of gains with more lines (a client and a method each) stand in files only."""


@dataclass(frozen=True)
class Decision:
    """What the runs of one scenario say.

    Attributes:
        scenario: its label.
        metric: what runs are judged by.
        winner: of the paired test over clients and seeds; None where there is only one
            method. Methods that halving has left out take part as they were then (see
            `best_method`).
        choice: a method for each client by its validation data; None without such data.
        base: the row of the method that trains every client alone; None where there is
            none.
        gain_metric: what gains are measured in.
        gains: see `fedtailor.decision.client_gains`; None where they cannot be had.
        why_no_gains: what is missing then.
        left_out: methods that halving has left out by their validation data -> after
            how many rounds.
        not_tested: those of them whose runs are not there (or go on for another
            comparison); no winner is named then.
        rounds: of a whole run.
        warnings: what to know before believing all this.
    """

    scenario: str
    metric: str
    winner: Winner | None = None
    choice: Choice | None = None
    base: str | None = None
    gain_metric: str = ""
    gains: pl.DataFrame | None = None
    why_no_gains: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    not_tested: Sequence[str] = ()
    rounds: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """The decision in words."""
        unit = unit_of(self.metric)
        sentences: list[str] = []
        if self.winner is not None:
            sentences.append(f"By test {unit.label}: {self.winner.sentence()}")
            sentences += self._sharing(self.winner)
            sentences += self._about_left_out()
        if self.choice is not None:
            each, one = (
                unit.text([value])
                for value in (self.choice.value, self.choice.single_value)
            )
            said = self.choice.sentence().removesuffix(".")
            sentences.append(f"{said} (test {unit.label}: {each} against {one}).")
        if self.gains is None:
            return [*sentences, self.why_no_gains]
        if self.gain_metric != self.metric:
            sentences.append(
                f"Gains in {unit.label} do not follow from single test rows: those"
                f" below are in {unit_of(self.gain_metric).label}."
            )
        for (method,), part in self.gains.group_by(["method"], maintain_order=True):
            counts = {
                verdict: int((part["verdict"] == verdict).sum())
                for verdict in ("helps", "hurts")
            }
            unclear = len(part) - sum(counts.values())
            sentences.append(
                f"{method}, beside training alone: helps {counts['helps']} of"
                f" {len(part)} clients, hurts {counts['hurts']}, cannot tell for"
                f" {unclear}; {self._mean_gain(str(method))}."
            )
        return sentences

    def _sharing(self, winner: Winner) -> list[str]:
        """Whether methods that share are better than training alone on average, by the
        tests that name the winner.
        """
        if self.base is None:
            return []
        verdicts = {
            method: winner.verdict(method, self.base)
            for method in winner.means
            if method != self.base
        }
        better = [method for method, word in verdicts.items() if word == "better"]
        worse = [method for method, word in verdicts.items() if word == "worse"]
        if better:
            said = f"Sharing is shown to help on average by {', '.join(better)}"
        elif worse:
            said = (
                "Sharing is not shown to help on average, and shown to hurt by"
                f" {', '.join(worse)}"
            )
        else:
            said = "Sharing is not shown to help on average, nor to hurt"
        return [
            f"{said} (tested over all pairs of methods at once; each interval below"
            " stands for itself)."
        ]

    def _about_left_out(self) -> list[str]:
        """Which methods took part in the paired test as they were when halving left
        them out.
        """
        tested = {
            name: rounds
            for name, rounds in self.left_out.items()
            if name not in self.not_tested
        }
        parts = [
            f"{', '.join(name for name, rounds in tested.items() if rounds == after)}"
            f" after {after}"
            for after in sorted(set(tested.values()), reverse=True)
        ]
        sentences = []
        if parts:
            sentences.append(
                "Left out by validation data on the first seed, and tested there"
                f" against the others as all were then: {' and '.join(parts)} of"
                f" {self.rounds} rounds."
            )
        if self.not_tested:
            sentences.append(
                f"Nothing is said of {', '.join(self.not_tested)}: left out by"
                " validation data, and the run is not there; the same command makes it"
                " again."
            )
        return sentences

    def _mean_gain(self, method: str) -> str:
        """The mean gain over clients like these, with its interval, in the metric that
        runs are judged by.
        """
        assert self.winner is not None  # there are two methods at least
        unit, pairs = unit_of(self.metric), self.winner.pairs
        for first, second, sign in ((method, self.base, 1), (self.base, method, -1)):
            for line in pairs.filter(
                (pl.col("method") == first) & (pl.col("other") == second)
            ).iter_rows(named=True):
                ends = sorted(
                    sign * unit.scale * line[name] for name in ("low", "high")
                )
                low, high = map(unit.signed, ends)
                gain = sign * unit.scale * line["difference"]
                return (
                    f"mean gain in {unit.label}: {unit.signed(gain)} (95 % interval"
                    f" {low} to {high})"
                )
        return "no mean gain"

    @property
    def table(self) -> Table | None:
        """The gains of every client by every method; None where there are none."""
        if self.gains is None:
            return None
        unit = unit_of(self.gain_metric)
        columns = [
            "client",
            "method",
            "test\nrows",
            "alone",
            unit.label,
            "gain",
            "from",
            "to",
            "sharing",
        ]
        rows = [_gain_row(line, unit) for line in self.gains.iter_rows(named=True)]
        title = (
            f"{self.scenario}: gain of each client over training alone, test"
            f" {unit.label}, 95 % interval"
        )
        return Table(title, columns, rows, text=2, note=_GAIN_NOTE)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        winner = self.winner
        return {
            "metric": self.metric,
            "sentences": self.sentences,
            "winner": None if winner is None else winner.winner,
            "leader": None if winner is None else winner.leader,
            "unbeaten": [] if winner is None else list(winner.unbeaten),
            "left_out": dict(self.left_out),
            "pairs": [] if winner is None else _finite(winner.pairs),
            "choice": [] if self.choice is None else _finite(self.choice.chosen),
            "gain_metric": self.gain_metric,
            "gains": [] if self.gains is None else _finite(self.gains),
            "warnings": self.warnings,
        }


_GAIN_NOTE = (
    "Positive gains are better. helps, hurts: the interval excludes 0, for this client"
    " and method alone; where sharing changes nothing, one line in twenty says either"
    " by chance."
)


def decide(experiment: Experiment, scenario: str) -> Decision | None:
    """What the finished runs of a scenario say; None where none has ended."""
    runs = {label: seeds for label, seeds in experiment.runs[scenario].items() if seeds}
    first = next((run for seeds in runs.values() for run in seeds), None)
    if first is None:
        return None
    higher, metric = first.unit.higher_is_better, first.metric
    warnings = [*first.warnings, *_training_warnings(experiment, scenario, runs)]
    if experiment.index.budget is not None:
        warnings += warn_few_validation_rows(
            int(first.clients.filter(~pl.col("unseen"))["val"].sum())
        )
    test, val = _values(runs, "test"), _values(runs, "val")
    if test.is_empty():
        return Decision(
            scenario, metric, why_no_gains=NO_TEST.format(metric), warnings=warnings
        )
    several = len(runs) > 1
    base = next(
        (label for label, seeds in runs.items() if seeds[0].method == ALONE), None
    )
    gain_metric, gains, missing = _gains(runs, metric, base)
    left_out = left_out_methods(experiment, scenario)
    not_tested = [
        label
        for label, candidate in left_out.items()
        if not (experiment.results / candidate.run / SUMMARY).is_file()
    ]
    whole = experiment.index.scenarios[scenario].rounds
    winner = None
    if several:
        stopped = {
            label: candidate
            for label, candidate in left_out.items()
            if label not in not_tested
        }
        parts = [test.with_columns(round=pl.lit(whole, pl.Int32))]
        parts += tests_when_left_out(experiment, runs, stopped, whole)
        winner = best_method(
            pl.concat(parts), higher_is_better=higher, left_out=list(stopped)
        )
        if not_tested:
            winner = replace(winner, winner=None)
    return Decision(
        scenario,
        metric,
        winner=winner,
        choice=(
            choose_by_validation(val, test, higher_is_better=higher)
            if several and _overlap(val, test)
            else None
        ),
        base=base,
        gain_metric=gain_metric,
        gains=gains,
        why_no_gains=missing,
        left_out={
            label: candidate.rounds_of(whole) for label, candidate in left_out.items()
        },
        not_tested=not_tested,
        rounds=whole,
        warnings=warnings,
    )


def decisions(experiment: Experiment) -> list[Decision]:
    """One for each scenario with a finished run."""
    of_scenarios = (
        decide(experiment, scenario) for scenario in experiment.index.scenarios
    )
    return [decision for decision in of_scenarios if decision is not None]


def _values(runs: Mapping[str, Sequence[StoredRun]], split: str) -> pl.DataFrame:
    """method, seed, client, value: the metric of seen clients on a split after the last
    evaluation.
    """
    parts = [
        run.last(split).select(
            pl.lit(label).alias("method"),
            pl.lit(run.seed).alias("seed"),
            "client",
            "value",
        )
        for label, seeds in runs.items()
        for run in seeds
    ]
    return pl.concat(parts)


def _overlap(val: pl.DataFrame, test: pl.DataFrame) -> bool:
    return len(val.join(test, on=["method", "seed", "client"], how="semi")) > 0


def _gains(
    runs: Mapping[str, Sequence[StoredRun]], metric: str, base: str | None
) -> tuple[str, pl.DataFrame | None, str]:
    """What gains are measured in, the gains, and why there are none."""
    if base is None:
        return (
            metric,
            None,
            (
                f"Gains over training alone need the method {ALONE}; add it to the"
                " comparison."
            ),
        )
    if len(runs) < 2:
        return (
            metric,
            None,
            "Gains over training alone need another method; add one to the comparison.",
        )
    parts = [
        run.rows.join(
            run.clients.filter(~pl.col("unseen")).select("client"),
            on="client",
            how="semi",
        ).with_columns(method=pl.lit(label), seed=pl.lit(run.seed))
        for label, seeds in runs.items()
        for run in seeds
        if run.rows is not None
    ]
    kept = {part["method"][0] for part in parts if len(part)}
    if base not in kept or len(kept) < 2:
        return (
            metric,
            None,
            (
                "Gains over training alone need the test rows, which these runs did not"
                " keep; repeat them."
            ),
        )
    rows = pl.concat(
        parts, how="diagonal"
    )  # of other versions, some may have columns more
    if metric not in SCORES:
        metric = next(
            (
                name
                for name in SCORES
                if SCORES[name].column in rows.columns and name != "loss"
            ),
            "loss",
        )
    return metric, client_gains(rows, base, metric), ""


def _training_warnings(
    experiment: Experiment, scenario: str, runs: Mapping[str, Sequence[StoredRun]]
) -> list[str]:
    """Curves that still fall, by the first seed, and settings chosen from the edge of
    their grid.
    """
    curves = {}
    for label, seeds in runs.items():
        if losses := seeds[0].curve("val", "loss"):
            curves[label] = (list(losses), list(losses.values()))
    warnings, edges = warn_still_falling(curves), dict[str, list[str]]()
    for label in runs:
        tried = [
            it
            for it in experiment.index.candidates
            if (it.scenario, it.algorithm) == (scenario, label)
        ]
        chosen = next((it.parameters for it in tried if it.chosen), {})
        grid = {
            name: [it.parameters[name] for it in tried if name in it.parameters]
            for name in chosen
        }
        for warning in warn_grid_edges(chosen, grid, experiment.index.limited):
            edges.setdefault(warning, []).append(label)
    # methods often choose alike: one line for all of them
    return warnings + [
        f"{named(labels)}: {warning}" for warning, labels in edges.items()
    ]


def _gain_row(line: Mapping[str, Any], unit: Unit) -> list[Cell]:
    numbers = (
        line["base_value"],
        line["value"],
        line["gain"],
        line["low"],
        line["high"],
    )
    alone, value, gain, low, high = (unit.scale * number for number in numbers)
    shown = [Number(number, f"{number:.{unit.digits}f}") for number in (alone, value)]
    signed = [Number(number, unit.signed(number)) for number in (gain, low, high)]
    return [
        line["client"],
        line["method"],
        Number(line["test_rows"], str(line["test_rows"])),
        *shown,
        *signed,
        line["verdict"],
    ]


def _finite(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Lines for JSON, which knows neither NaN nor infinity."""
    floats = [name for name, kind in frame.schema.items() if kind.is_float()]
    return frame.with_columns(
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).otherwise(None).alias(name)
        for name in floats
    ).to_dicts()
