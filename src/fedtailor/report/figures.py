"""Figures as PNG and SVG.

Every function takes plain data and returns the two files that it wrote.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol.diagnostics import (
    Diagnostic,
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)

COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C6D31",
)
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
MARKERS = "osD^vP*X"
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), "-.")
"""One for every round through the palette."""

MOST_BANDS = 6
"""How many curves of a figure have bands: more cannot be told apart."""

Curve = Mapping[Any, float]
"""x (a number) -> y."""

Curves = Mapping[str, Sequence[Curve]]
"""Label -> one curve a seed."""

Scale = Literal["linear", "log"]


def style(number: int) -> dict[str, Any]:
    """Colour, marker and line of the `number`-th label; 32 of them differ."""
    turn, place = divmod(number, len(COLORS))
    return {
        "color": COLORS[place],
        "marker": MARKERS[(place + 3 * turn) % len(MARKERS)],
        "linestyle": LINES[turn % len(LINES)],
    }


def lines(
    panels: Mapping[str, Curves],
    x_label: str,
    y_label: str | Sequence[str],
    path: Path,
    *,
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    featured: Sequence[str] | None = None,
    x_scale: Scale = "linear",
) -> list[Path]:
    """One panel for each entry: means over seeds, with the range of seeds as a band.

    Args:
        panels: title -> the curves of a panel.
        x_label: of all panels.
        y_label: one for all panels, or one each.
        path: of the figure, without suffix.
        columns: panels in a row; all of them by default.
        labels: a label's place here (by default in the order of appearance) is its
            colour, marker and line, so that several figures can agree on them.
        featured: the labels with bands and markers (by default the first `MOST_BANDS`);
            the others are thin lines behind them.
        x_scale: of the x axis.
    """
    columns = columns or len(panels)
    labels = labels or _labels(panels)
    featured = labels[:MOST_BANDS] if featured is None else featured
    y_labels = [y_label] * len(panels) if isinstance(y_label, str) else y_label
    with _figure(len(panels), columns, path) as (axes, written):
        for axis, y, (title, curves) in zip(
            axes, y_labels, panels.items(), strict=True
        ):
            for label, seeds in curves.items():
                looks = style(labels.index(label))
                _curve(axis, label, seeds, looks, featured=label in featured)
            axis.set(title=title, xlabel=x_label, ylabel=y)
            axis.grid(alpha=0.25)
            if x_scale == "log":
                _logarithmic(axis)
        _legend(axes, labels)
    return written


def _curve(
    axis: Any,
    label: str,
    seeds: Sequence[Curve],
    looks: dict[str, Any],
    *,
    featured: bool,
) -> None:
    """The mean of one label's curves: with a band, or as a thin line."""
    x, low, mean, high = _band(seeds)
    if featured:
        axis.fill_between(x, low, high, color=looks["color"], alpha=0.15, linewidth=0)
        thickness = {"linewidth": 1.6, "markersize": 4}
        every = max(len(x) // 8, 1)
        axis.plot(x, mean, label=label, markevery=every, **thickness, **looks)
    else:
        thin = {"linewidth": 0.8, "alpha": 0.6, "zorder": 1, "marker": ""}
        axis.plot(x, mean, label=label, **looks | thin)


def scatter(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    x_labels: Sequence[str],
    y_labels: Sequence[str],
    path: Path,
    *,
    labels: Sequence[str],
) -> list[Path]:
    """One panel for each entry: label -> one point (x, y) for each seed.

    The points are drawn small, and their mean large.
    """
    with _figure(len(panels), len(panels), path) as (axes, written):
        for axis, x, y, (title, points) in zip(
            axes, x_labels, y_labels, panels.items(), strict=True
        ):
            for label, seeds in points.items():
                looks = style(labels.index(label))
                looks |= {"linestyle": "none", "markeredgewidth": 0}
                xs, ys = np.array(seeds, float).T
                axis.plot(xs, ys, markersize=3, alpha=0.35, **looks)
                mean = (xs.mean(), ys.mean())
                axis.plot(*mean, markersize=8, alpha=0.9, label=label, **looks)
            axis.set(title=title, xlabel=x, ylabel=y)
            axis.grid(alpha=0.25)
        _legend(axes, labels)
    return written


def histograms(
    panels: Mapping[str, Mapping[str, NDArray[np.float64]]],
    x_labels: Sequence[str],
    path: Path,
    *,
    labels: Sequence[str],
) -> list[Path]:
    """One panel for each entry, one row for each label, with the mean as a line.

    Every row is scaled to its own highest count.
    """
    height = 0.8 + 0.4 * len(labels)
    with _figure(len(panels), len(panels), path, height) as (axes, written):
        for axis, x_label, (title, values) in zip(
            axes, x_labels, panels.items(), strict=True
        ):
            every = np.concatenate(list(values.values()))
            bins = np.histogram_bin_edges(every, bins=25)
            for label, samples in values.items():
                # Row r is drawn from y = -r upwards, less than 1 high.
                row = labels.index(label)
                counts, _ = np.histogram(samples, bins)
                mean = float(np.mean(samples))
                axis.bar(
                    bins[:-1],
                    0.85 * counts / counts.max(),
                    np.diff(bins),
                    -row,
                    align="edge",
                    color=style(row)["color"],
                    alpha=0.75,
                )
                axis.plot([mean, mean], [-row, 0.9 - row], color="black", linewidth=1)
                axis.axhline(-row, color="0.6", linewidth=0.5)
            axis.set(title=title, xlabel=x_label, ylim=(0.9 - len(labels), 1))
            middles = [0.4 - row for row in range(len(labels))]
            axis.set_yticks(middles, labels if axis is axes[0] else [""] * len(labels))
            axis.tick_params(left=False)
            axis.spines["left"].set_visible(False)
    return written


def error_bars(
    panels: Mapping[str, Mapping[str, Sequence[tuple[str, float, float]]]],
    x_labels: Sequence[str],
    y_labels: Sequence[str],
    path: Path,
    *,
    columns: int,
) -> list[Path]:
    """One panel for each entry: label -> points (x, y, deviation), joined by a line.

    The lines are dashed from the second label on. Where all values of x are numbers,
    the axis is numeric; others stand at equal distances.
    """
    labels = _labels(panels)
    with _figure(len(panels), columns, path) as (axes, written):
        for axis, x_label, y_label, (title, curves) in zip(
            axes, x_labels, y_labels, panels.items(), strict=True
        ):
            every_x = (x for points in curves.values() for x, _, _ in points)
            names = list(dict.fromkeys(every_x))
            places, numeric = _places(names)
            for label, points in curves.items():
                number = labels.index(label)
                axis.errorbar(
                    [places[names.index(x)] for x, _, _ in points],
                    [y for _, y, _ in points],
                    [deviation for _, _, deviation in points],
                    label=label,
                    capsize=3,
                    color=COLORS[number],
                    marker=MARKERS[number],
                    markersize=5,
                    linestyle="--" if number else "-",
                )
            axis.set(title=title, xlabel=x_label, ylabel=y_label)
            if numeric and min(places) > 0 and max(places) > 20 * min(places):
                _logarithmic(axis)
            if len(names) <= 8:
                axis.set_xticks(places, names)
            axis.grid(alpha=0.25)
        _legend(axes, labels)
    return written


@dataclass(frozen=True)
class Panel:
    """One diagnostic of a method, to be drawn.

    Attributes:
        first: of the first seed.
        seeds: of all seeds.
        groups: [m] true groups of the clients, in the order of their ids.
    """

    first: Diagnostic
    seeds: Sequence[Diagnostic]
    groups: NDArray[np.int64]


def diagnostics(panels: Mapping[str, Panel], path: Path) -> list[Path]:
    """One panel for each entry.

    Matrices and trees are those of the first seed; lines are drawn for all seeds.
    """
    columns = min(len(panels), 3)
    with _figure(len(panels), columns, path, height=3.6) as (axes, written):
        for axis, (title, panel) in zip(axes, panels.items(), strict=True):
            if isinstance(panel.first, MatrixDiagnostic):
                _matrix(axis, panel.first, panel.groups)
            elif isinstance(panel.first, TreeDiagnostic):
                _tree(axis, panel.first)
            else:
                seeds = [it for it in panel.seeds if isinstance(it, LineDiagnostic)]
                _quantity(axis, seeds)
            axis.set(title=title)
    return written


def _matrix(axis: Any, diagnostic: MatrixDiagnostic, groups: NDArray[np.int64]) -> None:
    """Numbers between clients, ordered by group, with lines between groups."""
    order = np.argsort(groups, kind="stable")
    lowest = min(0.0, float(np.nanmin(diagnostic.values)))
    image = axis.imshow(
        diagnostic.values[np.ix_(order, order)],
        cmap="viridis",
        vmin=lowest,
        interpolation="nearest",
    )
    for edge in np.flatnonzero(np.diff(groups[order])) + 0.5:
        axis.axhline(edge, color="white", linewidth=1)
        axis.axvline(edge, color="white", linewidth=1)
    ordered = " (by group)" if np.ptp(groups) else ""
    axis.set(xlabel="learns from client $j$", ylabel=f"client $i${ordered}")
    _whole_numbers(axis.xaxis, axis.yaxis)
    axis.figure.colorbar(image, ax=axis, label=diagnostic.name, shrink=0.85)


def _quantity(axis: Any, seeds: Sequence[LineDiagnostic]) -> None:
    """One thin line a seed (dots where x are clients), the choice of each marked."""
    of_clients = seeds[0].x_label == "client"
    for diagnostic in seeds:
        axis.plot(
            diagnostic.x,
            diagnostic.y,
            "." if of_clients else "-",
            color=COLORS[0],
            linewidth=1.2,
            alpha=0.7,
        )
        is_chosen = np.asarray(diagnostic.x) == diagnostic.chosen
        if diagnostic.chosen is not None and is_chosen.any():
            y = np.asarray(diagnostic.y)[is_chosen][0]
            axis.plot(
                diagnostic.chosen, y, "o", color=COLORS[1], markersize=7, alpha=0.8
            )
    axis.set(xlabel=seeds[0].x_label, ylabel=seeds[0].y_label)
    if all(np.equal(np.mod(diagnostic.x, 1), 0).all() for diagnostic in seeds):
        _whole_numbers(axis.xaxis)
    axis.grid(alpha=0.25)


def _tree(axis: Any, diagnostic: TreeDiagnostic) -> None:
    """Clusters as lines over rounds, from the split that made them.

    The number at a line's end says how many clients ended in the cluster.
    """
    clusters = len(diagnostic.parent) + 1
    last = float(np.max(diagnostic.round, initial=0)) + 1
    sizes = np.bincount(np.asarray(diagnostic.members, int), minlength=clusters)
    for cluster in range(clusters):
        # Cluster 0 is there from the start; split s makes cluster s + 1.
        born = float(diagnostic.round[cluster - 1]) if cluster else 0.0
        color = style(cluster)["color"]
        axis.plot([born, last], [cluster, cluster], color=color, linewidth=1.6)
        if cluster:
            parent = int(diagnostic.parent[cluster - 1])
            axis.plot([born, born], [parent, cluster], color="0.6", linewidth=1)
        axis.annotate(f" {sizes[cluster]}", (last, cluster), va="center")
    axis.set(xlabel="round (right: clients)", ylabel="cluster", xlim=(0, 1.1 * last))
    axis.set_ylim(clusters - 0.5, -0.5)
    _whole_numbers(axis.xaxis, axis.yaxis)


def _whole_numbers(*axes: Any) -> None:
    """Ticks at whole numbers only."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True)


@contextmanager
def _figure(
    panels: int, columns: int, path: Path, height: float = 3.2
) -> Iterator[tuple[list[Any], list[Path]]]:
    """Axes to draw on, and a list for the files.

    When the block ends, the figure is saved as `path`.png and `path`.svg, whose paths
    are put into the list.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    settings: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        # With this and without a date, equal figures are equal files.
        "svg.hashsalt": "fedtailor",
    }
    rows = -(-panels // columns)
    with plt.rc_context(settings):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(4.2 * columns, height * rows),
            squeeze=False,
            layout="constrained",
        )
        for spare in axes.flat[panels:]:
            spare.set_visible(False)
        written: list[Path] = []
        yield list(axes.flat[:panels]), written
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".png", ".svg"):
            target = path.with_name(path.name + suffix)
            metadata = {"Date": None} if suffix == ".svg" else None
            figure.savefig(target, dpi=150, metadata=metadata)
            written.append(target)
        plt.close(figure)


