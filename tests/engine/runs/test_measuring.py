"""What a run measures, from the clients' statistics to its directory."""

from dataclasses import replace

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from sklearn.metrics import recall_score, roc_auc_score

from fedtailor import models
from fedtailor.algorithms import FedAvg, FineTune
from fedtailor.data.federation import Federation, Ragged, datasets
from fedtailor.data.tables import from_table
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import run, simulate
from fedtailor.engine.runs.baseline import baseline, data_warnings
from fedtailor.engine.storage.run_files import BASELINE, MANIFEST, ROWS
from fedtailor.engine.training import EarlyStopping
from fedtailor.models import Model
from fedtailor.models.metrics import find_metrics
from fedtailor.protocol import SGD

METHOD = FedAvg(SGD(lr=0.1, epochs=1, batch_size=8))
FINETUNE = FineTune(SGD(lr=0.1, epochs=1, batch_size=8))
MODEL = models.logistic()


@pytest.fixture(scope="module")
def federation():
    """Five clients of two classes and unequal sizes; the fourth is tested on one class
    only, the fifth never trains.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=300) > 0).astype(np.int64)
    parts = np.split(rng.permutation(300), [90, 150, 200, 250])
    cut = [np.split(part, [len(part) // 2, len(part) // 2 + 6]) for part in parts]
    cut[3][2] = cut[3][2][y[cut[3][2]] == 1]
    train, val, test = (
        Ragged.of([split[place] for split in cut]) for place in range(3)
    )
    return Federation(
        x, y, train, val, test, tuple("abcde"), unseen=np.arange(5) == 4, classes=2
    )


@pytest.fixture(scope="module")
def table():
    """A regression whose target is in thousands; two shops of unequal sizes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2))
    sales = 5000 + 800 * x[:, 0] - 300 * x[:, 1] + rng.normal(0, 50, 90)
    frame = {
        "shop": ["a"] * 40 + ["b"] * 50,
        "u": x[:, 0],
        "v": x[:, 1],
        "sales": sales,
    }
    return from_table(pl.DataFrame(frame), client="shop", target="sales")


def last(result, metric, split="test"):
    """The values of all clients, seen and unseen, by name."""
    frame = result.frame().filter(
        (pl.col("metric") == metric) & (pl.col("split") == split)
    )
    return dict(
        frame.filter(pl.col("round") == pl.col("round").max())
        .select("client", "value")
        .iter_rows()
    )


@pytest.mark.parametrize("debug", [False, True])
def test_metrics_of_personal_models_are_those_of_scikit_learn(federation, debug):
    chosen = ("roc_auc", "balanced_accuracy", "confusion")
    # one operation at a time is slow: a round less
    rounds = 1 if debug else 2
    settings = Settings(debug=debug)
    result = run(
        METHOD,
        federation,
        MODEL,
        rounds,
        metrics=chosen,
        evaluate_every=rounds,
        settings=settings,
    )
    areas, balanced = last(result, "roc_auc"), last(result, "balanced_accuracy")
    assert list(areas) == ["a", "b", "c", "e"]  # of one class there is no area
    assert result.summary().metric == "roc_auc"
    np.testing.assert_allclose(
        result.summary().mean, np.mean([areas[name] for name in "abc"]), atol=1e-12
    )
    for client in federation:
        model = result.personal(client.name)
        given = (client.test.y, model.predict(client.test.x))
        expected = recall_score(
            *given, average="macro", labels=np.unique(client.test.y)
        )
        np.testing.assert_allclose(balanced[client.name], expected, atol=1e-6)
        if client.name != "d":
            score = model.probabilities(client.test.x)[:, 1]
            np.testing.assert_allclose(
                areas[client.name], roc_auc_score(client.test.y, score), atol=1e-3
            )


def test_a_sample_of_clients_has_the_values_that_they_have_among_all(
    federation, tmp_path
):
    everyone, some = (
        run(
            METHOD,
            federation,
            MODEL,
            2,
            evaluate_clients=count,
            directory=tmp_path / f"{count}",
        )
        for count in (None, 3)
    )
    frame = some.frame()
    sampled = frame.filter(~pl.col("unseen"))["client"].unique().to_list()
    assert len(sampled) == 3 and set(frame["round"]) == {1, 2}
    kept = everyone.frame().filter(pl.col("client").is_in([*sampled, "e"]))
    assert frame.equals(kept)
    for name in "abcde":
        np.testing.assert_array_equal(
            some.personal(name).theta, everyone.personal(name).theta
        )
    found = some.summary()
    values = some.metrics.values("accuracy")
    assert (found.clients, found.evaluated_clients) == (4, 3)
    # Student's interval for 2 degrees of freedom, of 3 out of 4 values.
    half = 4.302653 * np.sqrt(values.var(ddof=1) / 3 * (1 - 3 / 4))
    np.testing.assert_allclose(
        [found.mean, found.mean_low, found.mean_high],
        [values.mean(), values.mean() - half, values.mean() + half],
        rtol=1e-6,
    )
    assert everyone.summary().as_dict().keys() == found.as_dict().keys() - {
        "evaluated_clients",
        "mean_low",
        "mean_high",
    }
    with pytest.raises(ValueError, match="evaluate_clients"):
        run(METHOD, federation, MODEL, 3, directory=tmp_path / "3", resume=True)
    again = run(METHOD, federation, MODEL, 1, evaluate_clients=4).frame()
    assert again.equals(everyone.frame().filter(pl.col("round") == 1))
    with pytest.raises(ValueError, match="evaluate_clients is 1; a mean"):
        run(METHOD, federation, MODEL, 1, evaluate_clients=1)


