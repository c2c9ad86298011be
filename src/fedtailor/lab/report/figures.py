"""Draws figures as PNG and SVG.

Each public function takes plain data and returns the paths of the two written files.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.printable import one_line
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
"""Okabe and Ito's palette, which colour-blind readers can distinguish."""
MARKERS = "osD^vP*X"
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), "-.")
"""Line styles, one for each pass through the palette."""

MAX_BANDS = 6
"""Maximum number of curves with bands in a figure; more would be illegible."""

Curve = Mapping[Any, float]
"""x (a number) -> y."""

Curves = Mapping[str, Sequence[Curve]]
"""Label -> one curve a seed."""

Scale = Literal["linear", "log"]

SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # A fixed salt and no date make equal figures equal files.
    "svg.hashsalt": "fedtailor",
    # Names may hold dollar signs, and what stands between them may be no formula.
    "text.parse_math": False,
}
"""Matplotlib's settings for all figures."""


def style(number: int) -> dict[str, Any]:
    """Colour, marker and line style of the `number`-th label; 32 are distinct."""
    cycle, position = divmod(number, len(COLORS))
    return {
        "color": COLORS[position],
        "marker": MARKERS[(position + 3 * cycle) % len(MARKERS)],
        "linestyle": LINES[cycle % len(LINES)],
    }


def lines(
    panels: Mapping[str, Curves],
    x_label: str,
    y_label: str | Sequence[str],
    path: Path,
    *,
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    highlighted: Sequence[str] | None = None,
    x_scale: Scale = "linear",
) -> list[Path]:
    """Draws line plots: means over seeds, with the range of seeds as a band.

    Args:
        panels: title -> curves of the panel.
        x_label: label of all x axes.
        y_label: label of all y axes, or one label for each panel.
        path: path of the figure, without suffix.
        columns: panels in a row. Defaults to all panels.
        labels: all labels; the position of a label determines its style, so that
            several figures can share styles. Defaults to the order of appearance.
        highlighted: labels with bands and markers; the others are thin lines behind
            them. Defaults to the first `MAX_BANDS` labels.
        x_scale: scale of the x axis.
    """
    columns = columns or len(panels)
    labels = labels or all_labels(panels)
    highlighted = labels[:MAX_BANDS] if highlighted is None else highlighted
    y_labels = [y_label] * len(panels) if isinstance(y_label, str) else y_label
    with _figure(len(panels), columns, path) as (axes, paths):
        for axis, y, (title, curves) in zip(
            axes, y_labels, panels.items(), strict=True
        ):
            for label, seeds in curves.items():
                label_style = style(labels.index(label))
                _plot_curve(
                    axis, label, seeds, label_style, highlighted=label in highlighted
                )
            axis.set(title=title, xlabel=x_label, ylabel=y)
            axis.grid(alpha=0.25)
            if x_scale == "log":
                _use_log_scale(axis)
        _legend(axes, labels)
    return paths


