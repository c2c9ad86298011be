"""`Callback`: follows a run while it trains, and may stop it: progress bars,
checkpoints, early stopping, trackers.
"""

from collections.abc import Callable

from fedtailor.metrics import find_metric
from fedtailor.protocol import require
from fedtailor.training.training import Training


class Callback:
    """Subclass it and override what you need; every method has an empty default."""

    def on_start(self, training: Training, rounds: int) -> None:
        """Before the first round of this call; a resumed training has done some rounds
        already.
        """

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        """After every round, and its evaluation if it had one (`evaluated`).

        Returns:
            True to stop: the run ends as if this round had been its last.
        """

    def on_end(self, training: Training) -> None:
        """After the last round."""

    def close(self, error: BaseException | None = None) -> None:
        """Last of all, however the training ended, and even if it never started:
        release what `on_start` acquired.

        Args:
            error: what ended it (`Diverged`, an interruption, ...); None if it ended
                normally.
        """


class AfterRound(Callback):
    """A plain function as a callback."""

    def __init__(self, function: Callable[[Training, bool], bool | None]) -> None:
        """`function(training, evaluated)` is called after every round; True stops."""
        self._function = function

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        return self._function(training, evaluated)


class EarlyStopping(Callback):
    """Stops when the mean validation score over clients has not improved for a number
    of evaluations.
    """

    def __init__(
        self, patience: int, metric: str | None = None, min_gain: float = 0.0
    ) -> None:
        """`patience` evaluations without a gain of more than `min_gain`; None = what
        the run is judged by.
        """
        require(
            patience >= 1, f"patience is {patience}; it must be 1 or more evaluations"
        )
        require(min_gain >= 0, f"min_gain is {min_gain}; it must be 0 or more")
        self.patience = patience
        self.metric = metric
        self.min_gain = min_gain

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        if not evaluated:
            return None
        metric = training.metric if self.metric is None else find_metric(self.metric)
        measured = [known.name for known in training.measured]
        require(
            metric.name in measured,
            f"early stopping looks at {metric.name}, and the run measures {measured}",
        )
        _, means = training.metrics.curve(metric.name, "val")
        require(
            len(means) > 0,
            "early stopping looks at validation data, and this federation has none",
        )
        # Computed from all measurements, without a state of its own, so that a resumed
        # run stops where an uninterrupted one does.
        scores = means if metric.higher_is_better else -means
        # Evaluations since the last gain; the first one is the score to beat.
        best = scores[0]
        without_gain = 0
        for score in scores[1:]:
            if score > best + self.min_gain:
                best = score
                without_gain = 0
            else:
                without_gain += 1
        return without_gain >= self.patience
