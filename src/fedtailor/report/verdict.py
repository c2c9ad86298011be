"""The end of a comparison: one sentence, and what each client should use.

The method for all clients, and another one for clients that need it, are chosen on
validation data (`fedtailor.decision.recommend`). All figures are of test data, which had
no part in the choice.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl

from fedtailor._printable import join_names
from fedtailor.baselines import CHOSEN
from fedtailor.decision import (
    Hurt,
    Recommendation,
    client_gains,
    expected_metrics,
    holm,
    hurt_clients,
    recommend,
    two_way_interval,
)
from fedtailor.decision.intervals import MIN_SEEDS, Interval, two_way_variance
from fedtailor.decision.warnings import MAX_NAMES
from fedtailor.decision.winner import dense_values
from fedtailor.report.experiment import StoredExperiment, TrainedBaseline
from fedtailor.report.stored import RunsByMethod, StoredRun, mean_sizes
from fedtailor.report.tables import Cell, Number, ReportTable
from fedtailor.report.units import Unit, unit_of
from fedtailor.report.words import sentence_of, use_of
from fedtailor.storage.digests import finite

ALPHA = 0.05
"""Level of the verdicts after correction."""
MOST_CLIENTS = 12
"""A first screen shows no more clients than these."""
LEAST_FOLDS = 5
"""The folds that are advised to somebody who has none."""
CHANCE_AT_HALF = ("roc_auc", "c_index", "uno")
"""Metrics that are a half for whoever guesses."""
IN_UNITS_OF_TARGET = ("rmse", "mae")
"""Metrics that have the unit of the target."""


@dataclass(frozen=True)
class ClientVerdict:
    """What one client should use, and what it may expect.

    All values are in the unit of the metric. Intervals are [low, high]; gains are
    positive where the recommended method is better.

    Attributes:
        client: its name.
        test_rows: its test rows in one split.
        method: label of the method that it should use.
        use: the same in words.
        value: expected metric, the mean over seeds, with `low` and `high`.
        gain: gain over training alone, with an interval; None where the client should
            train alone.
        p, p_holm: p-value of the gain, also corrected for all clients.
        baseline: title of the best baseline that needs no pooled data, or "".
        baseline_value: its metric.
        over_baseline: gain over it, with an interval.
    """

    client: str
    test_rows: int
    method: str
    use: str
    value: float
    low: float
    high: float
    gain: tuple[float, float, float] | None = None
    p: float = math.nan
    p_holm: float = math.nan
    baseline: str = ""
    baseline_value: float = math.nan
    over_baseline: tuple[float, float, float] | None = None

    @property
    def verdict(self) -> str:
        """ "helps", "hurts" or "cannot tell", for this client alone."""
        if self.gain is None:
            return ""
        _, low, high = self.gain
        return "helps" if low > 0 else "hurts" if high < 0 else "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """The end of a comparison.

    Attributes:
        recommendation: the methods that were chosen.
        unit: of the metric of the clients.
        subject: what was compared, one line.
        client_column: the column that names the clients.
        headline: the decision, a few sentences.
        methods: one sentence on each method and baseline that the table names.
        clients: one entry for each client.
        footnotes: how many verdicts hold, and what would settle the others.
        warnings: what makes the headline doubtful: a baseline is better, or could not be
            trained.
        hurt: how many clients what they should use leaves worse off than training alone;
            None where nothing is compared with that.
    """

    recommendation: Recommendation
    unit: Unit
    subject: str
    client_column: str
    headline: Sequence[str]
    methods: Sequence[str]
    clients: Sequence[ClientVerdict]
    footnotes: Sequence[str]
    warnings: Sequence[str] = field(default_factory=tuple)
    hurt: Hurt | None = None

    def table(self, most: int | None = None) -> ReportTable:
        """The table with one row for each client.

        Args:
            most: the most rows; the clients with the worst expected metric then.
        """
        chosen, title = list(self.clients), ""
        note = (
            "Rows: test rows of one split. Ranges: 95 % intervals, each for itself. Gains:"
            " + is better, unclear if the range contains 0."
        )
        if most is not None and len(chosen) > most:
            sign = 1 if self.unit.higher_is_better else -1
            chosen.sort(key=lambda client: _last_if_nan(sign * client.value))
            chosen = chosen[:most]
            title = (
                f"The {most} of {len(self.clients)} clients with the worst expected metric"
                " (all: --details)"
            )
        columns = [
            self.client_column,
            "use",
            f"expected\n{self.unit.label}",
            "gain over\ntraining alone",
            f"gain over\n{self._baseline_name()}",
        ]
        return ReportTable(
            title,
            columns,
            [self._row(client) for client in chosen],
            below=[self._row_below(client) for client in chosen],
            text=2,
            note=note,
        )

    def _baseline_name(self) -> str:
        """The baseline that the clients are compared with, if it is one and the same."""
        titles = {it.baseline for it in self.clients if it.over_baseline is not None}
        if len(titles) != 1:
            return "best baseline"
        # "logistic regression, alone"
        return titles.pop().partition(",")[0]

    def _row(self, client: ClientVerdict) -> list[Cell]:
        """What a client should use, and what it may expect."""
        value = self.unit.scale * client.value
        if math.isfinite(value):
            expected = f"{value:.{self.unit.digits}f}"
        elif client.test_rows:
            # An area under a curve needs rows of both classes.
            expected = "not defined"
        else:
            expected = "no test rows"
        return [
            client.client,
            client.use,
            Number(value, expected),
            self._gain_cell(client.gain),
            self._gain_cell(client.over_baseline),
        ]

    def _row_below(self, client: ClientVerdict) -> list[str]:
        """How sure that is."""
        scale, digits = self.unit.scale, self.unit.digits
        expected = ""
        if math.isfinite(client.low) and math.isfinite(client.high):
            low, high = scale * client.low, scale * client.high
            expected = f"{low:.{digits}f} to {high:.{digits}f}"
        elif math.isfinite(client.value):
            expected = "one row"
        return [
            f"{client.test_rows:,} rows",
            client.method,
            expected,
            self._interval_text(client.gain),
            self._interval_text(client.over_baseline),
        ]

    def _gain_cell(self, gain: tuple[float, float, float] | None) -> Cell:
        """A gain, and whether it is one."""
        if gain is None:
            return "-"
        center, low, high = (self.unit.scale * value for value in gain)
        if not (math.isfinite(low) and math.isfinite(high)):
            return Number(center, "too few rows")
        verdict = "better" if low > 0 else "worse" if high < 0 else "unclear"
        return Number(center, f"{self.unit.signed(center)} {verdict}")

    def _interval_text(self, gain: tuple[float, float, float] | None) -> str:
        """The ends of the interval of a gain; "" where there is none."""
        if gain is None or not all(map(math.isfinite, gain)):
            return ""
        _, low, high = (self.unit.scale * value for value in gain)
        return f"{self.unit.signed(low)} to {self.unit.signed(high)}"

    def as_dict(self) -> dict[str, Any]:
        """Converts the verdict to a dict for JSON."""
        return finite(
            {
                "subject": self.subject,
                "sentences": list(self.headline),
                "method": self.recommendation.method,
                "best_on_validation": self.recommendation.best,
                "equal_on_validation": list(self.recommendation.close),
                "methods": list(self.methods),
                "clients": [
                    {
                        "client": it.client,
                        "test_rows": it.test_rows,
                        "method": it.method,
                        "use": it.use,
                        "expected": it.value,
                        "low": it.low,
                        "high": it.high,
                        "gain": it.gain,
                        "p": it.p,
                        "p_holm": it.p_holm,
                        "sharing": it.verdict,
                        "baseline": it.baseline,
                        "baseline_value": it.baseline_value,
                        "gain_over_baseline": it.over_baseline,
                    }
                    for it in self.clients
                ],
                "hurt": None if self.hurt is None else asdict(self.hurt),
                "footnotes": list(self.footnotes),
                "warnings": list(self.warnings),
            }
        )


def verdict_of(
    experiment: StoredExperiment,
    scenario: str,
    runs: RunsByMethod,
    *,
    base: str | None,
    gain_metric: str,
    gains: pl.DataFrame | None,
    rows: pl.DataFrame | None,
) -> Verdict | None:
    """Makes the end of a comparison.

    Args:
        experiment: the index and its runs.
        scenario: label of the scenario.
        runs: label -> finished runs, one for each seed.
        base: label of the method that trains every client alone.
        gain_metric: the metric of the gains.
        gains: gains of every client over training alone, if they are known.
        rows: the test rows of all runs, with the columns method and seed.

    Returns:
        None without validation or test data, of which a choice could be made.
    """
    first = next(iter(runs.values()))[0]
    val = values_of(runs, "val")
    test = values_of(runs, "test")
    if val.is_empty() or test.is_empty() or rows is None:
        return None
    sizes = _sizes(runs)
    chosen = recommend(
        val, _simplest_first(runs), sizes, higher_is_better=first.unit.higher_is_better
    )
    if chosen is None:
        return None
    baselines = {
        baseline_label(it): it for it in experiment.trained_baselines(scenario)
    }
    clients = _clients(chosen, gain_metric, gains, rows, runs, baselines, sizes, base)
    tests = Tests(runs, baselines)
    ahead = _ahead(tests, baselines)
    headline = [*ahead]
    headline += _headline(chosen, tests, base, runs, is_behind=bool(ahead))
    hurt = _hurt(chosen, clients, gains, runs, base, tests)
    warnings = [
        *_untrained_warnings(experiment, scenario, runs),
        *_nonlinear_warnings(experiment, scenario, tests, baselines, ahead),
    ]
    arguments = experiment.index.scenarios[scenario].arguments
    return Verdict(
        chosen,
        unit_of(gain_metric),
        subject=_subject(experiment, scenario, first, gain_metric),
        client_column=str(arguments.get("client", "client")),
        headline=headline,
        methods=[
            *_method_sentences(chosen, runs, base),
            *_baseline_sentences(clients),
        ],
        clients=clients,
        footnotes=[
            *_hurt_sentences(hurt),
            *_footnotes(experiment, scenario, clients, first),
        ],
        warnings=warnings,
        hurt=hurt,
    )


def values_of(runs: RunsByMethod, split: str) -> pl.DataFrame:
    """The last values of the runs' metric of all seen clients on a split.

    Returns:
        A table with the columns method, seed, client and value.
    """
    frames = []
    for label, seeds in runs.items():
        for run in seeds:
            method, seed = pl.lit(label).alias("method"), pl.lit(run.seed).alias("seed")
            frames.append(run.last(split).select(method, seed, "client", "value"))
    return pl.concat(frames)


def rows_of(runs: RunsByMethod) -> pl.DataFrame | None:
    """The test rows of seen clients, with the columns method and seed; None if no run
    has kept them.
    """
    frames = []
    for label, seeds in runs.items():
        for run in seeds:
            if run.rows is None:
                continue
            rows = run.rows.join(run.seen_clients, on="client", how="semi")
            frames.append(
                rows.with_columns(method=pl.lit(label), seed=pl.lit(run.seed))
            )
    # Runs of other versions may have more columns.
    return pl.concat(frames, how="diagonal") if frames else None


def baseline_label(baseline: TrainedBaseline) -> str:
    """The label of a baseline among methods, which no method can have."""
    return f"baseline/{baseline.about.name}"


class Tests:
    """The test values of methods and baselines, over seeds and clients."""

    def __init__(
        self, runs: RunsByMethod, baselines: Mapping[str, TrainedBaseline]
    ) -> None:
        first = next(iter(runs.values()))[0]
        self.unit = first.unit
        sign = 1 if self.unit.higher_is_better else -1
        both = {**runs, **{label: it.runs for label, it in baselines.items()}}
        values = values_of(both, "test")
        values = values.filter(
            pl.col("value").is_not_nan() & pl.col("value").is_not_null()
        )
        labels, table = dense_values(values)
        # Higher is better.
        self.values = dict(zip(labels, sign * table, strict=True))
        self.methods = [label for label in runs if label in self.values]

    def mean(self, label: str) -> float:
        """A mean over clients of their means over seeds; higher is better."""
        values = self.values[label]
        clients = (~np.isnan(values)).any(axis=0)
        return float(np.nanmean(values[:, clients], axis=0).mean())

    def text(self, label: str) -> str:
        """The mean as it is shown."""
        sign = 1 if self.unit.higher_is_better else -1
        return f"{self.unit.scale * sign * self.mean(label):.{self.unit.digits}f}"

    @property
    def best(self) -> str:
        """The method with the best mean."""
        return max(self.methods, key=self.mean)

    def gain(self, label: str, other: str) -> Interval:
        """The mean gain of one over another, over clients and seeds."""
        return two_way_interval(self.values[label] - self.values[other])

    def error(self, label: str, other: str) -> float:
        """The standard error of that gain."""
        return float(np.sqrt(two_way_variance(self.values[label] - self.values[other])))

    def gain_text(self, gain: Interval) -> str:
        """A gain with its interval, such as "+3.9 points of ROC AUC (95 %: +1.1 to
        +6.7)" or "RMSE lower by 0.021 (95 %: 0.009 to 0.034)".
        """
        values = [self.unit.scale * it for it in (gain.estimate, gain.low, gain.high)]
        if self.unit.higher_is_better:
            center, low, high = map(self.unit.signed, values)
            text = f"{center} {measure_name(self.unit)}"
        else:
            # A sign would be read the wrong way.
            direction = "lower" if values[0] >= 0 else "higher"
            if values[0] < 0:
                values = [-values[0], -values[2], -values[1]]
            center, low, high = (f"{it + 0.0:.{self.unit.digits}f}" for it in values)
            text = f"{measure_name(self.unit)} {direction} by {center}"
        if not math.isfinite(gain.low):
            return f"{text} (too few clients to tell)"
        return f"{text} (95 %: {low} to {high})"


def measure_name(unit: Unit) -> str:
    """A unit in a sentence: "points of ROC AUC", "RMSE"."""
    name, _, percent = unit.label.partition(", %")
    return f"points of {name}" if unit.label.endswith("%") or percent else name


def _sizes(runs: RunsByMethod) -> dict[str, tuple[int, int]]:
    """Client -> its numbers of validation and of training rows."""
    first = next(iter(runs.values()))
    val, train = mean_sizes(first, "val"), mean_sizes(first, "train")
    return {client: (val[client], train[client]) for client in val}


def _simplest_first(runs: RunsByMethod) -> list[str]:
    """The methods by what is sent for them and by what clients keep."""

    def key(label: str) -> tuple[float, int, int]:
        sent = [
            sum(entry.bytes_unicast for entry in run.ledger.entries)
            / max(int(run.summary.get("rounds", 1)), 1)
            for run in runs[label]
        ]
        # What a round sends, as a training may by chance take fewer rounds.
        size = float(np.mean(sent))
        kinds = list(_KINDS)
        method = runs[label][0].method
        kind = kinds.index(method) if method in kinds else len(kinds)
        return (0.0 if size == 0 else 1.0, kind, round(size))

    return sorted(runs, key=key)


_KINDS = ("local", "fedavg", "finetune", "mr-mtl", "ditto", "self-fl", "ucfl")
"""Methods from the simplest on; other ones are less simple than these."""


def _clients(
    chosen: Recommendation,
    metric: str,
    gains: pl.DataFrame | None,
    rows: pl.DataFrame,
    runs: RunsByMethod,
    baselines: Mapping[str, TrainedBaseline],
    sizes: Mapping[str, tuple[int, int]],
    base: str | None,
) -> list[ClientVerdict]:
    """One entry for each client that trains."""
    first = next(iter(runs.values()))[0]
    names = first.seen_clients["client"].to_list()
    own = {name: chosen.for_client(name) for name in names}
    used = rows.filter(pl.col("method").is_in(list(set(own.values()))))
    expected = {
        (row["client"], row["method"]): row
        for row in expected_metrics(used, metric).iter_rows(named=True)
    }
    alone: dict[tuple[str, str], dict[str, Any]] = {}
    if gains is not None:
        for row in gains.iter_rows(named=True):
            alone[row["client"], row["method"]] = row
    p = np.array([alone.get((name, own[name]), {}).get("p", np.nan) for name in names])
    adjusted = holm(p)
    beside = _baselines_of_clients(baselines, names, sizes)
    over = _over_baselines(own, beside, used, baselines, metric)
    tested = mean_sizes(next(iter(runs.values())), "test")
    entries = []
    for position, name in enumerate(names):
        found = expected.get((name, own[name]), {})
        gain = alone.get((name, own[name]))
        value, of_gain = over.get(name, (math.nan, None))
        label = beside.get(name)
        entries.append(
            ClientVerdict(
                client=name,
                test_rows=tested.get(name, 0),
                method=own[name],
                use=use_of(runs[own[name]][0].method),
                value=found.get("value", math.nan),
                low=found.get("low", math.nan),
                high=found.get("high", math.nan),
                gain=None
                if gain is None
                else (gain["gain"], gain["low"], gain["high"]),
                p=float(p[position]),
                p_holm=float(adjusted[position]),
                baseline=""
                if label is None or math.isnan(value)
                else baselines[label].title,
                baseline_value=value,
                over_baseline=of_gain,
            )
        )
    return entries


def _baselines_of_clients(
    baselines: Mapping[str, TrainedBaseline],
    names: Sequence[str],
    sizes: Mapping[str, tuple[int, int]],
) -> dict[str, str]:
    """Client -> label of the best baseline without pooled data, by validation data.

    The rule is that for methods, so that neither is too good by its choice.
    """
    alone = {
        label: it.runs
        for label, it in baselines.items()
        if not it.about.needs_pooled_data
    }
    if not alone:
        return {}
    unit = next(iter(alone.values()))[0].unit
    values = values_of(alone, "val")
    # There is no simplest one among them: all are trained alone.
    means = values.group_by("method").agg(pl.col("value").mean()).rows()
    sign = 1 if unit.higher_is_better else -1
    order = [label for label, _ in sorted(means, key=lambda it: -sign * (it[1] or 0.0))]
    chosen = recommend(values, order, sizes, higher_is_better=unit.higher_is_better)
    return {} if chosen is None else {name: chosen.for_client(name) for name in names}


def _over_baselines(
    own: Mapping[str, str],
    beside: Mapping[str, str],
    rows: pl.DataFrame,
    baselines: Mapping[str, TrainedBaseline],
    metric: str,
) -> dict[str, tuple[float, tuple[float, float, float]]]:
    """Client -> the metric of its baseline, and the gain of its method over that."""
    result: dict[str, tuple[float, tuple[float, float, float]]] = {}
    for label in dict.fromkeys(beside.values()):
        of_baseline = rows_of({label: baselines[label].runs})
        if of_baseline is None:
            continue
        both = pl.concat([of_baseline, rows], how="diagonal")
        for row in client_gains(both, label, metric).iter_rows(named=True):
            client = row["client"]
            if beside.get(client) == label and own.get(client) == row["method"]:
                result[client] = (
                    row["base_value"],
                    (row["gain"], row["low"], row["high"]),
                )
    return result


def _subject(
    experiment: StoredExperiment, scenario: str, first: StoredRun, metric: str
) -> str:
    """What was compared, in one line."""
    arguments = experiment.index.scenarios[scenario].arguments
    path, column = arguments.get("path"), arguments.get("client", "client")
    name = scenario if not path else str(path).rpartition("/")[2]
    count = len(first.seen_clients)
    clients = f"{count} client{'s' if count > 1 else ''}"
    if column != "client":
        clients += f" ({column})"
    return (
        f"{name}: {_predicted(arguments)}{clients}, judged by"
        f" {_judged_by(experiment, scenario, metric)} on rows that no training saw"
        f" ({_splits(experiment, arguments)})"
    )


def _predicted(arguments: Mapping[str, Any]) -> str:
    """What is predicted, as in "predicting num (>0) for "; "" if that has no name."""
    target = arguments.get("target")
    if not target:
        return ""
    # A few labels are shown; more would hide the rest of the line.
    positive = join_names(list(arguments.get("positive") or ()), MAX_NAMES)
    named = f"{target} ({positive})" if positive else str(target)
    return f"predicting {named} for "


def _judged_by(experiment: StoredExperiment, scenario: str, metric: str) -> str:
    """A metric with its direction, and what who learns nothing gets."""
    unit, arguments = unit_of(metric), experiment.index.scenarios[scenario].arguments
    name = unit.label.removesuffix(", %")
    if metric in CHANCE_AT_HALF:
        best, guess = f"{unit.scale:g}", f"{unit.scale / 2:g}"
        return f"{name} ({best} is perfect, {guess} a guess)"
    words = ["higher is better" if unit.higher_is_better else "lower is better"]
    if metric in IN_UNITS_OF_TARGET and arguments.get("target"):
        words.insert(0, f"in units of {arguments['target']}")
    runs = experiment.baselines[scenario]
    if runs and runs[0].metric == metric:
        mean = sum(run.spread()["mean"] for run in runs) / len(runs)
        answer = "most frequent class" if unit.scale == 100 else "mean"
        value = f"{unit.scale * mean:.{unit.digits}f}"
        words.append(f"{value} for always answering the {answer}")
    return f"{name} ({'; '.join(words)})"


def _splits(experiment: StoredExperiment, arguments: Mapping[str, Any]) -> str:
    """The splits of all seeds: "3 random splits", "5 folds"."""
    seeds, folds = len(experiment.index.seeds), arguments.get("folds")
    if folds:
        return f"{folds} folds" if seeds == folds else f"{seeds} of {folds} folds"
    many = "s" if seeds > 1 else ""
    if arguments.get("split") or arguments.get("time"):
        return f"one split, {seeds} seed{many}"
    return f"{seeds} random split{many}"


def _headline(
    chosen: Recommendation,
    tests: Tests,
    base: str | None,
    runs: RunsByMethod,
    *,
    is_behind: bool,
) -> list[str]:
    """Which method to take and why, and whether sharing helps on average.

    Args:
        chosen: the methods that were chosen.
        tests: the test values.
        base: label of the method that trains every client alone.
        runs: label -> finished runs.
        is_behind: whether a baseline is ahead of all methods, which was said before.
    """
    sentences = [_use_sentence(chosen, base, runs, of_federated=is_behind)]
    shared = [label for label in tests.methods if label != base]
    if base is not None and shared:
        # Of the shared methods the one that was chosen; else the best on validation data.
        method = chosen.method
        subject = method if method != base else _first_shared(chosen, shared, tests)
        sentences.append(_sharing_sentence(tests, subject, base, method))
    return sentences


def _use_sentence(
    chosen: Recommendation,
    base: str | None,
    runs: RunsByMethod,
    *,
    of_federated: bool,
) -> str:
    """Which method to take, what it is, and why it was chosen."""
    method = chosen.method
    what = sentence_of(runs[method][0].method)
    use = f"Of the federated methods use {method}" if of_federated else f"Use {method}"
    text = f"{use}: {what}."
    if chosen.of_client:
        names = join_names(list(chosen.of_client), MAX_NAMES)
        text = f"{use}, but for {names} what the table says. {method}: {what}."
    others = [label for label in chosen.close if label != method]
    if not others:
        reason = "it beats all other federated methods by more than a standard error"
    elif method == chosen.best:
        reason = (
            "it is the best, and the simplest of those that tie with it within a standard"
            f" error ({join_names(others, MAX_NAMES)})"
        )
    else:
        reason = (
            f"it is the simplest of {len(chosen.close)} that tie within a standard error"
            f" ({chosen.best} is the best of them)"
        )
    if others and base is not None and base not in chosen.close:
        reason += "; training alone lags there"
    return f"{text} On validation data {reason}."


def _first_shared(chosen: Recommendation, shared: Sequence[str], tests: Tests) -> str:
    """The shared method that training alone is compared with."""
    if chosen.best in shared:
        return chosen.best
    close = [label for label in chosen.close if label in shared]
    return close[0] if close else max(shared, key=tests.mean)


def _sharing_sentence(tests: Tests, method: str, base: str, chosen: str) -> str:
    """Whether sharing helps on average, by a method that shares.

    Args:
        tests: the test values.
        method: the method that shares.
        base: the one that trains every client alone.
        chosen: the one that was chosen for all, which may be either.
    """
    gain = tests.gain(method, base)
    by = "" if method == chosen else f" by {method}"
    than = "over" if tests.unit.higher_is_better else "than by"
    text = f"{tests.gain_text(gain)} {than} training alone{by}"
    seeds = len(tests.values[method])
    if seeds < MIN_SEEDS:
        return (
            f"{seeds} split{'s' if seeds > 1 else ''} cannot tell whether sharing helps:"
            f" {text}."
        )
    if gain.verdict == "helps":
        return f"Sharing helps on average: {text}."
    if gain.verdict == "hurts":
        return f"Sharing hurts on average: {text}."
    return f"The test rows cannot tell whether sharing helps on average: {text}."


def _ahead(tests: Tests, baselines: Mapping[str, TrainedBaseline]) -> list[str]:
    """States whether a baseline that needs no pooled data is ahead of all methods.

    It is said if the baseline with the best mean is ahead of the best method by more
    than one standard error; and that it is better, if it is shown to be better than
    every method. All of these tests have to be passed, so that none is corrected.
    """
    alone = [
        label
        for label, it in baselines.items()
        if not it.about.needs_pooled_data and label in tests.values
    ]
    if not alone:
        return []
    label = max(alone, key=tests.mean)
    best = tests.best
    gain = tests.gain(label, best)
    if not gain.estimate > tests.error(label, best):
        return []
    name, title = baselines[label].about.name, baselines[label].title
    advice = []
    if all(CHOSEN in run.summary for run in baselines[label].runs):
        advice = [f"Its models: fedtailor finalize RESULTS --method {name}."]
    everywhere = all(
        tests.gain(label, method).verdict == "helps" for method in tests.methods
    )
    seeds = len(tests.values[label])
    shown = everywhere and seeds >= MIN_SEEDS
    text = (
        f"{'Better than' if shown else 'Ahead of'} every federated method:"
        f" {title}, which needs no pooled rows, {tests.text(label)} against"
        f" {tests.text(best)} of {best}, {tests.gain_text(gain)}"
    )
    return [f"{text}." if shown else f"{text}: not shown to be better.", *advice]


def _hurt(
    chosen: Recommendation,
    clients: Sequence[ClientVerdict],
    gains: pl.DataFrame | None,
    runs: RunsByMethod,
    base: str | None,
    tests: Tests,
) -> Hurt | None:
    """Count the clients that are worse off than alone, by what each should use.

    Where all should train alone, by the shared method that the first line speaks of.
    """
    if gains is None or base is None:
        return None
    own = {client.client: client.method for client in clients}
    label = "what the table says"
    if set(own.values()) == {base}:
        shared = [method for method in tests.methods if method != base]
        if not shared:
            return None
        label = _first_shared(chosen, shared, tests)
        own = dict.fromkeys(own, label)
    elif len(set(own.values())) == 1:
        label = chosen.method
    used = pl.DataFrame({"client": list(own), "method": list(own.values())})
    of_own = gains.join(used, on=["client", "method"], how="semi")
    if of_own.is_empty():
        return None
    return hurt_clients(of_own.with_columns(method=pl.lit(label)), label, base)


def _hurt_sentences(hurt: Hurt | None) -> list[str]:
    """How many clients are worse off than alone, in a sentence."""
    if hurt is None or not hurt.worse:
        return []
    return [
        f"By these figures {hurt.worse} of {hurt.clients} clients would do better alone"
        f" than by {hurt.method} (shown for {hurt.shown or 'none'})."
    ]


def _untrained_warnings(
    experiment: StoredExperiment, scenario: str, runs: RunsByMethod
) -> list[str]:
    """Tells which baselines could not be trained, and why."""
    titles: dict[str, list[str]] = {}
    for skipped in experiment.index.skipped:
        is_baseline = skipped.runs == 0 and skipped.algorithm not in runs
        if skipped.scenario == scenario and is_baseline:
            titles.setdefault(skipped.why, []).append(skipped.algorithm)
    return [
        f"could not be trained beside the methods: {join_names(names)}: {why}"
        for why, names in titles.items()
    ]


def _nonlinear_warnings(
    experiment: StoredExperiment,
    scenario: str,
    tests: Tests,
    baselines: Mapping[str, TrainedBaseline],
    ahead: Sequence[str],
) -> list[str]:
    """Warns if trees see what all trained models miss."""
    trees = [
        label
        for label, it in baselines.items()
        if not it.about.is_linear and label in tests.values
    ]
    if not trees:
        return []
    label = max(trees, key=tests.mean)
    gain = tests.gain(label, tests.best)
    if gain.verdict != "helps" or len(tests.values[label]) < MIN_SEEDS:
        return []
    about = baselines[label].about
    pooled = ", which needs pooled data," if about.needs_pooled_data else ""
    linear = "Linear" in experiment.index.scenarios[scenario].model
    advice = (
        "a linear model misses what trees see: try --model auto"
        if linear
        else "the model misses what trees see: try a wider one (--hidden)"
    )
    return [
        f"{about.title}{pooled} is better than every method, {tests.text(label)} against"
        f" {tests.text(tests.best)}; {advice}"
    ]


def _method_sentences(
    chosen: Recommendation, runs: RunsByMethod, base: str | None
) -> list[str]:
    """One sentence on each method that is named above and not explained there."""
    named = list(chosen.of_client.values())
    if base is not None and chosen.method == base:
        named.append(chosen.best)
    labels = [
        label
        for label in dict.fromkeys(named)
        if label in runs and label != chosen.method
    ]
    return [f"{label}: {sentence_of(runs[label][0].method)}." for label in labels]


def _baseline_sentences(clients: Sequence[ClientVerdict]) -> list[str]:
    """Which baseline the clients are compared with, in a sentence."""
    clients_by_title: dict[str, list[str]] = {}
    for client in clients:
        if client.over_baseline is not None:
            clients_by_title.setdefault(client.baseline, []).append(client.client)
    if not clients_by_title:
        return []
    first, *others = sorted(
        clients_by_title, key=lambda title: -len(clients_by_title[title])
    )
    exceptions = "".join(
        f"; for {join_names(clients_by_title[title], MAX_NAMES)}: {title}"
        for title in others
    )
    return [
        "Best baseline, of those that need no pooled rows, by validation data:"
        f" {first}{exceptions}."
    ]


def _footnotes(
    experiment: StoredExperiment,
    scenario: str,
    clients: Sequence[ClientVerdict],
    first: StoredRun,
) -> list[str]:
    """How many verdicts hold after correction, and what would settle the others."""
    judged = [client for client in clients if client.gain is not None]
    if not judged:
        return []
    counts: dict[str, list[int]] = {}
    for verdict in ("helps", "hurts"):
        found = [client for client in judged if client.verdict == verdict]
        corrected = sum(client.p_holm < ALPHA for client in found)
        counts[verdict] = [len(found), corrected]
    unclear = len(judged) - counts["helps"][0] - counts["hurts"][0]
    text = (
        f"Client by client, sharing is shown to help {counts['helps'][0]} and to hurt"
        f" {counts['hurts'][0]} of {len(judged)} ({counts['helps'][1]} and"
        f" {counts['hurts'][1]} after correction for {len(judged)} tests)."
    )
    if unclear:
        text += f" {_settling(experiment, scenario)}"
    return [text]


def _settling(experiment: StoredExperiment, scenario: str) -> str:
    """What would settle the verdicts that are open."""
    index = experiment.index
    arguments = index.scenarios[scenario].arguments
    seeds = len(index.seeds)

    def minutes(runs: int) -> str:
        took = max(round(index.seconds * runs / seeds / 60), 1)
        return f"about {took} min"

    if seeds < MIN_SEEDS:
        return f"To tell more: the same command with --seeds 0 1 2 ({minutes(3)})."
    fixed = arguments.get("split") or arguments.get("time")
    is_table = index.scenarios[scenario].use == "table"
    if is_table and not fixed and not arguments.get("folds"):
        return (
            f"To tell more: the same command with --folds {LEAST_FOLDS}, by which every"
            f" row is tested ({minutes(LEAST_FOLDS)}), or more rows."
        )
    return f"To tell more: more seeds ({minutes(2 * seeds)} for {2 * seeds}), or more rows."


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value
