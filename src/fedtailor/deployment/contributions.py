"""Who gives: what each client's part in a training is worth to the others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.choice import check_choice, require
from fedtailor.deployment.opening import OpenedRun, open_run
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs.run import executor_of, run_on
from fedtailor.lab.results.decision_file import decision_of
from fedtailor.lab.results.experiment import COMPARISON_INDEX, experiments
from fedtailor.lab.results.units import unit_of
from fedtailor.models import Architecture, Model
from fedtailor.models.metrics.rows import WEIGHT
from fedtailor.statistics.decision import (
    MOST_EXACT,
    SCORES,
    Interval,
    Score,
    mean_gains,
    mean_interval,
    sampled_shapley_values,
    shapley_values,
)
from fedtailor.statistics.decision.intervals import MIN_SEEDS, student_interval
from fedtailor.statistics.decision.row_scores import weighted_scores

ALL = "all"
_BOOTSTRAPS = 100
"""Draws of test rows, for the uncertainty of Shapley values."""

_ALIKE = ("architecture", "loss", "outputs", "dtype")
"""Settings of the model that runs of several seeds share."""

Members = frozenset[int]
BeforeTraining = Callable[[int, int], None]
"""Called before each training with its number, from 1, and how many there are at most."""


@dataclass(frozen=True)
class Contribution:
    """What one client contributes.

    Attributes:
        client: its name.
        others_lose: what the others' mean metric is worse by without it, in the metric's
            direction: positive if it helps them.
        shapley: its Shapley value, or None if it was not asked for.
    """

    client: str
    others_lose: Interval
    shapley: Interval | None = None


@dataclass(frozen=True)
class Contributions:
    """What all clients contribute to each other.

    Attributes:
        method: the method that was trained.
        metric: what it is judged by.
        seeds: the number of seeds.
        trainings: how many trainings there were in addition to the runs themselves.
        contributions: of each client that trains.
        sampled: whether Shapley values are from sampled orders.
    """

    method: str
    metric: str
    seeds: int
    trainings: int
    contributions: tuple[Contribution, ...]
    sampled: bool = False

    def sentences(self) -> list[str]:
        """One sentence a client, the one that contributes most first."""
        in_order = sorted(
            self.contributions, key=lambda part: -part.others_lose.estimate
        )
        return [self._sentence(part) for part in in_order]

    def _sentence(self, part: Contribution) -> str:
        unit, found = unit_of(self.metric), part.others_lose
        if np.isnan(found.estimate):
            return f"without {part.client}: no other client has test rows"
        name = unit.label.removesuffix(", %")
        amount = f"points of {name}" if unit.scale == 100 else f"of {name}"
        if found.verdict == "hurts":
            verb, low, high = "gain", -found.high, -found.low
        else:
            verb, low, high = "lose", found.low, found.high
        value = abs(found.estimate) if verb == "gain" else found.estimate

        def text(number: float) -> str:
            # Adding 0 leaves no "-0.0".
            return f"{round(unit.scale * number, unit.digits) + 0.0:.{unit.digits}f}"

        if not np.isfinite(low + high):
            end = "; rows and seeds are too few to tell how sure that is"
        elif found.verdict == "cannot tell":
            end = (
                f", from {text(low)} to {text(high)}: these rows and seeds cannot tell"
            )
        else:
            end = f", from {text(low)} to {text(high)}"
        return f"without {part.client} the others {verb} {text(value)} {amount}{end}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; numbers that are not finite are None."""
        content = asdict(self)
        for part in content["contributions"]:
            for key in ("others_lose", "shapley"):
                if part[key] is not None:
                    part[key] = {
                        name: value if np.isfinite(value) else None
                        for name, value in part[key].items()
                    }
        return content | {"sentences": self.sentences()}


def runs_at(
    paths: Sequence[Path],
    method: str | None,
    settings: Settings,
    model: Model | Architecture | None = None,
) -> list[OpenedRun]:
    """The runs of one method, one for each seed.

    Args:
        paths: run directories, or one result directory of a comparison.
        method: of a comparison, the label of a method; by default the one that
            the decision recommends or, where that is training alone, the shared one
            that it compares with that.
        settings: devices and other settings of the executors.
        model: the model, or its network, if only the user's code knows it.

    Raises:
        ValueError: there is no such run or method, or the directory holds several
            comparisons or scenarios.
    """
    first = paths[0]
    is_comparison = first.is_dir() and (
        (first / COMPARISON_INDEX).exists() or any(first.glob(f"*/{COMPARISON_INDEX}"))
    )
    if not is_comparison:
        require(method is None, "--method is for the results of a comparison")
        return [open_run(path, model=model, settings=settings) for path in paths]
    require(len(paths) == 1, "name one result directory, or runs of one method")
    is_one = (first / COMPARISON_INDEX).exists()
    results, names = (first.parent, [first.name]) if is_one else (first, [])
    found = experiments(results, names)
    require(
        len(found) == 1 and len(found[0].index.scenarios) == 1,
        f"{first} holds several comparisons; name the runs of one method",
    )
    experiment, scenario = found[0], next(iter(found[0].index.scenarios))
    runs = {label: seeds for label, seeds in experiment.runs[scenario].items() if seeds}
    if method is None:
        decision = decision_of(experiment, scenario)
        require(
            decision is not None and decision.winner is not None,
            f"{first} has no best method yet; name one with --method",
        )
        assert decision is not None and decision.winner is not None
        # That of the decision, which all that is said of sharing is about.
        verdict = decision.verdict
        method = (verdict.shared if verdict else "") or decision.winner.leader
    check_choice(method, runs, "method with finished runs")
    return [open_run(run.path, model=model, settings=settings) for run in runs[method]]


