"""The demo in miniature: it finishes, goes on where it was, and draws all its
figures.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedtailor.cli import main
from fedtailor.cli.commands import demo as module


@pytest.mark.slow
def test_the_demo_in_miniature(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "SEEDS", (0, 1))
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--rounds", "2"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "UCFL, auto" in printed and "24 runs" in printed
    figures = sorted(path.name for path in (tmp_path / "demo" / "figures").iterdir())
    names = ("accuracy-by-round", "accuracy-by-time", "collaboration", "silhouette")
    assert figures == sorted(
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    )
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "demo" / "runs").rglob("*.parquet")
    }
    monkeypatch.setattr(
        module, "draw_demo", lambda runs, directory: []
    )  # which takes as long as all runs
    assert main(arguments) == 0
    assert {path: path.read_bytes() for path in before} == before


PAGE = Path(__file__).parents[2] / "docs" / "first-experiment.md"
TWO_METHODS = """
import json, pathlib, sys
from fedtailor.cli.commands import demo
from fedtailor.lab import scenarios
chosen = ("FedAvg", "UCFL, auto")
methods_of = demo.methods_of
demo.methods_of = lambda scenario: {name: methods_of(scenario)[name] for name in chosen}
runs = demo._train(scenarios.find("digits-rotated"), pathlib.Path(sys.argv[1]), demo.Options())
table = demo.demo_table("digits-rotated", runs)
print(json.dumps([[str(cell) for cell in row] for row in table.rows]))
"""


def rows_of_page():
    """Label -> cells of the first table of the demo's page."""
    title = "digits-rotated, 3 seeds; time to FedAvg's best accuracy"
    table = PAGE.read_text().partition(title)[2].partition("\n\n")[0]
    rows = {}
    for line in table.splitlines():
        if " ± " in line:
            label, *cells = re.split(r" {2,}", line)
            rows[label] = cells
    return rows


@pytest.mark.slow
def test_the_table_on_the_page_is_of_this_version(tmp_path):
    """As users see it: two devices, and XLA's optimisations."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", TWO_METHODS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    printed = rows_of_page()
    assert len(printed) == 6
    for label, *cells in json.loads(done.stdout.splitlines()[-1]):
        accuracy, worst, down, up, *_ = cells
        said = printed[label]
        # Other processors add in another order, which moves last digits.
        assert mean_of(said[0]) == pytest.approx(mean_of(accuracy), abs=0.5)
        assert mean_of(said[1]) == pytest.approx(mean_of(worst), abs=4)
        assert (said[2], said[3]) == (down, up)


def mean_of(cell):
    return float(cell.partition(" ")[0])
