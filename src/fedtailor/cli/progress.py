"""Progress of a run: a bar on a terminal, plain lines elsewhere; always on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from fedtailor.experiments.compare import Comparison, Entry
from fedtailor.experiments.compare import Progress as ComparisonProgress
from fedtailor.training import Training

SECONDS_BETWEEN_LINES = 10.0

Progress = Callable[[Training, bool], None]
"""Called after every round with the training and whether it was evaluated."""


@contextmanager
def progress_of(title: str, rounds: int) -> Iterator[Progress]:
    """A callback for `run` that shows how far it is.

    It shows the round, the mean test accuracy (or loss) of the personal models, and the
    time left.
    """
    if sys.stderr.isatty():
        with _bar(title, rounds) as update:

            def show(training: Training, evaluated: bool) -> None:
                update(training.round, _score(training))

            yield show
    else:
        yield _lines(title, rounds)


@contextmanager
def progress_over_runs(title: str, runs: int) -> Iterator[ComparisonProgress]:
    """A callback for a comparison that shows how far it is.

    It shows the runs done, what runs, its round and score, and the time left for all.
    """
    if sys.stderr.isatty():
        with _bar(title, runs) as update:

            def show(
                comparison: Comparison,
                entry: Entry,
                seed: int,
                training: Training | None,
            ) -> None:
                update(comparison.progressed, _what(entry, seed, training))

            yield show
    else:
        yield _run_lines(title, runs)


def _what(entry: Entry, seed: int, training: Training | None) -> str:
    text = f"{entry.row} on {entry.column.label}, seed {seed}"
    if training is None:
        return text
    return f"{text}: round {training.round} of {entry.column.rounds} {_score(training)}"


def _run_lines(title: str, runs: int) -> ComparisonProgress:
    last = -SECONDS_BETWEEN_LINES

    def show(
        comparison: Comparison, entry: Entry, seed: int, training: Training | None
    ) -> None:
        nonlocal last
        if monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = monotonic()
            run, what = comparison.done + 1, _what(entry, seed, training)
            text = f"{title}: run {run} of {runs}, {what}"
            print(text, file=sys.stderr, flush=True)

    return show


def _score(training: Training) -> str:
    metric = training.metric.name
    values = training.metrics.values(metric)
    texts = [f"{metric} {values.mean():.3f}"] if len(values) else []
    if training.privacy is not None:
        largest = training.privacy.largest(training.round)
        texts += [
            f"{name.replace('_', ' ')} {epsilon:.2f}"
            for name, epsilon in largest.items()
        ]
    return ", ".join(texts)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[float, str], None]]:
    """A bar on stderr, and the function that sets how far it is and what it says."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    # Titles hold labels of the user's: square brackets in them are no markup.
    description = TextColumn("{task.description}", markup=False)
    text = TextColumn("{task.fields[text]}", markup=False)
    columns = (description, BarColumn(), TaskProgressColumn(), text)
    console = Console(stderr=True)
    progress = Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True
    )
    with progress as bar:
        task = bar.add_task(title, total=total, text="compiling")
        yield lambda done, said: bar.update(task, completed=done, text=said)


def _lines(title: str, rounds: int) -> Progress:
    last = monotonic()

    def show(training: Training, evaluated: bool) -> None:
        nonlocal last
        if training.round == rounds or monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = monotonic()
            text = f"{title}: round {training.round} of {rounds}, {_score(training)}"
            print(text, file=sys.stderr, flush=True)

    return show
