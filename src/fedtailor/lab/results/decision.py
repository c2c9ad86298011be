"""The decisions of a comparison: who gains from sharing, and which method is best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from fedtailor._base.digests import finite
from fedtailor._base.notebook import html_paragraphs
from fedtailor._base.printable import join_names
from fedtailor.engine.storage.run_files import SUMMARY
from fedtailor.lab.results.concordance import few_pairs_warnings
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.judging import verdict_of
from fedtailor.lab.results.left_out import left_out_methods, tests_when_left_out
from fedtailor.lab.results.measures import mean_of_runs
from fedtailor.lab.results.stored import StoredRun, mean_sizes
from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.lab.results.test_values import rows_of, values_of
from fedtailor.lab.results.units import Unit, unit_of
from fedtailor.lab.results.verdict import Verdict
from fedtailor.lab.results.words import LOCAL_METHOD
from fedtailor.statistics.decision import (
    SCORES,
    Choice,
    Winner,
    best_method,
    choose_by_validation,
    client_gains,
    movement,
    warn_few_validation_rows,
    warn_grid_edges,
    warn_not_still,
    warn_still_falling,
)
from fedtailor.statistics.decision.frames import Frame
from fedtailor.statistics.decision.intervals import MIN_SEEDS
from fedtailor.statistics.decision.warnings import MAX_NAMES

NO_TEST_MESSAGE = (
    "There are no test data to measure {} on, so nothing is said of which"
    " method is best or who gains; keep some rows for testing."
)
ALPHA = 0.05
"""Level of the corrected counts of clients, over all lines of a table of gains."""
MAX_TABLE_ROWS = 60
"""A longer table of gains is only written to files, not printed."""


@dataclass(frozen=True)
class Decision:
    """The statistical decisions from the runs of one scenario.

    Attributes:
        scenario: its label.
        metric: the metric of the runs.
        winner: result of the paired tests over clients and seeds; None if there is only
            one method. A method that halving left out is compared after the round in
            which it was left out (see `best_method`).
        choice: a method for each client, chosen on its validation data; None without
            validation data.
        base: label of the method that trains every client alone; None if it was not
            run.
        gain_metric: the metric of the gains.
        gains: see `fedtailor.statistics.decision.client_gains`; None if they cannot be computed.
        no_gains_reason: why `gains` is None.
        left_out: method that halving left out on validation data -> rounds until then.
        untested: methods in `left_out` whose runs are missing or unfinished. If there
            is one, no winner is declared.
        rounds: rounds of a complete run.
        test_rows: client -> test rows of one seed.
        warnings: warnings for the reader.
        verdict: what each client should use; None without validation or test data, if
            the runs have not kept their test rows, or until all runs are done.
    """

    scenario: str
    metric: str
    winner: Winner | None = None
    choice: Choice | None = None
    base: str | None = None
    gain_metric: str = ""
    gains: Frame | None = None
    no_gains_reason: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    untested: Sequence[str] = ()
    rounds: int = 0
    test_rows: Mapping[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    verdict: Verdict | None = None

    def _repr_html_(self) -> str:
        """The decision in a notebook: its sentences, warnings, and gains of clients."""
        warnings = (f"Warning: {warning}" for warning in self.warnings)
        gains = "" if self.table is None else self.table._repr_html_()
        return html_paragraphs([*self.conclusions, *warnings]) + gains

    @property
    def conclusions(self) -> list[str]:
        """The decision in words."""
        unit = unit_of(self.metric)
        conclusions: list[str] = []
        if self.winner is not None:
            conclusions.append(f"By test {unit.label}: {self.winner.conclusion()}")
            conclusions += self._leader_sentences(self.winner)
            conclusions += self._sharing_sentences(self.winner)
            conclusions += self._left_out_sentences()
            conclusions += self._recommended_sentences(self.winner)
        if self.choice is not None:
            # The difference only: its two means are of clients with validation rows, with
            # a method for all that is chosen in each seed, and no other table has them.
            text = self.choice.conclusion().removesuffix(".")
            found = self.choice.gain
            gain, low, high = (
                unit.signed(unit.scale * value)
                for value in (found.estimate, found.low, found.high)
            )
            sure = f"95 % interval {low} to {high}"
            if not math.isfinite(found.low):
                sure = "too few clients to tell"
            conclusions.append(f"{text} (test {unit.label}: {gain}; {sure}).")
        if self.gains is None:
            return [*conclusions, self.no_gains_reason]
        if self.gain_metric != self.metric:
            conclusions.append(
                f"Gains of single clients in {unit.label} do not follow from their test"
                " rows: clients are counted by their"
                f" {unit_of(self.gain_metric).label}."
            )
        conclusions.append(
            "Clients are counted by the interval of each alone, and in brackets after"
            f" Holm's correction for all {len(self.gains)} lines, which no line passes"
            f" by chance in {100 - 100 * ALPHA:g} of 100 tables."
        )
        for (method,), part in self.gains.group_by(["method"], maintain_order=True):
            unclear = int((part["verdict"] == "cannot tell").sum())
            counts = (
                f"better for {_counted(part, 'helps', f' of {len(part)} clients')},"
                f" worse for {_counted(part, 'hurts')}, no difference shown for"
                f" {unclear}"
            )
            mean_gain = self._mean_gain_text(str(method))
            if self.gain_metric != self.metric:
                # Counts in one metric are not shown with a mean in another one.
                label = unit_of(self.gain_metric).label.removesuffix(", %")
                conclusions.append(
                    f"{method} against training alone: {mean_gain}; by {label} {counts}."
                )
                continue
            conclusions.append(
                f"{method} against training alone: {counts}; {mean_gain}."
            )
        return conclusions

    def _leader_sentences(self, winner: Winner) -> list[str]:
        """States how much of the best mean is due to its being chosen as the best."""
        unit = unit_of(self.metric)
        printed = unit.text([winner.means[winner.leader]])
        expected = unit.text([winner.expected])
        if not math.isfinite(winner.expected) or printed == expected:
            return []
        return [
            f"The best of {len(winner.means)} means is too good by being chosen on these"
            f" test rows: expect about {expected} of {winner.leader} on others."
        ]

    def _recommended_sentences(self, winner: Winner) -> list[str]:
        """States which method to use, where another one has the best test mean."""
        if self.verdict is None:
            return []
        method = self.verdict.recommendation.method
        if method == winner.leader:
            return []
        return [
            f"{winner.leader} has the best test mean; the method to use is {method} all the"
            " same: it is chosen on validation rows, so that test rows can say what to"
            " expect of it."
        ]

    def _sharing_sentences(self, winner: Winner) -> list[str]:
        """States whether sharing is better than training alone on average."""
        if self.base is None:
            return []
        verdicts = winner.beside(self.base)
        better = [method for method, verdict in verdicts.items() if verdict == "better"]
        worse = [method for method, verdict in verdicts.items() if verdict == "worse"]
        if better:
            text = f"Better than training alone on average: {', '.join(better)}"
        elif worse:
            text = (
                f"Worse than training alone on average: {', '.join(worse)}; no method is"
                " shown to be better"
            )
        else:
            text = (
                "On average no difference is shown between sharing and training alone"
            )
        return [
            f"{text}, for clients like these (tested over all methods at once; each"
            " interval below stands for itself)."
        ]

    def _left_out_sentences(self) -> list[str]:
        """States which methods halving left out, and how they were tested."""
        by_round: dict[int, list[str]] = {}
        for name, rounds in self.left_out.items():
            if name not in self.untested:
                by_round.setdefault(rounds, []).append(name)
        conclusions = []
        if by_round:
            parts = [
                f"{', '.join(by_round[rounds])} after {rounds}"
                for rounds in sorted(by_round, reverse=True)
            ]
            conclusions.append(
                "Left out by validation data on the first seed, and tested there"
                f" against the others as all were then: {' and '.join(parts)} of"
                f" {self.rounds} rounds."
            )
        if self.untested:
            conclusions.append(
                f"Nothing is said of {', '.join(self.untested)}: left out by"
                " validation data, and the run is missing; the same command makes it"
                " again."
            )
        return conclusions

    def _mean_gain_text(self, method: str) -> str:
        """The mean gain over clients with its interval, in the metric of the runs."""
        assert self.winner is not None  # gains need two methods
        unit = unit_of(self.metric)
        # Each pair of methods is stored once, in either order.
        for first, second, sign in ((method, self.base, 1), (self.base, method, -1)):
            pair = self.winner.pairs.filter(
                (pl.col("method") == first) & (pl.col("other") == second)
            )
            if pair.is_empty():
                continue
            row = pair.row(0, named=True)
            gain, *bounds = (
                sign * unit.scale * row[name] for name in ("difference", "low", "high")
            )
            low, high = (unit.signed(end) for end in sorted(bounds))
            return (
                f"mean gain in {unit.label}: {unit.signed(gain)} (95 % interval"
                f" {low} to {high})"
            )
        return "no mean gain"

    @property
    def table(self) -> ReportTable | None:
        """The table of all gains; None if there are none."""
        if self.gains is None:
            return None
        unit = unit_of(self.gain_metric)
        columns = ["client", "method", "test\nrows", "alone", unit.label]
        columns += ["gain", "from", "to", "sharing", "corrected", "expected\ngain"]
        rows = []
        for gain in self.gains.iter_rows(named=True):
            # The same number as in the table of clients, not the rows of all seeds.
            tested = self.test_rows.get(gain["client"], gain["test_rows"])
            rows.append(_gain_row(gain | {"test_rows": tested}, unit))
        title = (
            f"{self.scenario}: gain of each client over training alone, test"
            f" {unit.label}, 95 % interval"
        )
        return ReportTable(title, columns, rows, text=2, note=_GAIN_NOTE)

    def as_dict(self) -> dict[str, Any]:
        """Converts the decision to a dict for JSON."""
        winner = self.winner
        return {
            "metric": self.metric,
            "verdict": None if self.verdict is None else self.verdict.as_dict(),
            "sentences": self.conclusions,
            "winner": None if winner is None else winner.winner,
            "leader": None if winner is None else winner.leader,
            "unbeaten": [] if winner is None else list(winner.unbeaten),
            "left_out": dict(self.left_out),
            "pairs": [] if winner is None else finite(winner.pairs.to_dicts()),
            "choice": []
            if self.choice is None
            else finite(self.choice.chosen.to_dicts()),
            "gain_metric": self.gain_metric,
            "gains": [] if self.gains is None else finite(self.gains.to_dicts()),
            "warnings": self.warnings,
        }


_GAIN_NOTE = (
    "Positive gains are better. helps, hurts: the interval excludes 0, for this client"
    " and method alone; where sharing changes nothing, one line in twenty says either"
    " by chance. corrected: the same after Holm's correction for all lines. expected"
    " gain: shrunk towards the mean gain of all clients (the more uncertain, the more),"
    " as single gains of few test rows scatter more than the true ones."
)


def decide(experiment: StoredExperiment, scenario: str) -> Decision | None:
    """Decides from the finished runs of a scenario; None if there is none."""
    runs = {label: seeds for label, seeds in experiment.runs[scenario].items() if seeds}
    if not runs:
        return None
    methods, others = runs, experiment.candidates(scenario)
    first = next(iter(runs.values()))[0]
    higher_is_better, metric = first.unit.higher_is_better, first.metric
    warnings = [*first.warnings, *_training_warnings(experiment, scenario, runs)]
    warnings += few_pairs_warnings(first)
    if experiment.index.budget is not None:
        warnings += warn_few_validation_rows(int(first.seen_clients["val"].sum()))
    # What needs no pooled rows and keeps its models is chosen from as methods are.
    runs = {**methods, **{label: list(it.runs) for label, it in others.items()}}
    # Without test rows nothing can be decided. Without validation rows only the choice
    # of a method for each client is missing.
    test, val = values_of(runs, "test"), values_of(runs, "val")
    if test.is_empty():
        return Decision(
            scenario,
            metric,
            no_gains_reason=NO_TEST_MESSAGE.format(metric),
            warnings=warnings,
        )

    alone = [
        label for label, seeds in methods.items() if seeds[0].method == LOCAL_METHOD
    ]
    if alone:
        alone += [label for label, it in others.items() if it.about.is_alone]
    base = _best_alone(alone, val, higher_is_better=higher_is_better)
    rows = rows_of(runs)
    # Gains are those of sharing: of training alone in another way there are none.
    sharing = {
        label: it for label, it in runs.items() if label == base or label not in alone
    }
    shared_rows = rows
    if rows is not None:
        shared_rows = rows.filter(pl.col("method").is_in(list(sharing)))
    gain_metric, gains, no_gains_reason = _gains(sharing, shared_rows, metric, base)

    left_out = left_out_methods(experiment, scenario)
    # The run of such a method may be missing, or in use by another comparison.
    tested = {
        label: candidate
        for label, candidate in left_out.items()
        if (experiment.results / candidate.run / SUMMARY).is_file()
    }
    untested = [label for label in left_out if label not in tested]
    rounds = experiment.index.scenarios[scenario].rounds
    warnings += _no_learning_warnings(experiment, scenario, methods)
    winner, choice = None, None
    if len(runs) > 1:
        # Each pair is compared after the last round in which both methods were tested.
        values = [test.with_columns(round=pl.lit(rounds, pl.Int32))]
        values += tests_when_left_out(experiment, runs, tested, rounds)
        winner = best_method(
            pl.concat(values), higher_is_better=higher_is_better, left_out=list(tested)
        )
        # A method that could not be tested might have won.
        if untested:
            winner = replace(winner, winner=None, ahead=None)
        if _have_common_clients(val, test):
            choice = choose_by_validation(val, test, higher_is_better=higher_is_better)
    verdict = None
    # Methods that have other seeds behind them would be compared by their means.
    if experiment.unfinished:
        warnings.insert(
            0,
            f"{experiment.unfinished}; what to use is said when all are done, and the same"
            " compare command continues",
        )
    else:
        verdict = verdict_of(
            experiment,
            scenario,
            runs,
            base=base,
            alone=alone,
            gain_metric=gain_metric,
            gains=gains,
            rows=rows,
        )
    return Decision(
        scenario,
        metric,
        verdict=verdict,
        winner=winner,
        choice=choice,
        base=base,
        gain_metric=gain_metric,
        gains=gains,
        no_gains_reason=no_gains_reason,
        left_out={
            label: candidate.rounds_of(rounds) for label, candidate in left_out.items()
        },
        untested=untested,
        rounds=rounds,
        test_rows=mean_sizes(next(iter(runs.values())), "test"),
        warnings=warnings,
    )


def _best_alone(
    labels: Sequence[str], val: pl.DataFrame, *, higher_is_better: bool
) -> str | None:
    """The best way to train every client alone, by the mean over validation values;
    without any, the first one.
    """
    means = dict(
        val.filter(pl.col("value").is_not_nan())
        .group_by("method")
        .agg(pl.col("value").mean())
        .iter_rows()
    )
    sign = 1 if higher_is_better else -1
    return max(
        labels,
        key=lambda label: sign * means[label] if label in means else -math.inf,
        default=None,
    )


def _have_common_clients(val: pl.DataFrame, test: pl.DataFrame) -> bool:
    """Whether a run has values of a client on both splits."""
    return len(val.join(test, on=["method", "seed", "client"], how="semi")) > 0


def _gains(
    runs: Mapping[str, Sequence[StoredRun]],
    rows: pl.DataFrame | None,
    metric: str,
    base: str | None,
) -> tuple[str, pl.DataFrame | None, str]:
    """Computes the gains of every client over training alone.

    Args:
        runs: label -> finished runs.
        rows: their test rows; None if they have not kept them.
        metric: the metric of the runs.
        base: label of the method that trains every client alone.

    Returns:
        The metric of the gains, which test rows determine, the gains (None if they
        cannot be computed), and the reason why they cannot be computed.
    """
    if rows is not None:
        metric = _metric_of_rows(runs, rows, metric)
    reason = ""
    if base is None:
        reason = (
            f"Gains over training alone need finished runs of the method {LOCAL_METHOD};"
            " add it to the comparison, or lower its rate if they diverged."
        )
    elif len(runs) < 2:
        reason = (
            "Gains over training alone need another method; add one to the comparison."
        )
    elif rows is None or not {base} < set(rows["method"].unique()):
        reason = (
            "Gains over training alone need the test rows, which these runs did not"
            " keep; repeat them."
        )
    if reason or rows is None or base is None:
        return metric, None, reason
    return metric, client_gains(rows, base, metric), ""


def _metric_of_rows(
    runs: Mapping[str, Sequence[StoredRun]], rows: pl.DataFrame, metric: str
) -> str:
    """The metric of the runs, or one that test rows determine in its place."""
    outputs = int(next(iter(runs.values()))[0].manifest["model"]["outputs"])
    return next(
        name
        for name in (metric, "accuracy", "rmse", "loss")
        if name in SCORES and SCORES[name].determined(rows.columns, outputs)
    )


def _counted(gains: pl.DataFrame, verdict: str, of: str = "") -> str:
    """The number of lines with a verdict, plain and after correction."""
    found = gains.filter(pl.col("verdict") == verdict)
    if found.is_empty():
        return f"0{of}"
    corrected = int((found["p_holm"] < ALPHA).sum())
    return f"{len(found)}{of} ({corrected} after correction)"


def _training_warnings(
    experiment: StoredExperiment, scenario: str, runs: Mapping[str, Sequence[StoredRun]]
) -> list[str]:
    """Warns about validation losses that have not come to rest, and settings at a
    grid's edge.

    Nothing is said of what has no room to be better.
    """
    warnings = []
    runs = {label: seeds for label, seeds in runs.items() if not _is_perfect(seeds)}
    if experiment.index.until_converged:
        rounds = experiment.index.scenarios[scenario].rounds
        # Losses of every seed, by the rule that ends trainings.
        of_runs: dict[str, list[tuple[list[int], list[float]]]] = {}
        for label, seeds in runs.items():
            curves = [run.curve("val", "loss") for run in seeds]
            found = [(list(it), list(it.values())) for it in curves if it]
            rises = any(movement(*curve) == "rising" for curve in found)
            # Of losses that rise while the metric does not fall nothing is said.
            is_said = not rises or is_worse_at_the_end(seeds)
            of_runs[label] = found if is_said else []
        warnings += warn_not_still(of_runs, rounds)
        if runs and not any(seeds[0].curve("val", "loss") for seeds in runs.values()):
            warnings.append(
                f"there are no validation data, so that all trained for {rounds} rounds"
            )
    else:
        curves = {}
        for label, seeds in runs.items():
            if losses := seeds[0].curve("val", "loss"):
                curves[label] = (list(losses), list(losses.values()))
        warnings += warn_still_falling(curves)

    # Methods with the same warning share a line.
    labels_by_warning: dict[str, list[str]] = {}
    for label in runs:
        candidates = [
            candidate
            for candidate in experiment.index.candidates
            if (candidate.scenario, candidate.algorithm) == (scenario, label)
        ]
        settings = [candidate.parameters for candidate in candidates]
        # Values that the method refused are no less a bound than those that diverged.
        settings += [
            skipped.parameters
            for skipped in experiment.index.skipped
            if (skipped.scenario, skipped.algorithm) == (scenario, label)
        ]
        best = next((one for one in candidates if one.chosen), None)
        if best is None:
            continue
        # Where another setting scored as well, an edge promises nothing beyond it.
        others = [
            one.val for one in candidates if not one.chosen and one.val is not None
        ]
        if best.val is not None and others and max(others) >= best.val:
            continue
        chosen = best.parameters
        # Several grids may be searched, and a setting need not be in all of them.
        grid = {}
        for name in chosen:
            grid[name] = [tried[name] for tried in settings if name in tried]
        for warning in warn_grid_edges(chosen, grid):
            labels_by_warning.setdefault(warning, []).append(label)
    for warning, labels in labels_by_warning.items():
        warnings.append(f"{join_names(labels, MAX_NAMES)}: {warning}")
    return warnings


def is_worse_at_the_end(seeds: Sequence[StoredRun]) -> bool:
    """Whether runs are worse on validation data after their last round than where their
    loss was lowest, by the metric that they are judged by.

    A loss may rise where a model only grows surer of its answers. From three runs on,
    the difference must exceed two standard errors.
    """
    sign = 1 if seeds[0].unit.higher_is_better else -1
    found = []
    for run in seeds:
        losses, values = run.curve("val", "loss"), run.curve("val", run.metric)
        if losses:
            lowest, last = min(losses, key=lambda it: losses[it]), max(losses)
            if lowest in values and last in values:
                found.append(sign * (values[lowest] - values[last]))
    if not found:
        return False
    drops = np.array(found)
    error = 0.0
    if len(drops) >= MIN_SEEDS:
        error = float(drops.std(ddof=1) / np.sqrt(len(drops)))
    return float(drops.mean()) > 2 * error


def _is_perfect(seeds: Sequence[StoredRun]) -> bool:
    """Whether a method makes no mistake on any test row."""
    unit = seeds[0].unit
    return unit.scale == 100 and unit.higher_is_better and mean_of_runs(seeds) >= 1


def _no_learning_warnings(
    experiment: StoredExperiment, scenario: str, runs: Mapping[str, Sequence[StoredRun]]
) -> list[str]:
    """Warns if no method is better than a model that ignores the inputs."""
    baselines = experiment.baselines[scenario]
    if not baselines:
        return []
    unit = next(iter(runs.values()))[0].unit
    sign = 1 if unit.higher_is_better else -1
    baseline = mean_of_runs(baselines)
    best = max(sign * mean_of_runs(seeds) for seeds in runs.values())
    # What is shown as equal is not better.
    if unit.text([sign * best]) != unit.text([baseline]) and best > sign * baseline:
        return []
    advice = "; judge by AUC (--metrics roc_auc)" if unit.scale == 100 else ""
    answer = "its most frequent class" if unit.scale == 100 else "its mean target"
    return [
        f"no method is better than always answering {answer} for every client"
        f" ({unit.text([baseline])} test {unit.label}){advice}"
    ]


def _gain_row(gain: Mapping[str, Any], unit: Unit) -> list[Cell]:
    """The row of the table for one client and method."""
    row: list[Cell] = [gain["client"], gain["method"]]
    row.append(Number(gain["test_rows"], f"{gain['test_rows']:,}"))
    for name in ("base_value", "value"):
        value = unit.scale * gain[name]
        row.append(Number(value, f"{value:.{unit.digits}f}"))
    for name in ("gain", "low", "high"):
        value = unit.scale * gain[name]
        row.append(Number(value, unit.signed(value)))
    row.append(gain["verdict"])
    row.append(gain["verdict"] if gain["p_holm"] < ALPHA else "cannot tell")
    expected = unit.scale * gain["expected"]
    row.append(Number(expected, unit.signed(expected)))
    return row
