"""The report as a web page: what it says, that nothing in it reaches out, and how
mistakes end.
"""

import base64
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedtailor._base.digests import with_digest
from fedtailor.cli import main
from fedtailor.engine.storage.run_files import CLIENTS, METRICS, ROWS, SUMMARY
from fedtailor.lab.report.page import (
    Chart,
    Page,
    Section,
    Series,
    contents,
    page_of,
    render,
    write_page,
)
from fedtailor.lab.report.page.contents import (
    calibration,
    fold_long_tables,
    gains,
)
from fedtailor.lab.report.page.curves import curves
from fedtailor.lab.report.page.pictures import Gain, axis_range, forest, matrix
from fedtailor.lab.report.page.reliability import reliability, reliability_table
from fedtailor.lab.report.page.render import MAX_BYTES
from fedtailor.lab.results.decision import Decision
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.tables import ReportTable
from lab.report.pages import HOSTILE, SERIES, page
from lab.report.results import NAME, write_index, write_manifest

VOID = {"meta", "link", "br", "img", "input"}


class Elements(HTMLParser):
    """Attributes that name a resource, the texts of scripts, and whether every element
    is closed.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.links, self.scripts, self.open, self.texts = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.links += [
            value
            for name, value in attrs
            if name in ("src", "href", "action", "srcset", "data")
        ]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)


def drawn(found):
    """The charts of a page, as SVG."""
    start = "data:image/svg+xml;base64,"
    images = [link for link in found.links if link.startswith(start)]
    return [base64.b64decode(link[len(start) :]).decode() for link in images]


def test_nothing_reaches_out_and_every_element_is_closed():
    text = render(page())
    found = Elements(text)
    assert not found.open and len(found.scripts) == 1
    assert found.links and all(link.startswith(("#", "data:")) for link in found.links)
    assert "default-src 'none'" in text and "url(" not in text
    assert "unsafe-" not in text and text.count("'sha256-") == 2
    assert " style=" not in text and " onclick=" not in text
    targets = {link[1:] for link in found.links if link.startswith("#")}
    assert targets <= set(re.findall(r' id="([^"]+)"', text))


def test_names_are_text_wherever_they_stand():
    text = render(page())
    assert "<b>x</b>" not in text
    found = Elements(text)
    assert (
        sum(HOSTILE in piece for piece in found.texts) >= 6
    )  # subtitle, sentence, cell, settings, two drawings
    image = drawn(found)[0]
    assert image.count("method ") == SERIES - 1
    assert "<b>" not in image and "&lt;/script&gt;&lt;b&gt;x&lt;/b&gt; &amp;" in image


def test_commands_between_backticks_are_code():
    section = Section(
        "Next", ["Run `fedtailor report a&<b>`, or `wait.", f"`{HOSTILE}`"]
    )
    text = render(Page("A page", "", {"part": [section]}))
    assert "Run <code>fedtailor report a&amp;&lt;b&gt;</code>, or `wait." in text
    assert "<b>" not in text and text.count("<code>") == 2


def test_a_thousand_clients_stay_under_the_limit():
    found = render(page(clients=1000))
    assert 300_000 < len(found.encode()) < MAX_BYTES
    assert (
        "data:image/png;base64," in found
    )  # the matrix is an image, not a million squares
    rows = [[str(number), HOSTILE * 3] for number in range(20_000)]
    with pytest.raises(ValueError, match=r"MB, more than 3; compare fewer"):
        render(
            Page(
                "a",
                "b",
                {"s": [Section("t", tables=[ReportTable("t", ["a", "b"], rows)])]},
            )
        )


def test_parts_have_headings_where_there_are_several():
    assert "<h2>scenario 1</h2>" in render(
        page(parts=2)
    ) and "<h2>scenario 0</h2>" not in render(page())


def test_forest_draws_gains_best_first_on_the_given_axis():
    found = [
        Gain("worse", -1.0, -2.0, -0.5, "hurts"),
        Gain("better", 2.0, float("nan"), float("nan"), "cannot tell"),
    ]
    low, high = axis_range(found)
    assert low < -2.0 and high > 2.0 and low == -2.2 and high == 2.2
    markup = forest("t", "points", found, (low, high)).markup
    assert markup.index("better") < markup.index("worse")
    assert (
        markup.count("<circle") == 2
        and len(re.findall(r'<line x1="[^"]+" x2', markup)) == 1
    )
    assert 'class="zero"' in markup and axis_range([]) == (-1.0, 1.0)
    zero = float(re.search(r'class="zero" x1="([^"]+)"', markup)[1])
    dots = [float(x) for x in re.findall(r'cx="([^"]+)"', markup)]
    assert dots[0] - zero == pytest.approx(2 * (zero - dots[1]), abs=0.2)


def test_of_many_clients_the_forest_names_the_best_and_the_worst():
    found = [Gain(f"client {k}", k, k - 1.0, k + 1.0, "helps") for k in range(160)]
    picture = forest("t", "points", found, axis_range(found))
    names = re.findall(r'class="name"[^>]*>([^<]+)<', picture.markup)
    best = [f"client {k}" for k in range(159, 144, -1)]
    worst = [f"client {k}" for k in range(14, -1, -1)]
    assert names == best + worst
    assert picture.markup.count("<circle") == 160
    assert "160 clients" in picture.note and "drawn" not in picture.note
    # Every line has a place of its own, from the best at the top to the worst.
    heights = [float(y) for y in re.findall(r'cy="([^"]+)"', picture.markup)]
    assert heights == sorted(heights) and len({*heights}) == 160
    # Of thousands, the lines between them are fewer, and so are the names of few lines.
    many = [Gain(f"client {k}", k, k - 1.0, k + 1.0, "helps") for k in range(5000)]
    picture = forest("t", "points", many, axis_range(many), 100)
    assert picture.markup.count("<circle") == 100
    assert "Of the 4970 between them, 70 are drawn." in picture.note
    picture = forest("t", "points", many, axis_range(many), 6)
    assert picture.markup.count("<circle") == picture.markup.count("name") == 6


def test_matrix_shows_every_number_of_few_clients():
    values = np.array([[1.0, 0.25], [np.nan, 1e-15]])
    picture = matrix("t", values, ["a", "b"])
    assert matrix("t", np.eye(700), [""] * 700).note.endswith(
        "700 clients in the order of their ids."
    )
    assert (
        "a from b: 0.25" in picture.markup
        and 'fill="#ccc"' in picture.markup
        and "Light is 0," in picture.note
    )


def test_gains_that_are_missing_are_said_in_a_line():
    missing = Decision(
        "s", "accuracy", no_gains_reason="Gains need the method local; add it."
    )
    section = gains("s", missing, 10)
    assert (
        section.paragraphs == ["Gains need the method local; add it."]
        and not section.tables
    )
    lines = pl.DataFrame(
        {
            "client": ["a", "b", "a", "b"],
            "method": ["x", "x", "y", "y"],
            "test_rows": [4] * 4,
            "base_value": [0.5] * 4,
            "value": [0.75] * 4,
            "gain": [0.25, 0.1, -0.5, 0.0],
            "low": [0.1, -0.1, -0.7, -0.2],
            "high": [0.3, 0.3, -0.1, 0.2],
            "verdict": ["helps", "cannot tell", "hurts", "cannot tell"],
            "p_holm": [0.2, 1.0, 0.01, 1.0],
            "expected": [0.2, 0.15, -0.4, -0.1],
        }
    )
    section = gains("s", replace(missing, gain_metric="accuracy", gains=lines), 3)
    assert [picture.title.split(":")[0] for picture in section.pictures] == ["x", "y"]
    assert "a: +25 [+10, +30], helps" in render(
        Page(
            "a",
            "b",
            {
                "s": [
                    gains(
                        "s", replace(missing, gain_metric="accuracy", gains=lines), 100
                    )
                ]
            },
        )
    )
    assert len(section.tables[0].rows) == 3 and section.tables[0].note.startswith(
        "The first 3 of 4 lines"
    )


def test_page_of_an_experiment(experiment):
    found = page_of(experiment)
    assert list(found.parts) == ["shift", "permuted"]
    sections = {section.title: section for section in found.parts["permuted"]}
    assert next(iter(sections)) == "Decision" and sections["Decision"].paragraphs
    clients = sections["Clients"].tables[0]
    costs = sections["Costs"]
    assert costs.tables[0].columns[1:] == ["MB\ndown", "MB\nup", "seconds\nper round"]
    assert not any("rho" in column for column in costs.tables[0].columns)
    (details,) = costs.folded
    assert any("rho" in column for column in details.tables[0].columns)
    assert "rho: how much" in details.tables[0].note and not costs.tables[0].note
    assert (
        len(clients.rows) == 22
        and "FedAvg" in clients.columns
        and "trained" in clients.columns
    )
    place, trained = clients.columns.index("FedAvg"), clients.columns.index("trained")
    fedavg = [row[place].mean for row in clients.rows if row[trained] == "yes"]
    runs = experiment.runs["permuted"]["FedAvg"]
    assert np.mean(fedavg) == pytest.approx(
        100 * np.mean([run.spread()["mean"] for run in runs]), abs=1e-6
    )
    curve = sections["Curves"].charts[0].series[1]
    assert curve.label == "FedAvg" and list(curve.x) == [1, 2, 3]
    assert curve.y[-1] == pytest.approx(np.mean(fedavg), abs=1e-6)
    protocol = dict(sections["Exact protocol"].settings)
    assert (
        protocol["which round"].startswith("the last one, 3")
        and "every client counts" in protocol["which weighting"]
    )
    last = [100 * list(run.curve().values())[-1] for run in runs]
    assert (curve.low[-1], curve.high[-1]) == pytest.approx(
        (min(last), max(last)), abs=1e-6
    )
    assert "Calibration" not in sections  # these runs kept no probabilities
    assert "finished" not in found.subtitle.replace("unfinished", "") and render(found)


def test_long_tables_are_folded():
    short = ReportTable("short", ["a"], [["x"]] * 60)
    long = ReportTable("long", ["a"], [["x"]] * 61)
    section = fold_long_tables(Section("t", tables=[short, long]))
    assert section.tables == [short]
    (folded,) = section.folded
    assert folded.title == "long (61 lines)" and folded.tables == [long]
    text = render(Page("a", "b", {"s": [section]}))
    assert not Elements(text).open
    assert "<details><summary>long (61 lines)</summary>" in text


def test_at_most_six_methods_have_bands_and_are_shown_at_first(experiment):
    """Those that end best, and FedAvg, whatever its place."""
    runs = experiment.runs["shift"]
    local, fedavg = runs["Local"], runs["FedAvg"]  # here FedAvg is the worse one
    many = {f"local {k}": local for k in range(7)} | {"FedAvg": fedavg}
    for chart in curves(many).charts:
        banded = [line.label for line in chart.series if len(line.low)]
        shown = [line.label for line in chart.series if line.shown]
        if chart.title != "Test, by traffic":  # training alone sends nothing
            assert len(banded) == 6 and "FedAvg" in banded and "local 6" not in banded
            assert shown == banded
    one = curves({"FedAvg": fedavg[:1]}).charts[0].series[0]
    assert not len(one.low) and one.shown  # of one seed there is no range


def write_rows(path, confidence, correct, *, unseen=False):
    """A run with these test rows of a client; those of another one are all wrong."""
    path.mkdir()
    (path / SUMMARY).write_text(json.dumps(with_digest({"metric": "accuracy"})))
    write_manifest(path, "local", 0)
    clients = pl.DataFrame(
        {"client": ["a", "b"], "group": [None, None], "unseen": [False, unseen]}
    )
    clients.with_columns(train=1, val=0, test=len(confidence)).write_parquet(
        path / CLIENTS
    )
    measured = {
        "round": 1,
        "client": "a",
        "unseen": False,
        "split": "test",
        "metric": "accuracy",
        "value": 0.5,
    }
    pl.DataFrame([measured]).write_parquet(path / METRICS)
    rows = pl.DataFrame(
        {
            "client": ["a"] * len(confidence),
            "confidence": confidence,
            "correct": correct,
        }
    )
    strangers = rows.with_columns(client=pl.lit("b"), correct=pl.lit(False))
    pl.concat([rows, strangers] if unseen else [rows]).write_parquet(path / ROWS)


def test_reliability_is_accuracy_by_confidence_of_clients_that_train(tmp_path):
    def run(name, confidence, correct, unseen):
        write_rows(tmp_path / name, confidence, correct, unseen=unseen)
        return StoredRun(tmp_path / name)

    # 30 rows at 0.85 of which 21 are right, 20 at 0.95 of which all are, and too few at
    # 0.55
    first = run(
        "s0", [0.85] * 30 + [0.55] * 19, [True] * 21 + [False] * 28, unseen=True
    )
    second = run("s1", [0.95] * 20, [True] * 20, unseen=False)
    chart = reliability({"Local": [first, second]})
    perfect, line = chart.series
    assert (perfect.x, perfect.colour) == (perfect.y, -1)
    np.testing.assert_allclose(line.x, [85, 95])
    np.testing.assert_allclose(line.y, [70, 100])
    first.rows.drop("confidence").write_parquet(first.path / ROWS)
    assert reliability({"Local": [StoredRun(first.path)]}) is None
    assert reliability_table({"Local": [StoredRun(first.path)]}) is None


def test_calibration_is_shown_though_nobody_asked_for_it(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_rows(first, [0.85] * 30 + [0.55] * 19, [True] * 21 + [False] * 28)
    write_rows(second, [0.95] * 20, [True] * 20)
    runs = {"Local": [StoredRun(first), StoredRun(second)]}
    (section,) = calibration(runs)
    (table,) = section.tables
    ((label, sure, right, error),) = table.rows
    assert label == "Local" and len(section.charts) == 1
    # The means over seeds of what all test rows of a seed have.
    assert sure.mean == pytest.approx(50 * ((30 * 0.85 + 19 * 0.55) / 49 + 0.95))
    assert right.mean == pytest.approx(50 * (21 / 49 + 1))
    # In two bins 25.5 rows should be right and 21 are, and 10.45 and none; then 19 and 20.
    assert error.mean == pytest.approx(50 * ((4.5 + 10.45) / 49 + 1 / 20))
    regression = StoredRun(first)
    regression.rows.drop("confidence", "correct").write_parquet(first / ROWS)
    assert calibration({"Local": [StoredRun(first)]}) == []


def test_metrics_of_calibration_that_were_asked_for_are_those_of_the_last_round(
    tmp_path,
):
    columns = ("round", "client", "unseen", "split", "metric", "value")
    lasts = (0.2, 0.4)
    for seed, last in enumerate(lasts):
        write_rows(tmp_path / f"{seed}", [0.85] * 30, [True] * 30)
        lines = [
            (1, "a", False, "test", "brier", 0.9),
            (2, "a", False, "test", "brier", last - 0.1),
            (2, "b", False, "test", "brier", last + 0.1),
            (2, "c", True, "test", "brier", 7.0),
            (2, "a", False, "val", "brier", 8.0),
            (1, "a", False, "test", "log_loss", math.nan),
        ]
        frame = pl.DataFrame(lines, columns, orient="row")
        frame.write_parquet(tmp_path / f"{seed}" / METRICS)
    runs = {"Local": [StoredRun(tmp_path / f"{seed}") for seed in range(2)]}
    (section,) = calibration(runs)
    ((label, brier, log_loss),) = section.tables[-1].rows
    assert label == "Local" and log_loss == "-"
    assert brier.mean == pytest.approx(np.mean(lasts))


def test_the_command(results, capsys, tmp_path):
    path = tmp_path / "new" / "report.html"
    assert main(["report", str(results), NAME, "--html", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_page_before_any_run_has_ended(capsys, tmp_path):
    write_index(tmp_path, [], candidates=[])
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    assert "nothing to decide yet" in (tmp_path / "page.html").read_text(
        encoding="utf-8"
    )


def test_mistakes_end_in_one_line(results, capsys, tmp_path):
    def refused(*arguments):
        assert main(["report", str(results), *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    (tmp_path / "file").touch()
    assert "is a directory; name a file" in refused("--html", tmp_path)
    assert "cannot write to" in refused("--html", tmp_path / "file" / "page.html")
    assert "exclude each other" in refused(
        "--html", tmp_path / "a", "--out", tmp_path / "b"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_one_page_is_one_experiment(results, capsys, tmp_path):
    for name in ("one", "two"):
        write_index(tmp_path, [], candidates=[], name=name)
        (tmp_path / NAME).rename(tmp_path / name)
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 2
    assert "has one, two; name one of them" in capsys.readouterr().err


def test_curves_that_are_no_numbers_leave_gaps():
    chart = Chart("t", "x", "y", [Series("a", [1, 2], [float("inf"), 1 / 3])])
    text = render(Page("a", "b", {"s": [Section("t", charts=[chart])]}))
    assert text == render(Page("a", "b", {"s": [Section("t", charts=[chart])]}))
    (image,) = drawn(Elements(text))
    assert "nan" not in image and "inf" not in image


def test_write_page_replaces_the_old_one(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    assert write_page(page(), path) == path and "A page" in path.read_text(
        encoding="utf-8"
    )


def test_sets_are_those_of_the_method_to_use_or_the_best_that_is_no_tree(monkeypatch):
    shown = []

    def coverage_table(title, runs):
        shown.append((title.rpartition(", ")[2], runs))

    monkeypatch.setattr(contents, "coverage_table", coverage_table)
    means = {"trees-personal": 0.9, "ditto": 0.8, "local": 0.7}
    winner = SimpleNamespace(means=means, leader="trees-personal")
    runs = {"local": ["of local"], "ditto": ["of ditto"]}
    recommended = SimpleNamespace(recommendation=SimpleNamespace(method="local"))
    for of_means, verdict in ((winner, None), (None, None), (winner, recommended)):
        decision = SimpleNamespace(winner=of_means, verdict=verdict)
        assert contents.sets("heart", runs, decision) == []
    local = ("local", ["of local"])
    assert shown == [("ditto", ["of ditto"]), local, local]
