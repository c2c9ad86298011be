"""A file of one's own as a scenario, and what the command line says about scenarios."""

import json

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main
from fedtailor.engine.runs import run
from fedtailor.lab.scenarios import SCENARIOS, find
from fedtailor.protocol import Algorithm

MINE = {"client": "bank", "target": "default"}


@pytest.fixture
def frame():
    """Six banks; the last has two customers only."""
    rng = np.random.default_rng(0)
    bank = np.array([f"bank-{i}" for i in (*np.repeat(np.arange(5), 40), 5, 5)])
    income, debt = (
        rng.normal(50_000, 9_000, len(bank)),
        rng.normal(0.1, 0.01, len(bank)),
    )
    default = np.where(income / 1e6 - debt + 0.05 > 0, "no", "yes")
    return pl.DataFrame(
        {"bank": bank, "income": income, "debt": debt, "default": default}
    )


@pytest.fixture
def path(frame, tmp_path):
    frame.write_csv(tmp_path / "loans.csv")
    return str(tmp_path / "loans.csv")


def test_a_table_becomes_a_standardised_federation(path, frame, tmp_path):
    federation = find("table").sized(path=path, **MINE).build(0)
    assert federation.names == tuple(
        f"bank-{i}" for i in range(6)
    ) and federation.class_names == ("no", "yes")
    assert [
        federation.train.sizes[0],
        federation.val.sizes[0],
        federation.test.sizes[0],
    ] == [28, 4, 8]
    assert [
        federation.train.sizes[5],
        federation.val.sizes[5],
        federation.test.sizes[5],
    ] == [1, 0, 1]
    seen = federation.x[federation.train.rows]
    np.testing.assert_allclose(seen.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(seen.std(axis=0), 1, atol=1e-4)
    assert federation.preprocessing.inputs == ("income", "debt")
    frame.write_parquet(tmp_path / "loans.parquet")
    again = find("table").sized(path=str(tmp_path / "loans.parquet"), **MINE).build(0)
    np.testing.assert_array_equal(again.x, federation.x)


def test_two_rounds_on_a_table_and_a_regression(path):
    classes = find("table").sized(path=path, **MINE)
    assert (
        run(classes.algorithm("fedavg"), classes.build(0), classes.model, 2)
        .summary()
        .metric
        == "accuracy"
    )
    number = (
        find("table")
        .sized(path=path, client="bank", target="debt", drop=["default"])
        .build(0)
    )
    assert number.classes is None and number.x.shape[1] == 1


def test_a_file_sets_the_options_of_the_table(path):
    """Values as TOML has them: numbers and text, single or in lists."""
    sized = find("table").sized(
        path=path, **MINE, positive="yes", folds=5, unseen=["bank-2"], missing=["-9"]
    )
    federation = sized.build(3)
    assert federation.class_names == ("no", "yes") and federation.unseen.tolist() == [
        False,
        False,
        True,
        *[False] * 3,
    ]
    assert federation.test.sizes[0] == 8 and find("table").sized(
        path=path, **MINE, positive=["yes"], unseen=0.5
    )
    with pytest.raises(ValueError, match="table: folds is 'five'; it must be"):
        find("table").sized(path=path, **MINE, folds="five")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs your file"),
        ({"path": "nowhere.csv"}, "no file nowhere.csv"),
        (
            {"path": "{path}", "client": "branch", "target": "default"},
            "no column 'branch'",
        ),
        (
            {"path": "{path}", **MINE, "features": ["incme"]},
            "no column 'incme' for features; did you mean 'income'",
        ),
        (
            {"path": "{path}", "client": "bank", "target": "bank"},
            "cannot be both client and target",
        ),
        ({"path": "{folder}/loans.doc", **MINE}, "of no known kind"),
    ],
)
def test_mistakes_with_a_table_end_in_one_line(path, tmp_path, arguments, said):
    (tmp_path / "loans.doc").touch()
    if "path" in arguments:
        arguments = {
            **arguments,
            "path": arguments["path"].format(path=path, folder=tmp_path),
        }
    with pytest.raises(ValueError, match=said) as error:
        find("table").sized(**arguments).build(0)
    assert "\n" not in str(error.value)


def test_scenarios_are_listed_in_eighty_columns_with_their_sources(capsys):
    assert main(["scenarios"]) == 0
    printed = capsys.readouterr().out
    assert (
        all(f"  {name} " in printed for name in SCENARIOS)
        and max(map(len, printed.splitlines())) <= 80
    )
    assert {scenario.source for scenario in SCENARIOS.values()} < set(
        printed.splitlines()
    )
    assert main(["scenarios", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(SCENARIOS) and all(
        row["source"] and row["description"] for row in rows.values()
    )
    assert (rows["emnist-rotated"]["clients"], rows["emnist-rotated"]["data"]) == (
        100,
        "EMNIST",
    )


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_explains_its_parameters(name, capsys):
    assert main(["scenarios", name]) == 0
    printed = capsys.readouterr().out
    scenario = SCENARIOS[name]
    assert scenario.description in printed and scenario.source in printed
    for parameter, default in scenario.parameters.items():
        option = f"--{parameter.replace('_', '-')}"
        _, _, after = printed.partition(f"\n  {option} (default {default!r})\n      ")
        assert after.strip(), parameter
    assert main(["scenarios", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == json.loads(
        json.dumps(scenario.parameters)
    )


def test_an_unknown_scenario_has_a_neighbour(capsys):
    assert main(["scenarios", "emnist-rotatd"]) == 2
    assert "did you mean 'emnist-rotated'" in capsys.readouterr().err
    assert main(["scenarios", "table", "gaussian"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_has_settings_for_every_method(name):
    for method in Algorithm.registry:
        assert isinstance(SCENARIOS[name].algorithm(method), Algorithm.registry[method])
