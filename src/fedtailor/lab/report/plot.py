"""The figures that people ask for first, of federations and runs in memory.

Each function returns a matplotlib figure, which a notebook shows and `savefig` writes.

Example:
    >>> figure = ft.plot.by_round({"fedavg": run, "again": run})
    >>> figure.savefig("by-round.png")
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedtailor._base.choice import require
from fedtailor.data.federation import SPLITS, Federation
from fedtailor.engine.runs import Run
from fedtailor.lab.report.figures import style
from fedtailor.protocol import MatrixDiagnostic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["beside", "by_client", "by_round", "partition", "who_learns_from_whom"]

RunOrRuns = Run | Mapping[str, Run]
"""A run, or several with a label each."""


def by_round(
    runs: RunOrRuns, *, metric: str | None = None, split: str = "test"
) -> "Figure":
    """The mean over clients by round.

    Args:
        runs: a run, or several with labels.
        metric: its name; None = the one that the first run is judged by.
        split: "val" or "test".

    Raises:
        ValueError: a run has not measured the metric on the split.

    Example:
        >>> ft.plot.by_round({"FedAvg": run}).savefig("rounds.png")
    """
    labelled, metric = _labelled(runs), _metric(runs, metric)
    figure, axes = _axes("round", f"mean {split} {metric}")
    for number, (label, run) in enumerate(labelled.items()):
        rounds = sorted({one.round for one in run.metrics.evaluations})
        means = [_values(run, metric, split, round).mean() for round in rounds]
        axes.plot(rounds, means, label=label, **style(number))
    return _finished(figure, axes, labelled)


def by_client(
    runs: RunOrRuns, *, metric: str | None = None, split: str = "test"
) -> "Figure":
    """The last measurement of every client, the lowest first.

    Args:
        runs: a run, or several with labels.
        metric: its name; None = the one that the first run is judged by.
        split: "val" or "test".

    Raises:
        ValueError: a run has not measured the metric on the split.

    Example:
        >>> ft.plot.by_client(run).savefig("clients.png")
    """
    labelled, metric = _labelled(runs), _metric(runs, metric)
    figure, axes = _axes("clients, in order of what they reach", f"{split} {metric}")
    for number, (label, run) in enumerate(labelled.items()):
        values = np.sort(_values(run, metric, split))
        axes.plot(range(1, len(values) + 1), values, label=label, **style(number))
    return _finished(figure, axes, labelled)


def beside(
    run: Run, other: Run, *, metric: str | None = None, split: str = "test"
) -> "Figure":
    """Every client as a point: what it reaches in one run and in another.

    Args:
        run: on the vertical axis.
        other: on the horizontal axis, such as training alone.
        metric: its name; None = the one that `run` is judged by.
        split: "val" or "test".

    Raises:
        ValueError: a run has not measured the metric on the split, or the clients of
            both differ.

    Example:
        >>> alone = ft.run(ft.Local(), federation, ft.models.logistic(), rounds=2)
        >>> figure = ft.plot.beside(run, alone)
        >>> figure.savefig("beside.png")
    """
    metric = _metric(run, metric)
    names, others = run.executor.data.names, other.executor.data.names
    require(
        list(names) == list(others),
        "the clients of both runs differ; compare runs on the same federation",
    )
    across, up = (_values(one, metric, split) for one in (other, run))
    figure, axes = _axes(
        f"{other.algorithm.about.name}: {split} {metric}",
        f"{run.algorithm.about.name}: {split} {metric}",
    )
    ends = [min(across.min(), up.min()), max(across.max(), up.max())]
    axes.plot(ends, ends, color="gray", linewidth=1)
    axes.plot(across, up, "o")
    return _finished(figure, axes, {})


def partition(federation: Federation) -> "Figure":
    """How many examples each client has of each class, all splits together.

    A row is a client, a column a class; the darker a cell, the more examples.

    Raises:
        ValueError: the data have no classes.

    Example:
        >>> ft.plot.partition(federation).savefig("partition.png")
    """
    classes = federation.classes
    require(
        classes is not None,
        f"{federation.name} has no classes to draw; see the sizes in federation.describe()",
    )
    assert classes is not None
    counts = np.zeros((len(federation), classes), np.int64)
    for client in range(len(federation)):
        for split in SPLITS:
            labels = federation.y[getattr(federation, split)[client]]
            counts[client] += np.bincount(labels, minlength=classes)
    figure, axes = _axes("class", "client")
    image = axes.imshow(counts, aspect="auto", cmap="Greys", vmin=0)
    figure.colorbar(image, label="examples")
    return _finished(figure, axes, {})


def who_learns_from_whom(run: Run) -> "Figure":
    """The weights that a method mixes with the clients' models, as UCFL finds them.

    Clients are ordered by their true group where the federation knows it.

    Raises:
        ValueError: the method has no such weights.

    Example:
        >>> streams = ft.run(
        ...     ft.UCFL(streams=2, warm=0), federation, ft.models.logistic(), rounds=2
        ... )
        >>> ft.plot.who_learns_from_whom(streams).savefig("who.png")
    """
    found = [
        diagnostic
        for diagnostic in run.algorithm.diagnostics(run.training.server)
        if isinstance(diagnostic, MatrixDiagnostic)
    ]
    name = run.algorithm.about.name
    require(
        bool(found),
        f"{name} has no weights between clients; ucfl, ucfl-parallel and fedamp have",
    )
    order = np.arange(len(found[0].values))
    groups = run.federation.groups
    if groups is not None and len(groups) == len(order):
        order = np.argsort(groups, kind="stable")
    figure, axes = _axes("client", "client")
    axes.imshow(np.asarray(found[0].values)[np.ix_(order, order)])
    axes.set(title=found[0].title, xticks=[], yticks=[])
    return _finished(figure, axes, {})


def _labelled(runs: RunOrRuns) -> dict[str, Run]:
    if isinstance(runs, Run):
        return {runs.algorithm.about.name: runs}
    require(bool(runs), "there is no run to draw; give one, or several with labels")
    return dict(runs)


def _metric(runs: RunOrRuns, metric: str | None) -> str:
    first = next(iter(_labelled(runs).values()))
    return first.training.metric.name if metric is None else metric


def _values(run: Run, metric: str, split: str, round: int | None = None) -> np.ndarray:
    values = run.metrics.values(metric, split, round=round)
    require(
        len(values) > 0,
        f"{run.algorithm.about.name} has not measured {metric} on {split} rows",
    )
    return values


def _axes(across: str, up: str) -> tuple["Figure", "Axes"]:
    # Not pyplot's: such a figure would stay in memory, and be shown twice in notebooks.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=across, ylabel=up)
    return figure, axes


def _finished(figure: "Figure", axes: "Axes", labels: Mapping[str, Run]) -> "Figure":
    if len(labels) > 1:
        axes.legend()
    return figure
