"""Federated boosting from a comparison to models: finalize, predict, export, card."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.cli import main
from fedtailor.lab.baselines import CHOSEN
from fedtailor.lab.results.stored import StoredRun
from fedtailor.statistics.boosting import (
    BoostingSettings,
    OwnTrees,
    boost,
    boost_chosen,
)
from fedtailor.statistics.boosting.boost import sum_over
from fedtailor.statistics.boosting.federated import boosting_rows

OTHERS = ("trees-alone", "trees-personal", "linear-alone")
OPTIONS = (
    *("--client", "site", "--target", "grade", "--algorithms", "local", "fedavg"),
    *("--lr", "0.1", "--rounds", "2", "--seeds", "0", "1", "2"),
    *("--baselines", "trees-federated", *OTHERS),
)
CLIENTS = ("north", "south", "other")


def rows(count=150, seed=0):
    """A table that no linear model fits, with one client of the opposite law."""
    rng = np.random.default_rng(seed)
    parts = []
    for client in CLIENTS:
        age, dose = rng.normal(50, 10, count).round(1), rng.normal(size=count).round(3)
        law = np.sin((age - 50) / 4) + dose**2 + 0.1 * rng.normal(size=count)
        kind = rng.choice(["a", "b"], count)
        sign = -1 if client == "other" else 1
        grade = np.where(sign * (law - 0.9) > 0, "high", "low")
        parts.append({"site": client, "age": age, "dose": dose, "ward": kind})
        parts[-1] |= {"grade": grade, "score": (sign * law).round(4)}
    return pl.concat([pl.DataFrame(part) for part in parts])


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of a table and of a comparison on it, with models of trees."""
    folder = tmp_path_factory.mktemp("compared")
    rows().drop("score").write_csv(folder / "ill.csv")
    arguments = ["compare", str(folder / "ill.csv"), *OPTIONS, "--out"]
    assert main([*arguments, str(folder / "results")]) == 0
    asked = ["finalize", str(folder / "results"), "--method", "trees-federated"]
    assert main(asked) == 0
    return folder


@pytest.fixture
def call(capsys):
    """Runs a command line: (exit code, what it printed, its complaint)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.slow
def test_the_final_trees_are_those_of_all_rows(compared):
    """The numbers of trees are what the comparison chose; the trees are grown anew."""
    runs = sorted((compared / "results" / "runs" / "table").glob("trees-federated-*"))
    chosen = [StoredRun(path).summary[CHOSEN] for path in runs]
    assert len(chosen) == 3
    rounds = int(np.median([one["rounds"] for one in chosen]))
    final = ft.open(compared / "results")
    own = final.stored.summary[CHOSEN]["own"]
    assert final.stored.summary[CHOSEN]["rounds"] == rounds
    assert own["other"]["rounds"] > 0 and not own["other"]["after_shared"]

    data = ft.tables.from_table(
        compared / "ill.csv",
        client="site",
        target="grade",
        keep_correlated=True,
        all_rows=True,
    )
    clients = [boosting_rows(data, place) for place in range(len(data))]
    settings = BoostingSettings(trees=rounds, chooses=False)
    inputs = data.input_shape[0]
    shared = boost(sum_over(clients), inputs, data.classes, settings)
    for place, name in enumerate(data.names):
        expected = boost_chosen(
            clients[place], shared, settings, OwnTrees(**own[name])
        ).outputs(data.x)
        found = np.asarray(final.personal(name).outputs(data.x), np.float64)
        found -= np.logaddexp.reduce(found, axis=1)[:, None]
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("method", OTHERS)
def test_every_candidate_becomes_models(compared, call, tmp_path, method):
    """They predict, are exported and described; of a newcomer and of forgetting one line
    says that they cannot."""
    final, table = tmp_path / "final", compared / "ill.csv"
    code, *_ = call(
        "finalize", compared / "results", "--method", method, "--out", final
    )
    assert code == 0
    code, shown, _ = call("predict", final, table, "--probabilities")
    found = pl.read_csv(shown.encode())
    right = (found["prediction"] == rows()["grade"]).mean()
    assert code == 0 and right > (0.5 if method == "linear-alone" else 0.9)
    code, shown, _ = call("predict", final, table, "--coverage", "0.9")
    assert code == 0 and "set" in shown.splitlines()[0]
    code, shown, _ = call("predict", final, table, "--threshold", "f1")
    assert code == 0 and shown.splitlines()[0].endswith(",p(low),threshold")
    code, *_ = call("export", final, "--out", tmp_path / "vectors")
    assert code == 0
    _, again, _ = call("predict", tmp_path / "vectors", table, "--probabilities")
    assert pl.read_csv(again.encode())["prediction"].equals(found["prediction"])
    code, shown, _ = call("card", final, "--client", "other")
    assert code == 0 and "refitted on all 450 rows" in shown
    rows(4).drop("site", "score").write_csv(tmp_path / "new.csv")
    new = ("--data", tmp_path / "new.csv", "--client", "new", "--out", tmp_path / "e")
    code, _, complaint = call("enroll", final, *new)
    assert code == 2 and len(complaint.strip().splitlines()) == 1, complaint


def test_the_decision_hands_over_the_best_trees(compared, call):
    """What the first line names is what `finalize` makes without being told."""
    code, shown, _ = call("report", compared / "results")
    first = shown.splitlines()[0]
    assert code == 0 and first.startswith("Use trees-"), first
    assert "Without a federation" not in shown and "yardstick" not in shown


def test_models_of_trees_predict_raw_rows(compared, call):
    table = compared / "ill.csv"
    code, shown, _ = call("predict", compared / "results", table, "--probabilities")
    found = pl.read_csv(shown.encode())
    truth = rows()["grade"]
    assert code == 0 and found.columns[:3] == ["row", "client", "prediction"]
    assert (found["prediction"] == truth).mean() > 0.9
    total = found["p(high)"] + found["p(low)"]
    np.testing.assert_allclose(total, np.ones(len(found)), atol=1e-6)
    code, shown, _ = call("predict", compared / "results", table, "--coverage", "0.9")
    assert code == 0 and "set" in shown.splitlines()[0]


def test_the_card_says_what_trees_are(compared, call):
    code, shown, _ = call("card", compared / "results", "--client", "other")
    assert code == 0
    assert "boosted trees, federated: Trees are boosted on sums" in shown
    assert "refitted on all 450 rows" in shown and "accuracy" in shown
    assert "- rounds: " in shown and "95 % interval" in shown


def test_exports_of_trees_predict_the_same(compared, call, tmp_path):
    table = compared / "ill.csv"
    _, expected, _ = call("predict", compared / "results", table, "--probabilities")
    out = tmp_path / "vectors"
    code, *_ = call("export", compared / "results", "--out", out)
    assert code == 0
    _, found, _ = call("predict", out, table, "--probabilities")
    assert found == expected


@pytest.mark.extra
def test_onnx_graphs_of_trees_predict_the_same(compared, call, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    table = pl.read_csv(compared / "ill.csv")
    models = ft.open(compared / "results")
    for options in ((), ("--encoded",)):
        out = tmp_path / f"graphs{len(options)}"
        code, *_ = call(
            *("export", compared / "results", "--out", out, "--format", "onnx"),
            *options,
        )
        assert code == 0
        for path in sorted(out.glob("*.onnx")):
            session = runtime.InferenceSession(path)
            name = session.get_modelmeta().custom_metadata_map["client"]
            personal = models.personal(name)
            x = personal.preprocessing.transform(table)
            given = {"x": x}
            if not options:
                given = {
                    column: table[column].to_numpy()
                    for column in ("age", "dose", "ward")
                }
            (found,) = session.run(["probabilities"], given)
            np.testing.assert_allclose(found, personal.probabilities(x), atol=2e-6)


def test_runs_of_a_comparison_keep_their_trees(compared, call):
    """Each split's trees can be opened, with sets from validation rows."""
    path = sorted((compared / "results" / "runs" / "table").glob("trees-federated-*"))[
        0
    ]
    table = compared / "ill.csv"
    code, shown, _ = call(
        *("predict", path, table, "--coverage", "0.9", "--calibrated")
    )
    assert code == 0 and "set" in shown
    code, shown, _ = call("card", path, "--client", "north")
    assert code == 0 and "Sets of 90 %" in shown and "| accuracy, % |" in shown
    code, shown, _ = call("models", path)
    assert code == 0 and "trees-federated" in shown
    code, *_ = call("check", path)
    assert code == 0