def test_more_metrics_change_nothing_of_the_others(federation):
    plain, more = (
        run(METHOD, federation, MODEL, 1, metrics=metrics).frame()
        for metrics in ((), ("roc_auc",))
    )
    assert plain["metric"].unique().sort().to_list() == ["accuracy", "loss"]
    assert more.filter(pl.col("metric") != "roc_auc").equals(plain)


def test_a_metric_that_is_not_defined_is_refused_before_anything_is_written(
    federation, tmp_path
):
    with pytest.raises(
        ValueError, match="'rmse' is not defined for a classification of 2 classes"
    ):
        run(METHOD, federation, MODEL, 1, metrics=("rmse",), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_metrics_are_another_run(federation, tmp_path):
    run(METHOD, federation, MODEL, 1, directory=tmp_path, metrics=("f1_macro",))
    with pytest.raises(ValueError, match="other settings"):
        run(METHOD, federation, MODEL, 2, directory=tmp_path, resume=True)
    assert "f1_macro" in (tmp_path / MANIFEST).read_text()


def test_early_stopping_knows_which_direction_is_better(federation):
    rising = run(METHOD, federation, MODEL, 6, callbacks=[EarlyStopping(2, "loss")])
    losses = rising.metrics.curve("loss", "val")[1]
    assert (
        rising.training.round == 6 and losses[-1] < losses[0]
    )  # it falls, and falling is better
    with pytest.raises(
        ValueError, match="early stopping looks at roc_auc, and the run measures"
    ):
        run(METHOD, federation, MODEL, 1, callbacks=[EarlyStopping(2, "roc_auc")])


def test_rows_are_those_of_the_evaluation(federation, tmp_path):
    result = run(FINETUNE, federation, MODEL, 2, directory=tmp_path, keep_rows=True)
    rows = pl.read_parquet(tmp_path / ROWS)
    assert rows.equals(result.row_outcomes())
    means = {
        part["client"][0]: part
        for part in rows.partition_by("client", maintain_order=True)
    }
    assert list(means) == list("abcde")
    for client, name in enumerate(federation.names):
        part = means[name]
        np.testing.assert_array_equal(part["row"], federation.test[client])
        labels = federation.y[federation.test[client]]
        np.testing.assert_array_equal(
            part["correct"], part["prediction"].to_numpy() == labels
        )
        assert part["correct"].mean() == pytest.approx(
            last(result, "accuracy")[name], abs=1e-12
        )
        assert part["loss"].mean() == pytest.approx(
            last(result, "loss")[name], rel=1e-5
        )


def test_clients_of_more_rows_than_a_block(monkeypatch, federation):
    from fedtailor.engine.runs import row_outcomes

    whole = run(METHOD, federation, MODEL, 1)
    expected = whole.row_outcomes()
    monkeypatch.setattr(row_outcomes, "_BLOCK", 7)
    monkeypatch.setattr(row_outcomes, "_MEMORY", 1)  # one client at a time
    found = whole.row_outcomes()
    # A program for blocks of another size may round otherwise.
    numbers = cs.float()
    assert found.select(~numbers).equals(expected.select(~numbers))
    np.testing.assert_allclose(
        found.select(numbers), expected.select(numbers), rtol=1e-6, atol=1e-6
    )


def test_rows_need_a_directory(federation):
    with pytest.raises(ValueError, match="keep_rows writes into the run's directory"):
        run(METHOD, federation, MODEL, 1, keep_rows=True)


def test_a_continued_run_does_not_show_the_rows_of_before(federation, tmp_path):
    run(METHOD, federation, MODEL, 1, directory=tmp_path, keep_rows=True)
    assert (tmp_path / ROWS).exists()
    run(METHOD, federation, MODEL, 2, directory=tmp_path, resume=True)
    assert not (tmp_path / ROWS).exists()


def test_the_baseline_of_a_classification(federation, tmp_path):
    run(
        METHOD,
        federation,
        MODEL,
        1,
        directory=tmp_path,
        keep_rows=True,
        metrics=("roc_auc",),
    )
    found = pl.read_parquet(tmp_path / BASELINE).filter(pl.col("split") == "test")
    assert set(found["metric"]) == {"loss", "accuracy", "roc_auc"}
    accuracy = dict(
        found.filter(pl.col("metric") == "accuracy")
        .select("client", "value")
        .iter_rows()
    )
    for client in federation:
        majority = np.bincount(client.train.y).argmax()
        assert accuracy[client.name] == pytest.approx(
            np.mean(client.test.y == majority)
        )
    assert found.filter(pl.col("client") == "e")["unseen"].all()


@pytest.mark.parametrize("most", [300, 299])
def test_repeated_rows_are_searched_for_in_federations_of_few_examples(
    monkeypatch, federation, most
):
    copied = federation.x.copy()
    tested, trained = federation.test[0][0], federation.train[0]
    same = trained[federation.y[trained] == federation.y[tested]][0]
    copied[tested] = copied[same]
    federation = replace(federation, x=copied)
    monkeypatch.setattr("fedtailor.engine.runs.baseline._MAX_COMPARED", most)
    found = data_warnings(federation, MODEL.bind((3,), 2))
    leaked = [line for line in found if "are in the training data" in line]
    assert len(leaked) == (most == 300)


def test_what_has_learned_nothing_of_a_density_is_uniform():
    # There are no inputs to ignore. The frequencies of a client's symbols, which are the
    # baseline of other tasks, would be all that there is to learn: 2.42 nats here, below
    # the best of five models for all clients, 2.72.
    federation = datasets.density(samples=100)
    model = models.density().bind((0,), 100)
    found = baseline(federation, model, find_metrics(["loss"], model))
    values = found.filter(pl.col("split") == "test")["value"].to_numpy()
    assert len(values) == 100
    np.testing.assert_allclose(values, np.log(100), rtol=1e-12)


def test_a_regression_on_a_table_is_measured_in_its_own_unit(table, tmp_path):
    result = run(METHOD, table, MODEL, 3, directory=tmp_path, keep_rows=True)
    rmse, mae = last(result, "rmse"), last(result, "mae")
    rows, baseline = (
        pl.read_parquet(tmp_path / ROWS),
        pl.read_parquet(tmp_path / BASELINE),
    )
    assert result.summary().metric == "rmse" and 50 < result.summary().mean < 800
    target = table.preprocessing.target
    for client in table:
        predicted = target.decode(
            result.personal(client.name).predict(client.test.x).ravel()
        )
        errors = predicted - target.decode(client.test.y.ravel())
        np.testing.assert_allclose(
            rmse[client.name], np.sqrt(np.mean(errors**2)), rtol=1e-5
        )
        np.testing.assert_allclose(mae[client.name], np.mean(np.abs(errors)), rtol=1e-5)
        mine = rows.filter(pl.col("client") == client.name)
        np.testing.assert_allclose(mine["prediction"], predicted, rtol=1e-5)
        np.testing.assert_allclose(
            np.sqrt(mine["squared_error"].mean()), rmse[client.name], rtol=1e-5
        )
        np.testing.assert_array_equal(mine["row"], table.rows[table.test[client.index]])
        learned_nothing = (
            target.decode(client.test.y.ravel())
            - target.decode(client.train.y.ravel()).mean()
        )
        chosen = (
            (pl.col("client") == client.name)
            & (pl.col("metric") == "rmse")
            & (pl.col("split") == "test")
        )
        value = baseline.filter(chosen)["value"].item()
        np.testing.assert_allclose(
            value, np.sqrt(np.mean(learned_nothing**2)), rtol=1e-4
        )


def test_a_training_by_hand_measures_the_same(table):
    training = simulate(METHOD, table, MODEL)
    training.advance()
    training.evaluate()
    expected = run(METHOD, table, MODEL, 1)
    assert training.metrics.frame(table.names).equals(expected.frame())


def test_an_evaluation_of_small_clients_computes_no_block_of_padding(monkeypatch):
    """30 samples at most: 32 rows, where a client's own passes take 128."""
    rows = []
    logits = Model.logits

    def counted(model, params, x):
        rows.append(len(x))
        return logits(model, params, x)

    monkeypatch.setattr(Model, "logits", counted)
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    splits = [Ragged.of([part]) for part in np.split(np.arange(40), [30, 34])]
    federation = Federation(x, np.arange(40) % 2, *splits, ("a",), classes=2)
    simulate(METHOD, federation, MODEL).evaluate()
    assert set(rows) == {32}
