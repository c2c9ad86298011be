"""Concordance by hand, and as scikit-survival and lifelines have it."""

import numpy as np
import pytest

from fedtailor.models.tasks.times import comparisons, harrell, uno


def made(rows=200, seed=0):
    """Times with ties, censoring, and risks with ties."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=rows).round(1)
    time = np.ceil(10 * rng.exponential(np.exp(-risk)))
    return time, rng.random(rows) < 0.7, risk


def test_pairs_by_hand():
    time, event, risk = [1, 2, 2, 3], [1, 1, 0, 0], [3.0, 1.0, 1.0, 2.0]
    # comparable: 1 with all others; the event at 2 with the one censored at 2, and with 3
    found = comparisons(time, event, risk)
    assert found.pairs == 5
    # ranked: 3 pairs of the first, a tie with the censored one, and not the one at 3
    assert found.value == pytest.approx((3 + 0.5) / 5)
    assert found.compared.sum() == 10 and found.ranked.sum() == 7


def test_all_pairs_one_by_one():
    time, event, risk = made(60)
    right = pairs = 0.0
    for i in range(60):
        for j in range(60):
            earlier = time[i] < time[j] or (time[i] == time[j] and not event[j])
            if event[i] and earlier and i != j:
                pairs += 1
                right += (risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j])
    found = comparisons(time, event, risk)
    assert found.pairs == pairs and found.value == pytest.approx(
        right / pairs, abs=1e-12
    )


def test_no_pair_is_no_value():
    assert np.isnan(harrell([1, 2], [0, 0], [0, 1]))
    assert harrell([1, 2], [1, 0], [1, 0]) == 1.0


def test_unos_weights_are_one_without_censoring():
    time, _, risk = made()
    event = np.ones(len(time), bool)
    assert uno(time, event, risk, time, event) == pytest.approx(
        harrell(time, event, risk), abs=1e-12
    )


@pytest.mark.extra
def test_as_in_scikit_survival():
    metrics = pytest.importorskip(
        "sksurv.metrics", reason="scikit-survival is not installed"
    )
    time, event, risk = made()
    value, concordant, discordant, tied, _ = metrics.concordance_index_censored(
        event, time, risk
    )
    found = comparisons(time, event, risk)
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.pairs == concordant + discordant + tied
    train_time, train_event, _ = made(400, seed=1)
    kind = [("event", bool), ("time", float)]
    train = np.array(list(zip(train_event, train_time, strict=True)), dtype=kind)
    test = np.array(list(zip(event, time, strict=True)), dtype=kind)
    until = float(np.quantile(time, 0.8))
    expected = metrics.concordance_index_ipcw(train, test, risk, until)[0]
    assert uno(time, event, risk, train_time, train_event, until) == pytest.approx(
        expected, abs=1e-9
    )
