import numpy as np
import pytest

from fedtailor.report.tables import Table, mean_and_deviation

TABLE = Table("digits_a, 2 seeds", ["method", "accuracy"], [["UCFL_x", "0.9 ± 0.1"], ["a|b", "50 %"]])


def test_formats():
    header = ["**digits_a, 2 seeds**", "", "| method | accuracy |", "| --- | ---: |"]
    assert TABLE.markdown().splitlines() == [*header, "| UCFL_x | 0.9 ± 0.1 |", r"| a\|b | 50 % |"]
    assert TABLE.csv() == "method,accuracy\nUCFL_x,0.9 ± 0.1\na|b,50 %\n"
    assert r"UCFL\_x & 0.9 $\pm$ 0.1 \\" in TABLE.latex() and r"50 \%" in TABLE.latex()


def test_headers_have_several_lines_on_a_terminal_only():
    table = Table("t", ["scenario", "method", "worst\nclient"], [["a", "b", "1"]], text=2)
    assert table.csv().splitlines()[0] == "scenario,method,worst client"
    assert "| --- | --- | ---: |" in table.markdown() and "{llr}" in table.latex()


def test_latex_is_escaped_once():
    table = Table("t", [r"a\b"], [["50 % {x}^2 ~ $1"]])
    assert r"a\textbackslash{}b \\" in table.latex()
    assert r"50 \% \{x\}\textasciicircum{}2 \textasciitilde{} \$1" in table.latex()


def test_nothing_is_wrapped_in_a_pipe(capsys):
    Table("t", ["m", *"abcdefgh"], [["x" * 40, *["0.123 ± 0.456"] * 8]]).show()
    assert "x" * 40 in capsys.readouterr().out


def test_rows_must_fit():
    with pytest.raises(ValueError, match="3 cells"):
        Table("t", ["a", "b"], [["1", "2", "3"]])


def test_mean_and_deviation():
    values = [0.1, 0.2, 0.6]
    assert mean_and_deviation(values) == f"0.300 ± {np.std(values, ddof=1):.3f}"
    assert mean_and_deviation([0.5]) == "0.500"
