"""Every benchmark starts: what it imports from the package is there."""

import importlib
import io
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = {
    script.name: script
    for script in sorted(FOLDER.glob("*.py"))
    if "__main__" in script.read_text()
}

pytestmark = pytest.mark.skipif(
    not SCRIPTS, reason="benchmarks are in the repository only, not in its archives"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_tells_what_it_measures(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    before = set(sys.modules)
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
        assert ended.value.code == 0
        assert name in capsys.readouterr().out
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        pytest.skip("PyTorch, which benchmarks alone use, is not installed")
    finally:
        for module in set(sys.modules) - before:
            if (
                getattr(sys.modules[module], "__file__", None)
                and Path(sys.modules[module].__file__).parent == FOLDER
            ):
                del sys.modules[module]


@pytest.fixture
def speed_tables(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("speed_tables")
    sys.modules.pop("speed_tables", None)


def test_pages_about_speed_are_what_the_files_say(speed_tables):
    for page in speed_tables.pages():
        text = page.read_text("utf-8")
        assert text == speed_tables.written(text), (
            "run python benchmarks/speed_tables.py --write"
        )


def test_every_table_of_numbers_about_speed_comes_from_a_file(speed_tables):
    """Tables that hold no measurement stay in the pages."""
    names = set()
    for page in speed_tables.pages():
        text = page.read_text("utf-8")
        names |= set(re.findall(r"^<!-- measured ([\w-]+) -->$", text, re.MULTILINE))
        outside = re.sub(
            r"<!-- measured (.*?) -->.*?<!-- end of measured \1 -->",
            "",
            text,
            flags=re.S,
        )
        if page.name != "speed.md":  # its other parts are about other things
            outside = outside[text.index("<!-- measured") :]
        headers = re.findall(r"^(\|.*)\n\|[-:| ]+\|$", outside, re.MULTILINE)
        assert set(headers) <= {
            "| command | question |",
            "| contender | how it runs | its evaluation |",
            "| you have | write |",
        }
    assert names == {file.stem for file in speed_tables.MEASURED.glob("*.json")}


def test_a_changed_number_is_seen(speed_tables, tmp_path, monkeypatch):
    page = speed_tables.DOCS / "speed.md"
    changed = page.read_text("utf-8").replace("364 / 480", "363 / 480")
    assert speed_tables.written(changed) == page.read_text("utf-8") != changed


def test_a_measured_table_is_recorded_with_where_it_ran(tmp_path, monkeypatch):
    from rich.console import Console
    from rich.table import Table

    monkeypatch.syspath_prepend(FOLDER)
    measuring = importlib.import_module("measuring")
    monkeypatch.setattr(measuring, "MEASURED", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/seeds.py", "--turns", "3"])
    table = Table("cell", "ms")
    table.add_row("MLP", "1.5 / 2.0")
    console = Console(file=io.StringIO())
    measuring.show(console, table, "seeds", "jax")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("RECORD", "1")
    measuring.show(console, table, "seeds", "jax")
    found = json.loads((tmp_path / "seeds.json").read_text())
    assert found["command"] == "python seeds.py --turns 3"
    assert (found["columns"], found["rows"]) == (["cell", "ms"], [["MLP", "1.5 / 2.0"]])
    assert found["versions"]["jax"] and found["machine"] and found["load"]
