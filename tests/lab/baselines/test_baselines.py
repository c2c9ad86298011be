"""Baselines: equal to scikit-learn on the same rows, and stored as runs are."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

from fedtailor.data.federation import from_arrays
from fedtailor.engine.training.binding import bind
from fedtailor.lab.baselines import (
    Problem,
    baseline_names,
    default_baselines,
    evaluate,
    find_baseline,
)
from fedtailor.lab.baselines.federated import independent_inputs
from fedtailor.lab.results.stored import StoredRun
from fedtailor.models import linear
from fedtailor.models.tasks import default_loss, task_of
from fedtailor.statistics.mixed import ClientMoments, fit_mixed_model


def problem(classes=2, clients=3, rows=40, seed=0):
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(rows, 3)) for _ in range(clients)]
    scores = [one[:, 0] + 0.3 * rng.normal(size=rows) for one in x]
    y = scores if classes is None else [(one > 0).astype(np.int32) for one in scores]
    return Problem(x, y, classes, seed)


def test_linear_baselines_are_those_of_scikit_learn():
    given = problem()
    alone = find_baseline("linear-alone").fit(given)
    own = LogisticRegression(max_iter=1000).fit(given.x[1], given.y[1])
    np.testing.assert_allclose(
        np.exp(alone(1, given.x[0])), own.predict_proba(given.x[0]), rtol=1e-10
    )
    given = problem(classes=None)
    pooled = find_baseline("linear-pooled").fit(given)
    x, y = np.concatenate(given.x), np.concatenate(given.y)
    np.testing.assert_allclose(
        pooled(2, given.x[0]), Ridge().fit(x, y).predict(given.x[0]), rtol=1e-10
    )


def test_trees_with_the_client_as_an_input_tell_clients_apart():
    """The sign of the effect differs between clients, which only the client tells."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(200, 2)) for _ in range(2)]
    y = [
        (sign * one[:, 0] > 0).astype(int) for sign, one in zip((1, -1), x, strict=True)
    ]
    given = Problem(x, y, 2, 0)
    right = {
        name: np.mean(find_baseline(name).fit(given)(1, x[1]).argmax(axis=1) == y[1])
        for name in ("trees-pooled", "trees-pooled-client")
    }
    assert right["trees-pooled-client"] > 0.95
    assert right["trees-pooled"] < 0.9


def test_a_client_of_one_class_always_answers_it():
    given = problem()
    given = Problem(given.x, [np.zeros(40, int), *given.y[1:]], 2, 0)
    for name in ("trees-alone", "linear-alone"):
        outputs = find_baseline(name).fit(given)(0, given.x[1])
        assert (outputs.argmax(axis=1) == 0).all() and np.isfinite(outputs).all()


def test_too_many_clients_are_refused_in_a_line():
    given = Problem([np.zeros((1, 1))] * 1001, [np.zeros(1, int)] * 1001, 2, 0)
    with pytest.raises(ValueError, match="1,001 clients take too long"):
        find_baseline("trees-alone").fit(given)
    with pytest.raises(ValueError, match="255 of scikit-learn's"):
        find_baseline("trees-pooled-client").fit(given)
    with pytest.raises(ValueError, match="no baseline"):
        find_baseline("trees-alon")


