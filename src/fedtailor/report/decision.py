"""What a comparison decides: who gains from sharing, and which method is best."""

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
from fedtailor.decision.warnings import join_names
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
            sentences.append(f"By test {unit.label}: {self.winner.conclusion()}")
            sentences += self._sharing(self.winner)
            sentences += self._about_left_out()
        if self.choice is not None:
            each = unit.text([self.choice.value])
            one = unit.text([self.choice.single_value])
            said = self.choice.conclusion().removesuffix(".")
            sentences.append(f"{said} (test {unit.label}: {each} against {one}).")
        if self.gains is None:
            return [*sentences, self.why_no_gains]
        if self.gain_metric != self.metric:
            sentences.append(
                f"Gains in {unit.label} do not follow from single test rows: those"
                f" below are in {unit_of(self.gain_metric).label}."
            )
        for (method,), part in self.gains.group_by(["method"], maintain_order=True):
            helps = int((part["verdict"] == "helps").sum())
            hurts = int((part["verdict"] == "hurts").sum())
            unclear = len(part) - helps - hurts
            sentences.append(
                f"{method}, beside training alone: helps {helps} of {len(part)} clients,"
                f" hurts {hurts}, cannot tell for {unclear};"
                f" {self._mean_gain(str(method))}."
            )
        return sentences

    def _sharing(self, winner: Winner) -> list[str]:
        """Whether methods that share are better than training alone on average.

        Decided by the same tests that name the winner.
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
        """Which methods halving left out, and how they took part in the paired test."""
        by_round: dict[int, list[str]] = {}
        for name, rounds in self.left_out.items():
            if name not in self.not_tested:
                by_round.setdefault(rounds, []).append(name)
        sentences = []
        if by_round:
            parts = [
                f"{', '.join(by_round[rounds])} after {rounds}"
                for rounds in sorted(by_round, reverse=True)
            ]
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
        """The mean gain over clients like these, with its interval.

        It is in the metric that runs are judged by.
        """
        assert self.winner is not None  # there are two methods at least
        unit = unit_of(self.metric)
        # Each pair of methods is stored once, in either order.
        for first, second, sign in ((method, self.base, 1), (self.base, method, -1)):
            pair = self.winner.pairs.filter(
                (pl.col("method") == first) & (pl.col("other") == second)
            )
            if pair.is_empty():
                continue
            row = pair.row(0, named=True)
            gain, *ends = (
                sign * unit.scale * row[name] for name in ("difference", "low", "high")
            )
            low, high = (unit.signed(end) for end in sorted(ends))
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
        columns = ["client", "method", "test\nrows", "alone", unit.label]
        columns += ["gain", "from", "to", "sharing"]
        rows = [_gain_row(row, unit) for row in self.gains.iter_rows(named=True)]
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
    if not runs:
        return None
    first = next(iter(runs.values()))[0]
    higher_is_better, metric = first.unit.higher_is_better, first.metric
    warnings = [*first.warnings, *_training_warnings(experiment, scenario, runs)]
    if experiment.index.budget is not None:
        seen = first.clients.filter(~pl.col("unseen"))
        warnings += warn_few_validation_rows(int(seen["val"].sum()))
    # Without test rows nothing can be decided; without validation rows all but the
    # choice of a method for each client.
    test, val = _values(runs, "test"), _values(runs, "val")
    if test.is_empty():
        return Decision(
            scenario, metric, why_no_gains=NO_TEST.format(metric), warnings=warnings
        )

    methods = {label: seeds[0].method for label, seeds in runs.items()}
    base = next((label for label, method in methods.items() if method == ALONE), None)
    gain_metric, gains, why_no_gains = _gains(runs, metric, base)

    left_out = left_out_methods(experiment, scenario)
    # Their run may be missing, or go on for another comparison at this moment.
    tested = {
        label: candidate
        for label, candidate in left_out.items()
        if (experiment.results / candidate.run / SUMMARY).is_file()
    }
    not_tested = [label for label in left_out if label not in tested]
    rounds = experiment.index.scenarios[scenario].rounds
    winner, choice = None, None
    if len(runs) > 1:
        # Methods that were left out are compared with the others as all were then.
        values = [test.with_columns(round=pl.lit(rounds, pl.Int32))]
        values += tests_when_left_out(experiment, runs, tested, rounds)
        winner = best_method(
            pl.concat(values), higher_is_better=higher_is_better, left_out=list(tested)
        )
        # A method that could not be tested might have won.
        if not_tested:
            winner = replace(winner, winner=None)
        if _overlap(val, test):
            choice = choose_by_validation(val, test, higher_is_better=higher_is_better)
    return Decision(
        scenario,
        metric,
        winner=winner,
        choice=choice,
        base=base,
        gain_metric=gain_metric,
        gains=gains,
        why_no_gains=why_no_gains,
        left_out={
            label: candidate.rounds_of(rounds) for label, candidate in left_out.items()
        },
        not_tested=not_tested,
        rounds=rounds,
        warnings=warnings,
    )


def decisions(experiment: Experiment) -> list[Decision]:
    """One for each scenario with a finished run."""
    decided = (decide(experiment, scenario) for scenario in experiment.index.scenarios)
    return [decision for decision in decided if decision is not None]


def _values(runs: Mapping[str, Sequence[StoredRun]], split: str) -> pl.DataFrame:
    """The metric of seen clients on a split after the last evaluation.

    Returns:
        A frame with the columns method, seed, client and value.
    """
    frames = []
    for label, seeds in runs.items():
        for run in seeds:
            method, seed = pl.lit(label).alias("method"), pl.lit(run.seed).alias("seed")
            frames.append(run.last(split).select(method, seed, "client", "value"))
    return pl.concat(frames)


def _overlap(val: pl.DataFrame, test: pl.DataFrame) -> bool:
    """Whether some run measured some client on both splits."""
    return len(val.join(test, on=["method", "seed", "client"], how="semi")) > 0


def _gains(
    runs: Mapping[str, Sequence[StoredRun]], metric: str, base: str | None
) -> tuple[str, pl.DataFrame | None, str]:
    """Gains of every client over training alone.

    Returns:
        The metric that gains are measured in, the gains (None where they cannot be
        had), and why there are none.
    """
    if base is None:
        why = (
            f"Gains over training alone need the method {ALONE}; add it to the"
            " comparison."
        )
        return metric, None, why
    if len(runs) < 2:
        why = (
            "Gains over training alone need another method; add one to the comparison."
        )
        return metric, None, why

    frames = []
    for label, seeds in runs.items():
        for run in seeds:
            if run.rows is None:
                continue
            seen = run.clients.filter(~pl.col("unseen")).select("client")
            rows = run.rows.join(seen, on="client", how="semi")
            frames.append(
                rows.with_columns(method=pl.lit(label), seed=pl.lit(run.seed))
            )
    methods = {frame["method"][0] for frame in frames if len(frame)}
    if base not in methods or len(methods) < 2:
        why = (
            "Gains over training alone need the test rows, which these runs did not"
            " keep; repeat them."
        )
        return metric, None, why

    # Runs of other versions may have further columns.
    rows = pl.concat(frames, how="diagonal")
    # Gains are means over test rows: a metric that does not follow from single rows,
    # such as an area under a curve, is replaced by one that does.
    if metric not in SCORES:
        stored = [name for name in SCORES if SCORES[name].column in rows.columns]
        metric = next((name for name in stored if name != "loss"), "loss")
    return metric, client_gains(rows, base, metric), ""


def _training_warnings(
    experiment: Experiment, scenario: str, runs: Mapping[str, Sequence[StoredRun]]
) -> list[str]:
    """Curves of the first seed that still fall, and settings from a grid's edge."""
    curves = {}
    for label, seeds in runs.items():
        if losses := seeds[0].curve("val", "loss"):
            curves[label] = (list(losses), list(losses.values()))
    warnings = warn_still_falling(curves)

    # Methods often choose alike: one line for all of them.
    labels_by_warning: dict[str, list[str]] = {}
    for label in runs:
        tried = [
            candidate
            for candidate in experiment.index.candidates
            if (candidate.scenario, candidate.algorithm) == (scenario, label)
        ]
        settings = [candidate.parameters for candidate in tried]
        chosen = next((one.parameters for one in tried if one.chosen), {})
        grid = {
            name: [parameters[name] for parameters in settings if name in parameters]
            for name in chosen
        }
        for warning in warn_grid_edges(chosen, grid, experiment.index.limited):
            labels_by_warning.setdefault(warning, []).append(label)
    for warning, labels in labels_by_warning.items():
        warnings.append(f"{join_names(labels)}: {warning}")
    return warnings


def _gain_row(gain: Mapping[str, Any], unit: Unit) -> list[Cell]:
    """One client and method as a line of the table, in the unit that is shown."""
    row: list[Cell] = [gain["client"], gain["method"]]
    row.append(Number(gain["test_rows"], str(gain["test_rows"])))
    for name in ("base_value", "value"):
        shown = unit.scale * gain[name]
        row.append(Number(shown, f"{shown:.{unit.digits}f}"))
    for name in ("gain", "low", "high"):
        shown = unit.scale * gain[name]
        row.append(Number(shown, unit.signed(shown)))
    row.append(gain["verdict"])
    return row


def _finite(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON, which knows neither NaN nor infinity."""
    for name, dtype in frame.schema.items():
        if dtype.is_float():
            column = pl.col(name)
            finite = pl.when(column.is_finite()).then(column).otherwise(None)
            frame = frame.with_columns(finite.alias(name))
    return frame.to_dicts()
