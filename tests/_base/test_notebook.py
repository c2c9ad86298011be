"""How results show themselves in notebooks, and the figures of `fedtailor.plot`."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fedtailor as ft
from fedtailor._base import notebook
from fedtailor.engine.training import ShowProgress
from fedtailor.lab.experiments.compare import Comparison
from fedtailor.lab.experiments.experiment import load_experiment


@pytest.fixture(scope="module")
def runs():
    """Two short runs of three clients, one of which is named like a tag of HTML."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    client = np.repeat(["a", "b", "<b>"], 30)
    federation = ft.federation.from_arrays(x, (x[:, 0] > 0).astype(int), client)
    return {
        name: ft.run(method, federation, ft.models.logistic(), rounds=2)
        for name, method in {
            "alone": ft.Local(),
            "ucfl": ft.UCFL(streams=2, warm=0),
        }.items()
    }


def test_a_run_shows_its_numbers_and_its_clients(runs):
    shown = runs["alone"]._repr_html_()
    assert "local" in shown
    assert "<td>a</td>" in shown
    assert "clients after round 2" in shown


def test_a_run_prints_as_a_line(runs):
    assert re.fullmatch(
        r"local on own data: 3 clients, 2 rounds, seed 0; accuracy [01]\.\d{3}"
        r" \(worst client [01]\.\d{3}\); see summary\(\)",
        str(runs["alone"]),
    )


def test_a_partition_is_drawn_as_clients_and_classes(runs):
    federation = runs["alone"].federation
    (axes, _) = ft.plot.partition(federation).axes
    drawn = axes.images[0].get_array()
    labels = federation.y.reshape(3, 30)
    expected = [np.bincount(of_client, minlength=2) for of_client in labels]
    order = [["a", "b", "<b>"].index(name) for name in federation.names]
    assert drawn.tolist() == np.array(expected)[order].tolist()
    numbers = federation.y.astype(np.float32)
    regression = ft.federation.from_arrays(
        federation.x, numbers, np.repeat(["a", "b", "c"], 30)
    )
    with pytest.raises(ValueError, match="no classes to draw"):
        ft.plot.partition(regression)


def test_names_of_clients_are_no_tags(runs):
    for value in (runs["alone"], runs["alone"].federation):
        shown = value._repr_html_()
        assert "<b>" not in shown
        assert "&lt;b&gt;" in shown


def test_a_federation_shows_the_sizes_of_its_clients(runs):
    shown = runs["alone"].federation._repr_html_()
    assert "3 clients" in shown
    assert re.search(r"<td>a</td><td>24</td><td>0</td><td>6</td>", shown)


def test_advice_shows_its_sentences_methods_and_clients(runs):
    advice = ft.diagnose(runs["alone"].federation, ft.models.logistic())
    shown = advice._repr_html_()
    for entry in advice.race.entries:
        assert f"<td>{entry.method}</td>" in shown
    assert "gradient_ratio" in shown


def test_long_tables_end_with_the_number_of_further_rows():
    shown = notebook.html_table(("n",), [(number,) for number in range(25)])
    assert shown.count("<tr>") == 1 + notebook.MAX_ROWS
    assert "and 5 more rows" in shown


def lines_of(figure):
    return figure.axes[0].lines


def test_by_round_draws_the_means(runs):
    figure = ft.plot.by_round(runs)
    drawn = [line.get_ydata() for line in lines_of(figure)]
    assert [line.get_label() for line in lines_of(figure)] == ["alone", "ucfl"]
    for run, means in zip(runs.values(), drawn, strict=True):
        assert means[-1] == run.summary().mean


def test_by_client_draws_the_clients_in_order(runs):
    (line,) = lines_of(ft.plot.by_client(runs["alone"]))
    expected = np.sort(runs["alone"].metrics.values("accuracy"))
    np.testing.assert_array_equal(line.get_ydata(), expected)


def test_beside_draws_a_point_for_each_client(runs):
    line = lines_of(ft.plot.beside(runs["ucfl"], runs["alone"]))[1]
    np.testing.assert_array_equal(
        line.get_xdata(), runs["alone"].metrics.values("accuracy")
    )
    np.testing.assert_array_equal(
        line.get_ydata(), runs["ucfl"].metrics.values("accuracy")
    )


def test_weights_between_clients_are_drawn(runs):
    image = ft.plot.who_learns_from_whom(runs["ucfl"]).axes[0].images[0]
    assert image.get_array().shape == (3, 3)


def test_what_cannot_be_drawn_is_said(runs):
    with pytest.raises(ValueError, match="local has no weights between clients"):
        ft.plot.who_learns_from_whom(runs["alone"])
    with pytest.raises(ValueError, match="has not measured accuracy on val rows"):
        ft.plot.by_client(runs, split="val")
    with pytest.raises(ValueError, match="there is no run to draw"):
        ft.plot.by_round({})
    names = "a", "b", "c"
    data = SimpleNamespace(names=names)
    other = SimpleNamespace(executor=SimpleNamespace(data=data))
    with pytest.raises(ValueError, match="the clients of both runs differ"):
        ft.plot.beside(runs["alone"], other)


def test_figures_can_be_saved(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ft.plot.by_round(runs).savefig("by-round.png")
    assert Path("by-round.png").stat().st_size > 1000


def test_a_comparison_shows_how_far_it_is_and_the_means(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(
        'title = "small"\nseeds = [0]\n'
        '[scenarios.digits]\nuse = "digits-rotated"\nrounds = 1\n'
        '[algorithms.local]\nuse = "local"\n'
    )
    comparison = Comparison(load_experiment(file), tmp_path / "results", ft.Settings())
    assert "0 of 1 runs are done" in comparison._repr_html_()
    comparison.run()
    shown = comparison._repr_html_()
    assert "small: 1 of 1 runs are done" in shown
    assert "<td>digits</td><td>local (accuracy)</td><td>1</td><td>0." in shown


def train_with(callback, runs):
    federation = runs["alone"].federation
    ft.run(ft.Local(), federation, ft.models.logistic(), rounds=2, callbacks=[callback])


def test_progress_in_a_log_is_plain_lines(runs, capsys):
    train_with(ShowProgress(seconds=0), runs)
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert [line.partition(", ")[0] for line in lines] == [
        "local: round 1 of 2",
        "local: round 2 of 2",
    ]
    assert all(re.fullmatch(r"[ -~]+\n", line) for line in lines)


def test_progress_in_a_log_is_rare(runs, capsys):
    train_with(ShowProgress(), runs)
    assert capsys.readouterr().err.startswith("local: round 2 of 2, accuracy ")


def test_progress_in_a_notebook_is_one_line(runs, capsys, monkeypatch):
    lines = []

    class Shown:
        def update(self, content, raw):
            lines.append(content["text/plain"])

    def display(content, raw, display_id):
        lines.append(content["text/plain"])
        return Shown()

    shell = SimpleNamespace(kernel=object())
    notebook = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    display_module = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)
    train_with(ShowProgress(), runs)
    assert [line.partition(", ")[0] for line in lines] == [
        "local: round 0 of 2",
        "local: round 1 of 2",
        "local: round 2 of 2",
    ]
    assert capsys.readouterr() == ("", "")
