"""The baseline that learns nothing is scored as scikit-learn scores a constant
prediction.
"""

import warnings

import numpy as np
import pytest
import sklearn.metrics as sk

from fedtailor.models.tasks.classification import class_shares, classification_baseline
from fedtailor.models.tasks.regression import regression_baseline


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_the_majority_class_is_scored_as_by_scikit_learn(classes, seed):
    rng = np.random.default_rng(seed)
    train, test = rng.integers(0, classes, 20), rng.integers(0, classes, 33)
    p = np.tile((np.bincount(train, minlength=classes) + 1) / (20 + classes), (33, 1))
    got, predicted, names = (
        classification_baseline(train, test, classes),
        p.argmax(1),
        range(classes),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "accuracy": sk.accuracy_score(test, predicted),
            "balanced_accuracy": sk.balanced_accuracy_score(test, predicted),
            "roc_auc": 0.5,
            "f1_macro": sk.f1_score(test, predicted, average="macro"),
            "log_loss": sk.log_loss(test, p, labels=names),
            "brier": sk.brier_score_loss(
                test, p if classes > 2 else p[:, 1], labels=names
            ),
            "calibration_error": abs(np.mean(test == predicted) - p.max()),
            "confusion": np.mean(test != predicted),
            "perplexity": np.exp(sk.log_loss(test, p, labels=names)),
        }
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-10, err_msg=name)


def test_a_majority_that_the_test_rows_do_not_have():
    got = classification_baseline(np.zeros(5, int), np.array([1, 1, 2]), 3)
    assert got["accuracy"] == got["balanced_accuracy"] == got["f1_macro"] == 0
    np.testing.assert_allclose(class_shares(np.zeros(5, int), 3), [6 / 8, 1 / 8, 1 / 8])
    assert np.isnan(
        classification_baseline(np.zeros(5, int), np.ones(3, int), 3)["roc_auc"]
    )
    assert all(
        np.isnan(v)
        for v in classification_baseline(np.zeros(5, int), np.zeros(0, int), 3).values()
    )


@pytest.mark.parametrize("targets", [1, 3])
def test_the_mean_is_scored_as_by_scikit_learn(targets):
    rng = np.random.default_rng(0)
    train, test = rng.normal(2, 1, (9, targets)), rng.normal(2, 1, (17, targets))
    constant = np.tile(train.mean(0), (17, 1))
    got = regression_baseline(train, test)
    np.testing.assert_allclose(
        got["rmse"], sk.root_mean_squared_error(test, constant), rtol=1e-10
    )
    np.testing.assert_allclose(
        got["mae"], sk.mean_absolute_error(test, constant), rtol=1e-10
    )
    np.testing.assert_allclose(got["r2"], sk.r2_score(test, constant), rtol=1e-10)
    np.testing.assert_allclose(
        got["loss"], targets * sk.mean_squared_error(test, constant), rtol=1e-10
    )


def test_regressions_without_variance_or_rows_are_nan():
    assert np.isnan(regression_baseline(np.zeros(3), np.ones(4))["r2"])
    assert regression_baseline(np.zeros(3), np.ones(4))["rmse"] == 1
    assert all(
        np.isnan(v) for v in regression_baseline(np.zeros(3), np.zeros(0)).values()
    )


def test_a_label_that_is_no_class_is_refused():
    with pytest.raises(ValueError, match=r"labels lie in 0\.\.4; expected 0\.\.2"):
        classification_baseline(np.array([0, 1]), np.array([4]), 3)
