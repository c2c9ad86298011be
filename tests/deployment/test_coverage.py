"""Sets, intervals and temperatures of models in use."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from deployment_helpers import NAMES, write_table
from fedtailor.cli.main import main
from fedtailor.deployment.calibration import calibration_at, calibration_of, notes
from fedtailor.deployment.opening import models_at, open_run
from fedtailor.deployment.predictions import columns_of_threshold, predictions
from fedtailor.engine.storage.calibration_file import CALIBRATION
from fedtailor.engine.storage.run_files import VALIDATION
from fedtailor.lab.results.coverage import coverage_table, coverages
from fedtailor.lab.results.stored import StoredRun
from fedtailor.models.tasks import Classification, Regression, cross_entropy
from fedtailor.statistics.conformal import (
    OWN_ROWS,
    Calibration,
    conformal_rank,
    fit_temperature,
    scores_of_classes,
)
from fedtailor.statistics.decision.intervals import wilson_interval


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A run on a table with a number as target: two clients of 400 rows, one of 40."""
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(0)
    site = np.repeat(["a", "b", "c"], [400, 400, 40])
    x = rng.normal(size=len(site))
    spread = np.where(site == "a", 1.0, 4.0)
    price = 500 + 20 * x + spread * rng.normal(size=len(site))
    frame = pl.DataFrame({"site": site, "x": x, "price": price})
    frame.write_csv(folder / "table.csv")
    table = ft.tables.from_table(
        folder / "table.csv", client="site", target="price", test=0.3, val=0.3
    )
    ft.run(
        ft.FedAvg(sgd=ft.SGD(lr=0.2, epochs=2)),
        table,
        ft.models.logistic(),
        20,
        keep_rows=True,
        directory=folder / "run",
    )
    return folder / "run"


def test_intervals_are_the_clients_own_residuals(numbers):
    run = open_run(numbers)
    calibration = calibration_of(run)
    federation = run.federation
    _, scale = federation.target_units
    for name in ("a", "b"):
        client, model = federation.client(name), run.personal(name)
        residuals = np.abs(model.predict(client.val.x)[:, 0] - client.val.y) * scale
        rank = conformal_rank(len(residuals), 0.9)
        threshold = calibration.threshold(name, 0.9)
        assert threshold.source == "own"
        np.testing.assert_allclose(
            threshold.value, np.sort(residuals)[rank - 1], rtol=1e-5
        )
    # One site is four times as noisy, which pooled intervals cannot show.
    own = [calibration.threshold(name, 0.9).value for name in ("a", "b")]
    assert 3 < own[1] / own[0] < 5.5
    pooled = calibration.threshold("c", 0.9)
    assert pooled.source == "all"
    assert own[0] < pooled.value < own[1]


def test_intervals_are_written_beside_predictions(numbers):
    calibration = calibration_at(numbers)
    table = numbers.parent / "table.csv"
    found = predictions(
        models_at(numbers), table, None, coverage=0.9, calibration=calibration
    )
    assert found.columns == ["row", "client", "prediction", "low", "high"]
    truth = pl.read_csv(table)["price"]
    for name in ("a", "b"):
        mine = found.filter(pl.col("client") == name)
        half = calibration.threshold(name, 0.9).value
        np.testing.assert_allclose(mine["high"] - mine["prediction"], half, rtol=1e-3)
        np.testing.assert_allclose(mine["prediction"] - mine["low"], half, rtol=1e-3)
        real = truth.to_numpy()[mine["row"].to_numpy() - 1]
        low, high = mine["low"].to_numpy(), mine["high"].to_numpy()
        share = np.mean((low <= real) & (real <= high))
        assert share == pytest.approx(0.9, abs=0.05)


def test_intervals_of_what_is_never_negative_begin_at_0(numbers):
    calibration, model = calibration_at(numbers), models_at(numbers)["a"]
    found = []
    for never in (False, True):
        target = replace(model.preprocessing.target, shift=0.0, never_negative=never)
        changed = replace(
            model, preprocessing=replace(model.preprocessing, target=target)
        )
        path = numbers.parent / "table.csv"
        asked = {"coverage": 0.9, "calibration": calibration}
        found.append(predictions({"a": changed}, path, "a", **asked))
    assert found[0]["low"].min() < 0
    np.testing.assert_array_equal(found[1]["low"], np.maximum(found[0]["low"], 0))
    assert found[1]["high"].equals(found[0]["high"])
    assert not model.preprocessing.target.never_negative or (
        pl.read_csv(path)["price"].min() >= 0
    )


