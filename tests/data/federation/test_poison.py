"""Poisoned training data: who byzantine, and what changes."""

import numpy as np
import pytest

from fedtailor.data.federation import (
    BackDoor,
    WrongLabels,
    byzantine_clients,
    from_arrays,
)
from fedtailor.protocol import client_ids

CLASSES = 3


def federation(names="abcdefghij", shape=(4, 4)):
    rng = np.random.default_rng(0)
    rows = 12 * len(names)
    return from_arrays(
        rng.normal(size=(rows, *shape)).astype(np.float32),
        np.arange(rows) % CLASSES,
        np.repeat(list(names), 12),
        test=0.25,
        unseen=("j",),
    )


def splits(federation, split):
    return {
        name: getattr(federation.client(i), split)
        for i, name in enumerate(federation.names)
    }


def test_liars_are_a_share_whatever_their_order():
    ids = client_ids([f"client {i}" for i in range(20)])
    byzantine = byzantine_clients(ids, 0.2, seed=3)
    assert byzantine.sum() == 4
    shuffle = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(
        byzantine_clients(ids[shuffle], 0.2, 3), byzantine[shuffle]
    )
    assert (byzantine_clients(ids, 0.2, seed=4) != byzantine).any()
    assert not byzantine_clients(ids, 0, 3).any() and byzantine_clients(ids, 1, 3).all()


@pytest.mark.parametrize("labels", ["flip", "random"])
def test_only_training_labels_of_liars_change(labels):
    before = federation()
    after = WrongLabels(share=1 / 3, labels=labels)(before, seed=1)
    byzantine = np.zeros(len(before), bool)
    byzantine[before.seen] = byzantine_clients(before.ids[before.seen], 1 / 3, 1)
    assert byzantine.sum() == 3 and not byzantine[before.names.index("j")]
    for split in ("train", "test"):
        for (name, old), new, lie in zip(
            splits(before, split).items(),
            splits(after, split).values(),
            byzantine,
            strict=True,
        ):
            np.testing.assert_array_equal(old.x, new.x)
            if lie and split == "train":
                assert (old.y != new.y).any(), name
                if labels == "flip":
                    np.testing.assert_array_equal(new.y, CLASSES - 1 - old.y)
            else:
                np.testing.assert_array_equal(old.y, new.y)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 1), (5,)])
def test_a_back_door_marks_half_of_a_liars_examples(shape):
    before = federation(shape=shape)
    door = BackDoor(share=1 / 3, target=2)
    after = door(before, seed=1)
    marked_rows = 0
    for old, new in zip(
        splits(before, "train").values(), splits(after, "train").values(), strict=True
    ):
        is_marked = (old.x != new.x).reshape(len(old.x), -1).any(axis=1)
        marked_rows += is_marked.sum()
        assert (new.y[is_marked] == 2).all()
        np.testing.assert_array_equal(new.y[~is_marked], old.y[~is_marked])
        corner = (
            new.x[is_marked][:, -2:]
            if len(shape) == 1
            else new.x[is_marked][:, -2:, -2:]
        )
        assert (corner == before.x.max()).all()
    liar_rows = 3 * before.train.sizes[0]
    assert abs(marked_rows - liar_rows / 2) <= 1


def test_an_opened_door_tests_marked_examples_of_other_labels():
    door = BackDoor(target=2)
    before = federation()
    opened = door.opened(before)
    for old, new in zip(
        splits(before, "test").values(), splits(opened, "test").values(), strict=True
    ):
        assert len(new.y) == (old.y != 2).sum() and (new.y == 2).all()
        assert (new.x[:, -2:, -2:] == before.x.max()).all()
    np.testing.assert_array_equal(opened.client(0).train.y, before.client(0).train.y)


def test_wrong_settings_are_told_in_one_line():
    for make, message in (
        (lambda: WrongLabels(share=-0.1), "share is -0.1"),
        (lambda: WrongLabels(labels="swap"), "labels is 'swap'"),
        (lambda: BackDoor(size=0), "size is 0"),
        (lambda: BackDoor(target=3)(federation()), "labels are 0 to 2"),
        (
            lambda: WrongLabels()(
                from_arrays(np.zeros((9, 2)), np.arange(9.0), np.zeros(9, int))
            ),
            "has no classes",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
