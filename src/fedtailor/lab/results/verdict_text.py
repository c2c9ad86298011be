"""The sentences of a verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor._base.printable import join_names
from fedtailor.lab.baselines import CHOSEN
from fedtailor.lab.results.experiment import StoredExperiment, TrainedBaseline
from fedtailor.lab.results.measures import mean_of_runs
from fedtailor.lab.results.stored import RunsByMethod, StoredRun
from fedtailor.lab.results.test_values import Tests
from fedtailor.lab.results.units import unit_of
from fedtailor.lab.results.verdict import ALPHA, ClientVerdict
from fedtailor.lab.results.words import sentence_of
from fedtailor.statistics.decision import (
    Hurt,
    Interval,
    Recommendation,
)
from fedtailor.statistics.decision.intervals import MIN_SEEDS
from fedtailor.statistics.decision.warnings import MAX_NAMES

LEAST_FOLDS = 5
"""The folds that are advised to somebody who has none."""
CHANCE_AT_HALF = ("roc_auc", "c_index", "uno")
"""Metrics that are a half for whoever guesses."""
IN_UNITS_OF_TARGET = ("rmse", "mae")
"""Metrics that have the unit of the target."""


def subject_of(
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
    answer = ""
    if metric in IN_UNITS_OF_TARGET:
        answer = "mean"
    elif unit.scale == 100 and unit.higher_is_better:
        answer = "most frequent class"
    if answer and runs and runs[0].metric == metric:
        value = f"{unit.scale * mean_of_runs(runs):.{unit.digits}f}"
        words.append(f"{value} for always answering the {answer}")
    return f"{name} ({'; '.join(words)})"


def _splits(experiment: StoredExperiment, arguments: Mapping[str, Any]) -> str:
    """The splits of all seeds: "3 random splits", "5 folds"."""
    seeds, folds = len(experiment.index.seeds), arguments.get("folds")
    if folds:
        if seeds % folds:
            return f"{seeds} of {folds} folds"
        many = "" if seeds == folds else f", {seeds // folds} times"
        return f"{folds} folds{many}"
    many = "s" if seeds > 1 else ""
    if arguments.get("split") or arguments.get("time"):
        return f"one split, {seeds} seed{many}"
    return f"{seeds} random split{many}"


def headline_of(
    chosen: Recommendation,
    tests: Tests,
    base: str | None,
    runs: RunsByMethod,
    *,
    shared: str,
    is_behind: bool,
) -> list[str]:
    """Which method to take and why, and whether sharing helps on average.

    Args:
        chosen: the methods that were chosen.
        tests: the test values.
        base: label of the method that trains every client alone.
        runs: label -> finished runs.
        shared: the method that sharing is spoken of by, or "".
        is_behind: whether a baseline is ahead of all methods, which was said before.
    """
    sentences = [_use_sentence(chosen, base, runs, of_federated=is_behind)]
    if base is not None and shared:
        sentences.append(_sharing_sentence(tests, shared, base, chosen.method))
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
        text = f"{use}, but {_exceptions(chosen)}. {method}: {what}."
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


def _exceptions(chosen: Recommendation) -> str:
    """Which clients should use another method: "ditto for a, b and local for c"."""
    clients: dict[str, list[str]] = {}
    for client, method in chosen.of_client.items():
        clients.setdefault(method, []).append(client)
    parts = [
        f"{method} for {join_names(names, MAX_NAMES)}"
        for method, names in clients.items()
    ]
    return " and ".join(parts)


def shared_method(chosen: Recommendation, tests: Tests, base: str | None) -> str:
    """The method that training alone is compared with: the one that was chosen; if that is
    training alone, the best of the others on validation data; "" if there is none.
    """
    shared = [label for label in tests.methods if label != base]
    for label in (chosen.method, chosen.best, *chosen.close):
        if label in shared:
            return label
    return max(shared, key=tests.mean, default="")


def _sharing_sentence(tests: Tests, method: str, base: str, chosen: str) -> str:
    """Whether sharing helps on average, by a method that shares.

    Args:
        tests: the test values.
        method: the method that shares.
        base: the one that trains every client alone.
        chosen: the one that was chosen for all, which may be either.
    """
    gain, elsewhere = tests.gain(method, base), tests.gain_elsewhere(method, base)
    by = "" if method == chosen else f" by {method}"
    than = "over" if tests.unit.higher_is_better else "than by"
    text = f"{tests.gain_text(gain)}{by} {than} training alone"
    whom, beside = "clients like these", ""
    if tests.splits is not None:
        whom = "these clients"
        beside = f" For clients like these {_elsewhere(elsewhere)}"
        beside += f" ({tests.range_text(elsewhere)})."
    seeds = len(tests.values[method])
    if seeds < MIN_SEEDS:
        return (
            f"{seeds} split{'s' if seeds > 1 else ''} cannot tell whether sharing helps:"
            f" {text}."
        )
    if gain.verdict == "helps":
        return f"Sharing helps {whom} on average: {text}.{beside}"
    if gain.verdict == "hurts":
        return f"Sharing hurts {whom} on average: {text}.{beside}"
    return (
        f"The test rows cannot tell whether sharing helps {whom} on average: {text}."
        f"{beside}"
    )


def _elsewhere(gain: Interval) -> str:
    """What is known of clients like these, as the middle of a sentence."""
    if gain.verdict == "helps":
        return "it helps"
    if gain.verdict == "hurts":
        return "it hurts"
    return "it is open"


def baseline_ahead(tests: Tests, baselines: Mapping[str, TrainedBaseline]) -> list[str]:
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
    can_be_used = all(CHOSEN in run.summary for run in baselines[label].runs)
    what, advice = "a yardstick, of which no model is made", []
    if can_be_used:
        what = "needs no pooled rows"
        advice = [f"Its models: fedtailor finalize RESULTS --method {name}."]
    everywhere = all(
        tests.gain(label, method).verdict == "helps" for method in tests.methods
    )
    seeds = len(tests.values[label])
    how = "Better than every federated method"
    if seeds < MIN_SEEDS:
        # An interval of one split may exclude 0, and says nothing of others.
        splits = f"{seeds} split{'s' if seeds > 1 else ''}"
        how = f"Ahead of every federated method in {splits}, too few to tell of others"
    elif not everywhere:
        how = "Ahead of every federated method, though not shown to be better"
    return [
        f"{how}: {title} ({what}), {tests.text(label)} against {tests.text(best)} of"
        f" {best}, {tests.gain_text(gain)}.",
        *advice,
    ]


def hurt_sentences(hurt: Hurt | None, clients: Sequence[ClientVerdict]) -> list[str]:
    """How many clients are worse off than alone, and who uses a method all the same."""
    if hurt is None or not hurt.worse:
        return []
    sentences = [
        f"By these figures {hurt.worse} of {hurt.clients} clients would do better alone"
        f" than by {hurt.method} (shown for {hurt.shown or 'none'})."
    ]
    worse = [client.client for client in clients if client.verdict == "hurts"]
    if worse:
        sentences.append(
            "Worse by what the table tells them to use than alone:"
            f" {join_names(worse, MAX_NAMES)}. Methods are chosen by validation rows, and"
            " these are test rows: if they chose, nothing would be left to measure the"
            " choice by."
        )
    return sentences


def untrained_warnings(
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


def nonlinear_warnings(
    experiment: StoredExperiment,
    scenario: str,
    tests: Tests,
    baselines: Mapping[str, TrainedBaseline],
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


def method_sentences(
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


def baseline_sentences(clients: Sequence[ClientVerdict]) -> list[str]:
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


def footnotes_of(
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
