"""`Callback`: follows a run while it trains, and may stop it. Progress bars, checkpoints,
early stopping and trackers are callbacks.
"""

from collections.abc import Callable, Sequence

from fedtailor._base.choice import require
from fedtailor._base.printable import name_of
from fedtailor.engine.training.binding import describe_argument
from fedtailor.engine.training.training import Training
from fedtailor.models.metrics import Loss, find_metric


class Callback:
    """Subclass it and override what you need; every method has an empty default.

    Example:
        >>> from fedtailor.engine.training import Callback
        >>> class Count(Callback):
        ...     rounds = 0
        ...     def after_round(self, training, evaluated):
        ...         self.rounds += 1
        >>> count = Count()
        >>> short = ft.run(
        ...     ft.Local(), federation, ft.models.logistic(), rounds=2, callbacks=[count]
        ... )
        >>> count.rounds
        2
    """

    def on_start(self, training: Training, rounds: int) -> bool | None:
        """Called before the first round. A resumed training has already done some
        rounds.

        Returns:
            True if there is nothing left to train: the run ends at once.
        """

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        """Called after every round, and after its evaluation if there was one
        (`evaluated`).

        Returns:
            True to stop: the run ends as if this round had been its last.
        """

    def on_end(self, training: Training) -> None:
        """Called after the last round."""

    def close(self, error: BaseException | None = None) -> None:
        """Release what `on_start` acquired. Called last, even if the training failed or
        never started.

        Args:
            error: the error that ended the training (`Diverged`, an interruption, ...);
                None if it ended normally.
        """


class UntilConverged(Callback):
    """Stops when the mean validation loss over clients has converged, or rises while
    the measure that the run is judged by does not improve either, which is overfitting
    (`fedtailor.statistics.decision.movement` states the rule for both).

    A run without validation data is not stopped.

    Example:
        >>> from fedtailor.engine.training import UntilConverged
        >>> short = ft.run(
        ...     ft.Local(),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=2,
        ...     callbacks=[UntilConverged()],
        ... )
        >>> short.summary().rounds
        2
    """

    def on_start(self, training: Training, rounds: int) -> bool:
        return self.holds(training)

    def after_round(self, training: Training, evaluated: bool) -> bool:
        return evaluated and self.holds(training)

    @staticmethod
    def holds(training: Training) -> bool:
        """Whether nothing is left to gain, by all evaluations of a training so far."""
        # Imported here because it needs polars, and clients of federations of machines,
        # which import this package, do not.
        from fedtailor.statistics.decision import movement

        # It is computed from all evaluations, not kept as a state, so that a resumed run
        # stops in the same round as an uninterrupted one.
        moves = movement(*training.metrics.curve(Loss.name, "val"))
        if moves != "rising":
            return moves == "still"
        # A network's loss may rise because it becomes too sure, while it still learns.
        metric = training.metric
        rounds, scores = training.metrics.curve(metric.name, "val")
        costs = -scores if metric.higher_is_better else scores
        return movement(rounds, costs) != "falling"


class UntilScore(Callback):
    """Stops when the mean validation score over clients, of the metric that the run is
    judged by, reaches a value.

    Example:
        >>> from fedtailor.engine.training import UntilScore
        >>> with_validation = ft.scenarios.digits_rotated(seed=0, val=0.2)
        >>> reached = ft.run(
        ...     ft.FedAvg(), with_validation, ft.models.logistic(), rounds=500,
        ...     callbacks=[UntilScore(0.2)],
        ... )
        >>> reached.summary().rounds < 500
        True
    """

    def __init__(self, value: float) -> None:
        """Stop at `value` or better."""
        self.value = value

    def on_start(self, training: Training, rounds: int) -> bool:
        return self._holds(training)

    def after_round(self, training: Training, evaluated: bool) -> bool:
        return evaluated and self._holds(training)

    def _holds(self, training: Training) -> bool:
        metric = training.metric
        _, means = training.metrics.curve(metric.name, "val")
        if not len(means):
            return False
        gain = means[-1] - self.value
        return bool(gain >= 0 if metric.higher_is_better else gain <= 0)