def _plot_curve(
    axis: Any,
    label: str,
    seeds: Sequence[Curve],
    label_style: dict[str, Any],
    *,
    highlighted: bool,
) -> None:
    """Plots the mean of one label's curves, with a band or as a thin line."""
    x, low, mean, high = _mean_and_range(seeds)
    if highlighted:
        axis.fill_between(
            x, low, high, color=label_style["color"], alpha=0.15, linewidth=0
        )
        line_format = {"linewidth": 1.6, "markersize": 4}
        marker_step = max(len(x) // 8, 1)
        axis.plot(
            x, mean, label=label, markevery=marker_step, **line_format, **label_style
        )
    else:
        thin = {"linewidth": 0.8, "alpha": 0.6, "zorder": 1, "marker": ""}
        axis.plot(x, mean, label=label, **label_style | thin)


def scatter(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    x_labels: Sequence[str],
    y_labels: Sequence[str],
    path: Path,
    *,
    labels: Sequence[str],
) -> list[Path]:
    """Draws scatter plots of label -> one point (x, y) for each seed.

    The mean of a label's points has a larger marker.
    """
    with _figure(len(panels), len(panels), path) as (axes, paths):
        for axis, x, y, (title, points) in zip(
            axes, x_labels, y_labels, panels.items(), strict=True
        ):
            for label, seeds in points.items():
                label_style = style(labels.index(label))
                label_style |= {"linestyle": "none", "markeredgewidth": 0}
                xs, ys = np.array(seeds, float).T
                axis.plot(xs, ys, markersize=3, alpha=0.35, **label_style)
                mean = (xs.mean(), ys.mean())
                axis.plot(*mean, markersize=8, alpha=0.9, label=label, **label_style)
            axis.set(title=title, xlabel=x, ylabel=y)
            axis.grid(alpha=0.25)
        _legend(axes, labels)
    return paths


def histograms(
    panels: Mapping[str, Mapping[str, NDArray[np.float64]]],
    x_labels: Sequence[str],
    path: Path,
    *,
    labels: Sequence[str],
) -> list[Path]:
    """Draws histograms, one row for each label, with the mean as a line.

    Each row is scaled to its highest count.
    """
    height = 0.8 + 0.4 * len(labels)
    with _figure(len(panels), len(panels), path, height) as (axes, paths):
        for axis, x_label, (title, values) in zip(
            axes, x_labels, panels.items(), strict=True
        ):
            bins = np.histogram_bin_edges(
                np.concatenate(list(values.values())), bins=25
            )
            for label, samples in values.items():
                # Row r occupies the y from -r to at most 1 - r.
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
    return paths


def error_bars(
    panels: Mapping[str, Mapping[str, Sequence[tuple[str, float, float]]]],
    x_labels: Sequence[str],
    y_labels: Sequence[str],
    path: Path,
    *,
    columns: int,
) -> list[Path]:
    """Draws error bars of label -> points (x, y, deviation), joined by a line.

    Lines are dashed from the second label on. If all values of x are numbers, the axis
    is numeric; otherwise the values are equally spaced.
    """
    labels = all_labels(panels)
    with _figure(len(panels), columns, path) as (axes, paths):
        for axis, x_label, y_label, (title, curves) in zip(
            axes, x_labels, y_labels, panels.items(), strict=True
        ):
            # Each value once, in the order in which curves have them.
            all_x = [x for points in curves.values() for x, *_ in points]
            names = list(dict.fromkeys(all_x))
            positions, is_numeric = _axis_positions(names)
            for label, points in curves.items():
                number = labels.index(label)
                axis.errorbar(
                    [positions[names.index(x)] for x, _, _ in points],
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
            if (
                is_numeric
                and min(positions) > 0
                and max(positions) > 20 * min(positions)
            ):
                _use_log_scale(axis)
            if len(names) <= 8:
                axis.set_xticks(positions, names)
            axis.grid(alpha=0.25)
        _legend(axes, labels)
    return paths


@dataclass(frozen=True)
class Panel:
    """One diagnostic of a method.

    Attributes:
        first: the diagnostic of the first seed.
        seeds: the diagnostics of all seeds.
        groups: [m] true groups of the clients, in the order of their ids.
    """

    first: Diagnostic
    seeds: Sequence[Diagnostic]
    groups: NDArray[np.int64]


def diagnostics(panels: Mapping[str, Panel], path: Path) -> list[Path]:
    """Draws one diagnostic in each panel.

    Matrices and trees are drawn for the first seed, lines for all seeds.
    """
    columns = min(len(panels), 3)
    with _figure(len(panels), columns, path, height=3.6) as (axes, paths):
        for axis, (title, panel) in zip(axes, panels.items(), strict=True):
            if isinstance(panel.first, MatrixDiagnostic):
                _plot_matrix(axis, panel.first, panel.groups)
            elif isinstance(panel.first, TreeDiagnostic):
                _plot_tree(axis, panel.first)
            else:
                seeds = [
                    diagnostic
                    for diagnostic in panel.seeds
                    if isinstance(diagnostic, LineDiagnostic)
                ]
                _plot_lines(axis, seeds)
            axis.set(title=title)
    return paths


def _plot_matrix(
    axis: Any, diagnostic: MatrixDiagnostic, groups: NDArray[np.int64]
) -> None:
    """Plots a matrix between clients, ordered by group, with lines between groups."""
    order = np.argsort(groups, kind="stable")
    lowest = min(0.0, float(np.nanmin(diagnostic.values)))
    image = axis.imshow(
        diagnostic.values[np.ix_(order, order)],
        cmap="viridis",
        vmin=lowest,
        interpolation="nearest",
    )
    for group_boundary in np.flatnonzero(np.diff(groups[order])) + 0.5:
        axis.axhline(group_boundary, color="white", linewidth=1)
        axis.axvline(group_boundary, color="white", linewidth=1)
    order_note = " (by group)" if np.ptp(groups) else ""
    axis.set(xlabel="learns from client j", ylabel=f"client i{order_note}")
    _use_integer_ticks(axis.xaxis, axis.yaxis)
    axis.figure.colorbar(image, ax=axis, label=diagnostic.name, shrink=0.85)


def _plot_lines(axis: Any, seeds: Sequence[LineDiagnostic]) -> None:
    """Plots a line for each seed (dots if x are clients) and marks its chosen x."""
    is_per_client = seeds[0].x_label == "client"
    for diagnostic in seeds:
        axis.plot(
            diagnostic.x,
            diagnostic.y,
            "." if is_per_client else "-",
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
        _use_integer_ticks(axis.xaxis)
    axis.grid(alpha=0.25)


def _plot_tree(axis: Any, diagnostic: TreeDiagnostic) -> None:
    """Plots clusters as lines over rounds, starting at the split that created them.

    The number at the end of a line is the final number of clients in the cluster.
    """
    clusters = len(diagnostic.parent) + 1
    last = float(np.max(diagnostic.round, initial=0)) + 1
    sizes = np.bincount(np.asarray(diagnostic.members, int), minlength=clusters)
    for cluster in range(clusters):
        # Cluster 0 exists from the start; split s creates cluster s + 1.
        creation_round = float(diagnostic.round[cluster - 1]) if cluster else 0.0
        color = style(cluster)["color"]
        axis.plot(
            [creation_round, last], [cluster, cluster], color=color, linewidth=1.6
        )
        if cluster:
            parent = int(diagnostic.parent[cluster - 1])
            axis.plot(
                [creation_round, creation_round],
                [parent, cluster],
                color="0.6",
                linewidth=1,
            )
        axis.annotate(f" {sizes[cluster]}", (last, cluster), va="center")
    axis.set(xlabel="round (right: clients)", ylabel="cluster", xlim=(0, 1.1 * last))
    axis.set_ylim(clusters - 0.5, -0.5)
    _use_integer_ticks(axis.xaxis, axis.yaxis)


def _use_integer_ticks(*axes: Any) -> None:
    """Places ticks at integers only."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True)


@contextmanager
def _figure(
    panels: int, columns: int, path: Path, height: float = 3.2
) -> Iterator[tuple[list[Any], list[Path]]]:
    """Yields axes to draw on, and the list of written paths, which is still empty.

    At the end of the block, the figure is saved as `path`.png and `path`.svg, and their
    paths are added to the list.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.text import Text

    rows = -(-panels // columns)
    with plt.rc_context(SETTINGS):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(4.2 * columns, height * rows),
            squeeze=False,
            layout="constrained",
        )
        for unused_axis in axes.flat[panels:]:
            unused_axis.set_visible(False)
        paths: list[Path] = []
        yield list(axes.flat[:panels]), paths
        for text in figure.findobj(Text):
            text.set_text("\n".join(map(one_line, text.get_text().split("\n"))))
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".png", ".svg"):
            target = path.with_name(path.name + suffix)
            metadata = {"Date": None} if suffix == ".svg" else None
            figure.savefig(target, dpi=150, metadata=metadata)
            paths.append(target)
        plt.close(figure)


def _legend(axes: Sequence[Any], labels: Sequence[str]) -> None:
    """Adds one legend below all panels, in the order of `labels`."""
    handles = {}
    for axis in axes:
        lines, texts = axis.get_legend_handles_labels()
        handles |= dict(zip(texts, lines, strict=True))
    names = [label for label in labels if label in handles]
    figure = axes[0].figure
    # A name needs about two inches. The figure grows by the height of the legend.
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


def _use_log_scale(axis: Any) -> None:
    """Makes the x axis logarithmic with ticks at 1, 2, 5, 10, 20, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def all_labels(panels: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """All labels in the order of appearance."""
    labels = (label for entries in panels.values() for label in entries)
    return list(dict.fromkeys(labels))


def _axis_positions(names: Sequence[str]) -> tuple[list[float], bool]:
    """Positions of values on an axis, and whether the values are numbers."""
    try:
        return [float(name) for name in names], True
    except ValueError:
        return [float(position) for position in range(len(names))], False


def _mean_and_range(
    seeds: Sequence[Curve],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns x, and the minimum, mean and maximum of y over seeds.

    The curves are interpolated at the points of the first one.
    """
    x = np.array(list(seeds[0]), float)
    y = np.stack([np.interp(x, list(seed), list(seed.values())) for seed in seeds])
    return x, y.min(axis=0), y.mean(axis=0), y.max(axis=0)
