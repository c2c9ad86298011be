"""The sentences of a verdict: the answer first, then the evidence, then caveats."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor._base.printable import join_names
from fedtailor.lab.results.experiment import StoredExperiment, TrainedBaseline
from fedtailor.lab.results.measures import mean_of_runs
from fedtailor.lab.results.stored import RunsByMethod
from fedtailor.lab.results.test_values import Tests
from fedtailor.lab.results.units import unit_of
from fedtailor.lab.results.verdict import (
    ALPHA,
    NO_DIFFERENCE_SHOWN,
    Candidate,
    ClientVerdict,
    in_words,
)
from fedtailor.lab.results.words import BASELINE_WORDS, Nouns, sentence_of
from fedtailor.statistics.decision import Recommendation, holm
from fedtailor.statistics.decision.intervals import MIN_SEEDS
from fedtailor.statistics.decision.warnings import MAX_NAMES

LEAST_FOLDS = 5
"""The folds that are advised to somebody who has none."""
CHANCE_AT_HALF = ("roc_auc", "c_index", "uno")
"""Metrics that are a half for whoever guesses."""
IN_UNITS_OF_TARGET = ("rmse", "mae")
"""Metrics that have the unit of the target."""


def subject_of(
    experiment: StoredExperiment, scenario: str, clients: int, nouns: Nouns, metric: str
) -> str:
    """What was measured, in one line: the title of the table of candidates.

    Args:
        experiment: the index.
        scenario: label of the scenario.
        clients: their number.
        nouns: what a client is called.
        metric: the metric of the clients.
    """
    arguments = experiment.index.scenarios[scenario].arguments
    path = arguments.get("path")
    name = scenario if not path else str(path).rpartition("/")[2]
    return (
        f"{name}: test {_judged_by(experiment, scenario, metric)}; mean over"
        f" {nouns.counted(clients)}, {_splits(experiment, arguments)}"
    )


def _predicted(arguments: Mapping[str, Any]) -> str:
    """What is predicted, as in " to predict num (>0)"; "" if that has no name."""
    target = arguments.get("target")
    if not target:
        return ""
    # A few labels are shown; more would hide the rest of the line.
    positive = join_names(list(arguments.get("positive") or ()), MAX_NAMES)
    return f" to predict {target} ({positive})" if positive else f" to predict {target}"


def _judged_by(experiment: StoredExperiment, scenario: str, metric: str) -> str:
    """A metric with its direction, and what who learns nothing gets."""
    unit, arguments = unit_of(metric), experiment.index.scenarios[scenario].arguments
    name = unit.label
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
        words.append(f"always answering the {answer}: {value}")
    return f"{name} ({'; '.join(words)})"


def _splits(experiment: StoredExperiment, arguments: Mapping[str, Any]) -> str:
    """The splits of all seeds: "3 random splits", "5 folds"."""
    seeds, folds = len(experiment.index.seeds), arguments.get("folds")
    if folds:
        # Each `folds` seeds from a multiple of `folds` on test the folds of one division.
        divisions = Counter(seed // folds for seed in experiment.index.seeds)
        if all(count == folds for count in divisions.values()):
            many = "" if len(divisions) == 1 else f", {len(divisions)} times"
            return f"{folds} folds{many}, so that every row is tested"
        if len(divisions) == 1:
            return f"{seeds} of {folds} folds"
        return f"{seeds} splits, each tested on one of {folds} folds"
    many = "s" if seeds > 1 else ""
    if arguments.get("split") or arguments.get("time"):
        return f"one split, {seeds} seed{many}"
    return f"{seeds} random split{many}"


def answer_of(
    chosen: Recommendation,
    runs: RunsByMethod,
    arguments: Mapping[str, Any],
    clients: int,
    nouns: Nouns,
) -> str:
    """The answer in one sentence: which method to use, and what it is.

    Args:
        chosen: the methods that were chosen.
        runs: label -> finished runs.
        arguments: of the scenario.
        clients: their number.
        nouns: what a client is called.
    """

    def what(label: str) -> str:
        return nouns.said(sentence_of(runs[label][0].method))

    method, own = chosen.method, chosen.of_client
    if clients == 1:
        whom = f"for the only {nouns.one}"
    elif own:
        whom = f"for {clients - len(own)} of {nouns.counted(clients)}"
    else:
        whom = f"for all {nouns.counted(clients)}"
    text = f"Use {method}{_predicted(arguments)} {whom}"
    if not own:
        return f"{text}: {what(method)}."
    of_method: dict[str, list[str]] = {}
    for client, label in own.items():
        of_method.setdefault(label, []).append(client)
    for label, names in of_method.items():
        text += f", and {label} for {join_names(names, MAX_NAMES)}"
    meanings = "; ".join(f"{label}: {what(label)}" for label in (method, *of_method))
    return f"{text} ({meanings})."


def choice_sentence(chosen: Recommendation, *, deployable: bool = False) -> str:
    """Why the method was chosen.

    Args:
        chosen: the methods that were chosen.
        deployable: whether only what can be trained over machines could be.
    """
    ties = len(chosen.close)
    if ties == 1:
        reason = "best on validation rows by more than one standard error"
    elif chosen.method == chosen.best:
        reason = (
            f"best on validation rows, and simplest of {ties} within one standard error"
        )
    else:
        reason = (
            f"simplest of {ties} within one standard error of {chosen.best} on validation"
            " rows"
        )
    among = "; chosen among what can be trained over machines" if deployable else ""
    return f"Why: {reason}{among}."


def shared_method(chosen: Recommendation, tests: Tests, alone: Collection[str]) -> str:
    """The method that training alone is compared with: the one that was chosen; if that is
    training alone, the best of the others on validation data; "" if there is none.
    """
    shared = [label for label in tests.methods if label not in alone]
    for label in (chosen.method, chosen.best, *chosen.close):
        if label in shared:
            return label
    return max(shared, key=tests.mean, default="")


def sharing_sentences(
    tests: Tests, method: str, base: str, chosen: str, nouns: Nouns
) -> list[str]:
    """Whether sharing helps on average: for these clients, and for others like these.

    Args:
        tests: the test values.
        method: the method that shares.
        base: the one that trains every client alone.
        chosen: the one that was chosen for all, which may be either.
        nouns: what a client is called.
    """
    what = "Against" if method == chosen else f"{method} against"
    what += " training alone"
    if base in BASELINE_WORDS:
        what += f" ({base})"
    differences = tests.values[method] - tests.values[base]
    if not np.nan_to_num(differences).any():
        return [f"{what}: no score differs, so these test rows cannot tell them apart."]
    gain, seeds = tests.gain(method, base), len(differences)
    if seeds < MIN_SEEDS:
        splits = f"{seeds} split{'s' if seeds > 1 else ''}"
        return [
            f"{what}: {tests.difference_text(gain)} in {splits}, too few to conclude."
        ]
    found = f"{what}: {tests.gain_text(gain)}, {in_words(gain)}"
    sentences = [f"{found} (for {nouns.many} like these)."]
    if tests.splits is not None:
        elsewhere = tests.gain_elsewhere(method, base)
        sentences = [
            f"{found}.",
            f"For other {nouns.many} like these: {in_words(elsewhere)}"
            f" ({tests.range_text(elsewhere)}).",
        ]
    if chosen not in (method, base):
        # Two methods train alone: the simplest was chosen, and the best is compared with.
        gain = tests.gain(method, chosen)
        sentences.append(
            f"{method} against {chosen}, which trains alone as well:"
            f" {tests.gain_text(gain)}, {in_words(gain)}."
        )
    return sentences


def candidates_of(tests: Tests, chosen: str) -> list[Candidate]:
    """What could be used, best mean on test rows first, each compared with what was chosen."""
    found = []
    for label in sorted(tests.methods, key=tests.mean, reverse=True):
        gain = None if label == chosen else tests.gain(label, chosen)
        found.append(Candidate(label, tests.value(label), gain))
    return found


def better_warnings(
    candidates: Sequence[Candidate], chosen: str, seeds: int
) -> list[str]:
    """Warns if a method that was not chosen is shown to be better on test rows."""
    if seeds < MIN_SEEDS:
        return []
    gains = {it.label: it.gain for it in candidates if it.gain is not None}
    adjusted = holm(np.array([gain.p for gain in gains.values()]))
    better = [
        label
        for (label, gain), p in zip(gains.items(), adjusted, strict=True)
        if gain.low > 0 and p < ALPHA
    ]
    if not better:
        return []
    return [
        f"{join_names(better, MAX_NAMES)}: better than {chosen} on test rows; the choice"
        " is made on validation rows, so that test rows can measure it"
    ]


def summary_of(
    clients: Sequence[ClientVerdict], shared: str, nouns: Nouns, *, several: bool
) -> str:
    """How many clients gain from sharing; "" if nothing is known of their gains.

    Args:
        clients: one entry for each client.
        shared: the method that shares.
        nouns: what a client is called.
        several: whether clients use different methods.
    """
    judged = [client for client in clients if client.gain is not None]
    if not judged:
        return ""
    by = "what each uses" if several else shared
    words = [client.word for client in judged]
    if len(set(words)) == 1 and words[0] == NO_DIFFERENCE_SHOWN:
        return (
            f"For none of the {nouns.counted(len(judged))} is a difference shown between"
            f" {by} and training alone."
        )
    counts = []
    for word in ("better", "worse", NO_DIFFERENCE_SHOWN):
        if word in words:
            counts.append(f"{word} for {words.count(word)}")
    text = (
        f"{by[0].upper()}{by[1:]} against training alone, {nouns.one} by {nouns.one}:"
        f" {', '.join(counts)}"
    )
    shown = [client for client in judged if client.word != NO_DIFFERENCE_SHOWN]
    corrected = sum(client.p_holm < ALPHA for client in shown)
    if corrected < len(shown):
        # A client's word comes from its own rows and from what all have in common.
        text += (
            f"; shown by a {nouns.one}'s own rows alone, after correction for"
            f" {len(judged)} tests: {corrected or 'none'} of these {len(shown)}"
        )
    return f"{text}."


def worse_warnings(
    clients: Sequence[ClientVerdict], alone: Collection[str], nouns: Nouns
) -> list[str]:
    """Warns if a client uses a method that is shown to be worse than training alone."""
    worse = [
        client.client
        for client in clients
        if client.word == "worse" and client.method not in alone
    ]
    if not worse:
        return []
    some = nouns.one if len(worse) == 1 else nouns.many
    return [
        f"worse on test rows than training alone: {some} {join_names(worse, MAX_NAMES)};"
        " the choice is made on validation rows, so that test rows can measure it"
    ]


def untrained_warnings(
    experiment: StoredExperiment, scenario: str, runs: RunsByMethod
) -> list[str]:
    """Tells which methods and baselines could not be trained, and why: each by the first
    reason, as seeds and settings have one each.
    """
    reasons: dict[str, str] = {}
    for skipped in experiment.index.skipped:
        name = skipped.algorithm
        if skipped.scenario == scenario and name not in runs:
            reasons.setdefault(name, skipped.why)
    titles: dict[str, list[str]] = {}
    for algorithm, why in reasons.items():
        titles.setdefault(why, []).append(algorithm)
    return [
        f"not trained, so not compared: {join_names(names)}: {why}"
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
        else "the model misses what trees see: try a wider one"
    )
    return [
        f"{about.title}{pooled} is better than every method, {tests.text(label)} against"
        f" {tests.text(tests.best)}; {advice}"
    ]


def next_of(
    experiment: StoredExperiment, scenario: str, clients: Sequence[ClientVerdict]
) -> str:
    """What would settle the verdicts that are open; "" if none is.

    More seeds settle nothing where all methods make the same errors on all rows.
    """
    open_gains = [
        client.gain for client in clients if client.word == NO_DIFFERENCE_SHOWN
    ]
    if not any(gain is not None and gain[0] for gain in open_gains):
        return ""
    return _settling(experiment, scenario)


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
            f"To tell more: the same command with --folds {LEAST_FOLDS}, so that every"
            f" row is tested ({minutes(LEAST_FOLDS)}), or more rows."
        )
    return f"To tell more: more seeds ({minutes(2 * seeds)} for {2 * seeds}), or more rows."
