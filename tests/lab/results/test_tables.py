import dataclasses
import re

import numpy as np
import pytest

from fedtailor.lab.results.tables import (
    Number,
    ReportTable,
    mean_of,
    published,
)
from fedtailor.lab.results.units import unit_of

TABLE = ReportTable(
    "digits_a, 2 seeds",
    ["method", "accuracy"],
    [["UCFL_x", "0.9 ± 0.1"], ["a|b", "50 %"]],
)


def test_texts_below_cells(capsys, monkeypatch):
    """A terminal shows them below, Markdown in brackets, and no name makes a line."""
    monkeypatch.setenv("COLUMNS", "80")
    table = dataclasses.replace(TABLE, below=[["one\ntwo", "0.8 to 1.0"], ["", "x"]])
    table.show()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[3:] == [
        ["UCFL_x", "0.9", "±", "0.1"],
        ["one", "two", "0.8", "to", "1.0"],
        ["a|b", "50", "%"],
        ["x"],
    ]
    assert r"| a\|b | 50 % (x) |" in table.markdown()
    assert table.csv() == TABLE.csv() and table.latex() == TABLE.latex()
    assert len(table.first(1).below) == 1
    with pytest.raises(ValueError, match="not as many texts below the cells"):
        dataclasses.replace(table, below=[["x", "y"]])


def test_formats():
    header = ["**digits_a, 2 seeds**", "", "| method | accuracy |", "| --- | ---: |"]
    assert TABLE.markdown().splitlines() == [
        *header,
        "| UCFL_x | 0.9 ± 0.1 |",
        r"| a\|b | 50 % |",
    ]
    assert TABLE.csv() == "method,accuracy\nUCFL_x,0.9 ± 0.1\na|b,50 %\n"
    assert r"UCFL\_x & 0.9 $\pm$ 0.1 \\" in TABLE.latex() and r"50 \%" in TABLE.latex()


def test_headers_have_several_lines_on_a_terminal_only():
    table = ReportTable(
        "t", ["scenario", "method", "worst\nclient"], [["a", "b", "1"]], text=2
    )
    assert table.csv().splitlines()[0] == "scenario,method,worst client"
    assert "| --- | --- | ---: |" in table.markdown() and "{llr}" in table.latex()


def test_a_row_of_latex_begins_with_no_option_of_the_row_before():
    """`\\\\` takes a star, or a length in brackets, from the next line, too."""
    table = ReportTable("t", ["client", "x"], [["[3cm]north", "[1]"], ["*south", "*"]])
    assert [line for line in table.latex().splitlines() if "north" in line] == [
        r"{}[3cm]north & {}[1] \\"
    ]
    assert r"{}*south & {}* \\" in table.latex()


def test_latex_is_escaped_once():
    table = ReportTable("t", [r"a\b"], [["50 % {x}^2 ~ $1"]])
    assert r"a\textbackslash{}b \\" in table.latex()
    assert r"50 \% \{x\}\textasciicircum{}2 \textasciitilde{} \$1" in table.latex()


def test_nothing_is_wrapped_in_a_pipe(capsys):
    ReportTable("t", ["m", *"abcdefgh"], [["x" * 40, *["0.123 ± 0.456"] * 8]]).show()
    assert "x" * 40 in capsys.readouterr().out


def test_rows_must_fit():
    with pytest.raises(ValueError, match="3 cells"):
        ReportTable("t", ["a", "b"], [["1", "2", "3"]])


def test_mean_and_deviation():
    values = [0.1, 0.2, 0.6]
    assert mean_of(values).text == f"0.300 ± {np.std(values, ddof=1):.3f}"
    assert mean_of([0.5]).text == "0.500"


def test_square_brackets_and_colons_are_no_markup(capsys):
    table = ReportTable(
        "[t]",
        ["m [bold]", ":smile:"],
        [["Ditto [weak]", "[/]"], ["[red]x[/red]", Number(1.0, "1.0 [2]")]],
    )
    table.show()
    shown = capsys.readouterr().out
    for text in (
        "[t]",
        "m [bold]",
        ":smile:",
        "Ditto [weak]",
        "[/]",
        "[red]x[/red]",
        "1.0 [2]",
    ):
        assert text in shown


def test_line_ends_in_labels_stay_within_a_cell():
    table = ReportTable("a\nb", ["m"], [["x\ny"]], note="n\nm")
    assert "| x y |" in table.markdown() and "**a b**" in table.markdown()
    assert table.latex().startswith("% a b\n% n m\n") and r"x y \\" in table.latex()


def test_the_best_is_bold_whether_high_or_low():
    rows = [
        ["a", mean_of([0.1, 0.2])],
        ["b", mean_of([0.3, 0.4])],
        ["c", mean_of([0.9])],
        ["d", "-"],
    ]
    marked = [
        ReportTable("t", ["m", "x"], rows, higher_is_better={1: higher}).latex()
        for higher in (True, False)
    ]
    assert (
        r"b & \textbf{0.350 $\pm$ 0.071}" in marked[0]
        and marked[0].count("textbf") == 1
    )
    assert r"a & \textbf{0.150" in marked[1] and marked[1].count("textbf") == 1
    tie = [["a", mean_of([0.10004])], ["b", mean_of([0.1])], ["c", mean_of([0.0])]]
    assert (
        ReportTable("t", ["m", "x"], tie, higher_is_better={1: True})
        .latex()
        .count("textbf")
        == 2
    )


@pytest.mark.parametrize(
    ("figure", "mean", "std"),
    [
        ("76.7 ± 4.0", 76.7, 4.0),
        (68.2, 68.2, None),
        (" .9+-.1", 0.9, 0.1),
        ("82 %", 82.0, None),
        ("-1", -1.0, None),
    ],
)
def test_published_figures_are_numbers(figure, mean, std):
    found = published(figure)
    assert (found.mean, found.std, str(found)) == (mean, std, str(figure))


def test_other_published_figures_are_text():
    assert [published(text) for text in ("-", "about 80", "1.2.3")] == [
        "-",
        "about 80",
        "1.2.3",
    ]


def test_a_difference_that_is_shown_as_zero_has_no_sign_of_its_own():
    unit = unit_of("accuracy")
    assert [unit.signed(value) for value in (-0.0, -0.04, 0.04, -0.06, 2.5)] == [
        "+0.0",
        "+0.0",
        "+0.0",
        "-0.1",
        "+2.5",
    ]


@pytest.mark.parametrize("force_color", [False, True])
def test_notes_are_not_wrapped_in_a_pipe(capsys, monkeypatch, force_color):
    if force_color:
        monkeypatch.setenv("FORCE_COLOR", "1")
    note = "很长的说明 " * 200  # every letter is two columns wide
    cell = "x " * 6000
    ReportTable("t" * 300, ["a", "b"], [["c", cell]], text=2, note=note.strip()).show()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    title, _, _, row, said = (line.strip() for line in lines)
    assert title == "t" * 300 and said == note.strip()
    assert row == f"c  {cell.strip()}"


def test_names_of_metrics_are_names_and_words_are_words():
    labels = [unit_of(name).label for name in ("r2", "f1_macro", "roc_auc", "loss")]
    assert labels == ["R2", "F1 (macro), %", "ROC AUC, %", "loss"]
