"""How many questions a tree needs."""

import numpy as np
import pytest

from fedtailor.statistics.boosting import BoostingRequest, BoostingRows, tree
from fedtailor.statistics.boosting.tree import GrowSettings, grow, most_splits

THRESHOLDS = [np.linspace(-2, 2, 31)] * 5


def grown(seed, settings):
    """A tree on random rows, and the numbers of splits of each question."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2000, 5))
    y = np.sin(3 * x[:, 0]) * x[:, 1] + np.exp(2 * x[:, 2]) + rng.normal(size=2000)
    rows = BoostingRows(x, y, None)
    rows.answer(BoostingRequest("bins", arrays={"thresholds": THRESHOLDS}))
    rows.answer(BoostingRequest("baseline", arrays={"baseline": np.zeros(1)}))
    root, asked = rows.answer(BoostingRequest("gradients")), []

    def histograms_of(moves):
        asked.append(len(moves))
        return rows.answer(BoostingRequest("split", moves=tuple(moves)))

    return grow(root, histograms_of, THRESHOLDS, settings), asked


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        (GrowSettings(least_rows=5), 8),  # one by one they are 23 to 26
        (GrowSettings(most_leaves=None, most_depth=4), 3),
        (GrowSettings(most_leaves=2), 0),
        (GrowSettings(most_leaves=9, least_rows=5), 4),
    ],
    ids=["leaves", "depth", "one split", "few leaves"],
)
def test_a_tree_of_few_questions_is_that_of_single_ones(settings, most, monkeypatch):
    for seed in range(5):
        found, asked = grown(seed, settings)
        with monkeypatch.context() as patch:
            patch.setattr(tree, "MOST_NUMBERS", 1)
            expected, singly = grown(seed, settings)
        for field in tree.FIELDS:
            np.testing.assert_array_equal(
                getattr(found, field), getattr(expected, field)
            )
        assert set(singly) <= {1} and len(asked) <= min(most, len(singly))
        assert len(singly) <= sum(asked) <= most_splits(settings)


def test_a_histogram_of_one_bin_is_split_nowhere():
    """Sums with a wrong part can leave no threshold between bins."""
    one = np.full((2, 1, 3), 10.0)
    sums, bins = np.full(3, 10.0), np.ones(2, int)
    assert tree.best_split(one, sums, 0.0, bins, GrowSettings()) is None
