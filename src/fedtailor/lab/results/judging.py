"""Makes the verdict of a comparison from its runs."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from fedtailor.lab.results.experiment import StoredExperiment, TrainedBaseline
from fedtailor.lab.results.stored import RunsByMethod, mean_sizes
from fedtailor.lab.results.test_values import (
    Tests,
    baseline_label,
    rows_of,
    splits_of,
    values_of,
)
from fedtailor.lab.results.units import unit_of
from fedtailor.lab.results.verdict import ClientVerdict, Verdict
from fedtailor.lab.results.verdict_text import (
    answer_of,
    better_warnings,
    candidates_of,
    choice_sentence,
    next_of,
    nonlinear_warnings,
    shared_method,
    sharing_sentences,
    subject_of,
    summary_of,
    untrained_warnings,
    worse_warnings,
)
from fedtailor.lab.results.words import (
    BASELINE_WORDS,
    LOCAL_METHOD,
    WORDS,
    nouns_of,
    use_of,
)
from fedtailor.statistics.decision import (
    Hurt,
    Recommendation,
    client_gains,
    expected_metrics,
    holm,
    hurt_clients,
    recommend,
)

ROWS_FOR_INPUT = 10
"""With fewer training rows for each input, a client has few for a model of its own
(Peduzzi et al. 1996)."""


def verdict_of(
    experiment: StoredExperiment,
    scenario: str,
    runs: RunsByMethod,
    *,
    base: str | None,
    alone: Collection[str],
    gain_metric: str,
    gains: pl.DataFrame | None,
    rows: pl.DataFrame | None,
) -> Verdict | None:
    """Makes the end of a comparison.

    Args:
        experiment: the index and its runs.
        scenario: label of the scenario.
        runs: label -> finished runs, one for each seed, of methods and of other
            candidates.
        base: label of the best that trains every client alone.
        alone: labels of all that do.
        gain_metric: the metric of the gains.
        gains: gains of every client over training alone, if they are known.
        rows: the test rows of all runs, with the columns method and seed.

    Returns:
        None without validation or test data for a choice.
    """
    first = next(iter(runs.values()))[0]
    val = values_of(runs, "val")
    test = values_of(runs, "test")
    if val.is_empty() or test.is_empty() or rows is None:
        return None
    sizes = _sizes(runs)
    chosen = recommend(
        val,
        simplest_first(runs, sizes, alone),
        sizes,
        higher_is_better=first.unit.higher_is_better,
        splits=splits_of(experiment, scenario, "val"),
    )
    if chosen is None:
        return None
    baselines = {
        baseline_label(it): it for it in experiment.trained_baselines(scenario)
    }
    unkept = {label: it for label, it in baselines.items() if not it.is_candidate}
    tests = Tests(runs, unkept, splits_of(experiment, scenario))
    shared = shared_method(chosen, tests, alone)
    clients = _clients(chosen, shared, gain_metric, gains, rows, runs, baselines, sizes)
    arguments = experiment.index.scenarios[scenario].arguments
    column, count = str(arguments.get("client", "client")), len(clients)
    nouns = nouns_of(column)
    answer = answer_of(chosen, runs, arguments, count, nouns)
    evidence = []
    if len(runs) > 1:
        deployable = experiment.index.deployable
        evidence.append(choice_sentence(chosen, deployable=deployable))
    if base is not None and shared:
        evidence += sharing_sentences(tests, shared, base, chosen.method, nouns)
    candidates = candidates_of(tests, chosen.method)
    several = bool(chosen.of_client)
    return Verdict(
        chosen,
        unit_of(gain_metric),
        subject=subject_of(experiment, scenario, count, nouns, first.metric),
        client_column=column,
        nouns=nouns,
        answer=answer,
        evidence=evidence,
        candidates=candidates,
        candidates_unit=first.unit,
        summary=summary_of(clients, shared, nouns, several=several),
        clients=clients,
        advice=next_of(experiment, scenario, clients),
        warnings=[
            *untrained_warnings(experiment, scenario, runs),
            *nonlinear_warnings(experiment, scenario, tests, unkept),
            *better_warnings(candidates, chosen.method, len(experiment.index.seeds)),
            *worse_warnings(clients, alone, nouns),
        ],
        hurt=_hurt(chosen, clients, gains, base, shared),
        shared=shared,
    )


def _sizes(runs: RunsByMethod) -> dict[str, tuple[int, int]]:
    """Client -> its numbers of validation and of training rows."""
    first = next(iter(runs.values()))
    val, train = mean_sizes(first, "val"), mean_sizes(first, "train")
    return {client: (val[client], train[client]) for client in val}


def simplest_first(
    runs: RunsByMethod,
    sizes: Mapping[str, tuple[int, int]],
    alone: Collection[str] = (LOCAL_METHOD,),
) -> list[str]:
    """The methods by what is sent for them and by what clients keep.

    Training alone sends nothing, but has a model for each client: where clients have few
    rows for that, it is not the simplest but the most complex one.
    """
    inputs = int(np.prod(next(iter(runs.values()))[0].manifest["model"]["input_shape"]))
    rows = float(np.median([train for _, train in sizes.values()]))
    place_of_alone = 2.0 if rows < ROWS_FOR_INPUT * inputs else 0.0

    def key(label: str) -> tuple[float, int, int]:
        # What a round sends, as a training may by chance take fewer rounds.
        sent = []
        for run in runs[label]:
            sum_of_run = sum(entry.bytes_unicast for entry in run.ledger.entries)
            sent.append(sum_of_run / max(int(run.summary.get("rounds", 1)), 1))
        size = float(np.mean(sent))
        kinds = [*WORDS, "methods without words", *BASELINE_WORDS]
        method = runs[label][0].method
        kind = kinds.index(method) if method in kinds else len(WORDS)
        is_alone = method == LOCAL_METHOD or label in alone
        return (place_of_alone if is_alone else 1.0, kind, round(size))

    return sorted(runs, key=key)


def _clients(
    chosen: Recommendation,
    shared: str,
    metric: str,
    gains: pl.DataFrame | None,
    rows: pl.DataFrame,
    runs: RunsByMethod,
    baselines: Mapping[str, TrainedBaseline],
    sizes: Mapping[str, tuple[int, int]],
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
    # Where all should train alone, the gains say what sharing would change.
    compared = own
    if {label for _, label in alone}.isdisjoint(own.values()):
        compared = dict.fromkeys(names, shared)
    gain_of = {name: alone.get((name, compared[name])) for name in names}
    p = np.array([(gain_of[name] or {}).get("p", np.nan) for name in names])
    adjusted = holm(p)
    best = _baselines_of_clients(baselines, names, sizes)
    beside = {
        name: label
        for name, label in best.items()
        # Whoever uses a baseline gains nothing over it.
        if baselines[label].about.name != own[name]
    }
    over = _over_baselines(own, beside, used, baselines, metric)
    tested = mean_sizes(next(iter(runs.values())), "test")
    entries = []
    for position, name in enumerate(names):
        found = expected.get((name, own[name]), {})
        gain = gain_of[name]
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
                gain=None if gain is None else _expected_gain(gain),
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
    # There is no simplest one among them.
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
                    _expected_gain(row),
                )
    return result


def _expected_gain(gain: Mapping[str, float]) -> tuple[float, float, float]:
    """The gain that a client should expect, with its interval."""
    return gain["expected"], gain["expected_low"], gain["expected_high"]


def _hurt(
    chosen: Recommendation,
    clients: Sequence[ClientVerdict],
    gains: pl.DataFrame | None,
    base: str | None,
    shared: str,
) -> Hurt | None:
    """Count the clients that are worse off than alone, by what each should use.

    Where all should train alone, by the shared method that the first line speaks of.
    """
    if gains is None or base is None:
        return None
    own = {client.client: client.method for client in clients}
    label = "what the table says"
    if set(own.values()) == {base}:
        if not shared:
            return None
        label = shared
        own = dict.fromkeys(own, label)
    elif len(set(own.values())) == 1:
        label = chosen.method
    used = pl.DataFrame({"client": list(own), "method": list(own.values())})
    of_own = gains.join(used, on=["client", "method"], how="semi")
    if of_own.is_empty():
        return None
    return hurt_clients(of_own.with_columns(method=pl.lit(label)), label, base)
