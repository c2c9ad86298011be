"""Progress of a run: a bar on a terminal, plain lines elsewhere; always on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from fedtailor._base.printable import one_line, say_status
from fedtailor.engine.storage import Interrupted
from fedtailor.engine.training import Training
from fedtailor.engine.training.progress import (
    SECONDS_BETWEEN_LINES,
    progress_line,
    score_text,
)

if TYPE_CHECKING:
    # A single run does not need them, and they take long to import.
    from fedtailor.lab.experiments.compare import (
        ComparedMethod,
        Comparison,
        ComparisonProgress,
    )
    from fedtailor.lab.experiments.experiment import Candidate
    from fedtailor.lab.experiments.plan import BeforeSetting

RoundProgress = Callable[[Training, bool], None]
"""Callback after each round: (training, whether the round was evaluated)."""


@contextmanager
def progress_of(title: str, rounds: int) -> Iterator[RoundProgress]:
    """Yields a callback for `run` that displays its progress.

    It displays the round, the mean test accuracy (or loss) of the personal models, and
    the remaining time.
    """
    if sys.stderr.isatty():
        with _bar(title, rounds) as update:

            def show(training: Training, evaluated: bool) -> None:
                update(training.round, score_text(training), rounds)

            yield show
    else:
        yield _progress_lines(title, rounds)


@contextmanager
def explain_interrupt(message: str) -> Iterator[None]:
    """Replaces the message of an interrupt inside a `with` block."""
    try:
        yield
    except Interrupted as interrupt:
        raise Interrupted(message) from interrupt


@contextmanager
def progress_over_runs(title: str, runs: int) -> "Iterator[ComparisonProgress]":
    """Yields a callback for a comparison that displays its progress.

    It displays the finished runs, the current run with its round and score, and the
    remaining time.
    """
    if sys.stderr.isatty():
        with _bar(title, runs) as update:

            def show(
                comparison: "Comparison",
                method: "ComparedMethod",
                seed: int,
                training: Training | None,
            ) -> None:
                text = _description(method, seed, training)
                update(comparison.progressed, text, comparison.runs)

            yield show
    else:
        yield _comparison_lines(title)


@contextmanager
def progress_over_settings(title: str, settings: int) -> "Iterator[BeforeSetting]":
    """Yields a function that is called with a method before a setting of it is timed.

    On a terminal it displays a bar, elsewhere a line for each method and scenario.
    """
    done = 0
    if sys.stderr.isatty():
        with _bar(title, settings) as update:

            def show(method: "ComparedMethod", candidate: "Candidate") -> None:
                nonlocal done
                text = f"timing {method.label} on {method.scenario.label}"
                update(done, text, settings)
                done += 1

            yield show
    else:
        last: ComparedMethod | None = None

        def print_line(method: "ComparedMethod", candidate: "Candidate") -> None:
            nonlocal last
            if method is not last:
                last = method
                text = f"{title}: timing {method.label} on {method.scenario.label}"
                say_status(text)

        yield print_line


def _description(method: "ComparedMethod", seed: int, training: Training | None) -> str:
    text = f"{method.label} on {method.scenario.label}, seed {seed}"
    if training is None:
        return text
    return f"{text}: round {training.round} of {method.scenario.rounds} {score_text(training)}"


def _comparison_lines(title: str) -> "ComparisonProgress":
    last_time = -SECONDS_BETWEEN_LINES

    def show(
        comparison: "Comparison",
        method: "ComparedMethod",
        seed: int,
        training: Training | None,
    ) -> None:
        nonlocal last_time
        if monotonic() - last_time >= SECONDS_BETWEEN_LINES:
            last_time = monotonic()
            run, description = comparison.done + 1, _description(method, seed, training)
            text = f"{title}: run {run} of {comparison.runs}, {description}"
            say_status(text)

    return show


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[float, str, int], None]]:
    """Displays a bar on stderr; yields a function that sets its progress, text and
    total.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    # Titles contain the user's labels, in which square brackets are not markup.
    description = TextColumn("{task.description}", markup=False)
    text = TextColumn("{task.fields[text]}", markup=False)
    columns = (description, BarColumn(), TaskProgressColumn(), text)
    console = Console(stderr=True)
    progress = Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True
    )
    with progress as bar:
        task = bar.add_task(one_line(title), total=total, text="compiling")
        yield lambda completed, text, total: bar.update(
            task, completed=completed, text=one_line(text), total=total
        )


def _progress_lines(title: str, rounds: int) -> RoundProgress:
    last_time = monotonic()

    def show(training: Training, evaluated: bool) -> None:
        nonlocal last_time
        if training.round == rounds or monotonic() - last_time >= SECONDS_BETWEEN_LINES:
            last_time = monotonic()
            say_status(progress_line(title, training, rounds))

    return show