class AfterRound(Callback):
    """A plain function as a callback.

    Example:
        >>> from fedtailor.engine.training import AfterRound
        >>> seen = []
        >>> stop = AfterRound(lambda training, evaluated: seen.append(training.round))
        >>> short = ft.run(
        ...     ft.Local(), federation, ft.models.logistic(), rounds=2, callbacks=[stop]
        ... )
        >>> seen
        [1, 2]
    """

    def __init__(self, function: Callable[[Training, bool], bool | None]) -> None:
        """`function(training, evaluated)` is called after every round; True stops."""
        self._function = function

    def __repr__(self) -> str:
        return name_of(self._function)

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        return self._function(training, evaluated)


class EarlyStopping(Callback):
    """Stops when the mean validation score over clients has not improved for a number
    of evaluations.

    Example:
        >>> with_validation = ft.scenarios.digits_rotated(seed=0, val=0.2)
        >>> stopped = ft.run(
        ...     ft.FedAvg(), with_validation, ft.models.logistic(), rounds=500,
        ...     callbacks=[ft.EarlyStopping(patience=2)],
        ... )
        >>> stopped.summary().rounds < 500
        True
    """

    def __init__(
        self, patience: int, metric: str | None = None, min_gain: float = 0.0
    ) -> None:
        """Stop after `patience` evaluations without a gain of more than `min_gain`.

        Args:
            patience: the number of evaluations.
            metric: the name of the metric; None = the metric that the run is judged by.
            min_gain: the smallest gain that counts.
        """
        require(
            patience >= 1, f"patience is {patience}; it must be 1 or more evaluations"
        )
        require(min_gain >= 0, f"min_gain is {min_gain}; it must be 0 or more")
        self.patience = patience
        self.metric = metric
        self.min_gain = min_gain

    def on_start(self, training: Training, rounds: int) -> bool:
        # A run that stopped early and is opened again has nothing left to train.
        return len(training.metrics.evaluations) > 0 and self._has_stopped(training)

    def after_round(self, training: Training, evaluated: bool) -> bool | None:
        return self._has_stopped(training) if evaluated else None

    def _has_stopped(self, training: Training) -> bool:
        metric = training.metric if self.metric is None else find_metric(self.metric)
        measured = [each.name for each in training.measured]
        require(
            metric.name in measured,
            f"early stopping looks at {metric.name}, and the run measures {measured}",
        )
        _, means = training.metrics.curve(metric.name, "val")
        require(
            len(means) > 0,
            "early stopping looks at validation data, and this federation has none",
        )
        # The number is computed from all evaluations, not kept as a state, so that a
        # resumed run stops in the same round as an uninterrupted one.
        scores = means if metric.higher_is_better else -means
        # Count the evaluations since the last gain.
        best = scores[0]
        without_gain = 0
        for score in scores[1:]:
            if score > best + self.min_gain:
                best = score
                without_gain = 0
            else:
                without_gain += 1
        return without_gain >= self.patience


def as_callbacks(
    callbacks: Callback | Sequence[Callback],
    progress: Callable[[Training, bool], bool | None] | None,
) -> tuple[Callback, ...]:
    """The callbacks of a run; a single one need not be in a sequence.

    Args:
        callbacks: the argument of `run`.
        progress: a plain function as one more callback, or None.

    Raises:
        ValueError: one of them is not a callback, or `progress` is not a function.
    """
    given = tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)
    for callback in given:
        require(
            isinstance(callback, Callback),
            f"a callback is {describe_argument(callback)}; it must be a"
            " fedtailor.engine.training.Callback, such as EarlyStopping(5)",
        )
    if progress is None:
        return given
    require(
        callable(progress),
        f"progress is {describe_argument(progress)}; give a function that is called with"
        " (training, evaluated) after every round",
    )
    return (*given, AfterRound(progress))
