"""Metrics agree with scikit-learn on ragged batches with padding, and add up over
batches.
"""

import warnings
from functools import partial
from importlib.metadata import EntryPoint

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from fedtailor.engine.client.losses import outputs as outputs_of
from fedtailor.models import (
    cross_entropy,
    from_function,
    logistic,
    metrics,
    squared_error,
    token_cross_entropy,
)
from fedtailor.models.metrics import (
    Metric,
    find_metric,
    find_metrics,
)
from fedtailor.models.tasks import DiscreteTime
from fedtailor.protocol import Batch, Mixture

BATCH = 16
IDENTITY = from_function(lambda key: jnp.zeros(1), lambda params, x: x)
BINARY, MULTI = logistic().bind((3,), 2), logistic().bind((3,), 5)
REGRESSION = logistic().bind((3,), 1, squared_error)
TARGETS = logistic().bind((3,), 2, squared_error)
SEQUENCE = IDENTITY.bind((4, 6), 6, token_cross_entropy)
TIMES = logistic().bind(
    (3,),
    3,
    DiscreteTime(grid=(1.0, 2.0, 4.0), ends=(1.0, 2.0, 4.0), censoring=(1.0, 0.9, 0.5)),
)
NAMES = sorted(Metric.registry)


@partial(jax.jit, static_argnums=(0, 1))
def batch_statistics(names, model, outputs, y, weight):
    return {
        metric.name: metric.statistic(model, outputs, y, weight) for metric in names
    }


def measured(model, outputs, y, names=None):
    """All metrics of a model's outputs, by name: [n, ...] in batches whose padding
    holds other examples.
    """
    chosen = tuple(
        find_metric(n) for n in names or NAMES if find_metric(n).applies(model)
    )
    total = None
    for start in range(0, len(outputs), BATCH):
        positions = start + np.arange(BATCH)
        real = positions < len(outputs)
        rows = np.clip(positions, 0, len(outputs) - 1)
        batch = batch_statistics(
            chosen, model, outputs[rows], y[rows], jnp.asarray(real, jnp.float32)
        )
        total = batch if total is None else jax.tree.map(jnp.add, total, batch)
    return {metric.name: metric.result(total[metric.name]) for metric in chosen}, total


