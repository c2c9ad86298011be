"""Group transforms: rotations, label permutations, standardisation."""

import numpy as np
import pytest

from fedtailor.data.federation import (
    Federation,
    LabelPermutations,
    Ragged,
    Rotations,
    from_arrays,
    standardize,
)


def federation(shape=(4, 4), clients=12, n=240, **options):
    """Random images of five classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, *shape)).astype(np.float32)
    y = rng.integers(0, 5, n)
    return from_arrays(x, y, np.arange(n) % clients, val=0.1, **options)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (16,)])
def test_every_group_sees_its_rotation(shape):
    before = federation(shape)
    after = Rotations((0, 1, 2, 3))(before, seed=1)
    assert after.groups is not None and np.bincount(after.groups).tolist() == [
        3,
        3,
        3,
        3,
    ]
    for index, group in enumerate(after.groups):
        for split in ("train", "val", "test"):
            old, new = (
                getattr(before.client(index), split),
                getattr(after.client(index), split),
            )
            square = old.x.reshape(len(old.x), 4, 4, -1)
            turned = (
                np.stack([np.rot90(image, group) for image in square])
                if len(square)
                else square
            )
            np.testing.assert_array_equal(new.x, turned.reshape(old.x.shape))
            np.testing.assert_array_equal(new.y, old.y)
    assert after.x.shape == before.x.shape and after.names == before.names


def test_every_group_has_a_permutation_of_its_own():
    before = federation()
    after = LabelPermutations(4)(before, seed=1)
    seen = {}
    for index, group in enumerate(after.groups):
        old, new = before.client(index).train, after.client(index).train
        np.testing.assert_array_equal(new.x, old.x)
        for a, b in zip(old.y, new.y, strict=True):
            assert seen.setdefault((group, a), b) == b, "one group, one permutation"
    tables = [tuple(seen[group, label] for label in range(5)) for group in range(4)]
    assert len(set(tables)) == 4 and all(
        sorted(table) == list(range(5)) for table in tables
    )
    assert LabelPermutations(4)(before, seed=2).y.tolist() != after.y.tolist()


def test_rows_that_groups_share_are_kept_once_for_each_group():
    x = np.arange(40, dtype=np.float32).reshape(10, 4)
    train, test = Ragged.of([[1], [2], [3], [4], [6]]), Ragged.of([[0, 5]] * 5)
    before = Federation(
        x, np.arange(10) % 2, train, Ragged.empty(5), test, tuple("abcde")
    )
    after = Rotations((0, 2))(before, groups=np.array([0, 0, 1, 1, 1]))
    assert len(after.x) == 5 + 2 + 2
    for index, group in enumerate((0, 0, 1, 1, 1)):
        old = before.client(index).test.x
        np.testing.assert_array_equal(
            after.client(index).test.x, old[:, ::-1] if group else old
        )


def test_groups_follow_names_and_spread_over_seen_and_unseen():
    before = federation(unseen=4)
    after = Rotations()(before, seed=3)
    for chosen in (after.unseen, ~after.unseen):
        assert set(np.bincount(after.groups[chosen], minlength=4)) <= {1, 2}
    n = 240
    order = np.argsort((np.arange(n) % 12 * 5 + 3) % 12, kind="stable")
    renamed = {
        name: group for name, group in zip(after.names, after.groups, strict=True)
    }
    again = Rotations()(
        from_arrays(before.x[order], before.y[order], order % 12, val=0.1, unseen=4),
        seed=3,
    )
    assert renamed == {
        name: group for name, group in zip(again.names, again.groups, strict=True)
    }


def test_two_transforms_make_pairs_of_groups():
    rotated, permuted = (
        Rotations((0, 1))(federation(), seed=0),
        LabelPermutations(2)(federation(), seed=1),
    )
    both = LabelPermutations(2)(rotated, seed=1)
    np.testing.assert_array_equal(both.groups, 2 * rotated.groups + permuted.groups)


def test_groups_can_be_given():
    groups = np.arange(12) // 6
    np.testing.assert_array_equal(
        Rotations((0, 1))(federation(), groups=groups).groups, groups
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotations(()), "turns is empty"),
        (lambda: Rotations((0, 0.5)), "whole quarter turns"),
        (lambda: LabelPermutations(0), "groups is 0"),
        (
            lambda: Rotations()(federation((4, 5))),
            r"inputs of shape \(4, 5\) are not square images",
        ),
        (lambda: Rotations()(federation((5,))), "not square images"),
        (lambda: Rotations()(federation((2, 2, 1, 1))), "not square images"),
        (
            lambda: Rotations()(federation(), groups=np.full(12, 4)),
            "client '0' is in group 4; groups count 0..3",
        ),
        (
            lambda: Rotations()(federation(), groups=np.zeros(3, int)),
            "one integer for each of 12 clients",
        ),
        (
            lambda: LabelPermutations(121)(federation()),
            "5 classes have fewer than 121 permutations",
        ),
        (lambda: LabelPermutations()(federation(classes=None)), "has no classes"),
        (
            lambda: LabelPermutations(13)(federation()),
            "groups is 13, and there are 12 clients; use at most one group",
        ),
        (lambda: LabelPermutations(2.0), "groups is 2.0; it must be a whole number"),
        (lambda: LabelPermutations()(federation(), seed=-1), "seed is -1"),
        (lambda: Rotations()(federation(), seed=2**32), "seed is 4294967296"),
        (
            lambda: standardize(
                from_arrays(np.zeros((4, 2), np.int32), [0, 1, 0, 1], [0, 0, 1, 1])
            ),
            "token ids",
        ),
    ],
)
def test_impossible_transforms_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_standardized_features_have_mean_zero_and_deviation_one_over_the_training_rows():
    rng = np.random.default_rng(0)
    x = np.column_stack(
        [rng.normal(50, 9, 200), rng.normal(0, 1e-3, 200), np.full(200, 7.0)]
    ).astype(np.float32)
    made = standardize(
        from_arrays(x, rng.integers(0, 2, 200), np.arange(200) % 8, unseen=3)
    )
    trained = made.x[made.train.take(made.seen).rows].astype(np.float64)
    inputs = (trained - made.shift) * made.scale
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(inputs.std(axis=0), [1, 1, 0], atol=1e-9)


def test_constant_features_are_not_blown_up_by_rounding():
    x = np.tile([0.1, 1e6 + 0.1, 0.0, 3.0], (1000, 1))
    x[::2, 3] = 5.0
    done = standardize(from_arrays(x, np.arange(1000) % 2, np.arange(1000) % 4))
    assert np.asarray(done.scale)[:3].tolist() == [1.0, 1.0, 1.0] and done.scale[
        3
    ] == pytest.approx(1.0)
    assert (
        np.abs(
            (done.x[:, :3] - np.asarray(done.shift)[:3]) * np.asarray(done.scale)[:3]
        ).max()
        < 1e-7
    )
