"""Tables against numbers computed from the parquet files by other means."""

import csv
import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedtailor._base.digests import with_digest
from fedtailor.aggregation.accounting import WIRELESS_PRESETS
from fedtailor.engine.storage.comparison_index import ScenarioUse
from fedtailor.lab.report import overview
from fedtailor.lab.report.comparison import tables
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.measures import MEASURES
from fedtailor.lab.results.stored import StoredRun
from lab.report.results import (
    CLIENTS,
    NAME,
    ROUNDS,
    SEEDS,
    UNSEEN,
    as_loss,
    write_index,
)

SEEN = CLIENTS - UNSEEN
RUNS = {"shift": "runs/digits-label-shift", "permuted": "runs/digits-permuted"}


def column(table, header):
    """Label -> cell."""
    place = [name.replace("\n", " ") for name in table.columns].index(header)
    return {row[0]: str(row[place]) for row in table.rows}


def accuracies(run, round=ROUNDS, split="test", unseen=False):
    """Client -> accuracy."""
    rows = pl.read_parquet(run / "metrics.parquet").to_dicts()
    wanted = {"round": round, "split": split, "unseen": unseen, "metric": "accuracy"}
    return {
        row["client"]: row["value"]
        for row in rows
        if all(row[key] == wanted[key] for key in wanted)
    }


