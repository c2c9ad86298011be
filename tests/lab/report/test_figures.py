import shutil

import numpy as np
import pytest

from fedtailor.lab.report import drawing, figures
from fedtailor.lab.results.stored import StoredRun
from fedtailor.protocol.diagnostics import (
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)
from lab.report.results import CLIENTS, UNSEEN, as_loss, put_diagnostics


def test_figures_are_written_twice_and_reproducibly(tmp_path):
    curves = {
        "one panel": {
            "FedAvg": [{0: 0.1, 5: 0.5}, {0: 0.2, 5: 0.6}],
            "UCFL": [{0: 0.2, 5: 0.9}],
        }
    }
    paths = figures.lines(curves, "round", "accuracy", tmp_path / "lines")
    assert [path.suffix for path in paths] == [".png", ".svg"]
    svg = paths[1].read_bytes()
    figures.lines(curves, "round", "accuracy", tmp_path / "lines")
    assert paths[1].read_bytes() == svg
    one_of_each = {
        "W": MatrixDiagnostic("affinity", "W", np.eye(4) - 0.1),
        "s": LineDiagnostic(
            "s",
            "s",
            np.array([2, 3]),
            np.array([0.1, 0.5]),
            "streams",
            "silhouette",
            chosen=3.0,
        ),
        "T": TreeDiagnostic(
            "splits", "T", np.array([0, 1]), np.array([2, 5]), np.array([0, 1, 2, 2])
        ),
    }
    panels = {
        title: figures.Panel(it, [it, it], np.array([0, 1, 0, 1]))
        for title, it in one_of_each.items()
    }
    figures.diagnostics(panels, tmp_path / "diagnostics")
    assert all(path.stat().st_size > 3000 for path in tmp_path.iterdir())


def test_the_band_spans_the_seeds():
    x, low, mean, high = figures._mean_and_range(
        [{0: 0.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0}]
    )
    np.testing.assert_allclose(x, [0, 2])
    np.testing.assert_allclose([low, mean, high], [[0, 1], [0.5, 1], [1, 1]])


def test_figures_agree_on_colours(tmp_path):
    """A method keeps its colour in a figure that leaves another one out."""
    curve = [{1: 0.1, 5: 0.5}]
    labels = ["Local", "FedAvg"]
    both = figures.lines(
        {"a": {"Local": curve, "FedAvg": curve}},
        "x",
        "y",
        tmp_path / "both",
        labels=labels,
    )
    one = figures.lines(
        {"a": {"FedAvg": curve}},
        "x",
        "y",
        tmp_path / "one",
        labels=labels,
        x_scale="log",
    )
    colours = [
        {
            colour
            for colour in figures.COLORS[:6]
            if colour.lower() in path[1].read_text()
        }
        for path in (both, one)
    ]
    assert colours == [set(figures.COLORS[:2]), {figures.COLORS[1]}]


def test_32_labels_look_different():
    looks = [
        (style["color"], style["marker"], style["linestyle"])
        for style in map(figures.style, range(32))
    ]
    assert len(set(looks)) == 32
    assert (
        len({(color, line) for color, _, line in looks}) == 32
    )  # also where markers are too small to see


def test_six_curves_have_bands_and_the_others_are_thin(tmp_path):
    curves = {
        f"m{number}": [{0: 0.1, 5: 0.1 * number}, {0: 0.2, 5: 0.15 * number}]
        for number in range(9)
    }
    svg = figures.lines({"panel": curves}, "round", "accuracy", tmp_path / "nine")[
        1
    ].read_text()
    assert svg.count('id="FillBetweenPolyCollection') == 6 == figures.MAX_BANDS
    assert all(f"<!-- {label} -->" in svg for label in curves)  # all are named
    highlighted = [f"m{number}" for number in (8, 7)]
    svg = figures.lines(
        {"panel": curves}, "round", "y", tmp_path / "two", highlighted=highlighted
    )[1].read_text()
    assert svg.count('id="FillBetweenPolyCollection') == 2


