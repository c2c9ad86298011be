"""From a table to a decision and a model: `compare`, `finalize`, and what takes models."""

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main

CLIENTS = ("north", "south", "east")
OPTIONS = (
    *("--client", "site", "--target", "sick", "--algorithms", "local", "fedavg"),
    *("--lr", "0.3", "--rounds", "6", "--seeds", "0", "1", "2"),
)
POOLED = ("--baselines", "linear-pooled")
"""The other candidates are those of tests/cli/test_finalize_trees.py."""


def rows(count=60, seed=0):
    """A table whose clients share one truth."""
    rng = np.random.default_rng(seed)
    parts = []
    for client in CLIENTS:
        age, dose = rng.normal(50, 10, count), rng.normal(size=count)
        sick = (age - 50) / 10 + dose + 0.5 * rng.normal(size=count) > 0
        parts.append(
            pl.DataFrame(
                {
                    "site": [client] * count,
                    "age": age.round(1),
                    "dose": dose.round(3),
                    "ward": rng.choice(["a", "b"], count),
                    "sick": np.where(sick, "yes", "no"),
                }
            )
        )
    return pl.concat(parts)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of a table and of the results of a comparison on it."""
    folder = tmp_path_factory.mktemp("compared")
    rows().write_csv(folder / "ill.csv")
    arguments = ["compare", str(folder / "ill.csv"), *OPTIONS, *POOLED]
    assert main([*arguments, "--out", str(folder / "results")]) == 0
    return folder


@pytest.fixture
def copied(compared, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(compared, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def call(capsys):
    """Runs a command line: (exit code, what it printed, its complaint)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_comparison_ends_in_a_sentence_and_a_line_for_each_client(compared, call):
    code, shown, _ = call("report", compared / "results")
    assert code == 0
    lines = shown.splitlines()
    use = re.compile(r"Use (local|fedavg) to predict sick for all 3 sites: ")
    assert use.match(lines[0])
    assert lines[1].startswith("Why: ")
    assert re.match(r"(fedavg a|A)gainst training alone: ", lines[2])
    assert any(
        line.startswith("ill.csv: test accuracy, % (higher is better; ")
        and line.endswith("mean over 3 sites, 3 random splits")
        for line in lines
    )
    tables = shown[shown.index("candidate ") :]
    for candidate in ("fedavg", "local", *CLIENTS):
        assert f"\n{candidate} " in tables
    assert "traffic (down: multicast)" not in shown
    _, long, _ = call("report", compared / "results", "--details")
    assert "traffic (down: multicast)" in long
    assert lines[0] in long.splitlines(), "the details end with the decision"
    _, markdown, _ = call("report", compared / "results", "--format", "markdown")
    assert lines[0] in markdown


def test_the_decision_in_json_has_every_number(compared, call):
    _, shown, _ = call("report", compared / "results", "--format", "json")
    verdict = json.loads(shown)["decision"]["ill"]["verdict"]
    assert verdict["method"] in ("local", "fedavg")
    assert {entry["client"] for entry in verdict["clients"]} == set(CLIENTS)
    for entry in verdict["clients"]:
        assert entry["low"] <= entry["expected"] <= entry["high"]
        # The only one needs pooled rows.
        assert entry["baseline"] == "" and entry["gain_over_baseline"] is None
        assert entry["p_holm"] >= entry["p"]
        assert entry["sharing"] in ("better", "worse", "no difference shown")