def test_coverage_of_test_rows_is_counted(numbers):
    run = open_run(numbers)
    calibration, tested = calibration_of(run), run.test_rows[0]
    for found in coverages(calibration, tested, 0.8):
        mine = tested.filter(pl.col("client") == found.client)
        errors = np.abs(mine["prediction"] - mine["target"]).to_numpy()
        expected = np.mean(errors <= found.threshold.value * (1 + 1e-5))
        assert found.share.estimate == pytest.approx(expected, abs=1 / len(mine))
        assert found.rows == len(mine)
        assert found.share.low < found.share.estimate <= found.share.high


def test_sets_hold_what_the_threshold_takes_in(trained, tmp_path):
    directory = trained[1]
    table = write_table(tmp_path / "new.csv", rows=12, seed=5)
    models, calibration = models_at(directory), calibration_at(directory)
    found = predictions(
        models,
        table,
        NAMES[0],
        probabilities=True,
        coverage=0.8,
        calibration=calibration,
    )
    threshold = calibration.threshold(NAMES[0], 0.8)
    assert threshold.source == "all"
    for row in found.iter_rows(named=True):
        labels = row["set"].split(" | ")
        assert labels[0] == row["prediction"]
        for label in ("ill", "well"):
            is_taken = 1 - row[f"p({label})"] <= threshold.value
            assert (label in labels) == (is_taken or label == row["prediction"])
    lines = notes(calibration, [NAMES[0]], 0.8)
    assert NAMES[0] in lines[0]


def test_what_is_stored_is_what_the_data_give(moved):
    stored = open_run(moved).validation_rows
    (moved / VALIDATION).unlink()
    computed = open_run(moved).validation_rows
    assert stored.columns == computed.columns
    np.testing.assert_allclose(stored["loss"], computed["loss"], rtol=1e-6)


def test_temperatures_are_of_the_clients_validation_rows(of_many):
    of_many, federation = of_many
    run = open_run(of_many, federation=federation)
    calibration = calibration_of(run)
    client = run.federation.client(0)
    logits = run.personal(0).outputs(client.val.x)
    expected = fit_temperature(logits, client.val.y)
    found = calibration.clients[run.names[0]].temperature
    assert found == pytest.approx(expected, rel=1e-4)
    raw, scaled = (
        predictions(
            models_at(of_many),
            of_many.parent / "rows.npy",
            run.names[0],
            calibrated=is_calibrated,
            calibration=calibration,
        )
        for is_calibrated in (False, True)
    )
    assert raw["prediction"].to_list() == scaled["prediction"].to_list()
    odds = np.log(raw["probability"] / (1 - raw["probability"])) / found
    np.testing.assert_allclose(
        scaled["probability"], 1 / (1 + np.exp(-odds)), rtol=1e-4
    )


