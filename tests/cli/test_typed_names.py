"""Mistyped names of methods and scenarios are found before JAX is imported."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from fedtailor.algorithms.find import find_algorithm
from fedtailor.cli import typed_names
from fedtailor.lab import scenarios
from fedtailor.protocol import Algorithm

METHODS = {
    "run fedavgg digits-rotated": "fedavgg",
    "compare patients.csv --target outcome --algorithms ditto fedavgg": "fedavgg",
    "algorithms dito --json": "dito",
}
SCENARIOS = {
    "run fedavgg digits-rotatd --rounds 3": "digits-rotatd",
    "diagnose digits-rotatd --warm 2": "digits-rotatd",
    "scenarios emnist-rotate": "emnist-rotate",
}


def test_all_methods_are_known_from_their_sources():
    built_in = {
        name
        for name, method in Algorithm.registry.items()
        if method.__module__.startswith("fedtailor.algorithms")
    }
    assert built_in <= {*typed_names._methods()}
    offered = typed_names._offered("fedtailor.algorithms")
    assert sorted([*built_in, *offered]) == typed_names._methods()


def test_all_scenarios_are_known_from_their_sources():
    assert {*scenarios.SCENARIOS} <= {*typed_names._scenarios()}


@pytest.mark.parametrize("command", [*METHODS, *SCENARIOS])
def test_a_mistyped_name_is_found_without_jax(command):
    program = (
        "import sys; from fedtailor.cli import main; code = main(sys.argv[1:]);"
        " print(code, 'jax' in sys.modules, 'fedtailor.protocol' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 False False\n"
    find = find_algorithm if command in METHODS else scenarios.find
    with pytest.raises(ValueError) as refused:
        find((METHODS | SCENARIOS)[command])
    assert done.stderr == f"fedtailor: {refused.value}\n"
    assert "did you mean" in done.stderr


def test_names_of_other_packages_are_known_without_loading_them(monkeypatch):
    def entry_points(group: str) -> list[EntryPoint]:
        return [EntryPoint("of-another", "no_such_module:Name", group)]

    monkeypatch.setattr(typed_names, "entry_points", entry_points)
    assert "of-another" in typed_names._methods()
    assert "of-another" in typed_names._scenarios()


@pytest.mark.parametrize(
    "command",
    [
        "run own.py:Mine digits-rotated",
        "run fedavg",
        "run --help",
        "compare experiment.toml --algorithms fedavgg",  # no option of a file
        "compare patients.csv --algorithms",
        "diagnose patients.csv --target outcome",
        "algorithms --by sees",
        "scenarios",
        "report fedavgg",
    ],
)
def test_nothing_else_is_refused(command, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax")
    typed_names.check_names(command.split())


def test_a_method_that_a_program_has_defined_is_left_to_the_command():
    typed_names.check_names(["run", "defined-in-a-notebook", "digits-rotated"])


def test_a_file_without_a_class_is_told_what_to_name():
    with pytest.raises(ValueError, match=r"'own\.py' is a file; .* own\.py:Method$"):
        find_algorithm("own.py")