def test_final_models_are_trained_on_all_rows(copied, call):
    code, shown, _ = call("finalize", copied / "results")
    folder = copied / "results" / "ill" / "model"
    assert code == 0 and "refitted on all 180 rows" in shown and str(folder) in shown
    (copied / "new.csv").write_text("age,dose,ward\n70,2,a\n30,-2,b\n")
    for place in (copied / "results", folder, copied / "results" / "ill"):
        code, shown, _ = call("predict", place, copied / "new.csv", "--client", "north")
        assert code == 0
        assert [line.split(",")[1] for line in shown.split()[1:]] == ["yes", "no"]
    code, shown, _ = call("card", copied / "results", "--client", "south")
    assert "| train | 60 |" in shown and "| test | 0 |" in shown
    assert "no test rows are left" in shown and "refitted on all 180 rows" in shown
    assert "95 % interval" in shown
    code, _, _ = call("export", copied / "results", "--out", copied / "exported")
    assert code == 0 and len(list((copied / "exported" / "cards").iterdir())) == 3
    rows(30, seed=1).write_csv(copied / "more.csv")
    enroll = ("enroll", copied / "results", "--data", copied / "more.csv")
    code, _, error = call(*enroll, "--client", "west", "--out", copied / "west")
    assert code == 0, error
    code, shown, _ = call("check", copied / "results")
    assert code == 0 and "final models of 3 clients" in shown
    code, shown, _ = call("models", folder)
    assert code == 0 and "north" in shown


def test_final_models_of_one_method_for_all(copied, call):
    for method in ("local", "fedavg"):
        out = copied / method
        options = ("--out", out, "--method", method)
        code, _, _ = call("finalize", copied / "results", *options)
        assert code == 0
        assert [path.name for path in (out / "runs").iterdir()] == [method]
        record = json.loads((out / "final.json").read_text())
        assert {entry["method"] for entry in record["clients"].values()} == {method}


def test_each_client_uses_the_run_of_its_method(copied, call):
    """The record may give clients different methods: north trains alone."""
    from dataclasses import replace

    from fedtailor.deployment.opening import models_at
    from fedtailor.engine.storage.final_models import Expectation, read_final

    for method in ("local", "fedavg"):
        call(
            "finalize", copied / "results", "--out", copied / method, "--method", method
        )
    shutil.copytree(copied / "local/runs/local", copied / "fedavg/runs/local")
    record = read_final(copied / "fedavg")
    clients = {**record.clients, "north": Expectation("local", "local")}
    replace(record, clients=clients).write(copied / "fedavg")
    models = models_at(copied / "fedavg")
    shared, alone = (
        models_at(copied / "fedavg/runs/fedavg"),
        models_at(copied / "local"),
    )
    assert (models["north"].theta == alone["north"].theta).all()
    assert (models["south"].theta == shared["south"].theta).all()
    assert not (models["north"].theta == shared["north"].theta).all()


@pytest.fixture
def refits(monkeypatch):
    """The trainings on all rows that are made, by their directories."""
    from fedtailor.deployment import finalizing

    made, train = [], finalizing.run_on

    def counted(executor, spec, **options):
        made.append(options["store"])
        return train(executor, spec, **options)

    monkeypatch.setattr(finalizing, "run_on", counted)
    return made


@pytest.mark.slow
def test_a_comparison_with_finalize_makes_the_models_once(copied, call, refits):
    arguments = ["compare", copied / "ill.csv", *OPTIONS]
    arguments += ["--out", copied / "results", "--finalize"]
    code, shown, error = call(*arguments)
    assert code == 0 and "refitted on all 180 rows" in shown, error
    made = len(refits)
    assert made in (1, 2), "one for each method that is used"
    code, shown, _ = call(*arguments)
    assert code == 0 and "refitted on all 180 rows" in shown
    assert len(refits) == made
    # Another comparison has other models.
    changed = [*arguments, "--test", "0.3"]
    assert call(*changed)[0] == 0
    assert len(refits) > made


