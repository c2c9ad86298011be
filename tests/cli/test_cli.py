"""The command line in process: what it prints, and how every mistake ends."""

import json
import os

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main
from fedtailor.cli.commands.algorithms import FACTS, LEGEND, group
from fedtailor.protocol import Algorithm

QUICK = ["--rounds", "2", "--evaluate-every", "2"]
NAMES = {
    *(
        "local",
        "fedavg",
        "fedavgm",
        "finetune",
        "oracle",
        "ucfl",
        "ucfl-parallel",
        "hypcluster",
        "dapper",
        "mapper",
    ),
    *(
        "afl",
        "self-fl",
        "cgpfl",
        "cgpfl-heur",
        "fedprox",
        "scaffold",
        "cfl",
        "fedfomo",
        "pfedme",
        "ditto",
    ),
    *("per-fedavg", "apfl", "l2gd", "ifca"),
    *(
        "fedper",
        "fedrep",
        "lg-fedavg",
        "fedbn",
        "fedbabu",
        "fedrod",
        "fedala",
        "moon",
        "feddbe",
        "knn-per",
        "feddpa",
        "flexlora",
        "fedproto",
        "fedgh",
        "fedtgp",
        "heterofl",
        "fedmd",
        "hetlora",
        "fedex-lora",
        "fedpac",
        "gpfl",
        "fedcp",
        "fedas",
        "ccvr",
        "fedlc",
        "fedfew",
    ),
    *(
        "mr-mtl",
        "feddyn",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "fedem",
        "fedamp",
        "pacfl",
        "pfedhn",
    ),
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
    *(
        "models_down",
        "models_down_unicast",
        "models_up",
        "bytes_down",
        "bytes_up",
        "seconds",
        "core_seconds",
        "seconds_per_round",
    ),
}


