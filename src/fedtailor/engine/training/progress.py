"""How far a training is, as a line of text: in notebooks, logs and on terminals."""

from time import monotonic
from typing import Any

from fedtailor._base.notebook import updatable_line
from fedtailor._base.printable import say_status
from fedtailor.engine.training.callbacks import Callback
from fedtailor.engine.training.training import Training

SECONDS_BETWEEN_LINES = 10.0


class ShowProgress(Callback):
    """Shows the round and the mean score over clients while a run trains.

    In a notebook one line is replaced after every round. Elsewhere lines of plain text
    go to the standard error, one in ten seconds and one after the last round, so that a
    log file stays short and has no control characters.

    Example:
        >>> from fedtailor.engine.training import ShowProgress
        >>> shown = ft.run(
        ...     ft.Local(),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=2,
        ...     callbacks=[ShowProgress()],
        ... )
    """

    def __init__(self, seconds: float = SECONDS_BETWEEN_LINES) -> None:
        """`seconds`: the least time between two lines outside of notebooks."""
        self._seconds = seconds

    def on_start(self, training: Training, rounds: int) -> None:
        self._rounds, self._last = rounds, monotonic()
        self._line: Any = updatable_line(self._text(training))

    def after_round(self, training: Training, evaluated: bool) -> None:
        if self._line is not None:
            self._line(self._text(training))
        elif monotonic() - self._last >= self._seconds or self._is_over(training):
            self._last = monotonic()
            say_status(self._text(training))

    def _is_over(self, training: Training) -> bool:
        return training.round >= self._rounds

    def _text(self, training: Training) -> str:
        return progress_line(training.algorithm.about.name, training, self._rounds)


def progress_line(title: str, training: Training, rounds: int) -> str:
    """ "TITLE: round 3 of 40, accuracy 0.812"."""
    parts = (f"{title}: round {training.round} of {rounds}", score_text(training))
    return ", ".join(filter(None, parts))


def score_text(training: Training) -> str:
    """The mean score over clients, and the privacy spent: "accuracy 0.812"; may be ""."""
    metric = training.metric.name
    values = training.metrics.values(metric)
    parts = [f"{metric} {values.mean():.3f}"] if len(values) else []
    if training.privacy is not None:
        largest = training.privacy.largest(training.round)
        parts += [
            f"{name.replace('_', ' ')} {epsilon:.2f}"
            for name, epsilon in largest.items()
        ]
    return ", ".join(parts)
