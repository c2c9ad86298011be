"""Splits of each client's rows and the choice of unseen clients."""

import numpy as np
import pytest

from fedtailor.data.federation import Ragged
from fedtailor.data.federation.splits import (
    choose_unseen,
    divide,
    draw_splits,
    follow_splits,
)
from fedtailor.protocol import client_ids

SIZES = np.array([1, 2, 3, 10, 37, 200])
NAMES = tuple(f"c{size}" for size in SIZES)


def pool(seed=0):
    """Rows of clients of the given sizes, shuffled over the pool, with three unbalanced
    classes.
    """
    rng = np.random.default_rng(seed)
    rows = Ragged.cut(rng.permutation(SIZES.sum()), SIZES)
    return rows, rng.choice(3, SIZES.sum(), p=[0.7, 0.2, 0.1])


def as_sets(*splits):
    return [
        [set(split[client].tolist()) for client in range(len(split))]
        for split in splits
    ]


def test_splits_partition_each_client_and_have_the_asked_sizes():
    rows, y = pool()
    train, val, test = draw_splits(rows, y, NAMES, test=0.2, val=0.1, seed=0)
    assert test.sizes.tolist() == [0, 1, 1, 2, 7, 40]
    assert val.sizes.tolist() == [0, 0, 1, 1, 4, 20]
    assert train.sizes.tolist() == [1, 1, 1, 7, 26, 140]
    for client, parts in enumerate(zip(*as_sets(train, val, test), strict=True)):
        assert set.union(*parts) == set(rows[client].tolist())
        assert sum(map(len, parts)) == SIZES[client]


def test_every_class_has_its_share_in_every_split():
    rows, y = pool()
    train, val, test = draw_splits(rows, y, NAMES, test=0.25, val=0.25, seed=3)
    for client in (4, 5):
        total = np.bincount(y[rows[client]], minlength=3)
        for split, fraction in ((test, 0.25), (val, 0.25), (train, 0.5)):
            exact = total * len(split[client]) / SIZES[client]
            assert (
                np.abs(np.bincount(y[split[client]], minlength=3) - exact).max() < 2
            ), fraction


def test_targets_that_are_no_labels_are_split_too():
    rows, y = pool()
    for targets in (y + 0.5, np.stack([y, y], axis=1)):
        _, _, test = draw_splits(rows, targets, NAMES, test=0.2, val=0, seed=0)
        assert test.sizes.tolist() == [0, 1, 1, 2, 7, 40]


def test_every_row_is_as_likely_to_be_taken():
    rows, y = Ragged.of([np.arange(10)]), np.array([0] * 7 + [1] * 3)
    taken = np.zeros(10)
    for seed in range(2000):
        taken[
            divide(rows, np.array([3]), y, client_ids(["ann"]), seed, "test")[1].rows
        ] += 1
    # a binomial(2000, 0.3) has deviation 20.5
    np.testing.assert_allclose(taken, 600, atol=5 * 20.5)


def test_splits_depend_on_seed_and_name_but_not_on_the_other_clients():
    rows, y = pool()
    whole = as_sets(*draw_splits(rows, y, NAMES, test=0.3, val=0.1, seed=1))
    order = np.array([5, 2, 0, 4])
    some = as_sets(
        *draw_splits(
            rows.take(order), y, [NAMES[i] for i in order], test=0.3, val=0.1, seed=1
        )
    )
    for all_clients, few in zip(whole, some, strict=True):
        assert [all_clients[client] for client in order] == few
    assert (
        as_sets(*draw_splits(rows, y, NAMES, test=0.3, val=0.1, seed=2))[2][5]
        != whole[2][5]
    )
    renamed = (*NAMES[:-1], "other")
    assert (
        as_sets(*draw_splits(rows, y, renamed, test=0.3, val=0.1, seed=1))[2][5]
        != whole[2][5]
    )


@pytest.mark.parametrize(
    ("test", "val"),
    [(-0.1, 0), (1.0, 0), (0, 1.5), (0.6, 0.4), (0, -1), (float("nan"), 0)],
)
def test_impossible_fractions_are_refused(test, val):
    with pytest.raises(ValueError, match="sum below 1"):
        draw_splits(*pool(), NAMES, test=test, val=val, seed=0)


def test_given_splits_are_followed():
    rows, y = Ragged.of([[3, 1, 0], [2, 4]]), np.zeros(5, int)
    given = np.array(["test", "train", "train", "val", "test"])
    train, val, test = follow_splits(rows, given, y, ("a", "b"), val=0, seed=0)
    assert as_sets(train, val, test) == [[{1}, {2}], [{3}, set()], [{0}, {4}]]
    with pytest.raises(ValueError, match="marks validation rows"):
        follow_splits(rows, given, y, ("a", "b"), val=0.1, seed=0)
    with pytest.raises(ValueError, match="row 3 has split 'dev'"):
        follow_splits(
            rows, np.where(given == "val", "dev", given), y, ("a", "b"), val=0, seed=0
        )


def test_validation_rows_come_from_the_training_rows_of_a_given_split():
    rows, y = pool()
    given = np.where(np.arange(SIZES.sum()) % 2, "train", "test")
    train, val, test = follow_splits(rows, given, y, NAMES, val=0.5, seed=0)
    assert (given[test.rows] == "test").all() and (
        given[np.r_[train.rows, val.rows]] == "train"
    ).all()
    assert len(test.rows) == (given == "test").sum() and val.sizes[-1] > 30


def test_unseen_clients_are_a_count_a_fraction_or_names():
    assert choose_unseen(0, NAMES, 0).sum() == 0
    assert choose_unseen(2, NAMES, 0).sum() == choose_unseen(1 / 3, NAMES, 0).sum() == 2
    assert choose_unseen(["c2", "c37"], NAMES, 0).tolist() == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert (
        choose_unseen("c1", NAMES, 0).sum()
        == choose_unseen([7], ("7", "8"), 0).sum()
        == 1
    )
    few, more = choose_unseen(2, NAMES, 5), choose_unseen(3, NAMES, 5)
    assert (few <= more).all(), "the same clients stay unseen when more are"
    order = [3, 1, 0, 2, 5, 4]
    np.testing.assert_array_equal(
        choose_unseen(2, [NAMES[i] for i in order], 5), few[order]
    )
    assert any((choose_unseen(2, NAMES, seed) != few).any() for seed in range(6, 10))


@pytest.mark.parametrize(
    ("unseen", "message"),
    [(6, "leaves clients to train"), (1.0, "leaves"), (-1, "leaves"), (-0.1, "l")],
)
def test_somebody_must_train(unseen, message):
    with pytest.raises(ValueError, match=message):
        choose_unseen(unseen, NAMES, 0)


def test_an_unseen_client_must_exist():
    with pytest.raises(
        ValueError, match="unseen names client 'bob', which does not exist"
    ):
        choose_unseen(["c1", "bob"], NAMES, 0)