def expected(measure, run):
    """A measure in percent, by sorting and summing plain numbers."""
    clients = {
        row["client"]: row
        for row in pl.read_parquet(run / "clients.parquet").to_dicts()
    }
    found = accuracies(run)
    assert len(found) == SEEN
    means = {
        t: np.mean(list(accuracies(run, t).values())) for t in range(1, ROUNDS + 1)
    }
    vals = {
        t: np.mean(list(accuracies(run, t, "val").values()))
        for t in range(1, ROUNDS + 1)
    }
    correct = {
        client: value * clients[client]["test"] for client, value in found.items()
    }
    most = sorted(found, key=lambda client: -clients[client]["train"])[: SEEN // 10]
    return (
        100
        * {
            "mean": lambda: means[ROUNDS],
            "weighted": (
                lambda: (
                    sum(correct.values())
                    / sum(clients[client]["test"] for client in found)
                )
            ),
            "worst": lambda: min(found.values()),
            "worst10": lambda: np.mean(sorted(found.values())[: SEEN // 10]),
            "std": lambda: np.sqrt(
                np.mean([(value - means[ROUNDS]) ** 2 for value in found.values()])
            ),
            "largest10": (
                lambda: (
                    sum(correct[c] for c in most)
                    / sum(clients[c]["test"] for c in most)
                )
            ),
            "unseen": lambda: np.mean(list(accuracies(run, unseen=True).values())),
            "best_val": lambda: means[max(vals, key=lambda t: (vals[t], -t))],
            "max_test": lambda: max(means.values()),
        }[measure]()
    )


@pytest.mark.parametrize("measure", MEASURES)
def test_main_tables(results, experiment, measure):
    table = tables(experiment)[measure]
    assert [row[0] for row in table.rows] == [
        "Local",
        "FedAvg",
        "UCFL, auto",
        "Wild",
        "Half",
    ]
    warning = ", max over rounds on test" if measure == "max_test" else ""
    for scenario, directory in RUNS.items():
        for label in ("Local", "FedAvg"):
            runs = [results / directory / f"{label.lower()}-s{seed}" for seed in SEEDS]
            values = [expected(measure, run) for run in runs]
            found = [MEASURES[measure].compute(StoredRun(run)) for run in runs]
            assert [100 * value for value in found] == pytest.approx(values, abs=1e-9)
            text = (
                f"{np.mean(values):.1f} ± {abs(values[0] - values[1]) / np.sqrt(2):.1f}"
            )
            assert column(table, scenario + warning)[label] == text
    permuted = column(table, f"permuted{warning}")
    ucfl = expected(measure, results / RUNS["permuted"] / "ucfl-s0")
    half = expected(measure, results / RUNS["permuted"] / "fedavg-s0")
    assert (
        permuted["UCFL, auto"] == f"{ucfl:.1f} [1]"
        and permuted["Half"] == f"{half:.1f} [1], 1 diverged"
    )
    assert permuted["Wild"] == "diverged"
    assert column(table, f"shift{warning}")["UCFL, auto"] == "-"


def test_the_measures_differ_on_these_runs(results):
    """Or else the tests above would not tell one from another."""
    values = [
        expected(measure, results / RUNS["shift"] / "local-s0")
        for measure in MEASURES
        if "_" not in measure
    ]
    assert len({round(value, 6) for value in values}) == len(values)


def test_published_figures_stand_beside_ours(experiment):
    table = tables(experiment)["mean"]
    assert (
        table.columns[1:3] == ["shift", "shift,\npublished"] and len(table.columns) == 4
    )
    published = {
        "FedAvg": "76.7 ± 4.0",
        "Local": "68.2",
        "UCFL, auto": "-",
        "Wild": "-",
        "Half": "-",
    }
    assert column(table, "shift, published") == published
    assert len(tables(experiment)["worst"].columns) == 3


def test_over_clients(results, experiment):
    table = tables(experiment)["shift-clients"]
    assert [row[0] for row in table.rows] == [
        "Local",
        "FedAvg",
    ]  # the others never ran there
    runs = [results / RUNS["shift"] / f"fedavg-s{seed}" for seed in SEEDS]
    unseen = np.mean([expected("unseen", run) for run in runs])
    assert column(table, "unseen")["FedAvg"].startswith(f"{unseen:.1f} ± ")


def test_traffic_and_time(results, experiment):
    table = tables(experiment)["permuted-costs"]
    assert column(table, "models down")["FedAvg"] == str(ROUNDS + 1)  # and the delivery
    assert column(table, "models up")["FedAvg"] == str(ROUNDS * SEEN)
    assert (
        column(table, "models up")["Local"] == "0"
        and column(table, "streams")["FedAvg"] == "1"
    )
    size = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert column(table, "MB up")["FedAvg"] == f"{ROUNDS * SEEN * size / 1e6:.1f}"
    assert set(column(table, "streams")["Wild"]) == {"-"}

    curves = {
        label: [
            [
                np.mean(
                    list(
                        accuracies(
                            results / RUNS["permuted"] / f"{label}-s{seed}", t
                        ).values()
                    )
                )
                for t in range(1, ROUNDS + 1)
            ]
            for seed in SEEDS
        ]
        for label in ("fedavg", "local")
    }
    harmonic = sum(1 / k for k in range(1, SEEN + 1))
    for header, rho, delay in (
        ("time rho=4, random", 4, harmonic),
        ("time rho=2", 2, 0),
        ("time rho=1", 1, 0),
    ):
        first = [int(np.argmax(curve)) + 1 for curve in curves["fedavg"]]
        delivered = 1  # FedAvg's final model; Local's clients hold theirs
        assert (
            column(table, header)["FedAvg"]
            == f"{np.mean(first) * (1 + 1 + delay + rho) + delivered:.0f}"
        )
        reached = [
            [t for t, value in enumerate(curve, 1) if value >= max(target)]
            for curve, target in zip(curves["local"], curves["fedavg"], strict=True)
        ]
        local = (
            f"{np.mean([times[0] for times in reached]) * (1 + delay):.0f}"
            if all(reached)
            else "-"
        )
        assert column(table, header)["Local"] == local


def test_when_the_rounds_of_fedavg_are_over(results, experiment):
    """Local sends nothing, so all its rounds are over by then; of UCFL, which sends
    more, fewer are.
    """
    table = tables(experiment)["permuted-by-time"]
    curves = [
        [
            np.mean(
                list(
                    accuracies(
                        results / RUNS["permuted"] / f"{label}-s{seed}", t
                    ).values()
                )
            )
            for seed in SEEDS
        ]
        for label in ("fedavg", "local")
        for t in range(1, ROUNDS + 1)
    ]
    for header in ("rho=4, random", "rho=2", "rho=1"):
        assert column(table, header)["FedAvg"].startswith(
            f"{100 * np.mean(curves[ROUNDS - 1]):.1f} ± "
        )
        assert column(table, header)["Local"].startswith(
            f"{100 * np.mean(curves[-1]):.1f} ± "
        )

    run = StoredRun(next((results / "runs").glob("digits-permuted/ucfl*-s0")))
    first = StoredRun(results / RUNS["permuted"] / "fedavg-s0")
    for header, system in zip(
        ("rho=4, random", "rho=2", "rho=1"), WIRELESS_PRESETS.values(), strict=True
    ):
        over = system.times(first.ledger.frame(), ROUNDS, samples=first.mean_samples)
        times = system.times(
            run.ledger.frame(), range(1, ROUNDS + 1), samples=run.mean_samples
        )
        done = int((times <= over).sum())
        assert done < ROUNDS
        wanted = f"{100 * list(run.curve().values())[done - 1]:.1f}" if done else "-"
        assert column(table, header)["UCFL, auto"] == wanted


def test_without_fedavg_there_is_no_time_to_its_best(results, tmp_path):
    cells = [
        cell
        for cell in StoredExperiment.read(results, NAME).index.method_runs
        if cell.algorithm in ("Local", "UCFL, auto")
    ]
    (tmp_path / "runs").symlink_to(results / "runs")
    write_index(tmp_path, cells)
    table = tables(StoredExperiment.read(tmp_path, NAME))["permuted-costs"]
    assert table.columns[-1] == "s a\nround" and "FedAvg" not in table.title


def test_fedavg_is_found_by_its_method_not_by_its_label(results, tmp_path):
    cells = [
        replace(cell, algorithm="Averaging [1]") if cell.algorithm == "FedAvg" else cell
        for cell in StoredExperiment.read(results, NAME).index.method_runs
        if cell.algorithm in ("Local", "FedAvg")
    ]
    (tmp_path / "runs").symlink_to(results / "runs")
    write_index(tmp_path, cells, algorithms=["Local", "Averaging [1]"])
    table = tables(StoredExperiment.read(tmp_path, NAME))["permuted-costs"]
    assert "time to Averaging [1]'s best accuracy" in table.title
    before = tables(StoredExperiment.read(results, NAME))["permuted-costs"]
    for header in ("time rho=4, random", "time rho=2", "time rho=1"):
        assert (
            column(table, header)["Averaging [1]"]
            == column(before, header)["FedAvg"]
            != "-"
        )
    assert "rho: how much longer" in table.note and "random" in table.note


def test_scenarios_whose_names_differ_in_other_letters_only_have_a_table_each(
    results, tmp_path
):
    index = StoredExperiment.read(results, NAME).index
    cells = [
        replace(cell, scenario={"shift": "病院", "permuted": "学校"}[cell.scenario])
        for cell in index.method_runs
    ]
    used = {
        "use": "x",
        "arguments": {},
        "model": "m",
        "rounds": ROUNDS,
        "participation": 1.0,
    }
    (tmp_path / "runs").symlink_to(results / "runs")
    write_index(
        tmp_path,
        cells,
        scenarios={"病院": used, "学校": used},
        published={},
        candidates=[],
    )
    found = tables(StoredExperiment.read(tmp_path, NAME))
    titles = [table.title for table in found.values()]
    assert (
        len(titles) == len(set(titles))
        and sum("over clients" in title and "病院" in title for title in titles) == 1
    )
    assert all(name and "/" not in name for name in found)


def test_csv_holds_numbers(results, experiment):
    table = tables(experiment)["mean"]
    rows = list(csv.DictReader(table.csv().splitlines()))
    assert list(rows[0]) == [
        *(
            "algorithm",
            "shift",
            "shift std",
            "shift runs",
            "shift, published",
            "shift, published std",
        ),
        *("permuted", "permuted std", "permuted runs", "permuted diverged"),
    ]
    for row in rows:
        for name, value in row.items():
            assert name == "algorithm" or value == "" or np.isfinite(float(value))
    values = [
        expected("mean", results / RUNS["shift"] / f"fedavg-s{seed}") for seed in SEEDS
    ]
    fedavg, wild, half = rows[1], rows[3], rows[4]
    assert float(fedavg["shift"]) == pytest.approx(np.mean(values), rel=1e-9)
    assert float(fedavg["shift std"]) == pytest.approx(np.std(values, ddof=1), rel=1e-9)
    assert (fedavg["shift, published"], fedavg["shift, published std"]) == ("76.7", "4")
    assert (wild["permuted"], wild["permuted runs"], wild["permuted diverged"]) == (
        "",
        "0",
        "2",
    )
    assert (half["permuted runs"], half["permuted diverged"], half["permuted std"]) == (
        "1",
        "1",
        "",
    )


def test_latex_marks_the_best_of_rows_with_all_runs(experiment):
    def bold(name):
        lines = tables(experiment)[name].latex().splitlines()
        return {
            line.partition(" &")[0]: line.count(r"\textbf")
            for line in lines
            if r"\textbf" in line
        }

    assert bold("mean") == {
        "FedAvg": 1,
        "Local": 1,
    }  # one in each scenario; UCFL has one run only, and takes no part
    assert bold("std") == bold("max_test") == bold("permuted-costs") == {}


def test_what_was_chosen_and_from_which_grid(experiment):
    (row,) = tables(experiment)["chosen"].rows
    assert row == [
        "shift",
        "FedAvg",
        "sgd.lr 0.05",
        "sgd.lr 0.01: 50.0; sgd.lr 0.05: 75.0; sgd.lr 1e+30: diverged",
    ]


def test_an_unfinished_experiment_says_so(experiment):
    facts = "\n".join(overview.paragraphs(experiment))
    assert (
        "unfinished: 15 of 16 runs, those made to choose settings included; 2 min, 75 core hours"
        in facts
    )
    assert "fewer than the 2 seeds" in facts


def test_what_was_run(results, experiment):
    facts = "\n".join(overview.paragraphs(experiment))
    clients = pl.read_parquet(results / RUNS["shift"] / "local-s0" / "clients.parquet")
    seen, unseen = (
        ", ".join(
            f"{table[split].sum():,} {split}" for split in ("train", "val", "test")
        )
        + " samples"
        for table in (clients.filter(~pl.col("unseen")), clients.filter("unseen"))
    )
    assert seen != unseen
    assert (
        f"{SEEN} clients with {seen}; {UNSEEN} unseen clients with {unseen}; model"
        in facts
    )
    assert (
        "digits-label-shift(clients=22)" in facts
        and "3 rounds; all clients report" in facts
    )
    assert (
        "Somebody 2020" in facts
        and "fewer rounds" in facts
        and "2 cores" in facts
        and "seeds 0, 1" in facts
    )


def test_losses_are_better_when_lower(results, tmp_path):
    run = StoredRun(
        as_loss(results / RUNS["permuted"] / "local-s0", tmp_path / "runs" / "loss")
    )
    rows = pl.read_parquet(run.path / "metrics.parquet").to_dicts()
    found = {
        t: [
            row["value"]
            for row in rows
            if (row["round"], row["metric"], row["split"], row["unseen"])
            == (t, "loss", "test", False)
        ]
        for t in range(1, ROUNDS + 1)
    }
    last, means = sorted(found[ROUNDS]), [np.mean(values) for values in found.values()]
    assert MEASURES["worst"].compute(run) == last[-1]
    assert MEASURES["worst10"].compute(run) == pytest.approx(np.mean(last[-2:]))
    assert MEASURES["max_test"].compute(run) == pytest.approx(min(means))

    cell = StoredExperiment.read(results, NAME).index.method_runs[0]
    (tmp_path / "runs" / "digits-label-shift").symlink_to(results / RUNS["shift"])
    loss = type(cell)("permuted", "Local", 0, "runs/loss")
    write_index(tmp_path, [cell, loss], seeds=[0], metrics=["mean"])
    tables_ = tables(StoredExperiment.read(tmp_path, NAME))
    assert [str(row[1]) for row in tables_["mean-loss"].rows[:1]] == [
        f"{means[-1]:.3f}"
    ]
    assert (
        tables_["mean"].columns == ["algorithm", "shift", "published"]
        and "loss" in tables_["mean-loss"].title
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": ["mode"]}, "'mode'"),
        ({"seeds": "zero"}, "seeds"),
        ({"algorithms": ["Local"]}, "does not list"),
    ],
)
def test_a_damaged_index_is_named(results, tmp_path, changes, message):
    write_index(
        tmp_path, StoredExperiment.read(results, NAME).index.method_runs, **changes
    )
    with pytest.raises(ValueError, match=message) as error:
        StoredExperiment.read(tmp_path, NAME)
    assert str(tmp_path / NAME) in str(error.value) and "\n" not in str(error.value)


def test_an_index_that_was_changed_is_refused(results, tmp_path):
    write_index(tmp_path, StoredExperiment.read(results, NAME).index.method_runs)
    path = tmp_path / NAME / "experiment.json"
    path.write_text(path.read_text().replace("76.7", "67.7"))
    with pytest.raises(ValueError, match=r"is damaged \(its digest is wrong\)"):
        StoredExperiment.read(tmp_path, NAME)


def test_a_damaged_run_is_named(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    with pytest.raises(ValueError, match=r"no finished run: summary.json"):
        StoredRun(path)
    summary = with_digest({"metric": "accuracy"})
    (path / "summary.json").write_text(json.dumps(summary))
    run = StoredRun(path)
    for read in (run.spread, lambda: run.seed, lambda: run.ledger, lambda: run.clients):
        with pytest.raises(ValueError, match=r"run.*missing"):
            read()
    (path / "metrics.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"metrics.parquet is damaged"):
        run.curve()


def test_the_report_says_who_is_drawn_to_report():
    found = [
        overview._reporters(ScenarioUse("digits", {}, "MLP", 3, *drawn))
        for drawn in ((1.0,), (0.5,), (5,), (5, "samples"), (0.5, "samples"))
    ]
    by_samples = ", drawn by their samples,"
    assert found == [
        "all clients",
        "50 % of the clients",
        "5 clients",
        f"5 clients{by_samples}",
        f"50 % of the clients{by_samples}",
    ]
