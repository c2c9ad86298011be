"""The demo in miniature: it finishes, goes on where it was, and draws all its
figures.
"""

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
        module, "draw", lambda runs, directory: []
    )  # which takes as long as all runs
    assert main(arguments) == 0
    assert {path: path.read_bytes() for path in before} == before
