"""`fedtailor report`: formats, directories, and how every mistake ends."""

import csv
import json
import os
import re
import shutil

import pytest

from fedtailor._base.digests import with_digest
from fedtailor.cli import main
from fedtailor.lab.report.drawing import FIGURES
from fedtailor.lab.results.experiment import StoredExperiment
from lab.report.results import NAME, write_index


def printed(capsys, *arguments):
    assert main(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert main(["report", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedtailor: ") and said.count("\n") == 1
    return said


def test_formats(results, capsys):
    text = printed(capsys, results)
    assert text.startswith(
        f"{NAME}: A small comparison\nSource: Somebody 2020, table 1\n"
    )
    assert "Test accuracy, %: worst client\n" in text and "diverged" in text
    markdown = printed(capsys, results, NAME, "--format", "markdown")
    assert (
        markdown.startswith(f"# {NAME}: A small comparison\n\n- Source:")
        and "\n| FedAvg | " in markdown
    )
    blocks = printed(capsys, results, "--format", "csv").strip().split("\n\n")
    assert all(block.startswith("# ") for block in blocks)
    header, *rows = csv.reader(blocks[0].splitlines()[1:])
    assert (
        header[:2] == ["algorithm", "shift"] and "permuted" in header and len(rows) == 5
    )
    found = json.loads(printed(capsys, results, NAME, "--format", "json"))
    fedavg = found["tables"]["mean"]["rows"][1]
    assert found["experiment"] == NAME and (found["done"], found["runs"]) == (15, 16)
    assert (
        fedavg["algorithm"] == "FedAvg"
        and fedavg["shift"]["runs"] == 2
        and 0 < fedavg["shift"]["mean"] <= 100
    )
    latex = printed(capsys, results, "--format", "latex")
    assert (
        latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == len(blocks)
    )


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal(results, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(capsys, results))
    assert max(map(len, text.splitlines())) <= width and "76.7 ± 4.0" in text


def test_a_directory_with_everything(results, capsys, tmp_path):
    text = printed(capsys, results, "--out", tmp_path / "out")
    directory = tmp_path / "out" / NAME
    assert str(directory / "report.md") in text
    report = (directory / "report.md").read_text()
    for name in FIGURES:
        assert f"![{name}](figures/{name}.png)" in report
        assert all(
            (directory / "figures" / f"{name}.{kind}").stat().st_size > 3000
            for kind in ("png", "svg")
        )
    names = sorted(path.stem for path in (directory / "tables").glob("*.csv"))
    assert names == sorted(path.stem for path in (directory / "tables").glob("*.tex"))
    assert {"mean", "max_test", "chosen", "shift-clients", "permuted-costs"} <= set(
        names
    )


def test_a_figure_without_runs_is_left_out_with_a_line(results, capsys, tmp_path):
    cells = [
        cell
        for cell in StoredExperiment.read(results, NAME).index.method_runs
        if cell.algorithm == "Local"
    ]
    (tmp_path / "runs").symlink_to(results / "runs")
    write_index(tmp_path, cells, sweeps={})
    printed(capsys, tmp_path, "--out", tmp_path / "out")
    report = (tmp_path / "out" / NAME / "report.md").read_text()
    left_out = [
        "accuracy-by-bytes",
        "accuracy-by-time",
        "collaboration",
        "silhouette",
        "diagnostics",
        "sweep",
    ]
    for name in FIGURES:
        assert (f"Figure {name} is left out: it needs " in report) == (name in left_out)
        assert (tmp_path / "out" / NAME / "figures" / f"{name}.png").exists() == (
            name not in left_out
        )


def test_no_figures(results, capsys, tmp_path):
    printed(capsys, results, "--out", tmp_path, "--no-figures")
    assert sorted(path.name for path in (tmp_path / NAME).iterdir()) == [
        "report.md",
        "tables",
    ]


def test_a_compact_report_has_all_tables_in_one_file(results, capsys, tmp_path):
    printed(capsys, results, "--out", tmp_path / "many", "--no-figures")
    printed(capsys, results, "--out", tmp_path / "one", "--compact")
    folder = tmp_path / "one" / NAME
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["report.md", "tables.csv"]
    expected = (tmp_path / "many" / NAME / "report.md").read_text()
    assert (folder / "report.md").read_text() == expected
    with (folder / "tables.csv").open(newline="") as file:
        stacked = list(csv.DictReader(file))
    tables = sorted((tmp_path / "many" / NAME / "tables").glob("*.csv"))
    assert {row["(table)"] for row in stacked} == {path.stem for path in tables}
    for path in tables:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        found = [row for row in stacked if row["(table)"] == path.stem]
        kept = [{header: row[header] for header in rows[0]} for row in found]
        assert kept == rows and len(tables) > 3
        # What a table does not have is empty.
        assert not any(
            row[header]
            for row in found
            for header in row.keys() - rows[0].keys() - {"(table)"}
        )
    assert "name a directory with --out" in refused(capsys, results, "--compact")


def test_an_experiment_without_any_run(capsys, tmp_path):
    write_index(tmp_path, [], candidates=[])
    assert "unfinished: 0 of 16 runs" in printed(capsys, tmp_path)
    printed(capsys, tmp_path, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / NAME / "figures").exists()


def test_mistakes_end_in_one_line(results, capsys, tmp_path):
    assert "no results in" in refused(capsys, tmp_path)
    assert "there is no directory" in refused(capsys, tmp_path / "nowhere")
    assert f"did you mean {NAME!r}" in refused(capsys, results, "smal")
    assert "there is no experiment 'x'" in refused(capsys, results, "x")
    (tmp_path / "file").touch()
    assert "cannot write to" in refused(capsys, results, "--out", tmp_path / "file")
    assert "pdf" in refused(capsys, results, "--format", "pdf")
    assert "RESULTS" in refused(capsys)


def test_files_that_cannot_be_read_are_named_and_not_called_damaged(
    results, capsys, tmp_path
):
    run = "runs/digits-label-shift/local-s0"
    cell = next(
        cell
        for cell in StoredExperiment.read(results, NAME).index.method_runs
        if cell.run == run
    )
    shutil.copytree(results / run, tmp_path / run)
    write_index(tmp_path, [cell], candidates=[])
    for name, damaged, said in (
        ("summary.json", b"[]", "is damaged"),
        ("summary.json", b'{"metric": 3}', "is damaged"),
        ("summary.json", b"[" * 100_000, "is damaged"),
        ("metrics.parquet", b"PAR1", "is damaged"),
        ("manifest.toml", b"[run]", "is damaged (its digest is wrong)"),
        (
            "clients.parquet",
            None,
            "cannot read",
        ),  # a directory: as unreadable to the superuser as to others
    ):
        whole = (tmp_path / run / name).read_bytes()
        (tmp_path / run / name).unlink()
        if damaged is None:
            (tmp_path / run / name).mkdir()
        else:
            (tmp_path / run / name).write_bytes(damaged)
        message = refused(capsys, tmp_path)
        assert said in message and str(tmp_path / run / name) in message
        if damaged is None:
            assert "damaged" not in message
            (tmp_path / run / name).rmdir()
        (tmp_path / run / name).write_bytes(whole)
    write_index(tmp_path, [cell], candidates=[])
    index = tmp_path / NAME / "experiment.json"
    index.write_text(
        json.dumps(with_digest(json.loads(index.read_text()) | {"name": "../.."}))
    )
    assert "has the name '../..'" in refused(
        capsys, tmp_path, "--out", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()
    index.unlink()
    os.mkfifo(index)
    assert "is not a file" in refused(capsys, tmp_path)
