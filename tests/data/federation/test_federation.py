"""`Federation` and `Ragged`: what they hold, and what they refuse."""

import dataclasses
import time
from dataclasses import replace

import numpy as np
import pytest

from fedtailor.data.federation import Federation, Ragged
from fedtailor.protocol import client_ids
from fedtailor.testing import classification


def small(**changes) -> Federation:
    """Three clients, the last one unseen; nine examples of two features and three
    classes.
    """
    fields = {
        "x": np.arange(18, dtype=np.float32).reshape(9, 2),
        "y": np.array([0, 1, 2] * 3),
        "train": Ragged.of([[0, 1], [3], [6, 7]]),
        "val": Ragged.of([[], [4], []]),
        "test": Ragged.of([[2], [5], [8]]),
        "names": ("ann", "bob", "cyd"),
        "unseen": np.array([False, False, True]),
        "classes": 3,
    }
    return Federation(**{**fields, **changes})


def test_ragged_holds_the_rows_of_each_client():
    ragged = Ragged.of([[3, 1], [], [2]])
    assert [part.tolist() for part in (ragged[0], ragged[1], ragged[-1])] == [
        [3, 1],
        [],
        [2],
    ]
    assert ragged.sizes.tolist() == [2, 0, 1] and len(ragged) == 3
    assert ragged.owners.tolist() == [0, 0, 2]
    assert [part.tolist() for part in ragged.take(np.array([2, 0, 0]))] == [
        [2],
        [3, 1],
        [3, 1],
    ]
    assert ragged.rows.dtype == np.int32 and ragged.offsets.dtype == np.int64
    assert len(Ragged.of([])) == 0 and Ragged.empty(2).sizes.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("rows", "offsets", "message"),
    [
        ([1, 2], [0, 1], "offsets must rise"),
        ([1, 2], [1, 2], "offsets must rise"),
        ([1, 2], [0, 2, 1, 2], "offsets must rise"),
        ([1, -2], [0, 2], "must be in"),
        ([2**31], [0, 1], "must be in"),
        ([0.5], [0, 1], "row numbers are float64; they must be integers"),
        ([1, 2], [0, 1.5, 2], "offsets are float64; they must be integers"),
        ([[1, 2]], [0, 2], "must be vectors"),
    ],
)
def test_ragged_refuses_what_is_not_rows_of_clients(rows, offsets, message):
    with pytest.raises(ValueError, match=message):
        Ragged(np.array(rows), np.array(offsets))


def test_sizes_of_any_integer_type_are_summed_without_overflow():
    assert Ragged.cut(np.arange(3), np.array([1, 2], np.uint64)).offsets.tolist() == [
        0,
        1,
        3,
    ]
    ragged = Ragged.cut(np.zeros(400, np.int32), np.full(2, 200, np.uint8))
    assert ragged.offsets.tolist() == [0, 200, 400]


def test_more_rows_than_can_be_addressed_are_refused(monkeypatch):
    monkeypatch.setattr("fedtailor.data.federation.validation._MAX_INT32", 8)
    with pytest.raises(
        ValueError,
        match=r"splits list 9 rows in sum, and at most 2\^31 - 1 can be addressed",
    ):
        small()


def test_a_federation_shows_its_clients():
    assert [client.name for client in small()] == ["ann", "bob", "cyd"]
    federation = small()
    assert (
        len(federation) == 3
        and federation.seen.tolist() == [0, 1]
        and federation.input_shape == (2,)
    )
    bob = federation.client("bob")
    assert (
        bob.name == federation.client(1).name == "bob"
        and bob.group is None
        and not bob.unseen
    )
    np.testing.assert_array_equal(bob.val.x, [[8, 9]])
    np.testing.assert_array_equal(federation.client(-1).train.y, [0, 1])
    assert federation.client(2).unseen and federation.client(0).val.x.shape == (0, 2)
    assert small(groups=np.array([4, 4, 5])).client("cyd").group == 5
    assert "3 clients" in federation.describe() and "1 unseen" in federation.describe()
    assert "3 clients" in repr(federation) and "1 train, 1 val, 1 test" in repr(bob)
    for unknown in ("dan", 3, -4, 1.5, None):
        with pytest.raises(ValueError, match="no client"):
            federation.client(unknown)


def test_inputs_keep_their_type():
    for dtype in (np.uint8, np.int32, np.float32, np.float64):
        assert small(x=np.zeros((9, 2), dtype)).x.dtype == dtype
    assert small(x=np.zeros((9, 0), np.float32)).input_shape == (0,)
    assert small(y=np.zeros((9, 4)), classes=None).y.shape == (9, 4)


def test_everyone_is_seen_unless_told():
    assert small(unseen=np.zeros(0, bool)).seen.tolist() == [0, 1, 2]


def test_clients_may_share_rows_and_unseen_clients_may_have_no_training_samples():
    shared = [[2, 5, 8]] * 3
    assert small(test=Ragged.of(shared)).test.sizes.tolist() == [3, 3, 3]
    assert small(train=Ragged.of([[0], [1], []])).train.sizes.tolist() == [1, 1, 0]