def classification_reference(outputs, y, classes):
    logits = np.asarray(outputs, np.float64)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    predicted, names, hot = logits.argmax(1), np.arange(classes), np.eye(classes)[y]
    present = [k for k in names if 0 < hot[:, k].sum() < len(y)]
    rest = np.stack(
        [logsumexp(np.delete(logits, k, 1), axis=1) for k in names], 1
    )  # probabilities round to 1
    odds = logits - rest
    areas = [
        sk.roc_auc_score(hot[:, k], odds[:, k])
        for k in (present[1:] if classes == 2 else present)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes that are predicted and do not occur
        balanced = sk.balanced_accuracy_score(y, predicted)
    log_loss = np.mean(logsumexp(logits, axis=1) - logits[np.arange(len(y)), y])
    # Smaller probabilities count as this one in scikit-learn.
    if p[hot == 1].min() > np.finfo(np.float64).eps:
        clipped = sk.log_loss(y, p, labels=names)
        np.testing.assert_allclose(log_loss, clipped, rtol=1e-9)
    return {
        "accuracy": sk.accuracy_score(y, predicted),
        "balanced_accuracy": balanced,
        "f1_macro": sk.f1_score(y, predicted, average="macro"),
        "log_loss": log_loss,
        "loss": log_loss,
        "perplexity": np.exp(log_loss),
        "brier": sk.brier_score_loss(y, p if classes > 2 else p[:, 1], labels=names),
        "calibration_error": calibration_error(p, y),
        "confusion": 1 - sk.accuracy_score(y, predicted),
        "roc_auc": np.mean(areas) if areas else np.nan,
    }


def calibration_error(p, y, bins=15):
    confidence, correct, error = p.max(1), p.argmax(1) == y, 0.0
    for low in np.arange(bins) / bins:
        inside = (confidence > low) & (confidence <= low + 1 / bins)
        if inside.any():
            error += inside.mean() * abs(
                correct[inside].mean() - confidence[inside].mean()
            )
    return error


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    st.integers(2, 90),
    st.sampled_from([BINARY, MULTI]),
    st.sampled_from([0.02, 1, 6]),
    st.sampled_from([0, 1.5]),
)
def test_metrics_of_classifications_are_those_of_scikit_learn(
    seed, n, model, scale, skill
):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, model.outputs, n).astype(np.int32)
    outputs = (
        scale * (rng.normal(size=(n, model.outputs)) + skill * np.eye(model.outputs)[y])
    ).astype(np.float32)
    got, total = measured(model, outputs, y)
    expected = classification_reference(outputs, y, model.outputs)
    assert got.keys() == expected.keys()
    bound = metrics.ROCAUC().error_bound(total["roc_auc"])
    for name, value in expected.items():
        tolerance = bound + 1e-6 if name == "roc_auc" else 1e-6 * max(1, abs(value))
        if (
            name == "perplexity"
        ):  # the exponential of a loss: what is 1e-6 of the loss is more of this
            tolerance *= max(1, np.log(value))
        np.testing.assert_allclose(
            got[name], value, rtol=0, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("scale", [0.02, 1, 30])
@pytest.mark.parametrize("model", [BINARY, MULTI], ids=["binary", "multi"])
def test_the_area_from_bins_is_that_of_a_sort_to_a_thousandth(scale, model):
    rng = np.random.default_rng(3)
    y = rng.integers(0, model.outputs, 3000).astype(np.int32)
    outputs = scale * (
        rng.normal(size=(3000, model.outputs)) + 0.7 * np.eye(model.outputs)[y] + 0.5
    )
    got, total = measured(model, outputs.astype(np.float32), y, ["roc_auc"])
    expected = classification_reference(outputs.astype(np.float32), y, model.outputs)[
        "roc_auc"
    ]
    assert abs(got["roc_auc"] - expected) < 1e-4, (got["roc_auc"], expected)
    assert (
        0
        < metrics.ROCAUC().error_bound(total["roc_auc"])
        < (1e-3 if model.outputs == 2 else 3e-3)
    )


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(2, 90),
    st.sampled_from([REGRESSION, TARGETS]),
    st.sampled_from([0, 3]),
)
def test_metrics_of_regressions_are_those_of_scikit_learn(seed, n, model, offset):
    rng = np.random.default_rng(seed)
    y = (rng.normal(size=(n, model.outputs)) + offset).astype(np.float32)
    outputs = (y + rng.normal(size=y.shape)).astype(np.float32)
    got, _ = measured(model, outputs, y[:, 0] if model.outputs == 1 else y)
    f, t = outputs.astype(np.float64), y.astype(np.float64)
    expected = {
        "loss": sk.mean_squared_error(t, f) * model.outputs,
        "rmse": sk.root_mean_squared_error(t, f),
        "mae": sk.mean_absolute_error(t, f),
        "r2": sk.r2_score(t, f),
    }
    assert got.keys() == expected.keys()
    if (
        t.var(axis=0) < 5e-4 * np.square(t).mean(axis=0)
    ).any():  # too near to a constant for single precision
        assert np.isnan(got["r2"]) or abs(got["r2"] - expected["r2"]) < 0.01 * (
            1 - expected["r2"]
        )
        del expected["r2"]
    for name, value in expected.items():
        # The variance is a difference of sums of squares: its digits are those of the
        # targets' mean square.
        scale = (
            1 + abs(1 - value) * np.max(np.square(t).mean(0) / t.var(0))
            if name == "r2"
            else 1 + abs(value)
        )
        np.testing.assert_allclose(
            got[name], value, rtol=0, atol=1e-6 * scale, err_msg=name
        )