def test_fedavg_and_the_best_rows_are_featured(results, monkeypatch):
    runs = {
        label: [StoredRun(results / f"runs/digits-permuted/{name}-s0")]
        for label, name in (("Average", "fedavg"), ("Local", "local"), ("UCFL", "ucfl"))
    }
    means = {label: found[0].spread()["mean"] for label, found in runs.items()}
    monkeypatch.setattr(figures, "MAX_BANDS", 2)
    best = max(("Local", "UCFL"), key=means.get)
    assert (
        means["Average"] < means[best]
    )  # FedAvg is there to compare with, however bad
    assert set(drawing.highlighted({"s": runs})) == {"Average", best}
    # Rows with bands never share a colour, however many rows stand before them.
    order = drawing._style_order({"s": runs})
    assert order[:2] == drawing.highlighted({"s": runs}) and sorted(order) == sorted(
        runs
    )
    assert len({figures.style(number)["color"] for number in range(6)}) == 6


def test_an_axis_says_what_is_better(results, tmp_path):
    run = StoredRun(results / "runs/digits-permuted/local-s0")
    svg = drawing.by_round({"s": {"Local": [run]}}, tmp_path / "round")[1].read_text()
    assert "<!-- test accuracy, % (↑ better) -->" in svg


def test_values_of_a_sweep_stand_where_they_belong():
    assert figures._axis_positions(["1", "2", "4"]) == ([1, 2, 4], True)
    assert figures._axis_positions(["1", "2", "auto"]) == ([0, 1, 2], False)


def test_bytes_are_those_of_the_rounds_done(results):
    """A round of FedAvg: one model down to all, one up from each; the delivery is not
    part of a curve.
    """
    run = StoredRun(results / "runs/digits-permuted/fedavg-s0")
    size = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert list(run.by_bytes()) == [
        t * size * (1 + CLIENTS - UNSEEN) for t in (1, 2, 3)
    ]
    assert list(run.by_bytes().values()) == list(run.curve().values())
    ucfl = StoredRun(results / "runs/digits-permuted/ucfl-s0")
    # with the sketches of the probes
    assert next(iter(ucfl.by_bytes())) > next(iter(run.by_bytes()))
    assert (
        not run.is_silent
        and StoredRun(results / "runs/digits-permuted/local-s0").is_silent
    )


def test_groups_are_in_the_order_of_the_weights(results):
    """Under permuted labels, clients learn from their own group."""
    run = StoredRun(results / "runs/digits-permuted/ucfl-s0")
    weights, groups = run.diagnostics["collaboration"].values, run.groups()
    own = groups[:, None] == groups[None]
    assert weights.shape == own.shape == (CLIENTS - UNSEEN,) * 2
    assert weights[own].min() > weights[~own].max()


def test_curves_of_losses_say_so(results, tmp_path):
    run = StoredRun(
        as_loss(results / "runs/digits-permuted/local-s0", tmp_path / "run")
    )
    svg = drawing.by_round({"s": {"Local": [run]}}, tmp_path / "loss")[1].read_text()
    assert "<!-- test loss (↓ better) -->" in svg and "accuracy" not in svg


def test_diagnostics_that_were_changed_are_refused(results, tmp_path):
    shutil.copytree(results / "runs/digits-permuted/ucfl-s0", tmp_path / "run")
    assert "collaboration" in StoredRun(tmp_path / "run").diagnostics
    path = tmp_path / "run" / "diagnostics.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 16
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"diagnostics.safetensors is damaged"):
        _ = StoredRun(tmp_path / "run").diagnostics


def test_a_method_is_drawn_by_what_it_tells_whatever_it_is(results, tmp_path):
    """The same figure for UCFL, UCFL in a schedule, and a method that the report has
    never heard of.
    """
    shutil.copytree(results / "runs/digits-permuted/fedavg-s0", tmp_path / "run")
    runs = {"s": {"Mine": [StoredRun(tmp_path / "run")]}}
    assert not drawing.collaboration(
        runs, tmp_path / "none"
    ) and not drawing.diagnostics(runs, tmp_path / "none")
    weights = np.eye(CLIENTS - UNSEEN)
    tree = TreeDiagnostic(
        "splits",
        "Splits of mine",
        np.array([0]),
        np.array([2]),
        np.arange(CLIENTS - UNSEEN) % 2,
    )
    put_diagnostics(
        tmp_path / "run", [MatrixDiagnostic("collaboration", "Mine", weights), tree]
    )
    runs = {"s": {"Mine": [StoredRun(tmp_path / "run")]}}
    assert drawing.collaboration(runs, tmp_path / "weights") and not drawing.silhouette(
        runs, tmp_path / "none"
    )
    svg = drawing.diagnostics(runs, tmp_path / "tree")[1].read_text()
    assert (
        "<!-- Splits of mine -->" in svg
        and "<!-- cluster -->" in svg
        and "learns from" not in svg
    )
