"""`fedtailor diagnose`: what it prints of a table and of a scenario, and how mistakes
end.
"""

import json

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main

OPTIONS = ["--client", "site", "--target", "ill"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Two groups of hospitals that label alike inputs in opposite ways."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("table") / "rows.csv"
    site = np.arange(1200) % 4
    age = rng.normal(size=1200)
    ill = np.where(
        age * np.where(site % 2, 1, -1) + 0.3 * rng.normal(size=1200) > 0, "yes", "no"
    )
    pl.DataFrame(
        {"site": [f"h{number}" for number in site], "age": age, "ill": ill}
    ).write_csv(path)
    return str(path)


def test_a_table_of_ones_own_in_words(table, capsys):
    assert main(["diagnose", table, *OPTIONS]) == 0
    said = capsys.readouterr().out
    assert "Train ucfl, ifca, local and let validation data choose." in said
    assert "ucfl    32 B  64 B     64 B  streams 2" in said  # a model of 4 numbers
    assert "Pairs, by gradients the most unlike ones first:" in said
    assert (
        "gradient_ratio: distance of gradients at one model over what sampling explains"
        in said
    )


def test_a_column_that_describes_clients_tells_none_apart(tmp_path, capsys):
    """The inputs of a regression are decorrelated; what is said is about columns."""
    rng, parts = np.random.default_rng(0), []
    for client in range(20):
        x = rng.normal(size=(30, 2))
        x[:, 1] += 6.0 * (client == 7)
        part = {"site": [f"s{client}"] * 30, "age": x[:, 0], "dose": x[:, 1]}
        part |= {"beds": [100.0 + client] * 30, "urban": [client % 2] * 30}
        part["pain"] = x @ [1.0, -1.0] + rng.normal(size=30)
        parts.append(pl.DataFrame(part))
    pl.concat(parts).write_csv(tmp_path / "rows.csv")
    options = ("--client", "site", "--target", "pain")
    assert main(["diagnose", str(tmp_path / "rows.csv"), *options]) == 0
    said = capsys.readouterr().out
    assert "Clients are told apart by their inputs in 19 of 190 pairs." in said
    assert "differ between clients, in deviations within them: dose (1.4)." in said
    assert "and are not compared: beds, urban." in said


def test_all_of_it_as_json(table, capsys):
    assert main(["diagnose", table, *OPTIONS, "--json"]) == 0
    printed = capsys.readouterr()
    assert "4 clients (0 unseen)" in printed.err, "how the table was understood"
    found = json.loads(printed.out)
    assert [entry["method"] for entry in found["race"]] == ["ucfl", "ifca", "local"]
    assert [client["client"] for client in found["clients"]] == [
        "h0",
        "h1",
        "h2",
        "h3",
    ] and len(found["pairs"]) == 6
    assert [client["group"] for client in found["clients"]] == [0, 1, 0, 1]
    assert {*found["clients"][0], *found["pairs"][0]} - {"client", "other"} == {
        *found["rests_on"]
    }
    assert 3 <= len(found["sentences"]) <= 6 and found["cannot_tell"] is False


def test_a_scenario_with_its_sizes(capsys):
    assert (
        main(
            [
                "diagnose",
                "digits-label-shift",
                "--clients",
                "24",
                "--alpha",
                "5",
                "--seed",
                "3",
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert (
        "Clients (the first 20 of 24; --json has all):" in said and "client-19" in said
    )
    assert "There are no validation rows yet" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage: fedtailor diagnose"),
        (["nowhere"], "nowhere"),
        (["nowhere.csv"], "nowhere.csv"),
        (["digits-rotated", "--seed", "-1"], "--seed is -1"),
        (["digits-rotated", "--clients", "1"], "one client alone cannot be compared"),
        (["digits-rotated", "--rounds", "3"], "unknown option --rounds"),
    ],
)
def test_mistakes_end_in_one_line(arguments, said, capsys):
    assert main(["diagnose", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and said in output.err and output.err.count("\n") == 1


def test_a_wrong_column_ends_in_one_line(table, capsys):
    assert main(["diagnose", table, "--client", "hospital", "--target", "ill"]) == 2
    assert "hospital" in capsys.readouterr().err