def test_sets_of_final_models_are_from_test_rows_of_the_comparison(copied, call):
    results = copied / "results"
    assert call("finalize", results)[0] == 0
    ask = ("predict", results, copied / "ill.csv", "--client", "north")
    code, shown, said = call(*ask, "--coverage", "0.9")
    assert code == 0, said
    assert "it holds for them as far as they are no worse" in said
    table = pl.read_csv(shown.encode())
    assert table["set"].is_in(["yes", "no", "yes | no", "no | yes"]).all()
    # The scores are those of test rows of the first seed, by the method of the client.
    folder = results / "ill" / "model"
    record = json.loads((folder / "final.json").read_text())
    calibration = json.loads((folder / "calibration.json").read_text())
    for client, entry in record["clients"].items():
        found = calibration["clients"][client]["scores"]
        (run,) = (
            path
            for path in (results / "runs" / "table").glob(f"{entry['method']}-*")
            if "seed = 0"
            in (path / "manifest.toml").read_text().split("[algorithm]")[0]
            and (path / "summary.json").exists()
        )
        rows = pl.read_parquet(run / "rows.parquet")
        loss = rows.filter(pl.col("client") == client)["loss"].to_numpy()
        np.testing.assert_allclose(found, np.sort(1 - np.exp(-loss)), atol=1e-6)
    out = copied / "exported"
    assert call("export", results, "--out", out)[0] == 0
    code, again, _ = call("predict", out, *ask[2:], "--coverage", "0.9")
    assert code == 0 and again == shown
    # The card says what `predict` gives: it said that there are none.
    _, card, _ = call("card", results, "--client", "north")
    assert "Sets of 90 % (`predict --coverage 0.9`)" in card and " test rows." in card
    assert "Sets and intervals are from the test rows of the comparison's" in card


def test_test_rows_are_kept_back_if_asked(copied, call):
    results, out = copied / "results", copied / "kept"
    code, shown, _ = call("finalize", results, "--out", out, "--keep-test")
    assert code == 0 and "refitted on 144 rows, without 36 test rows" in shown
    ask = ("predict", out, copied / "ill.csv", "--client", "east")
    code, shown, said = call(*ask, "--coverage", "0.9")
    assert code == 0, said
    assert "36 test rows, on which these models were not trained" in said
    calibration = json.loads((out / "calibration.json").read_text())
    found = calibration["clients"]["east"]["scores"]
    # By hand: 1 - p(true class) of the rows that the run says are for testing.
    record = json.loads((out / "final.json").read_text())
    method = record["clients"]["east"]["method"]
    from fedtailor import open as open_run

    run = open_run(out / "runs" / method)
    table = run.federation
    client = table.client("east")
    assert len(client.val.y) == 0 and len(client.train.y) == 48
    probs = run.personal("east").probabilities(client.test.x)
    expected = 1 - probs[np.arange(len(client.test.y)), client.test.y]
    np.testing.assert_allclose(found, np.sort(expected), atol=1e-5)
    _, card, _ = call("card", out, "--client", "east")
    card = " ".join(card.split())
    assert "without the 36 test rows of the comparison's first split" in card
    assert "No test rows are left" not in card


def test_thresholds_of_final_models_are_those_of_the_comparison(copied, call):
    """Chosen on the validation rows of its first split, and measured on its test rows."""
    from fedtailor.deployment.thresholds import thresholds_at

    results, table = copied / "results", copied / "ill.csv"
    out = copied / "final"
    asked = ("finalize", results, "--method", "fedavg", "--out", out)
    assert call(*asked)[0] == 0
    (run,) = (
        path
        for path in (results / "runs" / "table").glob("fedavg-*")
        if "seed = 0" in (path / "manifest.toml").read_text().split("[algorithm]")[0]
        and (path / "rows.parquet").exists()
    )
    for rule in ("f1", "specificity=0.8", "sensitivity=0.7"):
        found, expected = thresholds_at(out, rule), thresholds_at(run, rule)
        assert found.label == expected.label == "yes"
        for client in (*CLIENTS, "newcomer"):
            assert found.of(client) == expected.of(client)
        assert found.measured(CLIENTS) == expected.measured(CLIENTS)
    ask = ("predict", out, table, "--client", "north", "--threshold", "specificity=0.8")
    code, shown, said = call(*ask)
    assert code == 0, said
    assert (
        "by models that it trained without them, and measured on its test rows;" in said
    )
    found = pl.read_csv(shown.encode())
    is_yes = found["prediction"] == "yes"
    assert is_yes.equals(found["p(yes)"] >= found["threshold"], check_names=False)
    _, card, _ = call("card", out, "--client", "north")
    assert re.search(r"\| north \| specificity=0.9 \| \d+, \d+ \(all clients'\)", card)
    assert "Thresholds were chosen on the validation rows of the comparison's" in card
    assert str(copied) not in card
    # The rows are stored in another order than that of the table.
    stored = pl.read_parquet(out / "thresholds.parquet")
    assert stored.equals(stored.sort(pl.all()))


