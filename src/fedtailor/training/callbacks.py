"""What looks on while a run trains, and may stop it: progress bars, checkpoints, early
stopping, trackers.
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
        """Last of all, however the training ended, and even if it never started: give
        back what `on_start` took.

        Args:
            error: what ended it (`Diverged`, an interruption, ...); None if it went to
                its end.
        """


class AfterRound(Callback):
    """A plain function as a callback."""

    def __init__(self, function: Callable[[Training, bool], bool | None]) -> None:
        """`function(training, evaluated)` is called after every round; True stops."""
        self._function = function

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        return self._function(training, evaluated)


class EarlyStopping(Callback):
    """Stops when the mean validation score over clients has not become better for a
    number of evaluations.
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
        self.patience, self.metric, self.min_gain = patience, metric, min_gain

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        if not evaluated:
            return None
        metric = training.metric if self.metric is None else find_metric(self.metric)
        measured = [it.name for it in training.measured]
        require(
            metric.name in measured,
            f"early stopping looks at {metric.name}, and the run measures {measured}",
        )
        _, means = training.metrics.curve(metric.name, "val")
        require(
            len(means) > 0,
            "early stopping looks at validation data, and this federation has none",
        )
        # From all measurements and no state of its own, so that a resumed run stops
        # where an uninterrupted one does.
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