def contributions_of(
    runs: Sequence[OpenedRun],
    *,
    shapley: bool = False,
    permutations: int = 20,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    progress: BeforeTraining | None = None,
) -> Contributions:
    """What each client gives, by training without it.

    A client that is left out is served as a newcomer is, so that its rows are tested all
    the same; preprocessing and settings stay those of the run. `others_lose` counts the
    other clients only. Shapley values are of the mean over all clients, where nobody's
    training is worth what learning nothing is (the majority class, or the mean).

    Args:
        runs: of one method and its settings, one for each seed.
        shapley: whether to compute Shapley values: from all coalitions of at most
            `MOST_EXACT` clients, else from sampled orders.
        permutations: the number of orders that are sampled.
        settings: devices and other settings of the executors.
        progress: called before each training.

    Raises:
        ValueError: the runs are of different methods, have one client only, their data
            are not found, or the method cannot serve newcomers.
    """
    first = runs[0]
    _require_alike(runs)
    metric = first.stored.metric
    score = SCORES.get(metric)
    require(
        score is not None,
        f"the runs are judged by {metric}, which test rows do not determine one by one;"
        f" train with --metrics of {', '.join(SCORES)}",
    )
    assert score is not None
    players = np.flatnonzero(~first.federation.unseen)
    names = [first.names[player] for player in players]
    require(len(players) > 1, "one client trains, and has nobody to give to")
    require(
        bool(first.federation.sizes["test"].any()),
        f"{first.path} has no test rows, on which others could lose; name runs that"
        " have some, such as the results of a comparison",
    )
    is_sampled = shapley and len(players) > MOST_EXACT
    each = len(players)
    if shapley:
        each = permutations * len(players) if is_sampled else 2 ** len(players) - 2
    trainer = _Coalitions(runs, players, settings, progress, each * len(runs))
    everybody: Members = frozenset(range(len(players)))
    columns = trainer.rows(0, everybody).columns
    outputs = int(first.manifest["model"]["outputs"])
    # Rows with weights determine means only.
    known = [name for name, it in SCORES.items() if it.determined(columns, outputs)]
    require(
        metric in known,
        f"the runs are judged by {metric}, which their rows (with weights, or of several"
        f" targets) do not determine; train with --metrics of {', '.join(known)}",
    )
    rows = []
    for seed in range(len(runs)):
        rows.append(_labelled(trainer.rows(seed, everybody), ALL, seed))
        for player, name in enumerate(names):
            without = trainer.rows(seed, everybody - {player})
            rows.append(_labelled(without, name, seed))
    # The base is the training with all; a gain of the training without is the others'.
    others = {}
    for name in names:
        others[name] = [other for other in first.names if other != name]
    gains = mean_gains(pl.concat(rows), ALL, score, clients=others)
    values: list[Interval | None] = [None] * len(players)
    if shapley:
        values = list(
            _sampled(trainer, score, permutations)
            if is_sampled
            else _exact(trainer, score)
        )
    contributions = [
        Contribution(name, _negative(gains[name]), value)
        for name, value in zip(names, values, strict=True)
    ]
    return Contributions(
        first.stored.method,
        metric,
        len(runs),
        trainer.trainings,
        tuple(contributions),
        is_sampled,
    )


class _Coalitions:
    """Trains coalitions of clients, and keeps the outcomes of all test rows."""

    def __init__(
        self,
        runs: Sequence[OpenedRun],
        players: NDArray[np.int64],
        settings: Settings,
        progress: BeforeTraining | None,
        most: int,
    ) -> None:
        self.runs, self.players = runs, players
        self.trainings = 0
        self._settings, self._progress, self._most = settings, progress, most
        self._known: dict[tuple[int, Members], pl.DataFrame] = {}

    def rows(self, seed: int, members: Members) -> pl.DataFrame:
        """The outcomes of all test rows after a training of some clients."""
        key = seed, members
        if key not in self._known:
            outcomes = self._train(self.runs[seed], members)
            self._known[key] = weighted_scores(outcomes, WEIGHT)
        return self._known[key]

    def nothing(self, seed: int) -> pl.DataFrame:
        """The metrics on test rows of what has learned nothing."""
        outcome = self.runs[seed].test_rows
        assert outcome is not None
        return outcome[1].filter(pl.col("split") == "test")

    def _train(self, run: OpenedRun, members: Members) -> pl.DataFrame:
        if len(members) == len(self.players):
            require(
                run.test_rows is not None,
                f"the data of {run.path} are not found, and it did not keep its test"
                " rows",
            )
            assert run.test_rows is not None
            return run.test_rows[0]
        self.trainings += 1
        if self._progress is not None:
            self._progress(self.trainings, max(self._most, self.trainings))
        unseen = run.federation.unseen.copy()
        unseen[self.players] = True
        unseen[self.players[sorted(members)]] = False
        federation = replace(run.federation, unseen=unseen)
        # Only methods of rounds have a spec; others are refused here.
        spec = run.spec
        spec = replace(spec, rounds=int(run.stored.summary["asked_rounds"]))
        executor = executor_of(federation, run.model, self._settings, None)
        trained = run_on(executor, spec)
        return trained.row_outcomes()