def test_thresholds_of_kept_test_rows_are_measured_on_the_final_models(copied, call):
    from fedtailor.deployment.thresholds import thresholds_at

    out = copied / "kept"
    asked = ("finalize", copied / "results", "--method", "fedavg", "--out", out)
    assert call(*asked, "--keep-test")[0] == 0
    from fedtailor import open as open_run

    run = open_run(out / "runs" / "fedavg")
    rows = run.federation.client("east").test
    outputs = run.personal("east").outputs(rows.x)
    found = thresholds_at(out, "f1")
    hit = outputs[:, 1] - outputs[:, 0] >= found.of("east").log_odds
    measured = found.measured(["east"]).measures
    expected = np.mean(hit[rows.y == 1])
    np.testing.assert_allclose(measured.sensitivity.estimate, expected, rtol=1e-6)
    ask = ("predict", out, copied / "ill.csv", "--threshold", "f1")
    assert "measured on 36 test rows, on which they were not trained" in call(*ask)[2]


def test_final_models_without_rows_of_thresholds_are_refused(copied, call):
    assert call("finalize", copied / "results")[0] == 0
    path = copied / "results" / "ill" / "model" / "thresholds.parquet"
    ask = ("predict", copied / "results", copied / "ill.csv", "--threshold", "f1")
    content = path.read_bytes()
    damaged = (content[:-20] + content[-19:], content[:40] + b"x" + content[41:])
    for other in (*damaged, None):
        path.unlink() if other is None else path.write_bytes(other)
        code, _, error = call(*ask)
        assert code == 2 and error.count("\n") == 1 and "thresholds.parquet" in error
        assert "run `fedtailor finalize` again" in error
        assert call("check", copied / "results")[0] == (0 if other is None else 1)


def test_what_cannot_be_finalized_is_said_in_one_line(copied, call):
    results = copied / "results"
    cases = {
        ("finalize", copied / "nowhere"): "there is no directory",
        ("finalize", copied): "there are no results in",
        ("finalize", results, "other"): "there is no experiment",
        ("finalize", results, "--method", "ditto"): "ditto",
        ("finalize", results, "--out", results): "is not empty; name a new directory",
        ("finalize", results, "--table", copied / "x.csv"): "the table is not at",
        ("report", copied / "nowhere"): "there is no directory",
        (
            "predict",
            results,
            copied / "ill.csv",
            "--out",
            copied / "ill.csv",
        ): "the file that is read; name another file",
        (
            "predict",
            results,
            copied / "ill.csv",
        ): "or make models of what it chose (`fedtailor finalize",
    }
    for arguments, message in cases.items():
        code, _, error = call(*arguments)
        assert code == 2 and message in error and error.count("\n") == 1, error
    rows(61).write_csv(copied / "ill.csv")
    code, _, error = call("finalize", results, "--table", copied / "ill.csv")
    assert code == 2 and "is not the table that was compared on" in error
    assert not (results / "ill" / "model").exists()
    run = next((results / "runs" / "table").glob("linear-pooled-*"))
    code, _, error = call("predict", run, copied / "ill.csv")
    assert code == 2 and "holds what a baseline predicted, and no models" in error


