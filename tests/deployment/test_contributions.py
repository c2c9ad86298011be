"""What clients give: trainings without them, in the metric of the run."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.cli.main import main
from fedtailor.deployment import contributions
from fedtailor.deployment.contributions import contributions_of
from fedtailor.deployment.opening import open_run
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs.run import executor_of, run_on
from fedtailor.lab.results.decision import decide
from lab.results.test_decision import build


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    """Three seeds of FedAvg on a table: `large` has most rows of the law that `small`
    shares, and `other` has the opposite law.
    """
    folder = tmp_path_factory.mktemp("giving")
    rng = np.random.default_rng(0)
    sizes = {"large": 300, "small": 60, "other": 40}
    lines = ["site,a,b,y"]
    for name, size in sizes.items():
        x = rng.normal(size=(size, 2))
        slope = -2 if name == "other" else 2
        y = slope * x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=size) > 0
        lines += [
            f"{name},{a:.4f},{b:.4f},{'yes' if label else 'no'}"
            for (a, b), label in zip(x, y, strict=True)
        ]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    directories = []
    for seed in range(3):
        table = ft.tables.from_table(
            folder / "table.csv",
            client="site",
            target="y",
            test=0.4,
            val=0.1,
            seed=seed,
        )
        directories.append(folder / f"run-{seed}")
        ft.run(
            ft.FedAvg(sgd=ft.SGD(lr=0.5, epochs=2)),
            table,
            ft.models.logistic(),
            8,
            seed=seed,
            keep_rows=True,
            directory=directories[-1],
        )
    return directories


def test_a_comparison_is_explained_by_the_method_that_its_decision_speaks_of(
    tmp_path, monkeypatch
):
    """And not by the one with the best mean, which here trains alone and gives nothing."""
    experiment = build(tmp_path)
    verdict = decide(experiment, "shift").verdict
    experiment.index.scenarios.pop("permuted")
    monkeypatch.setattr(contributions, "experiments", lambda *_: [experiment])
    monkeypatch.setattr(contributions, "open_run", lambda path, **options: path)
    runs = contributions.runs_at([tmp_path], None, Settings())
    assert verdict.recommendation.method == "LOCAL"
    assert runs == [run.path for run in experiment.runs["shift"][verdict.shared]]


def test_leaving_out_is_a_training_without(of_three):
    runs = [open_run(path) for path in of_three]
    found = contributions_of(runs)
    assert [part.client for part in found.contributions] == ["large", "other", "small"]
    assert (found.seeds, found.trainings, found.metric) == (3, 9, "accuracy")
    by_name = {part.client: part.others_lose for part in found.contributions}
    # By hand for one client: the others' accuracy with and without it.
    differences = []
    for run in runs:
        alone = run.federation.only([name for name in run.names if name != "large"])
        trained = ft.run(
            run.algorithm, alone, run.model, 8, seed=run.stored.seed
        ).row_outcomes()
        for name in alone.names:
            with_all = run.test_rows[0].filter(client=name)["correct"].mean()
            differences.append(with_all - trained.filter(client=name)["correct"].mean())
    assert by_name["large"].estimate == pytest.approx(np.mean(differences), abs=0.03)
    # The client of the opposite law costs the others.
    assert by_name["other"].estimate < 0.02
    sentences = found.sentences()
    assert len(sentences) == 3
    assert all(line.startswith("without ") for line in sentences)


def test_shapley_values_add_up(of_three):
    run = open_run(of_three[0])
    found = contributions_of([run], shapley=True)
    assert found.trainings == 6
    total = sum(part.shapley.estimate for part in found.contributions)
    rows, nothing = run.test_rows
    means = [rows.filter(client=name)["correct"].mean() for name in run.names]
    base = nothing.filter(metric="accuracy", split="test")["value"].mean()
    assert total == pytest.approx(np.mean(means) - base, abs=1e-9)
    for part in found.contributions:
        assert part.shapley.low < part.shapley.estimate < part.shapley.high


def test_the_command_says_it(of_three, capsys, tmp_path):
    out = tmp_path / "contributions.json"
    assert main(["contributions", *map(str, of_three[:1]), "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fedavg, 1 seed, 3 more trainings:"
    assert "points of accuracy" in lines[1]
    assert len(json.loads(out.read_text())["contributions"]) == 3


def test_errors(of_three, capsys, tmp_path):
    first = str(of_three[0])
    for arguments, problem in (
        ([], "name the results of a comparison"),
        ([first, first], "two runs have the same seed"),
        ([str(tmp_path / "no")], "there is no directory"),
        ([first, "--method", "fedavg"], "--method is for the results of a comparison"),
        ([first, "--permutations", "0"], "permutations"),
    ):
        assert main(["contributions", *arguments]) == 2
        error = capsys.readouterr().err
        assert problem in error
        assert "Traceback" not in error


@pytest.fixture(scope="module")
def with_weights(tmp_path_factory):
    """Two clients whose easy rows weigh ten times as much as their hard ones."""
    folder = tmp_path_factory.mktemp("weights")
    rng = np.random.default_rng(1)
    site, x = np.repeat(["a", "b"], 300), rng.normal(size=600)
    is_easy = rng.random(600) < 0.5
    noise = np.where(is_easy, 0.1, 3.0) * rng.normal(size=600)
    frame = pl.DataFrame(
        {
            "site": site,
            "x": x,
            "w": np.where(is_easy, 10.0, 1.0),
            "y": np.where(x + noise > 0, "yes", "no"),
        }
    )
    frame.write_csv(folder / "table.csv")
    table = ft.tables.from_table(
        folder / "table.csv", client="site", target="y", weight="w", test=0.4
    )
    steps = ft.SGD(lr=0.5, epochs=2)
    for metric in ("accuracy", "roc_auc"):
        ft.run(
            ft.FedAvg(sgd=steps),
            table,
            ft.models.logistic(),
            4,
            metrics=[metric],
            keep_rows=True,
            directory=folder / metric,
        )
    return folder


def test_rows_with_weights_give_what_they_weigh(with_weights):
    run = open_run(with_weights / "accuracy")
    found = {it.client: it.others_lose for it in contributions_of([run]).contributions}
    kept = replace(run.federation, unseen=np.array([True, False]))
    spec = replace(run.spec, rounds=4)
    without = run_on(executor_of(kept, run.model, Settings(), None), spec)
    lost = []
    for rows in (run.test_rows[0], without.row_outcomes()):
        own = rows.filter(pl.col("client") == "b")
        lost.append(np.average(own["correct"], weights=own["weight"]))
    # Pseudo-rows bring it a little nearer to 0.
    assert found["a"].estimate == pytest.approx(lost[0] - lost[1], abs=2e-3)


def test_a_metric_that_rows_with_weights_do_not_determine_is_refused(with_weights):
    with pytest.raises(
        ValueError, match=r"roc_auc, which .* --metrics of accuracy, loss"
    ):
        contributions_of([open_run(with_weights / "roc_auc")])


def test_a_card_has_the_interval_of_the_weighted_accuracy(with_weights):
    """It was that of the plain accuracy, beyond which the accuracy itself was."""
    run = open_run(with_weights / "accuracy")
    (line,) = [
        it for it in ft.model_card(run, "a").splitlines() if "| accuracy, %" in it
    ]
    value, interval = line.split("|")[2:4]
    low, _, high = interval.split()
    assert float(low) < float(value) < float(high)
    rows = run.test_rows[0].filter(pl.col("client") == "a")
    correct, weight = rows["correct"].to_numpy(), rows["weight"].to_numpy()
    assert float(value) == pytest.approx(
        100 * np.average(correct, weights=weight), abs=0.06
    )