def _exact(trainer: _Coalitions, score: Score) -> Iterable[Interval]:
    """Shapley values from all coalitions, with intervals over test rows and seeds."""
    draws = _Draws(trainer, score)
    by_seed = [
        shapley_values(
            len(trainer.players), lambda members, seed=seed: draws.worth(seed, members)
        )
        for seed in range(len(trainer.runs))
    ]
    values = np.stack(by_seed)  # [seeds, players, draws]
    count = len(values)
    for player in range(values.shape[1]):
        plain, drawn = values[:, player, 0], values[:, player, 1:]
        # The same rows may be tested in several seeds, so that the variance over rows
        # does not fall with their number.
        by_rows = float(drawn.var(axis=1, ddof=1).mean())
        components = [(by_rows, _BOOTSTRAPS - 1)]
        if count >= MIN_SEEDS:
            components.append((float(plain.var(ddof=1)) / count, count - 1))
        yield student_interval(float(plain.mean()), components, 0.95)


def _sampled(
    trainer: _Coalitions, score: Score, permutations: int
) -> Iterable[Interval]:
    """Shapley values from sampled orders, with intervals over orders and seeds."""
    draws = _Draws(trainer, score, bootstraps=0)
    found = [
        sampled_shapley_values(
            len(trainer.players),
            lambda members, seed=seed: draws.worth(seed, members),
            permutations,
            seed,
        )
        for seed in range(len(trainer.runs))
    ]
    values = np.concatenate(found)
    return [mean_interval(values[:, player]) for player in range(values.shape[1])]


class _Draws:
    """The worth of coalitions: the mean of the metric over all clients with test rows,
    by the test rows as they are and by draws of them.
    """

    def __init__(
        self, trainer: _Coalitions, score: Score, bootstraps: int = _BOOTSTRAPS
    ) -> None:
        self._trainer, self._score, self._bootstraps = trainer, score, bootstraps

    def worth(self, seed: int, members: Members) -> NDArray[np.float64]:
        """The worth, higher is better: [1 + draws]."""
        sign = 1.0 if self._score.higher_is_better else -1.0
        if not members:
            nothing = self._trainer.nothing(seed)
            metric = self._trainer.runs[seed].stored.metric
            found = nothing.filter(pl.col("metric") == metric)["value"].to_numpy()
            # Of a ranking, learning nothing is to rank at random.
            value = float(found.mean()) if len(found) else 0.5
            return np.full(1 + self._bootstraps, sign * value)
        rows = self._score.prepare(self._trainer.rows(seed, members))
        by_client = []
        for (name,), part in rows.group_by("client", maintain_order=True):
            scores, truth = part["score"].to_numpy(), part["truth"].to_numpy()
            # The same draws for every coalition.
            rng = np.random.default_rng([seed, len(part), *str(name).encode()])
            picks = rng.integers(0, len(part), (self._bootstraps, len(part)))
            values = [self._score.value(scores, truth)]
            values += [self._score.value(scores[it], truth[it]) for it in picks]
            by_client.append(values)
        # A draw may have one class only, which has no ranking.
        return sign * np.nan_to_num(np.nanmean(by_client, axis=0))


def _require_alike(runs: Sequence[OpenedRun]) -> None:
    """Require runs of one method and data, with different seeds."""
    first = runs[0].manifest
    for run in runs[1:]:
        same = run.manifest["algorithm"] == first["algorithm"]
        # A table's inputs, and so the size of its model, may differ from split to split.
        for key in _ALIKE:
            same = same and run.manifest["model"].get(key) == first["model"][key]
        require(
            same,
            f"{run.path} has another method or model than {runs[0].path}; name runs that"
            " differ by their seeds only",
        )
        require(
            run.names == runs[0].names,
            f"{run.path} has other clients than {runs[0].path}",
        )
    seeds = [run.stored.seed for run in runs]
    require(len(set(seeds)) == len(seeds), "two runs have the same seed; name one")


def _labelled(rows: pl.DataFrame, method: str, seed: int) -> pl.DataFrame:
    return rows.with_columns(method=pl.lit(method), seed=pl.lit(seed))


def _negative(interval: Interval) -> Interval:
    """The interval of the negative quantity."""
    return Interval(-interval.estimate, -interval.high, -interval.low, interval.p)
