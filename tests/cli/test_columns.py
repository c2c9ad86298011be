"""Mistyped names of columns are answered in one line."""

import pytest

from fedtailor.cli import main
from fedtailor.cli.advice import as_typed
from fedtailor.data.tables import from_table

TABLE = "hospital,age,outcome\n" + "".join(
    f"{name},{age},{age % 2}\n" for name in "ab" for age in range(20, 40)
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(TABLE)
    return path


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