def test_what_needs_messages_is_refused_in_one_line(compared, call, tmp_path):
    rows(4).drop("site", "score").write_csv(tmp_path / "new.csv")
    new = ("--data", tmp_path / "new.csv", "--client", "new")
    for arguments in (
        ("enroll", compared / "results", *new, "--out", tmp_path / "enrolled"),
        ("unlearn", compared / "results", "--client", "north", "--out", tmp_path / "f"),
    ):
        code, _, complaint = call(*arguments)
        assert code == 2 and len(complaint.strip().splitlines()) == 1, complaint
        assert "Traceback" not in complaint
        assert "boosted trees, federated" in complaint


def test_test_rows_can_be_kept_back(compared, call, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(compared, folder)
    code, *_ = call(
        *("finalize", folder / "results", "--method", "trees-federated"),
        *("--keep-test", "--out", folder / "kept"),
    )
    assert code == 0
    record = json.loads((folder / "kept" / "final.json").read_text())
    assert record["kept"] > 0
    code, *_ = call("predict", folder / "kept", folder / "ill.csv", "--coverage", "0.8")
    assert code == 0


@pytest.mark.nightly
def test_a_regression_is_predicted_in_its_own_unit(call, tmp_path):
    rows().drop("grade").write_csv(tmp_path / "ill.csv")
    options = [it if it != "grade" else "score" for it in OPTIONS]
    results = tmp_path / "results"
    code, *_ = call("compare", tmp_path / "ill.csv", *options, "--out", results)
    assert code == 0
    code, shown, _ = call("report", results)
    assert "trees boosted on sums over clients" in " ".join(shown.split())
    code, *_ = call("finalize", results, "--method", "trees-federated")
    assert code == 0
    _, shown, _ = call("predict", results, tmp_path / "ill.csv", "--coverage", "0.9")
    found, truth = pl.read_csv(shown.encode()), rows()["score"]
    assert ((found["prediction"] - truth) ** 2).mean() < 0.25 * truth.var()
    assert (found["low"] < found["high"]).all()


def test_methods_that_were_not_compared_are_named(compared, call):
    code, _, complaint = call("finalize", compared / "results", "--method", "trees")
    assert code == 2 and "trees-federated" in complaint
