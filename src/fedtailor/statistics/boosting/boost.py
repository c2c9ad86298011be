"""Gradient boosting whose server sees nothing but sums over clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax

from fedtailor._base.choice import require, require_one_or_more
from fedtailor.statistics.boosting.bins import (
    MOST_BINS,
    ROWS_OF_BIN,
    Thresholds,
    agree_on_bins,
)
from fedtailor.statistics.boosting.rows import BoostingRequest, BoostingRows
from fedtailor.statistics.boosting.tree import (
    GrowSettings,
    Tree,
    grow,
    predict_all,
)
from fedtailor.statistics.grid import total_of

Ask = Callable[[BoostingRequest], NDArray[np.float64]]
"""Sends a request to all clients and returns the sum of their answers."""


_ROWS = 1024
"""Rows that are predicted at once."""
_LEAST_SHARE = 1e-7
"""The least share of a class without trees: a wrong answer costs a finite loss."""
NEVER = 1_000_000
"""A patience that no boosting exhausts."""


@dataclass(frozen=True)
class BoostingSettings(GrowSettings):
    """How trees are boosted; the defaults are those of HistGradientBoosting.

    Attributes:
        trees: rounds of boosting at most; a round grows a tree for each output.
        patience: rounds after the one of least validation loss, after which no more are
            tried.
        most_bins: bins of an input.
        chooses: whether the number of rounds is the one of least validation loss over
            all clients, where there are validation rows.
    """

    trees: int = 100
    patience: int = NEVER
    most_bins: int = MOST_BINS
    chooses: bool = True

    def __post_init__(self) -> None:
        require_one_or_more("trees", self.trees)
        require(
            2 <= self.most_bins <= MOST_BINS,
            f"most_bins is {self.most_bins}; it must be 2 to {MOST_BINS}",
        )
        require(self.rate > 0, f"rate is {self.rate}; it must be above 0")
        require(self.penalty >= 0, f"penalty is {self.penalty}; it must be 0 or more")
        require_one_or_more("least_rows", self.least_rows)
        require(
            self.most_leaves is None or self.most_leaves >= 2,
            f"most_leaves is {self.most_leaves}; it must be 2 or more",
        )
        require(
            self.most_depth is None or self.most_depth >= 1,
            f"most_depth is {self.most_depth}; it must be 1 or more",
        )
        require(
            self.most_leaves is not None or self.most_depth is not None,
            "neither most_leaves nor most_depth bounds a tree; name one of them",
        )


@dataclass(frozen=True)
class BoostedModel:
    """Boosted trees.

    Attributes:
        classes: the number of classes; None for numbers.
        baseline: what is predicted without trees [outputs].
        trees: by round, a tree for each output.
        thresholds: of each input; personal trees go on with them.
        own: how many of the last rounds are a client's own.
    """

    classes: int | None
    baseline: Float[NDArray, " outputs"]
    trees: tuple[tuple[Tree, ...], ...]
    thresholds: Thresholds
    own: int = 0

    def raw(self, x: Float[NDArray, "n inputs"]) -> NDArray[np.float64]:
        """The sums of the trees' values [n, outputs]."""
        x = np.asarray(x, np.float64)
        raw = np.tile(self.baseline, (len(x), 1))
        for output in range(len(self.baseline) if self.trees else 0):
            trees = [of_round[output] for of_round in self.trees]
            for first in range(0, len(x), _ROWS):
                some = slice(first, first + _ROWS)
                values = predict_all(trees, x[some])
                # One tree after another, as they were added when they were grown.
                raw[some, output] = np.vstack([raw[some, output], values]).sum(axis=0)
        return raw

    def outputs(self, x: Float[NDArray, "n inputs"]) -> NDArray[np.float64]:
        """Logarithms of the classes' probabilities [n, classes], or numbers [n]."""
        raw = self.raw(x)
        if self.classes is None:
            return raw[:, 0]
        if raw.shape[1] == 1:
            return np.column_stack([log_expit(-raw[:, 0]), log_expit(raw[:, 0])])
        return log_softmax(raw, axis=1)


