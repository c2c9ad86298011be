"""The command line in process: what it prints, and how every mistake ends."""

import json
import os

import pytest

from fedtailor.cli import main
from fedtailor.protocol import Algorithm

QUICK = ["--rounds", "2", "--evaluate-every", "2"]
NAMES = {
    *("local", "fedavg", "fedavgm", "finetune", "oracle", "ucfl", "ucfl-parallel", "hypcluster", "dapper", "mapper"),
    *("afl", "self-fl", "cgpfl", "cgpfl-heur", "fedprox", "scaffold", "cfl", "fedfomo", "pfedme", "ditto"),
    *("per-fedavg", "apfl", "l2gd", "ifca"),
}
FIELDS = {
    *(
        "algorithm",
        "scenario",
        "rounds",
        "seed",
        "clients",
        "mean",
        "worst",
        "worst10",
        "std",
        "unseen_mean",
        "streams",
    ),
    *("models_down", "models_down_unicast", "models_up", "bytes_down", "bytes_up", "seconds", "seconds_per_round"),
}


def test_algorithms_are_listed_with_what_travels(capsys):
    assert main(["algorithms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == NAMES == set(Algorithm.registry)
    assert all(set(row) == {"name", "paper", "down", "up", "keeps", "unseen"} and all(row.values()) for row in rows)
    assert main(["algorithms"]) == 0
    assert "per-fedavg" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_hyper_parameter_is_explained(name, capsys):
    assert main(["algorithms", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["doc"]) > 200
    assert [row["name"] for row in found["parameters"] if not row["doc"]] == []
    assert main(["algorithms", name]) == 0
    assert found["paper"] in capsys.readouterr().out


def test_scenarios_are_listed(capsys):
    assert main(["scenarios", "--json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"digits-label-shift", "digits-rotated", "digits-permuted"} <= names


def test_a_run_prints_one_object_and_keeps_its_directory(tmp_path, capsys):
    out = str(tmp_path / "run")
    arguments = ["run", "fedavg", "digits-rotated", *QUICK, "--sgd.lr", "0.05", "--out", out, "--json"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found) >= FIELDS
    assert (found["algorithm"], found["scenario"], found["rounds"], found["clients"]) == (
        "fedavg",
        "digits-rotated",
        2,
        20,
    )
    assert found["models_up"] == 40 and found["unseen_mean"] is None
    assert "round 2 of 2" in captured.err
    assert main(arguments) == 2  # it is there already
    assert "already holds a run" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {name: again[name] for name in FIELDS - {"seconds"}} == {name: found[name] for name in FIELDS - {"seconds"}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trane"], "no command 'trane'"),
        (["run"], "usage: fedtailor run"),
        (["run", "fedavgg", "digits-rotated"], "did you mean 'fedavg'"),
        (["run", "fedavg", "digits-rotatd"], "did you mean 'digits-rotated'"),
        (["run", "fedavg", "digits-rotated", "--sgd.lr", "0"], "lr is 0.0; it must be above 0"),
        (["run", "fedavg", "digits-rotated", "--sgd.lr", "much"], "sgd.lr"),
        (["run", "fedavg", "digits-rotated", "--learning-rate", "1"], "--learning-rate"),
        (["run", "fedavg", "digits-rotated", "--rounds", "0"], "rounds is 0; it must be 1 or more"),
        (["run", "ucfl", "digits-rotated", "--streams", "50", "--rounds", "1"], "50 streams for 20 clients"),
        (
            ["run", "fedavg", "digits-rotated", "--participation", "30", "--rounds", "1"],
            "30 exceeds the 20 seen clients",
        ),
        (["run", "fedavg", "digits-rotated", "--participation", "0"], "participation"),
        (["run", "fedavg", "digits-rotated", "--resume"], "--out DIR"),
        (["run", "fedavg", "digits-rotated", "--resume", "--out", "nowhere"], "there is no run in nowhere"),
        (["run", "fedavg", "digits-rotated", "--lr", "1"], "--sgd.lr"),
        (["demo", "--round", "1"], "perhaps --rounds"),
        (["algorithms", "ucfll"], "did you mean 'ucfl'"),
        (["algorithms", "--jsn"], "unknown option"),
    ],
)
def test_mistakes_end_in_one_line(arguments, said, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("fedtailor: ")
    assert said in captured.err


def test_divergence_ends_in_one_line(capsys):
    assert main(["run", "fedavg", "digits-rotated", *QUICK, "--sgd.lr", "1e30"]) == 2
    assert "learning rate" in capsys.readouterr().err


def test_foreign_and_unwritable_directories_are_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert main(["run", "fedavg", "digits-rotated", *QUICK, "--out", str(tmp_path)]) == 2
    assert "other files" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    assert "algorithms" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedtailor 0.")
    assert main([]) == 2
    assert main(["run", "ditto", "digits-rotated", "--help"]) == 0
    assert "--lam" in capsys.readouterr().out
