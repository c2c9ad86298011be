"""Networks other than `mlp` are finalized and used: with frozen arrays, with adapters, and
of a user's file, which are not in the manifest alone, and with periodic embeddings.
"""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from cli.test_finalize import CLIENTS, rows
from fedtailor.cli import main

NETWORKS = """
import equinox as eqx
import fedtailor as ft

def Net():
    return ft.models.from_equinox(
        eqx.nn.MLP, in_size=4, out_size=2, width_size=3, depth=1
    )

def Adapted():
    return ft.models.lora(Net(), 2, "re:weight$")
"""

MODELS = {
    "adapters": "mlp:hidden=3,lora=2,where=layers.1.weight,train=head",
    "frozen": "mlp:hidden=3,frozen=not head",
    "own": "only_own.py:Net",
    "own-adapters": "own_and_adapters.py:Adapted",
    "periodic": "periodic_mlp:hidden=3,frequencies=2,width=2",
}


@pytest.fixture(scope="module", params=MODELS)
def compared(request, tmp_path_factory):
    """The folder of a comparison with such a model that was finalized, and the options
    that open the model.
    """
    folder = tmp_path_factory.mktemp(request.param)
    rows().write_csv(folder / "ill.csv")
    model = MODELS[request.param]
    is_own = ".py:" in model
    if is_own:
        model = f"{folder}/{model}"
        Path(model.partition(":")[0]).write_text(NETWORKS)
    options = ["--client", "site", "--target", "sick", "--algorithms", "fedavg"]
    options += ["--lr", "0.3", "--rounds", "2", "--seeds", "0", "--baselines"]
    arguments = ["compare", str(folder / "ill.csv"), *options, "--model", model]
    assert main([*arguments, "--out", str(folder / "results"), "--finalize"]) == 0
    return folder, ["--model", model] if is_own else []


@pytest.fixture
def call(capsys):
    """Runs a command line that must work, and gives what it printed."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return run


def test_final_models_of_any_network_are_used(compared, call, tmp_path):
    folder, own = compared
    results = folder / "results"
    rows(5, seed=1).drop("site", "sick").write_csv(tmp_path / "new.csv")
    ask = (tmp_path / "new.csv", "--client", "north", *own, "--coverage", "0.8")
    shown = call("predict", results, *ask)
    assert len(pl.read_csv(shown.encode())) == 15
    assert "| train | 60 |" in call("card", results, "--client", "south", *own)
    out = tmp_path / "exported"
    assert "3 models" in call("export", results, "--out", out, *own)
    assert call("predict", out, *ask) == shown, "an export has the same sets"
    rows(30, seed=2).write_csv(tmp_path / "more.csv")
    enroll = ("enroll", results, "--data", tmp_path / "more.csv", *own)
    call(*enroll, "--client", "west", "--out", tmp_path / "west")
    call("predict", tmp_path / "west", tmp_path / "new.csv", "--client", "west", *own)
    final = results / "ill/model/runs/fedavg"
    unlearn = ("unlearn", final, "--client", "north", "--out", tmp_path / "without")
    assert "nan" not in call(*unlearn, *own)
    assert "whole" in call("check", tmp_path / "without")


def test_final_models_keep_test_rows_whatever_the_network(compared, call, tmp_path):
    folder, own = compared
    options = ("--out", tmp_path / "kept", "--keep-test", *own)
    assert "without 36 test rows" in call("finalize", folder / "results", *options)
    run = next((folder / "results/runs/table").iterdir())
    ask = (folder / "ill.csv", "--client", "north", *own, "--coverage", "0.8")
    # The run itself is calibrated on validation rows, which it may have to find again.
    shutil.copytree(run, folder / "results/runs/table/again", dirs_exist_ok=True)
    (folder / "results/runs/table/again/validation.parquet").unlink(missing_ok=True)
    copied = call("predict", folder / "results/runs/table/again", *ask)
    assert copied == call("predict", run, *ask)


def test_what_a_client_gives_is_asked_of_any_network(compared, call):
    folder, own = compared
    run = next((folder / "results/runs/table").glob("fedavg-*"))
    found = json.loads(call("contributions", run, "--json", *own))
    assert {part["client"] for part in found["contributions"]} == set(CLIENTS)


def test_runs_without_test_rows_cannot_say_who_gives(compared, capsys):
    folder, own = compared
    final = folder / "results/ill/model/runs/fedavg"
    assert main(["contributions", str(final), *own]) == 2
    error = capsys.readouterr().err
    assert "has no test rows" in error and error.count("\n") == 1


def test_frozen_arrays_must_fit_the_inputs_of_all_rows(tmp_path, capsys):
    """A category that only rows to test on have is an input of all rows."""
    table = rows().with_columns(
        split=pl.Series((["train"] * 40 + ["val"] * 8 + ["test"] * 12) * 3)
    )
    is_test = pl.col("split") == "test"
    table = table.with_columns(
        ward=pl.when(is_test).then(pl.lit("c")).otherwise("ward")
    )
    table.write_csv(tmp_path / "ill.csv")
    options = ["--client", "site", "--target", "sick", "--algorithms", "fedavg"]
    options += ["--lr", "0.3", "--rounds", "2", "--seeds", "0", "--baselines"]
    options += ["--model", MODELS["frozen"], "--out", str(tmp_path / "results")]
    assert main(["compare", str(tmp_path / "ill.csv"), *options]) == 0
    capsys.readouterr()
    code = main(["finalize", str(tmp_path / "results")])
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1, error
    assert "all rows give" in error and "frozen arrays" in error
    assert not (tmp_path / "results/ill/model").exists()