def test_algorithms_are_listed_with_what_travels(capsys):
    assert main(["algorithms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == NAMES == set(Algorithm.registry)
    fields = {
        "name",
        "paper",
        "down",
        "up",
        "client_keeps",
        "unseen_clients_get",
        "travels",
        "server_sees",
        "validation",
        "sums_if",
        "in_common",
    }
    assert all(
        set(row) == fields
        and all(row[name] for name in fields - {"validation", "sums_if"})
        for row in rows
    )
    assert {row["name"] for row in rows if row["validation"]} == {
        "fedfomo",
        "dapper",
        "knn-per",
    }


@pytest.mark.parametrize("fact", FACTS)
def test_the_list_of_algorithms_is_grouped_and_fits_a_terminal(
    fact, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["algorithms", "--by", fact]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) < 2 * len(NAMES)
    found, heading = {}, None
    for line in lines:
        heading = (
            line.removeprefix(f"{fact}: ") if line.startswith(f"{fact}: ") else heading
        )
        name = line.split()[0] if line[:2] == "  " and line[2:3].strip() else None
        found |= {name: heading} if name else {}
    assert found == {
        name: group(Algorithm.registry[name].about, fact) for name in NAMES
    }
    ditto = next(line for line in lines if line.startswith("  ditto "))
    assert "its personal model" in ditto and ("sums" in ditto or fact == "sees")


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
    arguments = [
        "run",
        "fedavg",
        "digits-rotated",
        *QUICK,
        "--sgd.lr",
        "0.05",
        "--out",
        out,
        "--json",
    ]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found) >= FIELDS
    assert (
        found["algorithm"],
        found["scenario"],
        found["rounds"],
        found["clients"],
    ) == (
        "fedavg",
        "digits-rotated",
        2,
        20,
    )
    assert found["models_up"] == 40 and found["unseen_mean"] is None
    assert "round 2 of 2" in captured.err
    assert main(arguments) == 2  # it is there already
    assert "already holds a run" in capsys.readouterr().err
    experiment = tmp_path / "one.toml"
    experiment.write_text(
        'title = "one"\nrounds = 2\n[scenarios.a]\nuse = "digits-rotated"\n'
        '[algorithms.local]\nuse = "local"\n'
    )
    assert main(["compare", str(experiment), "--out", out]) == 2
    assert "holds a single run; name another" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    again = json.loads(capsys.readouterr().out)
    same = FIELDS - {"seconds", "core_seconds"}
    assert {name: again[name] for name in same} == {name: found[name] for name in same}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trane"], "no command 'trane'"),
        (["run"], "usage: fedtailor run"),
        (["run", "fedavgg", "digits-rotated"], "did you mean 'fedavg'"),
        (["run", "fedavg", "digits-rotatd"], "did you mean 'digits-rotated'"),
        (
            ["run", "fedavg", "digits-rotated", "--sgd.lr", "0"],
            "lr is 0.0; it must be above 0",
        ),
        (["run", "fedavg", "digits-rotated", "--sgd.lr", "much"], "sgd.lr"),
        (
            ["run", "fedavg", "digits-rotated", "--learning-rate", "1"],
            "--learning-rate",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--rounds", "0"],
            "rounds is 0; it must be 1 or more",
        ),
        (
            ["run", "ucfl", "digits-rotated", "--streams", "50", "--rounds", "1"],
            "50 streams for 20 clients",
        ),
        (
            [
                "run",
                "fedavg",
                "digits-rotated",
                "--participation",
                "30",
                "--rounds",
                "1",
            ],
            "30 exceeds the 20 seen clients",
        ),
        (["run", "fedavg", "digits-rotated", "--participation", "0"], "participation"),
        (
            ["run", "fedper", "digits-rotated", "--part", "tail"],
            "the parts it has are: head, body, bias, last1",
        ),
        (
            ["run", "lg-fedavg", "digits-rotated", "--part", "norm"],
            "part 'norm' is nothing of this model",
        ),
        (
            ["run", "fedbabu", "digits-rotated", "--part", "everything"],
            "leaves fedbabu nothing to train",
        ),
        (["run", "fedavg", "digits-rotated", "--resume"], "--out DIR"),
        (
            ["run", "fedavg", "digits-rotated", "--resume", "--out", "nowhere"],
            "there is no run in nowhere",
        ),
        (["run", "fedavg", "digits-rotated", "--lr", "1"], "--sgd.lr"),
        (["demo", "--round", "1"], "perhaps --rounds"),
        (["algorithms", "ucfll"], "did you mean 'ucfl'"),
        (["algorithms", "--jsn"], "unknown option"),
        (["algorithms", "--by", "seen"], "did you mean 'sees'"),
        (["algorithms", "--by"], "--by needs one of travels, keeps, sees, validation"),
        (["algorithms", "fedavg", "--by=keeps"], "usage: fedtailor algorithms"),
        (
            ["run", "fedavg", "digits-rotated", "--participation", "nan"],
            "participation is nan; it must be a share",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--participation", "2.5"],
            "participation is 2.5",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--participation", "inf"],
            "participation is inf",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--seed", "-1"],
            "--seed is -1; it must be in 0 to 4294967295",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--seed", "4294967296"],
            "--seed is 4294967296",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--sgd.epochs", "0"],
            "--sgd.epochs is 0; it must be 1 or more",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--sgd.steps", "0"],
            "--sgd.steps is 0; it must be 1 or more",
        ),
        (
            ["run", "finetune", "digits-rotated", "--tune.epochs", "0"],
            "--tune.epochs is 0; it must be 1 or more",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--sgd.optimizer", "adam"],
            "--sgd.optimizer is 'adam'",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--rounds", "1.5"],
            "--rounds is '1.5'; it must be a whole number",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--rounds=x"],
            "--rounds is 'x'; it must be a whole number",
        ),
        (["run", "fedavg", "digits-rotated", "--rounds"], "--rounds needs a value"),
        (
            ["run", "fedavg", "digits-rotated", "--evaluate-every", "0"],
            "--evaluate-every is 0; it must be 1 or more",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--checkpoint-every", "0"],
            "--checkpoint-every is 0",
        ),
        (["run", "fedavg", "digits-rotated", "--devices", "0"], "--devices is 0"),
        (
            ["run", "fedavg", "digits-rotated", "--out", ""],
            "--out is empty; give it a value",
        ),
        (
            ["run", "fedavg", "digits-rotated", "--out="],
            "--out is empty; give it a value",
        ),
        (["run", "fedavg", "digits-rotated", "more"], "unknown argument more"),
        (
            ["run", "fedavg", "digits-rotated", "--clients", "many"],
            "--clients is 'many'; it must be a whole number",
        ),
        (["run", "fedavg", "table"], "path, client and target"),
        (
            ["run", "ucfl", "digits-rotated", "--kernel", "eq7"],
            "--kernel is 'eq7'; it must be one of eq9, eq6",
        ),
        (["report"], "missing: RESULTS"),
        (["report", ""], "empty; give it a value"),
        (["demo", "--rounds", "0"], "--rounds is 0; it must be 1 or more"),
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
    assert (
        main(["run", "fedavg", "digits-rotated", *QUICK, "--out", str(tmp_path)]) == 2
    )
    assert "other files" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_scenarios_parameters_are_options(tmp_path, capsys):
    generator = np.random.default_rng(0)
    rows = {
        "ward": np.repeat(["a", "b", "c"], 20),
        "x": generator.normal(size=60),
        "y": np.tile([0, 1], 30),
    }
    pl.DataFrame(rows).write_csv(tmp_path / "wards.csv")
    table = [
        "table",
        "--path",
        str(tmp_path / "wards.csv"),
        "--client",
        "ward",
        "--target",
        "y",
    ]
    assert main(["run", "fedavg", *table, *QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["scenario"], found["clients"], found["metric"]) == (
        "table",
        3,
        "accuracy",
    )
    assert (
        main(["run", "fedavg", "digits-rotated", "--clients", "4", *QUICK, "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["clients"] == 4


def test_a_part_of_the_model_is_an_option(capsys):
    """With the body at home, the head of 64 units and ten classes travels."""
    assert (
        main(
            [
                "run",
                "fedper",
                "digits-rotated",
                "--part",
                "body",
                "--clients",
                "4",
                *QUICK,
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["bytes_up"] == 2 * 4 * 4 * (64 + 1) * 10


def test_parameters_of_the_name_of_another_option_have_a_prefix(capsys):
    """APFL has an alpha, and so has the scenario."""
    assert main(["run", "apfl", "digits-label-shift", "--help"]) == 0
    shown = capsys.readouterr().out
    assert " --alpha " in shown and "--scenario.alpha " in shown
    arguments = ["--scenario.alpha", "-1", "--alpha", "0.25", "--rounds", "1"]
    assert main(["run", "apfl", "digits-label-shift", *arguments]) == 2
    assert "alpha is -1" in capsys.readouterr().err


def test_json_of_a_run_without_test_data(tmp_path, capsys):
    """There is no accuracy then: null, not NaN, which JSON does not know."""
    assert (
        main(
            [
                "run",
                "local",
                "digits-rotated",
                "--test",
                "0",
                "--clients",
                "4",
                *QUICK,
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["mean"] is None and found["worst"] is None and found["clients"] == 4


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    assert "algorithms" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedtailor 0.")
    assert main([]) == 2
    assert main(["run", "ditto", "digits-rotated", "--help"]) == 0
    assert "--lam" in capsys.readouterr().out


@pytest.mark.parametrize(
    "beside", [["--client"], ["--coverage", "models"], ["-h", "--help=-1"]]
)
def test_mistakes_beside_it_do_not_hide_the_help(beside, capsys):
    assert main(["unlearn", *beside, "-h"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("usage: fedtailor unlearn") and not said.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check"], "or a directory that holds some of them."),
        (["run", "ucfl", "digits-rotated"], "or in proportion to training samples"),
        (
            ["run", "ditto", "digits-rotated"],
            "With it, every step draws new examples",
        ),
    ],
    ids=["own option", "option of a run", "nested hyper-parameter"],
)
def test_help_flows_over_the_line_breaks_of_the_source(
    arguments, sentence, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main([*arguments, "--help"]) == 0
    assert sentence in capsys.readouterr().out


def test_lists_are_not_wrapped_in_a_pipe(capsys):
    assert main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(text in lines for text in LEGEND)
