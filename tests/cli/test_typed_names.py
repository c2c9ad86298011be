"""Mistyped names of methods and scenarios are answered in one line."""

import pytest

from fedtailor.algorithms.find import find_algorithm
from fedtailor.cli import main
from fedtailor.lab import scenarios

METHODS = {
    "run fedavgg digits-rotated": "fedavgg",
    "algorithms dito --json": "dito",
}
SCENARIOS = {
    "run fedavg digits-rotatd --rounds 3": "digits-rotatd",
    "diagnose digits-rotatd --warm 2": "digits-rotatd",
    "scenarios emnist-rotate": "emnist-rotate",
}


@pytest.mark.parametrize("command", [*METHODS, *SCENARIOS])
def test_a_mistyped_name_is_answered_by_similar_ones(command, capsys):
    find = find_algorithm if command in METHODS else scenarios.find
    with pytest.raises(ValueError) as refused:
        find((METHODS | SCENARIOS)[command])
    assert main(command.split()) == 2
    said = capsys.readouterr().err
    assert said == f"fedtailor: {refused.value}\n"
    assert "did you mean" in said


def test_a_mistyped_method_of_a_comparison_is_answered_likewise(tmp_path, capsys):
    table = tmp_path / "patients.csv"
    table.write_text("client,x,label\na,1,0\nb,2,1\n")
    assert main(["compare", str(table), "--algorithms", "ditto", "fedavgg"]) == 2
    assert "there is no algorithm 'fedavgg'" in capsys.readouterr().err


def test_a_file_without_a_class_is_told_what_to_name():
    with pytest.raises(ValueError, match=r"'own\.py' is a file; .* own\.py:Method$"):
        find_algorithm("own.py")
