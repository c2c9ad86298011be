"""`--precision`, and the key of an experiment file: of models, files and messages."""

import json
import tomllib

import pytest

from cli.test_finalize import rows
from fedtailor import open as open_run
from fedtailor.cli import main

TABLE = ("--client", "site", "--target", "sick")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("precision") / "ill.csv"
    rows(40).write_csv(path)
    return path


def manifests(results):
    """The settings of all runs of a result directory but those of baselines."""
    found = [
        tomllib.loads(path.read_text())
        for path in results.glob("runs/*/*/manifest.toml")
    ]
    assert found
    return found


def test_a_run_in_bfloat16_sends_half_and_is_used_again(table, tmp_path, capsys):
    bytes_up = {}
    for precision in ("float32", "bfloat16"):
        out = tmp_path / precision
        options = ["--path", str(table), *TABLE, "--rounds", "2", "--out", str(out)]
        options += ["--precision", precision, "--json"]
        assert main(["run", "fedavg", "table", *options]) == 0
        bytes_up[precision] = json.loads(capsys.readouterr().out)["bytes_up"]
        manifest = tomllib.loads((out / "manifest.toml").read_text())
        assert manifest["model"]["dtype"] == precision
    assert bytes_up["float32"] == 2 * bytes_up["bfloat16"]
    half = tmp_path / "bfloat16"
    personal = open_run(half).personal("north")
    assert str(personal.theta.dtype) == "bfloat16"
    rows(4, seed=1).drop("site", "sick").write_csv(tmp_path / "new.csv")
    ask = [str(tmp_path / "new.csv"), "--client", "north"]
    assert main(["predict", str(half), *ask]) == 0
    predicted = capsys.readouterr().out
    assert len(predicted.splitlines()) == 13
    assert main(["export", str(half), "--out", str(tmp_path / "models")]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "models"), *ask]) == 0
    assert capsys.readouterr().out == predicted


def test_a_comparison_of_a_table_has_models_of_a_precision(table, tmp_path, capsys):
    options = [*TABLE, "--algorithms", "local", "fedavg", "--lr", "0.3"]
    options += ["--rounds", "2", "--seeds", "0", "--baselines", "--finalize"]
    options += ["--precision", "bfloat16", "--out", str(tmp_path)]
    assert main(["compare", str(table), *options]) == 0, capsys.readouterr().err
    assert {one["model"]["dtype"] for one in manifests(tmp_path)} == {"bfloat16"}
    (final,) = tmp_path.glob("ill/model/runs/*")
    assert tomllib.loads((final / "manifest.toml").read_text())["model"]["dtype"] == (
        "bfloat16"
    )


EXPERIMENT = """
title = "Halves"
seeds = [0]
metrics = ["mean"]

[scenarios.digits]
use = "digits-rotated"
clients = 8
rounds = 1
{model}

[algorithms.FedAvg]
use = "fedavg"
"""


MIXED = {
    "type": "Precision",
    "parameters": "float32",
    "compute": "bfloat16",
    "sums": "float32",
}


@pytest.mark.parametrize(
    ("model", "options", "dtype"),
    [
        ('model = { use = "mlp", hidden = 4, precision = "bfloat16" }', [], "bfloat16"),
        (
            'model = { use = "mlp", hidden = 4 }',
            ["--precision", "bfloat16"],
            "bfloat16",
        ),
        (
            'model = { use = "mlp", hidden = 4, precision = "bfloat16" }',
            ["--precision", "float32"],
            "float32",
        ),
        (
            'model = { use = "mlp", hidden = 4, precision = "mixed" }',
            [],
            MIXED,
        ),
        (
            'model = { use = "mlp", hidden = 4 }',
            ["--precision", "mixed"],
            MIXED,
        ),
    ],
)
def test_an_experiment_says_a_precision(tmp_path, model, options, dtype, capsys):
    file = tmp_path / "halves.toml"
    file.write_text(EXPERIMENT.format(model=model))
    arguments = ["compare", str(file), *options, "--out", str(tmp_path / "results")]
    assert main(arguments) == 0, capsys.readouterr().err
    (manifest,) = manifests(tmp_path / "results")
    assert manifest["model"]["dtype"] == dtype


def test_a_precision_that_there_is_not_is_told(table, tmp_path, capsys):
    half = 'model = { use = "mlp", precision = "float8" }'
    file = tmp_path / "halves.toml"
    file.write_text(EXPERIMENT.format(model=half))
    assert main(["compare", str(file), "--out", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert "precision is 'float8'" in error and error.count("\n") == 1
    arguments = ["run", "fedavg", "table", "--path", str(table), *TABLE]
    assert main([*arguments, "--precision", "half"]) == 2
    assert "--precision is 'half'; it must be one of" in capsys.readouterr().err
