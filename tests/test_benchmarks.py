"""Every benchmark starts: what it imports from the package is there."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
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
