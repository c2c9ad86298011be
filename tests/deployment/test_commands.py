"""The commands around a run: what they print, and that what is wrong is one line with
exit code 2.
"""

import json
import shutil

import polars as pl
import pytest

import fedtailor as ft
from deployment_helpers import NAMES, write_table
from fedtailor._base.digests import with_digest
from fedtailor.cli import main


@pytest.fixture
def call(capsys):
    """Runs a command line: (exit code, what it printed, its complaint)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_models_are_listed(trained, call):
    run, path = trained
    code, shown, _ = call("models", path)
    assert code == 0
    assert f"{NAMES[2]} (newcomer)" in shown
    code, shown, _ = call("models", path, "--json", "--client", NAMES[1])
    (entry,) = json.loads(shown)
    client = run.federation.client(NAMES[1])
    assert (entry["client"], entry["model"], entry["unseen"]) == (
        NAMES[1],
        "vector",
        False,
    )
    assert entry["test"] == len(client.test.x)
    tested = (
        (pl.col("client") == NAMES[1])
        & (pl.col("metric") == "roc_auc")
        & (pl.col("split") == "test")
    )
    last = run.frame().filter(tested).tail(1)
    assert entry["metric"] == "roc_auc"
    assert entry["on_test"] == last["value"][0]
    code, _, error = call("models", path, "--client", "Ada")
    assert code == 2
    assert "has no model of a client 'Ada'; its clients are" in error


def test_the_models_of_a_comparison_are_ranked_on_validation_data(
    trained, tmp_path, call
):
    results = tmp_path / "results"
    (results / "mine").mkdir(parents=True)
    cells = []
    for seed in (0, 1):
        shutil.copytree(trained[1], results / f"runs/blobs/ditto-{seed}")
        cells.append(
            {
                "scenario": "a",
                "algorithm": "Ditto",
                "seed": seed,
                "run": f"runs/blobs/ditto-{seed}",
            }
        )
    index = {
        "name": "mine",
        "size": "full",
        "title": "t",
        "source": "",
        "note": "",
        "seeds": [0, 1],
        "metrics": ["mean"],
        "figures": [],
        "algorithms": ["Ditto"],
        "runs": 2,
        "cells": cells,
        "seconds": 1.0,
        "machine": "",
        "versions": {},
        "scenarios": {
            "a": {
                "use": "x",
                "arguments": {},
                "model": "",
                "rounds": 2,
                "participation": 1.0,
            }
        },
    }
    (results / "mine" / "experiment.json").write_text(json.dumps(with_digest(index)))
    for path in (results, results / "mine"):
        code, shown, _ = call("models", path, "--json")
        found = json.loads(shown)
        assert (code, len(found)) == (0, 6)
        assert {entry["scenario"] for entry in found} == {"a"}
    code, shown, _ = call("models", results, "--client", NAMES[1])
    assert shown.count("a: Ditto, seed 3") == 2
    code, _, error = call("predict", results, "rows.csv")
    assert code == 2
    assert "is a comparison of several runs; name one of them" in error


def test_rows_are_predicted_into_a_file(trained, tmp_path, call):
    rows = write_table(tmp_path / "rows.csv", rows=5, seed=9)
    code, _, error = call(
        "predict", trained[1], rows, "--client", NAMES[0], "--out", tmp_path / "out.csv"
    )
    assert (code, error) == (0, "")
    code, shown, _ = call("predict", trained[1], rows, "--client", NAMES[0])
    assert shown == (tmp_path / "out.csv").read_text()
    assert pl.read_csv(tmp_path / "out.csv")["prediction"].is_in(["ill", "well"]).all()
    rows.write_text(rows.read_text().replace("Oslo", ""))
    code, _, error = call(
        "predict", trained[1], rows, "--client", NAMES[0], "--out", tmp_path / "no.csv"
    )
    assert code == 2
    assert error.count("\n") == 1
    assert "--missing impute" in error
    assert not (tmp_path / "no.csv").exists()
    assert (
        call("predict", trained[1], rows, "--client", NAMES[0], "--missing", "impute")[
            0
        ]
        == 0
    )
    code, _, error = call(
        "predict", trained[1], tmp_path / "none.csv", "--client", NAMES[0]
    )
    assert code == 2
    assert "there is no file" in error


def test_models_are_exported_with_cards(trained, tmp_path, call):
    code, _, error = call(
        "export", trained[1], "--out", tmp_path / "new", "--clients", NAMES[0], NAMES[2]
    )
    assert (code, error) == (0, "")
    assert sorted(ft.load_models(tmp_path / "new")) == sorted([NAMES[0], NAMES[2]])
    cards = sorted(path.name for path in (tmp_path / "new" / "cards").iterdir())
    assert cards == ["000-Ada-Lovelace.md", "001-Emmy-Noether.md"]
    code, shown, _ = call("card", trained[1], "--client", NAMES[0])
    assert (code, shown) == (0, (tmp_path / "new" / "cards" / cards[0]).read_text())
    code, _, error = call("export", trained[1], "--out", tmp_path / "new")
    assert code == 2
    assert "is not empty" in error
    code, _, error = call("card", trained[1], "--client", "Ada")
    assert code == 2
    assert "no client of" in error


def test_a_newcomer_is_enrolled_and_served(trained, tmp_path, call):
    rows = write_table(tmp_path / "rows.csv", rows=30, seed=9)
    code, _, error = call(
        "enroll",
        trained[1],
        "--data",
        rows,
        "--client",
        "Sofja",
        "--out",
        tmp_path / "sofja",
    )
    assert (code, error) == (0, "")
    code, shown, _ = call("predict", tmp_path / "sofja", rows)
    assert (code, len(shown.splitlines())) == (0, 31)
    run = ft.open(trained[1])
    x, y = run.preprocessing.transform_labelled(pl.read_csv(rows))
    expected = run.enroll(x, y, name="Sofja").predict(x)
    assert [
        line.split(",")[1] for line in shown.splitlines()[1:]
    ] == run.preprocessing.decode(expected).tolist()
    for name, problem in ((NAMES[0], "took part in"), ("Sofja", "is not empty")):
        code, _, error = call(
            "enroll",
            trained[1],
            "--data",
            rows,
            "--client",
            name,
            "--out",
            tmp_path / "sofja",
        )
        assert code == 2
        assert problem in error or "is not empty" in error


def test_a_client_is_forgotten(moved, tmp_path, call):
    table = moved.parent / "table.csv"
    elsewhere = table.rename(tmp_path / "elsewhere.csv")
    options = ["unlearn", moved, "--client", NAMES[0], "--out", tmp_path / "new"]
    code, _, error = call(*options)
    assert code == 2
    assert "say where it is with --table" in error
    assert not (tmp_path / "new").exists()
    code, shown, error = call(*options, "--table", elsewhere)
    assert code == 0, error
    assert "Retrained on 2 of 3 clients" in shown
    assert call("check", tmp_path / "new")[0] == 0
    assert NAMES[0] not in call("models", tmp_path / "new")[1]
