"""What a command imports before it prints: JAX takes seconds."""

import subprocess
import sys
from importlib import import_module

import pytest

from fedtailor.cli.described_methods import built_in_methods
from fedtailor.protocol import Algorithm

HEAVY = (
    *("jax", "jaxlib", "flax", "equinox", "optax", "numpy", "scipy", "polars"),
    *("pydantic", "sklearn", "matplotlib", "rich", "tyro", "httpx", "flwr", "torch"),
)
PROGRAM = (
    "import sys; from fedtailor.cli import main; code = main(sys.argv[1:]);"
    f" found = {{name.partition('.')[0] for name in sys.modules}} & {{*{HEAVY}}};"
    " print(code, *sorted(found), file=sys.stderr)"
)


@pytest.mark.parametrize(
    "command", ["--help", "--version", "algorithms", "algorithms --by sees --json"]
)
def test_help_and_lists_import_nothing_heavy(command):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.split() == ["0"]


def test_sources_describe_methods_as_their_classes_do():
    import_module("fedtailor.algorithms")  # registers them
    registered = {
        name: method.about
        for name, method in Algorithm.registry.items()
        if method.__module__.startswith("fedtailor.algorithms")
    }
    assert built_in_methods() == registered


def test_a_run_imports_neither_what_only_tables_need_nor_scikit_learn(tmp_path):
    options = ["digits-rotated", "--rounds", "1", "--clients", "4"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "run", "fedavg", *options],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    needed = "equinox jax jaxlib numpy optax polars pydantic rich tyro"
    assert done.stderr.splitlines()[-1].split() == ["0", *needed.split()]


FROZEN = (
    "import gc, sys\nfrom fedtailor.cli import main\n{first}"
    "code = main(['scenarios', 'digits-rotated'])\n"
    "print(code, gc.isenabled(), gc.get_freeze_count() > 10_000, file=sys.stderr)"
)


@pytest.mark.parametrize(
    ("first", "found"), [("", "0 True True"), ("import jax\n", "0 True False")]
)
def test_what_a_command_imports_is_no_garbage(first, found):
    """In a program that has imported JAX, nothing is changed."""
    done = subprocess.run(
        [sys.executable, "-c", FROZEN.format(first=first)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == found