def test_a_stored_baseline_has_the_metrics_of_its_rows(tmp_path):
    given = problem(rows=300)
    federation = from_arrays(
        np.concatenate(given.x).astype(np.float32),
        np.concatenate(given.y),
        np.repeat(["a", "b", "c"], 300),
        test=0.5,
        val=0.1,
    )
    model = bind(linear(), federation)
    evaluate(
        find_baseline("linear-alone"), federation, model, tmp_path / "r",
        metrics=("roc_auc",),
    )  # fmt: skip
    stored = StoredRun(tmp_path / "r")
    assert stored.metric == "roc_auc" and stored.is_silent
    client = federation.client("b")
    fitted = LogisticRegression(max_iter=1000)
    fitted.fit(np.asarray(client.train.x, float), client.train.y)
    chances = fitted.predict_proba(np.asarray(client.test.x, float))[:, 1]
    last = {
        metric: dict(
            stored.metrics.filter(split="test", metric=metric)
            .select("client", "value")
            .iter_rows()
        )
        for metric in ("roc_auc", "accuracy")
    }
    # The histogram of scores has 1,000 bins or more, so that few pairs are tied.
    assert abs(last["roc_auc"]["b"] - roc_auc_score(client.test.y, chances)) < 2e-3
    assert stored.rows is not None
    right = stored.rows.filter(client="b")["correct"].mean()
    assert right == pytest.approx(last["accuracy"]["b"], abs=1e-6)
    written = (tmp_path / "r" / "summary.json").stat().st_mtime_ns
    evaluate(
        find_baseline("linear-alone"), federation, model, tmp_path / "r",
        metrics=("roc_auc",),
    )  # fmt: skip
    assert (tmp_path / "r" / "summary.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_kept_models_predict_as_they_did_when_they_were_measured(classes):
    """In single precision; of three classes no row has the last one."""
    given = problem(classes=2 if classes else None, rows=60)
    given = replace(
        given, val_x=given.x, val_y=given.y, classes=classes, names=("a", "b", "c")
    )
    like = linear().bind((3,), classes or 1, default_loss(classes))
    task = task_of(default_loss(classes))
    for name in baseline_names():
        baseline = find_baseline(name)
        if not (baseline.keeps_models and baseline.applies(task)):
            continue
        assert baseline.about and not baseline.needs_pooled_data
        fitted = baseline.fit(given)
        kept = baseline.keep(fitted, like)
        for client, vector in enumerate(kept.vectors):
            x = given.x[client].astype(np.float32)
            found = np.asarray(kept.model.logits(jnp.asarray(vector), jnp.asarray(x)))
            expected = fitted(client, x.astype(np.float64))
            found = found[:, 0] if classes is None else log_softmax(found, axis=1)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        # Whoever trains alone leaves nothing to a newcomer.
        assert (kept.shared is None) == baseline.is_alone
        without = baseline.fit(replace(given, val_x=(), val_y=()))
        if name == "trees-personal":
            assert without.chosen["own_rounds"] == 0
        again = baseline.with_choices([kept.chosen, kept.chosen])
        assert (
            again.fit(replace(given, val_x=(), val_y=()))(0, given.x[0]).shape[0] == 60
        )


def test_trees_are_as_deep_as_validation_rows_say():
    """A step needs one question; the number of trees of all clients is one."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(80, 2)) for _ in range(4)]
    y = [np.where(one[:, 0] > 0.2 * k, 1.0, -1.0) for k, one in enumerate(x)]
    given = Problem(x, y, None, 0, val_x=x, val_y=y)
    for name in ("trees-alone", "trees-personal"):
        fitted = find_baseline(name).fit(given)
        assert {"depth", "least_rows", "rounds"} <= set(fitted.chosen)
        errors = [np.abs(fitted(k, x[k]) - y[k]).mean() for k in range(4)]
        assert max(errors) < 0.1, name
        lengths = {len(model.trees) for model in fitted.models}
        assert len(lengths) == 1
    assert fitted.chosen["asks_client"]


def test_every_baseline_has_a_name_and_a_title():
    for name in baseline_names():
        baseline = find_baseline(name)
        for classes in (None, 2):
            assert baseline.title_for(classes)
        assert baseline.needs_pooled_data == ("pooled" in name)


def test_the_mixed_model_is_that_of_the_training_rows():
    given = problem(classes=None)
    moments = [ClientMoments.of(x, y) for x, y in zip(given.x, given.y, strict=True)]
    expected = fit_mixed_model(moments, "diagonal")
    baseline = find_baseline("mixed")
    assert baseline.applies(task_of(default_loss(None)))
    assert not baseline.applies(task_of(default_loss(2)))
    np.testing.assert_allclose(
        baseline.fit(given)(1, given.x[0]), expected.predict(given.x[0], 1)
    )


def test_federated_trees_take_validation_rows_or_go_without():
    given = problem(rows=60)
    baseline = find_baseline("trees-federated")
    assert baseline.name not in default_baselines()
    assert "mixed" in default_baselines()
    without = baseline.fit(given)
    right = np.mean(without(1, given.x[1]).argmax(axis=1) == given.y[1])
    assert right > 0.9
    # A client whose validation rows say the opposite of the others takes its own trees.
    opposite = replace(
        given,
        y=[1 - given.y[0], *given.y[1:]],
        val_x=given.x,
        val_y=[1 - given.y[0], *given.y[1:]],
    )
    found = baseline.fit(opposite)
    assert np.mean(found(0, given.x[0]).argmax(axis=1) == given.y[0]) < 0.2
    assert np.mean(found(1, given.x[1]).argmax(axis=1) == given.y[1]) > 0.9


@pytest.mark.parametrize("classes", [None, 2])
def test_clients_may_have_no_rows_in_a_split(tmp_path, classes):
    """A client of two rows has no validation row, one of a single row no test row."""
    given = problem(classes=classes, rows=20)
    clients = ["a"] * 57 + ["b"] * 2 + ["c"]
    federation = from_arrays(
        np.concatenate(given.x).astype(np.float32),
        np.concatenate(given.y),
        clients,
        test=0.2,
        val=0.1,
        classes=classes,
    )
    assert (federation.sizes["val"] == 0).any() and (
        federation.sizes["test"] == 0
    ).any()
    for name in baseline_names():
        if not find_baseline(name).applies(federation.task):
            continue
        evaluate(
            find_baseline(name), federation, bind(linear(), federation), tmp_path / name
        )
        stored = StoredRun(tmp_path / name)
        assert stored.rows is not None and stored.is_tested
        assert len(stored.rows) == federation.sizes["test"].sum()


def test_the_mixed_model_leaves_out_inputs_that_follow_from_others():
    """Indicators of all categories, as tables have them, add up to a constant."""
    given = problem(classes=None)
    expected = find_baseline("mixed").fit(given)(1, given.x[1])
    first = [(x[:, :1] > 0).astype(float) for x in given.x]
    both = [
        np.column_stack([x, one, 1 - one, x[:, 1] - 2 * one[:, 0]])
        for x, one in zip(given.x, first, strict=True)
    ]
    one_of_them = [
        np.column_stack([x, one]) for x, one in zip(given.x, first, strict=True)
    ]
    baseline = find_baseline("mixed")
    found = baseline.fit(replace(given, x=both))(1, both[1])
    alike = baseline.fit(replace(given, x=one_of_them))(1, one_of_them[1])
    np.testing.assert_allclose(found, alike, atol=1e-8)
    assert np.abs(found - expected).max() > 1e-3
    assert independent_inputs(both) == [0, 1, 2, 3]
