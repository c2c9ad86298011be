"""`fedtailor compare`: an experiment file, a table of one's own, and what can go
wrong.
"""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main
from fedtailor.cli.advice import as_typed_text
from fedtailor.lab import scenarios
from fedtailor.lab.experiments.bracketing import MAX_EXTENSIONS

FILE = """title = "Two methods"
seeds = [0]
rounds = 2
[scenarios.rotated]
use = "digits-rotated"
[algorithms.FedAvg]
use = "fedavg"
[quick]
rounds = 1
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "digits.csv"
    digits = scenarios.digits_rotated(clients=4)
    rows = [
        (client.name, *x.ravel(), int(y))
        for client in digits
        for x, y in zip(*client.train, strict=True)
    ]
    names = ["hospital", *(f"pixel {place}" for place in range(64)), "digit"]
    pl.DataFrame(rows, schema=names, orient="row").write_csv(path)
    return path


def test_what_is_only_for_simulations_is_not_deployable(table, capsys):
    columns = ("--client", "hospital", "--target", "digit")
    methods = ("--algorithms", "local", "oracle", "--deployable")
    assert main(["compare", str(table), *columns, *methods]) == 2
    assert "leave it out, or --deployable" in capsys.readouterr().err


def test_an_experiment_ends_with_its_tables(tmp_path, capsys):
    (tmp_path / "two.toml").write_text(FILE)
    assert (
        main(
            [
                "compare",
                str(tmp_path / "two.toml"),
                "--quick",
                "--out",
                str(tmp_path / "results"),
            ]
        )
        == 0
    )
    shown = capsys.readouterr()
    assert "Two methods" in shown.out and "FedAvg" in shown.out
    assert "run 1 of 1, FedAvg on rotated, seed 0" in shown.err
    index = json.loads(
        (tmp_path / "results" / "two-quick" / "experiment.json").read_text()
    )
    assert [cell["algorithm"] for cell in index["cells"]] == ["FedAvg"] and index[
        "file"
    ] == "../../two.toml"

    # The same command goes on; --json prints the tables as one object.
    again = [
        "compare",
        str(tmp_path / "two.toml"),
        "--quick",
        "--out",
        str(tmp_path / "results"),
        "--json",
    ]
    assert main(again) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["experiment"] == "two-quick"
        and found["tables"]["mean"]["rows"][0]["algorithm"] == "FedAvg"
    )

    # Another file of that name is another experiment, unless the first one is gone:
    # then it was moved.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "two.toml").write_text(FILE)
    other = [
        "compare",
        str(tmp_path / "other" / "two.toml"),
        "--quick",
        "--out",
        str(tmp_path / "results"),
    ]
    assert main(other) == 2
    said = capsys.readouterr().err
    assert (
        f"holds the results of {tmp_path / 'two.toml'}; rename" in said
        and said.count("\n") == 1
    )
    (tmp_path / "two.toml").unlink()
    assert main(other) == 0


def test_a_plan_fits_a_terminal_and_writes_nothing(tmp_path, capsys):
    path = tmp_path / "two.toml"
    path.write_text(FILE.replace("seeds = [0]", "seeds = [0, 1]"))
    command = ["compare", str(path), "--plan", "--out", str(tmp_path / "results")]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "two: 2 runs" in shown.out and "core hours" in shown.out
    assert "timing FedAvg on rotated" in shown.err
    assert max(map(len, shown.out.splitlines())) <= 80
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = found["entries"]
    assert (found["runs"], found["finished"]) == (2, 0)
    assert found["training_seconds"] == entry["training_seconds"] > 0
    assert found["core_hours"] == entry["core_seconds"] / 3600 > 0
    assert list(tmp_path.iterdir()) == [path]

    assert main([*command, "--budget"]) == 2
    assert "leave out the budget" in capsys.readouterr().err


def test_a_plan_knows_of_early_ends_and_of_rates_that_are_added(tmp_path, capsys):
    path = tmp_path / "two.toml"
    grid = "grid.sgd.lr = [0.1, 0.05]"
    early = 'until_converged = true\nevaluate_every = 1\nbracket = ["sgd.lr"]\n'
    text = early + FILE.replace('use = "fedavg"', f'use = "fedavg"\n{grid}', 1)
    path.write_text(text.replace('"digits-rotated"', '"digits-rotated"\nval = 0.2', 1))
    command = ["compare", str(path), "--plan", "--out", str(tmp_path / "results")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = found["entries"]
    assert (found["runs"], found["added_runs"]) == (2, MAX_EXTENSIONS)
    assert found["added_seconds"] == entry["added_seconds"]
    assert entry["added_seconds"] == pytest.approx(2 * entry["training_seconds"])
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "2 runs and up to 4 more to bracket" in shown and "rounds," in shown
    assert "At most" in shown and "Runs that are added: at most" in shown
    assert "has converged" in shown and max(map(len, shown.splitlines())) <= 80


def test_labels_in_square_brackets_are_shown(tmp_path, capsys):
    text = FILE.replace("algorithms.FedAvg", 'algorithms."Ditto [weak]"').replace(
        '"fedavg"', '"ditto"'
    )
    (tmp_path / "labels.toml").write_text(
        text.replace("scenarios.rotated", 'scenarios."digits [/]"')
    )
    assert (
        main(
            [
                "compare",
                str(tmp_path / "labels.toml"),
                "--quick",
                "--out",
                str(tmp_path / "results"),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "Ditto [weak]" in shown and "digits [/]" in shown


@pytest.mark.parametrize(
    "name", ["...toml", "..toml", "runs.toml", ".hidden.toml", "...csv"]
)
def test_no_name_of_a_file_leads_out_of_the_results(tmp_path, capsys, name):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(FILE)
    before = sorted(tmp_path.rglob("*"))
    assert (
        main(
            ["compare", str(tmp_path / "in" / name), "--out", str(tmp_path / "results")]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert (
        "cannot be called" in said
        and "rename the file" in said
        and said.count("\n") == 1
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_refused(tmp_path, capsys):
    for name in ("pipe.toml", "pipe.csv"):
        os.mkfifo(tmp_path / name)
        assert main(["compare", str(tmp_path / name)]) == 2
        assert "is not a regular file" in capsys.readouterr().err


def test_a_file_that_is_nested_too_deeply(tmp_path, capsys):
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    assert main(["compare", str(tmp_path / "deep.toml")]) == 2
    assert (
        "deep.toml is not a TOML file: it is nested too deeply"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_second_interrupt_ends_seeds_that_are_trained_at_once(tmp_path):
    (tmp_path / "long.toml").write_text(
        FILE.replace("seeds = [0]", "seeds = [0, 1]").replace(
            "rounds = 2", "rounds = 100000"
        )
    )
    arguments = [
        "compare",
        str(tmp_path / "long.toml"),
        "--seeds-at-once",
        "2",
        "--out",
        str(tmp_path / "results"),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)
    }
    program = (
        f"import sys; from fedtailor.cli import main; sys.exit(main({arguments!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert "run 1 of 2" in process.stderr.readline()
        for line in process.stderr:
            if "round" in line:
                break
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 130, process.stderr.read()


@pytest.mark.slow
def test_a_table_of_ones_own(tmp_path, table, capsys):
    options = [
        "--client",
        "hospital",
        "--target",
        "digit",
        "--algorithms",
        "local",
        "fedavg",
        "--baselines",
        "linear-pooled",
        "--rounds",
        "2",
    ]
    results = ["--seeds", "0", "--lr", "0.1", "--out", str(tmp_path / "results")]
    assert main(["compare", str(table), *options, *results]) == 0
    shown = capsys.readouterr().out
    assert "mean over 4 hospitals" in shown and "fedavg" in shown
    assert "Use local to predict digit for all 4 hospitals: " in shown
    runs = sorted(
        path.name for path in (tmp_path / "results" / "runs" / "table").iterdir()
    )
    assert main(["compare", str(table), *options, *results, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["experiment"] == "digits", (
        "one object and nothing else"
    )
    assert "4 clients" in shown.err
    assert (
        sorted(
            path.name for path in (tmp_path / "results" / "runs" / "table").iterdir()
        )
        == runs
    )
    pl.read_csv(table).gather_every(2).write_csv(table)  # other rows are other runs
    assert main(["compare", str(table), *options, *results]) == 0
    assert len(list((tmp_path / "results" / "runs" / "table").iterdir())) == 2 * len(
        runs
    )


def test_options_of_a_table_reach_its_columns(tmp_path, capsys):
    """Gaps, text, codes and a date; five parts, one seed for each; what was done is
    said before the first run.
    """
    frame = pl.DataFrame(
        {
            "ward": ["a", "b", "c"] * 20,
            "mass": ["61,5", "?", "70,1", "-9"] * 15,
            "code": [1, 2, 3, 4, 1] * 12,
            "seen": ["2024-01-02", "2024-02-03"] * 30,
            "colour": ["red", "blue", "blue"] * 20,
            "num": [0, 1, 2, 0] * 15,
            "who": [number // 2 for number in range(60)],
        }
    )
    frame.write_csv(tmp_path / "visits.csv", separator=";")
    options = [
        "--client",
        "ward",
        "--target",
        "num",
        "--positive",
        ">0",
        "--categories",
        "code",
        "--missing",
        "-9",
        "--folds",
        "2",
        "--group",
        "who",
        "--drop",
        "seen",
    ]
    training = [
        "--algorithms",
        "local",
        "fedavg",
        "--rounds",
        "1",
        "--lr",
        "0.1",
        "--out",
        str(tmp_path / "results"),
    ]
    compared = ["compare", str(tmp_path / "visits.csv"), *options, *training]
    assert main([*compared, "--details"]) == 0
    shown = capsys.readouterr().out
    assert (
        "Numbers are written with a decimal comma." in shown
        and "mass 30 (65.8)" in shown
    )
    assert "code (3 and other), colour (2)" in shown and "seeds 0, 1" in shown
    index = json.loads(
        (tmp_path / "results" / "visits" / "experiment.json").read_text()
    )
    assert (
        index["scenarios"]["visits"]["arguments"]["positive"] == [">0"]
        and len(index["cells"]) == 4
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--metrics", "rmse", "accuracy"],
            "the metric 'accuracy' is not defined for a regression; choose from loss",
        ),
        (
            ["--val", "0"],
            (
                "--val is 0, and learning rates are chosen on validation data; name one"
                " rate with --lr, or"
            ),
        ),
    ],
)
def test_what_a_table_cannot_be_compared_by_is_said_before_anything_is_written(
    tmp_path, capsys, options, said
):
    path = tmp_path / "own.csv"
    pl.DataFrame(
        {"client": ["a", "b"] * 10, "x": range(20), "label": np.arange(20) / 3}
    ).write_csv(path)
    assert (
        main(["compare", str(path), *options, "--out", str(tmp_path / "results")]) == 2
    )
    shown = capsys.readouterr().err
    assert (
        said in shown and shown.count("\n") == 1 and not (tmp_path / "results").exists()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: fedtailor compare"),
        (["nothing.toml"], "cannot read nothing.toml: No such file"),
        (
            ["data.doc"],
            "neither an experiment (.toml) nor a table (.csv, .csv.gz, .tsv",
        ),
        (["nothing.csv"], "nothing.csv"),
        (
            ["nothing.csv", "--algorithms", "fedavgg"],
            "no algorithm 'fedavgg'; did you mean 'fedavg",
        ),
        (["nothing.csv", "--rounds", "0"], "--rounds is 0; it must be 1 or more"),
        (["nothing.csv", "--round", "3"], "--rounds"),
        (
            ["nothing.csv", "--seeds", "0", "-1"],
            "--seeds is -1; it must be in 0 to 4294967295",
        ),
        (["nothing.csv", "--seeds", "0", "1.5"], "--seeds is '0' '1.5'"),
        (["nothing.csv", "--lr"], "--lr is empty; name one or more"),
        (["nothing.csv", "--decimal", ";"], "it must be one of '.', ',', None"),
        (["nothing.csv", "--seeds-at-once", "0"], "--seeds-at-once is 0"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


# the command line of tables
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["compare", "diagnose"])
def test_help_without_a_file_lists_the_options_of_tables(command, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("--client", "--skip-unlabelled", "--missing", "--json"):
        assert option in shown


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        (
            "leave these rows out with skip-unlabelled",
            "leave these rows out with --skip-unlabelled",
        ),
        (
            "no column 'a' for client (columns: b); name the client's column with client",
            "no column 'a' for client (columns: b); name the client's column with"
            " --client",
        ),
        (
            "classes (say task regression if they are quantities, or name the positive"
            " ones with positive).",
            "classes (say --task regression if they are quantities, or name the positive"
            " ones with --positive).",
        ),
        (
            "name the words with `missing`, or drop it",
            "name the words with --missing, or drop it",
        ),
        (
            "name the column in `categories` (docs: errors#a-column-of-numbers)",
            "name the column in --categories (docs: errors#a-column-of-numbers)",
        ),
        (
            "rows of client 'a' go with client 'b'",
            "rows of client 'a' go with client 'b'",
        ),
    ],
)
def test_options_in_messages_are_written_as_they_are_typed(said, typed):
    assert as_typed_text(said) == typed


def test_a_wrong_column_is_explained_in_options_of_the_command_line(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(
        "site,a,y\n" + "\n".join(f"{n % 2},{n * n},{n % 3}" for n in range(40))
    )
    assert main(["compare", str(path), "--target", "y"]) == 2
    assert "name the client's column with --client" in capsys.readouterr().err
