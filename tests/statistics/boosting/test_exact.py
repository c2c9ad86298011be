"""Federated boosting is scikit-learn's histogram boosting of all rows together."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

from fedtailor.statistics.boosting import (
    BoostingRows,
    BoostingSettings,
    agree_on_bins,
    bins_of_values,
    boost,
)
from fedtailor.statistics.boosting.boost import sum_over

ROWS = 320
SIZES = (40, 7, 153, 120)


def data(kind, seed=0):
    """Inputs with ties, of few values and of many; targets of all inputs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 5))
    x[:, 1] = rng.integers(0, 2, ROWS)
    x[:, 2] = np.round(x[:, 2], 1)
    x[:, 3] = 1.0  # a constant
    score = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=ROWS)
    if kind is None:
        return x, 5 + score
    return x, np.digitize(score, np.quantile(score, np.arange(1, kind) / kind))


def sklearn_of(x, y, classes, **settings):
    options = {
        "max_iter": settings.get("trees", 100),
        "learning_rate": settings.get("rate", 0.1),
        "max_leaf_nodes": settings.get("most_leaves", 31),
        "max_depth": settings.get("most_depth"),
        "min_samples_leaf": settings.get("least_rows", 20),
        "l2_regularization": settings.get("penalty", 0.0),
        "max_bins": settings.get("most_bins", 255),
        "early_stopping": False,
    }
    kind = (
        HistGradientBoostingRegressor
        if classes is None
        else HistGradientBoostingClassifier
    )
    return kind(**options).fit(x, y)


def ours(x, y, classes, sizes=(ROWS,), thresholds=None, **settings):
    ends = np.cumsum(sizes)[:-1]
    clients = [
        BoostingRows(part, target, classes)
        for part, target in zip(np.split(x, ends), np.split(y, ends), strict=True)
    ]
    return boost(
        sum_over(clients),
        x.shape[1],
        classes,
        BoostingSettings(**settings),
        thresholds=thresholds,
    )


SETTINGS = [
    {"trees": 8},
    {"trees": 5, "most_leaves": None, "most_depth": 3},
    {"trees": 5, "most_leaves": 5, "penalty": 2.0, "rate": 0.3, "least_rows": 5},
    {"trees": 5, "most_bins": 16},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("classes", [None, 2, 3])
@pytest.mark.parametrize("sizes", [(ROWS,), SIZES], ids=["one", "four"])
def test_with_pooled_bins_it_is_scikit_learns(classes, settings, sizes):
    x, y = data(classes)
    bins = bins_of_values(x, settings.get("most_bins", 255))
    model = ours(x, y, classes, sizes, bins, **settings)
    expected = sklearn_of(x, y, classes, **settings)
    new = np.random.default_rng(9).normal(size=(200, 5))
    for rows in (x, new):
        if classes is None:
            found, wanted = model.outputs(rows), expected.predict(rows)
        else:
            found = np.exp(model.outputs(rows))
            wanted = expected.predict_proba(rows)
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("most_bins", [2, 16, 255])
def test_bins_of_values_are_scikit_learns(most_bins):
    from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper

    x, _ = data(None)
    expected = _BinMapper(n_bins=most_bins + 1).fit(x).bin_thresholds_
    for found, ends in zip(bins_of_values(x, most_bins), expected, strict=True):
        np.testing.assert_array_equal(found, ends)


@pytest.mark.parametrize("most_bins", [2, 16, 255])
def test_agreed_bins_split_rows_at_the_quantiles(most_bins):
    """Each threshold is the smallest value that enough rows are at most, to within the
    precision of the search, whatever the unit; a whole number is that number.
    """
    x, _ = data(None)
    x[:, 2] = np.rint(x[:, 2] * 1e5)
    x[:, 3] *= 1e-20
    x[:, 4] = 1e12 + 1e8 * x[:, 4]

    def counts_below(candidates):
        return (x.T[:, None, :] <= candidates[..., None]).sum(axis=-1)

    found = agree_on_bins(counts_below, ROWS, 5, most_bins)
    for column, thresholds in zip(x.T, found, strict=True):
        shares = np.arange(1, most_bins) / most_bins
        wanted = np.sort(column)[np.ceil(shares * ROWS).astype(int) - 1]
        # A search finds every value, or the next one above it that it can tell.
        for value in np.unique(wanted):
            above = thresholds[thresholds >= value].min() - value
            assert above <= 1e-6 * abs(value)
            assert above == 0 or value % 1
        assert (np.diff(thresholds) > 0).all()
        assert len(thresholds) <= most_bins - 1


@pytest.mark.parametrize("at_once", [2, 3, 5])
def test_several_halvings_at_once_find_the_same_bins(at_once):
    x, _ = data(None)

    def counts_below(candidates):
        return (x.T[:, None, :] <= candidates[..., None]).sum(axis=-1)

    found = agree_on_bins(counts_below, ROWS, 5, 30, at_once=at_once)
    expected = agree_on_bins(counts_below, ROWS, 5, 30)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_agreed_bins_are_as_good_as_pooled_ones():
    x, y = data(None)
    new_x, new_y = data(None, seed=1)
    agreed = ours(x, y, None, SIZES, trees=20)
    pooled = ours(x, y, None, SIZES, bins_of_values(x), trees=20)
    errors = [np.mean((it.outputs(new_x) - new_y) ** 2) for it in (agreed, pooled)]
    assert errors[0] < 1.1 * errors[1]


def test_clients_without_rows_change_nothing():
    x, y = data(2)
    plain = ours(x, y, 2, SIZES, trees=5)
    with_empty = ours(x, y, 2, (0, *SIZES, 0), trees=5)
    np.testing.assert_array_equal(plain.outputs(x), with_empty.outputs(x))


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_sums_over_machines_do_not_depend_on_whose_rows_they_are(classes):
    """Before, clients rounded their sums: of tiny numbers these said how many there are.

    A constant prediction so far away makes curvatures of half of a step.
    """
    x, y = data(classes)
    told = []
    for sizes in ((20, 20, 20, ROWS - 60), (1, 3, 99, ROWS - 103)):
        ends = np.cumsum(sizes)[:-1]
        clients = [
            BoostingRows(*rows, classes, *rows, on_grid=True)
            for rows in zip(np.split(x, ends), np.split(y, ends), strict=True)
        ]
        ask, answers = sum_over(clients), []

        def recorded(request, ask=ask, answers=answers):
            if request.kind == "baseline" and classes == 2:
                request = replace(request, arrays={"baseline": np.array([-27.0])})
            answer = ask(request)
            answers.append(answer.tolist())
            return answer

        boost(recorded, x.shape[1], classes, BoostingSettings(trees=3))
        told.append(answers)
    assert told[0] == told[1]


def test_targets_that_the_grid_does_not_hold_are_named():
    x, y = np.zeros((4, 1)), np.array([2e6, 1.0, -0.5, 0.0])
    with pytest.raises(ValueError, match="use other units"):
        BoostingRows(x, y, None, on_grid=True)
    BoostingRows(x, y / 2, None, on_grid=True)
