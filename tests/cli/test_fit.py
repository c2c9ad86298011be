"""`fedtailor fit`: the table of a regression."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from fedtailor.cli import main


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = ["site,age,kind,ill,days,seen"]
    for row in range(90):
        age, kind = rng.normal(60, 10), "xyx"[row % 3]
        ill = int(rng.normal() + (age - 60) / 10 > 0)
        lines.append(
            f"{'abcd'[row % 4]},{age:.1f},{kind},{ill},{row % 30 + 1},{row % 2}"
        )
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")


def printed(capsys, *arguments):
    assert main(["fit", "t.csv", "--client", "site", *arguments]) == 0
    return capsys.readouterr().out


LOGISTIC = ("--target", "ill", "--model", "logistic", "--features", "age", "kind")


def test_all_formats_have_the_same_numbers(table, capsys):
    text = printed(capsys, *LOGISTIC)
    assert "Logistic regression of ill: 4 clients, 90 rows" in text
    assert "odds ratio" in text and "Odds are those of ill 1 against 0." in text
    content = json.loads(printed(capsys, *LOGISTIC, "--format", "json"))
    term = content["terms"][1]
    assert term["term"] == "age" and f"{term['coefficient']:.4g}" in text
    row = [*csv.DictReader(io.StringIO(printed(capsys, *LOGISTIC, "--format", "csv")))][
        1
    ]
    assert float(row["coefficient"]) == pytest.approx(term["coefficient"], rel=1e-9)
    assert float(row["std. error"]) == pytest.approx(term["standard_error"], rel=1e-9)
    assert float(row["p"]) == pytest.approx(term["p"], rel=1e-9)
    low, high = np.exp(term["interval"])
    assert float(row["2.5 %"]) == pytest.approx(low, rel=1e-9)
    assert float(row["97.5 %"]) == pytest.approx(high, rel=1e-9)
    latex = printed(capsys, *LOGISTIC, "--format", "latex")
    assert r"\begin{tabular}{lrrrrrrr}" in latex and r"$<$0.001" in latex
    # The notes are comments.
    assert any(
        "Log-likelihood" in line for line in latex.splitlines() if line[0] == "%"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--target days --model poisson --intercept fixed", "own intercept"),
        ("--target days --model linear --intercept random", "random effects"),
        (
            "--target days --model linear --errors CR1",
            "with 3 degrees of freedom; fewer",
        ),
        ("--target days --model cox --event seen --level 0.9", "own baseline hazard"),
    ],
)
def test_what_the_numbers_rest_on_is_said(table, capsys, options, says):
    text = printed(capsys, *options.split(), "--features", "age")
    assert says in text and ("95 %" in text) == ("0.9" in options.split())


def test_a_file_is_written(table, capsys, tmp_path):
    printed(capsys, *LOGISTIC, "--format", "csv", "--out", "r.csv")
    assert (tmp_path / "r.csv").read_text().startswith("term,coefficient,")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--target ill --model logistic --level 1", "--level is 1.0"),
        ("--target days --model cox", "--event names the column of events"),
        ("--target days --model linear --event seen", "--event names the column"),
        (
            "--target ill --model linear --positive 1",
            "--positive is for logistic and cox",
        ),
        ("--target ill --model logistic --out a.csv", "--out needs --format"),
        (
            "--target ill --model logistic --format csv --out ./t.csv",
            "--out is t.csv, the file that is read; name another file",
        ),
        ("--target ill --model logistic --features agee", "did you mean 'age'"),
        (
            "--target kind --model linear --features age",
            "holds String such as 'x', not",
        ),
        (
            "--target ill --model logistic --features age kind ill",
            "'ill' is the target column",
        ),
    ],
)
def test_wrong_input_is_one_line(table, capsys, options, problem):
    assert main(["fit", "t.csv", "--client", "site", *options.split()]) == 2
    message = capsys.readouterr().err
    assert problem in message and message.count("\n") == 1


def test_advice_is_as_typed(table, capsys):
    header, *rows = Path("t.csv").read_text().splitlines()
    rows = [f"{row},{2 * float(row.split(',')[1]):.1f}" for row in rows]
    Path("t.csv").write_text("\n".join([f"{header},twice", *rows]) + "\n")
    arguments = ["--client", "site", "--target", "ill", "--model", "logistic"]
    assert main(["fit", "t.csv", *arguments]) == 2
    assert "'twice' follows from 'age'; leave it out with --drop" in (
        capsys.readouterr().err
    )