@dataclass(frozen=True)
class BoostingProgress:
    """Rounds of trees from which boosting can go on.

    Attributes:
        model: all rounds so far.
        losses: validation losses before the first round and after each.
    """

    model: BoostedModel
    losses: tuple[float, ...]


@dataclass(frozen=True)
class OwnTrees:
    """Which trees a client chose.

    Attributes:
        rounds: rounds of trees of its own; 0 = it takes the shared ones.
        after_shared: whether they follow the shared trees, or stand alone.
    """

    rounds: int = 0
    after_shared: bool = True

    @staticmethod
    def of(model: BoostedModel, shared: BoostedModel) -> "OwnTrees":
        """What a client chose, whose model `boost_alone` returned."""
        follows = len(model.trees) == len(shared.trees) + model.own
        return OwnTrees(
            model.own, follows and np.array_equal(model.baseline, shared.baseline)
        )


def sum_over(clients: Sequence[BoostingRows]) -> Ask:
    """Asks clients of this process, all on the grid or none, one after another."""

    def ask(request: BoostingRequest) -> NDArray[np.float64]:
        answers = [client.answer(request) for client in clients]
        if clients[0].on_grid and answers[0].size:
            return total_of(answers)
        return np.sum(answers, axis=0)

    return ask


def boost(
    ask: Ask,
    inputs: int,
    classes: int | None,
    settings: BoostingSettings,
    *,
    thresholds: Thresholds | None = None,
    start: BoostedModel | None = None,
    progress: BoostingProgress | None = None,
    halvings: int = 1,
    after_round: Callable[[BoostingProgress], None] | None = None,
) -> BoostedModel:
    """Boost trees on the rows of all clients.

    Args:
        ask: asks all clients.
        inputs: the number of inputs.
        classes: the number of classes; None for numbers.
        settings: how trees are grown, and how many.
        thresholds: the bins; None = clients agree on quantiles, between which ten rows
            or more are on average.
        start: a model that the new trees go on from, whose thresholds are used.
        progress: what `after_round` was last called with in a boosting that was
            interrupted; the trees are those that it would have grown. Without `start`.
        halvings: of the search for bins, that one question decides.
        after_round: called before the first round and after each.

    Raises:
        ValueError: there are no rows.
    """
    totals = ask(BoostingRequest("start"))
    require(totals[0] > 0, "there are no rows to boost trees on")
    known = start if progress is None else progress.model
    if known is not None:
        thresholds = known.thresholds
    elif thresholds is None:
        thresholds = agree_on_bins(
            lambda candidates: ask(
                BoostingRequest("counts", arrays={"candidates": candidates})
            ),
            int(totals[0]),
            inputs,
            min(settings.most_bins, max(2, int(totals[0]) // ROWS_OF_BIN)),
            at_once=halvings,
        )
    ask(BoostingRequest("bins", arrays={"thresholds": thresholds}))
    baseline = first_prediction(totals, classes) if known is None else known.baseline
    ask(BoostingRequest("baseline", arrays={"baseline": baseline}))
    rounds = [] if known is None else list(known.trees)
    for trees in rounds:
        for output, tree in enumerate(trees):
            ask(BoostingRequest("tree", output=output, arrays={"tree": tree}))
    first = 0 if start is None else len(start.trees)
    # The last loss is asked for again, as the clients' answer to the known trees.
    losses = [] if progress is None else list(progress.losses[:-1])

    def end_round() -> None:
        losses.append(_validation_loss(ask))
        if after_round is not None:
            model = BoostedModel(classes, baseline, tuple(rounds), thresholds)
            after_round(BoostingProgress(model, tuple(losses)))

    end_round()
    while len(rounds) < first + settings.trees and _may_fall(losses, settings):
        trees = []
        for output in range(len(baseline)):
            tree = _tree(ask, output, thresholds, settings)
            trees.append(tree)
            ask(BoostingRequest("tree", output=output, arrays={"tree": tree}))
        rounds.append(tuple(trees))
        end_round()
    kept = len(rounds)
    if settings.chooses and np.isfinite(losses).all():
        kept = first + int(np.argmin(losses))
    return BoostedModel(
        classes, baseline, tuple(rounds[:kept]), thresholds, own=max(kept - first, 0)
    )


def boost_alone(
    rows: BoostingRows, shared: BoostedModel, settings: BoostingSettings
) -> BoostedModel:
    """A client's own model: the shared trees, then trees of its own, or trees of its own
    only.

    All of it happens on the client. The number of its own trees is the one of least
    validation loss, if that is lower than the shared model's by more than a standard
    error of the difference; else there are none.

    Args:
        rows: the client's.
        shared: the trees of all clients.
        settings: how trees are grown, and how many at most.
    """
    empty = replace(shared, trees=(), own=0)
    if not len(rows.val_y) or not len(rows.y):
        return replace(shared, own=0)
    own_baseline = first_prediction(rows.ask(BoostingRequest("start")), shared.classes)
    starts = (shared, replace(empty, baseline=own_baseline))
    best, least = replace(shared, own=0), None
    settings = replace(settings, chooses=False)
    reference = None
    for start in starts:
        losses: list[NDArray[np.float64]] = []
        found = boost(
            rows.ask,
            rows.x.shape[1],
            shared.classes,
            settings,
            start=start,
            after_round=lambda _, losses=losses: losses.append(rows.val_losses()),
        )
        if reference is None:
            reference = losses[0]
            least = reference.mean()
        number = int(np.argmin([it.mean() for it in losses]))
        gain = reference - losses[number]
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
        mean = losses[number].mean()
        if gain.mean() > error and (least is None or mean < least):
            kept = len(start.trees) + number
            best, least = replace(found, trees=found.trees[:kept], own=number), mean
    return best


def boost_chosen(
    rows: BoostingRows, shared: BoostedModel, settings: BoostingSettings, own: OwnTrees
) -> BoostedModel:
    """A client's own model of a number of trees that was chosen before, on other rows.

    Args:
        rows: the client's.
        shared: the trees of all clients.
        settings: how trees are grown.
        own: which trees it chose.
    """
    if not own.rounds or not len(rows.y):
        return replace(shared, own=0)
    start = shared
    if not own.after_shared:
        baseline = first_prediction(rows.ask(BoostingRequest("start")), shared.classes)
        start = replace(shared, trees=(), own=0, baseline=baseline)
    return boost(
        rows.ask,
        rows.x.shape[1],
        shared.classes,
        replace(settings, trees=own.rounds, chooses=False),
        start=start,
    )


def first_prediction(
    totals: NDArray[np.float64], classes: int | None
) -> NDArray[np.float64]:
    """What is predicted without trees: the mean target, or the classes' frequencies on
    the scale of logits.
    """
    rows, sums = totals[0], totals[1:]
    if classes is None:
        return sums / max(rows, 1)
    shares = np.clip(sums / max(rows, 1), _LEAST_SHARE, 1 - _LEAST_SHARE)
    if classes == 2:
        return np.log(shares[1:] / (1 - shares[1:]))
    logs = np.log(shares)
    return logs - logs.mean()


def _may_fall(losses: Sequence[float], settings: BoostingSettings) -> bool:
    """Whether the validation loss is still waited for to fall."""
    if not np.isfinite(losses).all():
        return True
    return len(losses) - 1 - int(np.argmin(losses)) < settings.patience


def _validation_loss(ask: Ask) -> float:
    """The mean loss of all clients' validation rows; NaN without any."""
    total, rows = ask(BoostingRequest("loss"))
    return total / rows if rows else np.nan


def _tree(
    ask: Ask, output: int, thresholds: Thresholds, settings: BoostingSettings
) -> Tree:
    """Grow one tree by asking for histograms."""

    root = ask(BoostingRequest("gradients", output=output))
    return grow(
        root,
        lambda moves: ask(BoostingRequest("split", moves=tuple(moves))),
        thresholds,
        settings,
    )