def _legend(axes: Sequence[Any], labels: Sequence[str]) -> None:
    """One legend for all panels below them, in the order of `labels`."""
    handles = {
        name: handle
        for axis in axes
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names = [label for label in labels if label in handles]
    figure = axes[0].figure
    # A name takes about two inches. The figure grows by the height of the legend.
    columns = min(len(names), max(int(figure.get_figwidth() / 2), 2), 6)
    rows = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows)
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
    )


def _logarithmic(axis: Any) -> None:
    """A logarithmic x with few and plain ticks: 1, 2, 5, 10, 20, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _labels(panels: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """All labels in the order of appearance."""
    labels = (label for entries in panels.values() for label in entries)
    return list(dict.fromkeys(labels))


def _places(names: Sequence[str]) -> tuple[list[float], bool]:
    """Where values stand on an axis, and whether they are numbers."""
    try:
        return [float(name) for name in names], True
    except ValueError:
        return [float(place) for place in range(len(names))], False


def _band(
    seeds: Sequence[Curve],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """x, lowest, mean and highest y over seeds.

    Curves with other x are interpolated where the first one has its points.
    """
    x = np.array(list(seeds[0]), float)
    y = np.stack([np.interp(x, list(seed), list(seed.values())) for seed in seeds])
    return x, y.min(axis=0), y.mean(axis=0), y.max(axis=0)