NAN = np.where(np.arange(18).reshape(9, 2) == 9, np.nan, 0).astype(np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ()}, "no clients"),
        ({"names": ("ann", "bob", "ann")}, "client 'ann' is listed twice"),
        ({"names": ("ann", "", "bob")}, r"client 1 .counted from 0. has an empty name"),
        (
            {"names": ("ann", " ", "bob")},
            r"client 1 .counted from 0. has an empty name",
        ),
        (
            {"names": ("ann", "b\ud800", "bob")},
            "has a name that is not Unicode; rename it",
        ),
        ({"names": ("ann", "bob")}, "train lists 3 clients, and there are 2 names"),
        ({"x": np.zeros((0, 2), np.float32)}, "no examples"),
        ({"y": np.zeros(8, int)}, "x has 9 rows and y has 8"),
        ({"y": np.int64(3)}, "single number"),
        ({"y": np.array(list("abcabcabc"))}, "y is <U1; convert"),
        ({"y": np.zeros(9)}, "y is float64, and labels of 3 classes are integers"),
        ({"unseen": np.array([True])}, "unseen has 1 entries for 3 clients"),
        ({"unseen": np.array([True] * 3)}, "every client is unseen"),
        ({"groups": np.array([0, 1])}, r"groups has shape \(2,\) for 3 clients"),
        ({"groups": np.array([0.5, 1, 2])}, "groups must be integers"),
        ({"x": np.zeros((9, 2), complex)}, "x is complex128; convert"),
        (
            {"train": Ragged.of([[0], [], [6]])},
            "client 'bob' has no training samples; leave it out or mark it",
        ),
        (
            {"train": Ragged.of([[], [], [6]])},
            r"client 'ann' \(and 1 more\) has no training samples",
        ),
        (
            {"test": Ragged.of([[2], [5], [9]])},
            "client 'cyd': test row 9 is outside the 9 examples",
        ),
        (
            {"test": Ragged.of([[2], [4], [8]])},
            "client 'bob': row 4 is in both its val and its test split",
        ),
        (
            {"test": Ragged.of([[1], [5], [8]])},
            "client 'ann': row 1 is in both its train and its test split",
        ),
        ({"x": NAN}, "client 'bob': row 4 of x holds NaN or inf; drop or impute"),
        ({"x": np.full((9, 2), -np.inf)}, "client 'ann': row 0 of x holds NaN or inf"),
        (
            {"y": np.array([0.0] * 8 + [np.inf]), "classes": None},
            "client 'cyd': row 8 of y is NaN or inf",
        ),
        ({"classes": 2}, "client 'ann': row 2 has label 2, outside the 2 classes 0..1"),
        (
            {"y": np.array([0, 1, 2, 0, 1, -1, 0, 0, 0])},
            "client 'bob': row 5 has label -1, outside the 3 classes",
        ),
        (
            {"test": Ragged.empty(3), "classes": 2},
            "no client's example: row 2 has label 2",
        ),
        ({"classes": 0}, "classes is 0"),
        ({"classes": 3.0}, "classes is 3.0; it must be a whole number"),
        (
            {"classes": 10**9},
            "classes is 1000000000; a model has an output for each, and at most 100000",
        ),
        (
            {"x": np.full((9, 2), -1, np.int32)},
            "client 'ann': row 0 of x holds token id -1, and token ids count",
        ),
        (
            {"y": np.full(9, 2**31), "classes": None},
            "client 'ann': row 0 of y is beyond 32 bits; convert y to floats",
        ),
        ({"x": np.ma.masked_equal(np.eye(9, 2), 1)}, "row 0 of x is masked"),
        ({"y": np.ma.masked_equal(np.arange(9) % 3, 2)}, "row 2 of y is masked"),
        ({"class_names": ("a", "b")}, "2 class names for 3 classes"),
        ({"scale": 0}, "scale is 0"),
        ({"scale": np.inf}, "scale is inf; it must be finite"),
        (
            {"shift": (1.0, 2.0, 3.0)},
            "shift has 3 numbers, and the last axis of x has 2",
        ),
        ({"x": np.zeros((9, 2), np.int32), "shift": 0.5}, "token ids"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as raised:
        small(**changes)
    assert "\n" not in str(raised.value)


def test_shift_and_scale_may_differ_by_channel():
    federation = small(shift=np.array([1, 2]), scale=[0.5, 0.25])
    assert federation.shift == (1.0, 2.0) and federation.scale == (0.5, 0.25)


def test_replace_makes_a_checked_copy():
    assert dataclasses.replace(small(), name="other").name == "other"
    with pytest.raises(ValueError, match="outside the 2 classes"):
        dataclasses.replace(small(), classes=2)


def test_checking_a_hundred_thousand_clients_takes_little_more_than_their_digests():
    m, train, common = 100_000, 8, np.arange(800_000, 800_010)
    x, y = np.zeros((800_010, 1), np.float32), np.zeros(800_010, np.int64)
    names = tuple(f"client-{i}" for i in range(m))
    start = time.process_time()
    client_ids(names)
    digests, start = time.process_time() - start, time.process_time()
    federation = Federation(
        x,
        y,
        Ragged(np.arange(m * train), np.arange(m + 1) * train),
        Ragged.empty(m),
        Ragged(np.tile(common, m), np.arange(m + 1) * len(common)),
        names,
        classes=2,
    )
    assert time.process_time() - start < 20 * digests, (
        "no loop over clients that costs more than a digest each"
    )
    assert len(federation) == m


def test_labels_in_a_column_are_refused():
    clients = classification()
    with pytest.raises(ValueError, match=r"y has shape \(170, 1\).*give y\[:, 0\]"):
        replace(clients, y=clients.y[:, None])