def test_metrics_of_sequences_count_tokens_not_sequences():
    rng = np.random.default_rng(5)
    outputs = rng.normal(size=(21, 4, 6)).astype(np.float32)
    y = rng.integers(0, 6, (21, 4)).astype(np.int32)
    y[::3, 1:] = -1
    y[4] = -1
    got, _ = measured(SEQUENCE, outputs, y)
    tokens = y >= 0
    p = np.exp(outputs.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    nll = -np.log(np.take_along_axis(p, np.maximum(y, 0)[..., None], -1)[..., 0])
    mean_of_sequences = [
        nll[i][tokens[i]].mean() if tokens[i].any() else 0.0 for i in range(21)
    ]
    assert got.keys() == {"loss", "perplexity", "token_accuracy"}
    np.testing.assert_allclose(
        got["perplexity"], np.exp(sk.log_loss(y[tokens], p[tokens])), rtol=1e-6
    )
    np.testing.assert_allclose(
        got["token_accuracy"], (outputs.argmax(-1) == y)[tokens].mean(), rtol=1e-6
    )
    np.testing.assert_allclose(got["loss"], np.mean(mean_of_sequences), rtol=1e-6)


@pytest.mark.parametrize("kind", ["model", "mixture", "mixture of logits"])
def test_loss_and_accuracy_are_plain_sums_to_the_bit(kind):
    rng = np.random.default_rng(1)
    thetas = jnp.asarray(rng.normal(size=(3, MULTI.size)), jnp.float32)
    weights = jnp.array([0.2, 0.5, 0.3])
    predictor = (
        thetas[0]
        if kind == "model"
        else Mixture(weights, thetas, logits=kind.endswith("logits"))
    )
    batch = Batch(
        jnp.asarray(rng.normal(size=(BATCH, 3)), jnp.float32),
        jnp.asarray(rng.integers(0, 5, BATCH), jnp.int32),
        jnp.asarray(np.arange(BATCH) < 11, jnp.float32),
    )

    @jax.jit
    def both(batch):
        out = outputs_of(MULTI, predictor)(batch.x)
        found = {
            name: find_metric(name).statistic(MULTI, out, batch.y, batch.weight)
            for name in ("loss", "accuracy")
        }
        correct = MULTI.correct(out, batch.y).astype(jnp.float32)
        return (
            jnp.vdot(MULTI.losses(out, batch.y), batch.weight),
            jnp.vdot(correct, batch.weight),
        ), found

    (loss, correct), found = both(batch)
    assert found["loss"]["loss"] == loss and found["accuracy"]["correct"] == correct
    assert find_metric("loss").result(found["loss"]) == np.float64(loss) / 11
    assert find_metric("accuracy").result(found["accuracy"]) == np.float64(correct) / 11


@pytest.mark.parametrize(
    "name",
    ["accuracy", "loss", "roc_auc", "confusion", "calibration_error", "f1_macro"],
)
def test_many_clients_at_once_are_as_one_by_one(name):
    """The second client's samples are all padding: its values are NaN."""
    metric, rng = find_metric(name), np.random.default_rng(2)
    statistics = []
    for samples in (9, 0, BATCH):
        arguments = (
            rng.normal(size=(BATCH, 5)),
            rng.integers(0, 5, BATCH),
            np.arange(BATCH) < samples,
        )
        kinds = (jnp.float32, jnp.int32, jnp.float32)
        given = (
            jnp.asarray(value, kind)
            for value, kind in zip(arguments, kinds, strict=True)
        )
        statistics.append(jax.device_get(metric.statistic(MULTI, *given)))
    together = jax.tree.map(lambda *rows: np.stack(rows), *statistics)
    found, alone = (
        metric.values_of_clients(together),
        [metric.values(statistic) for statistic in statistics],
    )
    assert found.keys() == {key for values in alone for key in values} and np.isnan(
        found[name][1]
    )
    for key, values in found.items():
        np.testing.assert_array_equal(values, [one.get(key, np.nan) for one in alone])
    # what leaves the clients says the same, in the precision of devices, and is small
    condensed = jax.device_get(
        jax.vmap(metric.condense)(jax.tree.map(jnp.asarray, together))
    )
    for key, values in metric.values_of_clients(condensed).items():
        np.testing.assert_allclose(values, found[key], rtol=1e-6)
    assert sum(rows[0].size for rows in condensed.values()) <= 100


def test_every_metric_of_no_samples_is_nan():
    for model, shape, y in (
        (MULTI, (BATCH, 5), (BATCH,)),
        (TARGETS, (BATCH, 2), (BATCH, 2)),
        (SEQUENCE, (BATCH, 4, 6), (BATCH, 4)),
    ):
        chosen = tuple(
            find_metric(name) for name in NAMES if find_metric(name).applies(model)
        )
        kind = jnp.float32 if model is TARGETS else jnp.int32
        arguments = (jnp.ones(shape), jnp.ones(y, kind), jnp.ones(BATCH))
        statistics = batch_statistics(chosen, model, *arguments)
        zero = jax.tree.map(jnp.zeros_like, statistics)
        assert len(chosen) >= 3
        for metric in chosen:
            assert np.isnan(metric.result(zero[metric.name])), metric.name


def test_undefined_metrics_are_nan_not_a_number_that_looks_good():
    outputs = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    assert np.isnan(
        measured(BINARY, outputs, np.ones(12, np.int32), ["roc_auc"])[0]["roc_auc"]
    )
    constant = np.full(12, 1000, np.float32)
    constant[0] += 0.5  # varies, but single precision cannot say by how much
    assert np.isnan(measured(REGRESSION, outputs[:, :1], constant, ["r2"])[0]["r2"])
    broken = np.where(np.arange(12)[:, None] == 3, np.nan, outputs).astype(np.float32)
    for name, value in measured(
        BINARY, broken, np.arange(12, dtype=np.int32) % 2, ["roc_auc", "log_loss"]
    )[0].items():
        assert np.isnan(value), name


def test_log_odds_keep_apart_what_is_almost_certain():
    outputs = np.zeros((6, 5), np.float32)
    outputs[:, 2] = [
        30,
        40,
        50,
        60,
        70,
        80,
    ]  # 1 - p is 0 in single precision for all of them
    got, _ = measured(
        MULTI, outputs, np.array([0, 0, 0, 2, 2, 2], np.int32), ["roc_auc"]
    )
    assert got["roc_auc"] == 1


def test_confusion_counts_labels_in_rows():
    outputs = np.eye(5, dtype=np.float32)[[0, 0, 1, 4]]
    y = np.array([0, 1, 1, 2], np.int32)
    _, total = measured(MULTI, outputs, y, ["confusion"])
    matrix = find_metric("confusion").matrix(total["confusion"])
    np.testing.assert_array_equal(
        matrix, sk.confusion_matrix(y, [0, 0, 1, 4], labels=range(5))
    )
    assert find_metric("confusion").values(total["confusion"]) == {
        "confusion": 0.5,
        "confusion[0,0]": 1,
        "confusion[1,0]": 1,
        "confusion[1,1]": 1,
        "confusion[2,4]": 1,
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_says_what_tables_need(name):
    metric = find_metric(name)
    assert (
        metric.title
        and metric.unit in ("%", "", "target")
        and isinstance(metric.higher_is_better, bool)
    )
    assert metric == find_metric(name) and hash(metric) == hash(find_metric(name))
    assert any(metric.applies(model) for model in (BINARY, REGRESSION, SEQUENCE, TIMES))


def test_metrics_are_found_by_name_each_once_and_only_where_defined():
    assert [m.name for m in find_metrics(("roc_auc", "f1_macro"), MULTI)] == [
        "roc_auc",
        "f1_macro",
    ]
    assert len(find_metrics(("mae", "mae"), REGRESSION)) == 1
    assert find_metrics((metrics.CalibrationError(bins=5),), MULTI)[0].bins == 5
    with pytest.raises(
        ValueError, match="there is no metric 'roc_auk'; did you mean 'roc_auc'"
    ):
        find_metrics(("roc_auk",), MULTI)
    with pytest.raises(
        ValueError,
        match=(
            r"'r2' is not defined for a classification of 5 classes; choose from accur"
        ),
    ):
        find_metrics(("r2",), MULTI)
    with pytest.raises(ValueError, match="'calibration_error' is asked for twice"):
        find_metrics(("calibration_error", metrics.CalibrationError(bins=5)), MULTI)
    with pytest.raises(ValueError, match="bins is 0"):
        metrics.CalibrationError(bins=0)


def test_a_metric_of_another_package_is_found_by_its_entry_point(monkeypatch):
    def offered(group, name=None):
        points = {
            "outside": "fedtailor.models.metrics:Accuracy",
            "no_class": "fedtailor.models.metrics:find_metric",
            "gone": "fedtailor_no_such_module:Metric",
        }
        assert group == "fedtailor.metrics"
        return [EntryPoint(name, points[name], group)] if name in points else []

    monkeypatch.setattr("fedtailor._base.entry_points.entry_points", offered)
    monkeypatch.setattr(Metric, "registry", dict(Metric.registry))
    assert find_metric("outside") == metrics.Accuracy()
    with pytest.raises(ValueError, match="must be a subclass of Metric"):
        find_metric("no_class")
    with pytest.raises(
        ValueError, match="'gone' of fedtailor_no_such_module:Metric cannot be imported"
    ):
        find_metric("gone")


def test_losses_of_sequences_refuse_nothing_and_ignore_padding():
    outputs = jnp.asarray(np.random.default_rng(2).normal(size=(2, 3, 4)), jnp.float32)
    y = jnp.array([[1, 2, 3], [1, -1, -1]])
    expected = [
        cross_entropy(outputs[0], y[0]).mean(),
        cross_entropy(outputs[1, :1], y[1, :1])[0],
    ]
    np.testing.assert_allclose(
        token_cross_entropy(outputs, y), jnp.stack(expected), rtol=1e-6
    )


@pytest.mark.parametrize("name", ["rmse", "mae"])
def test_errors_of_many_clients_are_those_of_one_by_one(name):
    """Of three targets; the second client has no samples."""
    metric, rng = find_metric(name), np.random.default_rng(2)
    key = {"rmse": "squares", "mae": "distances"}[name]
    together = {
        key: rng.uniform(size=(3, 3)).astype(np.float32),
        "count": np.array([9.0, 0.0, 4.0], np.float32),
    }
    alone = [
        metric.result({key: rows[client] for key, rows in together.items()})
        for client in range(3)
    ]
    found = metric.values_of_clients(together)
    assert found.keys() == {name} and np.isnan(alone[1])
    np.testing.assert_array_equal(found[name], alone)
