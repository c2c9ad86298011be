"""Mistyped names of columns are found before JAX is imported."""

import subprocess
import sys

import pytest

from fedtailor.cli import main
from fedtailor.cli.advice import as_typed
from fedtailor.data.tables import from_table

TABLE = "hospital,age,outcome\n" + "".join(
    f"{name},{age},{age % 2}\n" for name in "ab" for age in range(20, 40)
)

COMMANDS = (
    "compare {} --client hospitl --target outcome",
    "compare {} --client=hospitl --target outcome --drop ag age",
    "diagnose {} --client hospital --target outcom",
    "run ditto table --path {} --client hospital --target outcom",
    "compare {}.csv --client hospital --target outcome",
    "describe {}.csv --client hospital",
    "fit {} --client hospitl --target outcome --model linear",
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(TABLE)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_column_is_found_without_jax(table, command):
    program = (
        "import sys; from fedtailor.cli import main; code = main(sys.argv[1:]);"
        " print(code, 'jax' in sys.modules, 'fedtailor.protocol' in sys.modules)"
    )
    arguments = command.format(table).split()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 False False\n"
    if "{}.csv" in command:
        assert "there is no file" in done.stderr
        return
    assert "there is no column" in done.stderr and "did you mean" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        {"client": "hospitl", "target": "outcome"},
        {"client": "hospital", "target": "outcom", "drop": ["ag", "age", "agee"]},
        {"client": "hospital", "target": "outcome", "time": "day", "features": ["x"]},
        {"target": "outcom"},  # and the client's column has another name
    ],
)
def test_the_message_is_that_of_reading_the_table(table, options, capsys):
    with pytest.raises(ValueError) as refused, as_typed():
        from_table(table, **options)
    arguments = []
    for name, value in options.items():
        arguments += [f"--{name}", *([value] if isinstance(value, str) else value)]
    assert main(["compare", str(table), *arguments]) == 2
    said = capsys.readouterr().err
    assert said == f"fedtailor: {' '.join(str(refused.value).split())}\n"


def test_other_mistakes_are_reported_as_before(table, capsys):
    assert main(["compare", str(table), "--client", "hospital", "--targt", "x"]) == 2
    assert "unknown option --targt; perhaps --target" in capsys.readouterr().err
    (table.parent / "one.csv").write_text("only\n1\n")
    assert main(["compare", str(table.parent / "one.csv"), "--client", "x"]) == 2
    assert "has one column only" in capsys.readouterr().err
    assert main(["compare", "nowhere.csv", "--client", "x"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_advice_of_run_is_as_typed(table, capsys):
    table.write_text(TABLE.replace("a,21,1", "a,21,"))
    arguments = ["--client", "hospital", "--target", "outcome"]
    assert main(["run", "local", "table", "--path", str(table), *arguments]) == 2
    assert "with --skip-unlabelled" in capsys.readouterr().err
