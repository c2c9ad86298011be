"""What a command imports before it prints: JAX takes seconds."""

import subprocess
import sys

import pytest

from fedtailor.cli import typed_names
from fedtailor.protocol import Algorithm

HEAVY = (
    *("jax", "jaxlib", "flax", "equinox", "optax", "numpy", "scipy", "polars"),
    *("pydantic", "sklearn", "matplotlib", "rich", "tyro", "flwr", "torch"),
)


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("--help", ""),
        ("--version", ""),
        ("algorithms", ""),
        ("algorithms --json", ""),
        ("algorithms --by sees", ""),
    ],
)
def test_commands_import_what_they_need(command, heavy):
    """Also if a module far below imports one of these one day."""
    program = (
        "import sys; from fedtailor.cli import main; code = main(sys.argv[1:]);"
        f" found = {{name.partition('.')[0] for name in sys.modules}} & {{*{HEAVY}}};"
        " print(code, *sorted(found), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.split() == ["0", *heavy.split()]


def test_sources_describe_methods_as_their_classes_do():
    registered = {
        name: method.about
        for name, method in Algorithm.registry.items()
        if method.__module__.startswith("fedtailor.algorithms")
    }
    assert typed_names.built_in_methods() == registered