def test_a_damaged_record_is_refused(copied, call):
    call("finalize", copied / "results", "--out", copied / "final")
    record = copied / "final" / "final.json"
    text = record.read_text()
    for damaged in (text.replace("180", "181"), text[:-9], "[]", "{}"):
        record.write_text(damaged)
        for command in ("predict", "check"):
            extra = (copied / "ill.csv",) if command == "predict" else ()
            code, shown, error = call(command, copied / "final", *extra)
            # `check` has looked at all, and found what is wrong.
            assert code == (2 if command == "predict" else 1)
            assert "final.json" in shown + error
    record.write_text(text)
    shutil.rmtree(copied / "final" / "runs")
    code, _, error = call("predict", copied / "final", copied / "ill.csv")
    assert code == 2 and "lacks the run" in error


def test_baselines_can_be_left_out(copied, call):
    options = ("--out", copied / "other", "--baselines")
    code, _, _ = call("compare", copied / "ill.csv", *OPTIONS, *options)
    assert code == 0
    names = {
        path.name.split("-")[0] for path in (copied / "other/runs/table").iterdir()
    }
    assert names == {"local", "fedavg"}


def test_times_to_an_event_are_compared_with_cox_and_predicted(tmp_path, call):
    """The times fall with the dose."""
    rng = np.random.default_rng(3)
    frame = rows().drop("sick")
    hazard = np.exp(frame["dose"].to_numpy())
    times = rng.exponential(1 / hazard)
    frame = frame.with_columns(days=np.minimum(times, 2.0), died=1.0 * (times <= 2))
    frame.write_csv(tmp_path / "ill.csv")
    arguments = ["compare", tmp_path / "ill.csv", *OPTIONS[:-3], "0", "--finalize"]
    arguments[arguments.index("sick")] = "days"
    code, shown, _ = call(*arguments, "--event", "died", "--out", tmp_path / "out")
    assert code == 0
    shown = shown.split("candidate ")[-1]
    assert all(client in shown for client in CLIENTS) and "cox-stratified" in shown
    code, shown, _ = call("predict", tmp_path / "out/ill/model", tmp_path / "ill.csv")
    assert code == 0 and shown.startswith("row,client,risk\n")
    # Cox's models are handed over as others are.
    for name in ("cox-alone", "cox-stratified"):
        final = tmp_path / name
        chosen = ("--method", name, "--out", final)
        assert call("finalize", tmp_path / "out", *chosen)[0] == 0
        asked = (tmp_path / "ill.csv", "--times", "0.5", "1.5")
        code, shown, _ = call("predict", final, *asked)
        found = pl.read_csv(shown.encode())
        assert code == 0 and (found["S(0.5)"] >= found["S(1.5)"]).all()
        # The risk rises with the dose.
        assert np.corrcoef(found["risk"], frame["dose"])[0, 1] > 0.5
        assert call("export", final, "--out", tmp_path / f"{name}-models")[0] == 0
        _, again, _ = call("predict", tmp_path / f"{name}-models", *asked)
        assert again == shown
        code, shown, _ = call("card", final, "--client", CLIENTS[0])
        assert code == 0 and "Cox" in shown
    # Who takes --time for the column of times is told which option names it.
    arguments = ["--client", "site", "--event", "died", "--time", "days"]
    code, _, error = call("compare", tmp_path / "ill.csv", *arguments)
    assert code == 2
    assert "name the column of the times to the event with --target" in error


def test_a_small_network_is_in_the_race(copied, call):
    """One seed, so that it is quick: both models are candidates of each method."""
    options = ("--out", copied / "auto", "--model", "auto", "--hidden", "4")
    arguments = ["compare", copied / "ill.csv", *OPTIONS[:-3], "0", *options]
    code, _, _ = call(*arguments, "--baselines")
    assert code == 0
    _, shown, _ = call("report", copied / "auto", "--details")
    assert "model linear" in shown and "model mlp hidden 4" in shown
    wrong = ("--model", "linear", "--hidden", "4")
    code, _, error = call("compare", copied / "ill.csv", *OPTIONS, *wrong)
    assert code == 2 and "--hidden is the width of mlp and auto" in error