@pytest.fixture(scope="module")
def of_many(tmp_path_factory):
    """A run on arrays, two classes, with enough validation rows for temperatures."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=600) > 0).astype(np.int32)
    parts = np.split(np.arange(600), 3)
    train, val, test = (
        ft.federation.Ragged.of([rows[start:end] for rows in parts])
        for start, end in ((0, 80), (80, 150), (150, 200))
    )
    federation = ft.Federation(x, y, train, val, test, ("a", "b", "c"), classes=2)
    ft.run(
        ft.Local(sgd=ft.SGD(lr=2.0, epochs=20)),
        federation,
        ft.models.logistic(),
        5,
        keep_rows=True,
        directory=folder / "run",
    )
    np.save(folder / "rows.npy", x[:20])
    return folder / "run", federation


def test_exports_hold_calibrations(numbers, tmp_path, capsys):
    out = tmp_path / "models"
    assert main(["export", str(numbers), "--out", str(out), "--clients", "c"]) == 0
    content = json.loads((out / CALIBRATION).read_text())
    assert list(content["clients"]) == ["c"]  # nobody else's rows
    table = numbers.parent / "table.csv"
    capsys.readouterr()
    arguments = ["predict", str(out), str(table), "--client", "c", "--coverage", "0.9"]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0] == "row,prediction,low,high"
    assert (
        "too few validation rows of their own: c; 90 % holds on average" in output.err
    )
    expected = calibration_at(numbers).threshold("c", 0.9)
    assert calibration_at(out).threshold("c", 0.9) == expected
    assert expected.rows > OWN_ROWS


@pytest.mark.parametrize("damage", ["digest", "text", "missing"])
def test_damaged_calibrations_are_told(numbers, tmp_path, capsys, damage):
    out = tmp_path / "models"
    main(["export", str(numbers), "--out", str(out)])
    path = out / CALIBRATION
    if damage == "digest":
        path.write_text(path.read_text().replace('"scale": ', '"scale": 1'))
    elif damage == "text":
        path.write_text("{")
    else:
        path.unlink()
    table = str(numbers.parent / "table.csv")
    capsys.readouterr()
    assert main(["predict", str(out), table, "--coverage", "0.9"]) == 2
    error = capsys.readouterr().err
    assert "calibration.json" in error
    assert error.count("\n") == 1
    assert main(["predict", str(out), table]) == 0


def test_cards_tell_coverage(numbers, moved):
    text = ft.model_card(open_run(numbers), "a")
    assert "Intervals of 90 % (`predict --coverage 0.9`): prediction plus or" in text
    assert "test rows the intervals held" in text
    text = ft.model_card(open_run(moved), NAMES[0])
    assert "holds on average over these clients, not for this one" in text


def test_pages_have_a_line_for_each_client(numbers):
    found = coverage_table("sets", [StoredRun(numbers)])
    assert [row[:2] for row in found.rows] == [
        ["a", "own rows"],
        ["b", "own rows"],
        ["c", "all clients"],
    ]
    run = open_run(numbers)
    expected = coverages(calibration_of(run), run.test_rows[0], 0.9)
    for row, one in zip(found.rows, expected, strict=True):
        assert row[2] == str(one.rows)
        assert row[3] == f"{100 * one.share.estimate:.1f}"
        assert float(row[4]) < float(row[3]) <= float(row[5])
    twice = coverage_table("sets", [StoredRun(numbers)] * 2)
    assert twice.rows == found.rows


def test_intervals_of_several_seeds_are_those_of_the_share_shown(numbers):
    first, second = StoredRun(numbers), StoredRun(numbers)
    tested = first.rows
    wrong = tested.with_columns(
        squared_error=pl.when(pl.int_range(pl.len()).over("client") < 1)
        .then(1e12)
        .otherwise("squared_error")
        .cast(pl.Float32)
    )
    second.__dict__["rows"] = wrong
    found = coverage_table("sets", [first, second]).rows
    for row, one, other in zip(
        found,
        coverage_table("sets", [first]).rows,
        coverage_table("sets", [second]).rows,
        strict=True,
    ):
        rows = int(row[2])
        share = (
            round(float(one[3]) * rows / 100) + round(float(other[3]) * rows / 100)
        ) / (2 * rows)
        interval = wilson_interval(share, rows, 0.95)
        assert [float(cell) for cell in row[3:]] == pytest.approx(
            [100 * share, 100 * interval.low, 100 * interval.high], abs=0.051
        )


def test_pages_have_sets_of_classes_too(of_many):
    directory, federation = of_many
    stored = StoredRun(directory)
    found = coverage_table("sets", [stored])
    calibration = calibration_of(open_run(directory, federation=federation))
    expected = coverages(calibration, stored.rows, 0.9)
    assert [row[3] for row in found.rows] == [
        f"{100 * one.share.estimate:.1f}" for one in expected
    ]


@pytest.fixture(scope="module")
def weighted(numbers):
    """As `numbers`, with weights."""
    frame = pl.read_csv(numbers.parent / "table.csv")
    frame = frame.with_columns(n=pl.int_range(pl.len()) % 3 + 1)
    table = ft.tables.from_table(
        frame, client="site", target="price", weight="n", test=0.3, val=0.3
    )
    ft.run(
        ft.FedAvg(sgd=ft.SGD(lr=0.2, epochs=2)),
        table,
        ft.models.logistic(),
        2,
        keep_rows=True,
        directory=numbers.parent / "weighted",
    )
    return numbers.parent / "weighted"


def test_where_rows_have_weights_it_is_said_that_sets_count_rows(
    numbers, weighted, tmp_path, capsys
):
    said = "count each row once, whatever its 'n'"
    exported = tmp_path / "out"
    assert main(["export", str(weighted), "--out", str(exported)]) == 0
    capsys.readouterr()
    arguments = [str(numbers.parent / "table.csv"), "--coverage", "0.9"]
    for directory in (weighted, exported):
        assert main(["predict", str(directory), *arguments]) == 0
        assert said in capsys.readouterr().err
    assert main(["predict", str(numbers), *arguments]) == 0
    assert said not in capsys.readouterr().err
    assert f"Sets, intervals and temperatures {said}" in ft.model_card(
        open_run(weighted), "a"
    )
    assert said not in ft.model_card(open_run(numbers), "a")
    line = "Each row counts once here, whatever its weight."
    assert line in coverage_table("sets", [StoredRun(weighted)]).note
    assert line not in coverage_table("sets", [StoredRun(numbers)]).note


def test_errors(numbers, capsys):
    table = str(numbers.parent / "table.csv")
    for coverage in ("0", "1", "90"):
        assert main(["predict", str(numbers), table, "--coverage", coverage]) == 2
        assert "above 0 and below 1" in capsys.readouterr().err
    assert main(["predict", str(numbers), table, "--calibrated"]) == 2
    assert "predict no classes" in capsys.readouterr().err


def test_rows_with_the_score_of_the_threshold_are_taken_in():
    """Where inputs are categories, many rows have one score. By two roundings of it they
    fell out: sets for 90 % held 88 % of the rows, and the card said 94 %.
    """
    rng = np.random.default_rng(0)
    cells = np.array(list(np.ndindex(2, 2, 2)), np.float32)
    odds = cells @ np.array([2, -1.3, 0.7], np.float32) - np.float32(0.4)
    logits = np.stack([np.zeros_like(odds), odds], axis=-1)
    task, coverage = Classification(2), 0.9
    for _ in range(20):
        rows = rng.integers(8, size=400)
        y = (rng.uniform(size=400) < 1 / (1 + np.exp(-odds[rows]))).astype(np.int32)
        losses = np.asarray(cross_entropy(jnp.asarray(logits[rows]), jnp.asarray(y)))
        scores = scores_of_classes(losses.astype(np.float32))
        calibration = Calibration.of("classes", {"a": scores})
        value = calibration.threshold("a", coverage).value
        columns = columns_of_threshold(task, logits[rows], value, lambda it: it, None)
        held = [
            str(label) in found.split(" | ")
            for label, found in zip(y, columns["set"], strict=True)
        ]
        assert np.mean(held) >= np.mean(scores <= value) >= coverage


def test_a_number_at_the_end_of_its_interval_is_in_it():
    rng = np.random.default_rng(0)
    prediction = rng.normal(2000, 5, 500).astype(np.float32)
    y = prediction + rng.normal(size=500).astype(np.float32)
    found = columns_of_threshold(
        Regression(1), prediction, np.abs(y - prediction), lambda it: it, prediction
    )
    assert ((found["low"] <= y) & (y <= found["high"])).all()
    width = found["high"] - found["low"]
    np.testing.assert_allclose(width, 2 * np.abs(y - prediction), rtol=1e-3, atol=0.01)


def test_a_model_that_is_sure_and_wrong_is_not_too_few_rows():
    scores = np.repeat([0.01, 0.9995], [340, 60])
    wrong = Calibration.of("classes", {"a": scores[::10], "b": scores})
    (pooled, unlikely) = notes(wrong, ["a"], 0.9)
    assert pooled.startswith("too few validation rows of their own: a")
    assert unlikely.startswith(
        "in more than 10 % of the validation rows the true class"
    )
    (few,) = notes(Calibration.of("classes", {"a": [0.1, 0.2]}), ["a"], 0.9)[1:]
    assert few == "too few validation rows for 90 %, everything is taken in: a"
