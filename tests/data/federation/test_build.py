"""Federations from arrays with a client per row, and from partitioned data sets."""

import numpy as np
import pytest

from fedtailor.data.federation import (
    IID,
    ClassesPerClient,
    Dataset,
    Natural,
    from_arrays,
    from_partition,
)


def rows(n=300, clients=6, seed=0):
    """Inputs that tell their row, labels, and clients that are interleaved."""
    rng = np.random.default_rng(seed)
    x = np.arange(n, dtype=np.float32)[:, None]
    return x, rng.integers(0, 3, n), rng.integers(0, clients, n)


def mistyped(label):
    """Labels 0 to 2, and in row 7 another one."""
    y = rows()[1].astype(np.int64)
    y[7] = label
    return y


def content(federation):
    """What each client trains, validates and tests on, by name."""
    clients = [federation.client(index) for index in range(len(federation))]
    return {
        client.name: tuple(
            frozenset(split.x[:, 0].tolist())
            for split in (client.train, client.val, client.test)
        )
        for client in clients
    }


def test_each_client_holds_its_rows():
    x, y, client = rows()
    federation = from_arrays(x, y, client, val=0.1)
    assert (
        federation.names == tuple("012345")
        and federation.classes == 3
        and federation.groups is None
    )
    for name, splits in content(federation).items():
        assert set.union(*map(set, splits)) == set(np.flatnonzero(client == int(name)))
        assert [len(split) for split in splits[1:]] == [
            round(fraction * (client == int(name)).sum() + 1e-9)
            for fraction in (0.1, 0.2)
        ]


def test_the_order_in_which_clients_are_listed_changes_nothing():
    x, y, client = rows()
    order = np.argsort((client * 5 + 2) % 6, kind="stable")
    first, second = (
        from_arrays(x, y, client, unseen=2),
        from_arrays(x[order], y[order], client[order], unseen=2),
    )
    assert content(first) == content(second)
    assert first.unseen.tolist() == second.unseen.tolist()


def test_the_seed_changes_the_splits():
    x, y, client = rows()
    assert content(from_arrays(x, y, client, seed=0)) != content(
        from_arrays(x, y, client, seed=1)
    )


def test_text_labels_clients_and_groups_are_encoded():
    x, y, client = rows()
    kinds, names = (
        np.array(["dog", "ant", "cat"])[y],
        np.array([f"user-{c}" for c in client], dtype=object),
    )
    federation = from_arrays(
        x, kinds, names, group=np.where(client < 2, "north", "east"), unseen=["user-3"]
    )
    assert federation.class_names == ("ant", "cat", "dog") and federation.classes == 3
    assert (
        federation.client("user-1").group == 1
        and federation.client("user-2").group == 0
    )
    assert federation.client("user-3").unseen and federation.unseen.sum() == 1
    taught = federation.client("user-4").train
    assert [federation.class_names[code] for code in taught.y] == kinds[
        taught.x[:, 0].astype(int)
    ].tolist()
    assert from_arrays(x, y > 1, client).class_names == ("False", "True")


def test_targets_that_are_no_labels_have_no_classes():
    x, y, client = rows()
    assert from_arrays(x, y + 0.5, client).classes is None
    assert from_arrays(x, y, client, classes=None).classes is None
    assert from_arrays(x, y, client, classes=7).classes == 7


def test_gaps_are_possible_where_the_number_of_classes_is_said():
    x, y, client = rows()
    assert from_arrays(x, 2 * y, client, classes=5).classes == 5
    assert from_arrays(x, np.stack([y, 4 * y], axis=1), client).classes == 9, (
        "symbols of sequences"
    )
    assert from_arrays(x, np.zeros(300, int), client, classes=1).classes == 1


def test_numbers_held_as_objects_are_numbers():
    x, y, client = rows()
    targets = (y + 0.5).astype(object)
    federation = from_arrays(x, targets, client)
    assert federation.classes is None and federation.y.dtype == np.float64


def test_masks_that_hide_nothing_change_nothing():
    x, y, client = rows()
    federation = from_arrays(np.ma.array(x), np.ma.array(y), np.ma.array(client))
    assert type(federation.x) is np.ndarray and content(federation) == content(
        from_arrays(x, y, client)
    )


def test_clients_with_one_row_train_on_it_and_are_named():
    federation = from_arrays(
        np.zeros((3, 1), np.float32), np.array([0, 1, 1]), ["a", "a", "b"]
    )
    assert federation.train.sizes.tolist() == [
        1,
        1,
    ] and federation.test.sizes.tolist() == [1, 0]
    assert federation.untested.tolist() == [1]
    assert federation.describe().endswith(
        "without test samples: 'b'; no test result can name them"
    )
    many = from_arrays(
        np.zeros((9, 1), np.float32), np.arange(9) % 2, [*"abcdefgg", "g"]
    )
    assert (
        "without test samples: 'a', 'b', 'c', 'd', 'e' and 1 more;" in many.describe()
    )
    assert "without" not in from_arrays(*rows()).describe()


def test_a_split_column_is_followed():
    x, y, client = rows()
    split = np.where(np.arange(300) % 3, "train", "test")
    federation = from_arrays(x, y, client, split=split, val=0.2)
    for train, val, test in content(federation).values():
        assert all(split[int(row)] == "test" for row in test) and all(
            split[int(row)] == "train" for row in train | val
        )
        assert len(val) == pytest.approx(0.2 * len(train | val), abs=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.zeros(5, int)}, r"x has 300 rows and y has shape \(5,\)"),
        ({"client": np.zeros(5, int)}, r"x has 300 rows and client has shape \(5,\)"),
        ({"split": ["train"]}, r"x has 300 rows and split has shape \(1,\)"),
        ({"group": 3}, r"group has shape \(\)"),
        ({"client": np.zeros(300)}, "client is float64"),
        (
            {"client": np.array([None] + ["a"] * 299, dtype=object)},
            "row 0 has no client",
        ),
        (
            {"y": np.array(["a", None] + ["b"] * 298, dtype=object)},
            "row 1 has no label",
        ),
        (
            {"x": np.zeros((0, 1), np.float32), "y": [], "client": np.zeros(0, int)},
            "there are no clients",
        ),
        ({"x": np.zeros((300, 1), np.int64)}, "x is int64; convert"),
        ({"classes": 2}, "has label 2, outside the 2 classes"),
        ({"classes": "three"}, "classes is 'three'; it must be a whole number"),
        (
            {"y": rows()[1] - 1},
            r"row \d+ has label -1, and labels count from 0; recode the labels as 0, 1",
        ),
        (
            {"y": 2 * (rows()[1] > 0) - 1},
            "has label -1, and labels count from 0; recode -1 as 0, or give them",
        ),
        (
            {"y": 2 * (rows()[1] > 0) - 1, "classes": 2},
            "has label -1, outside the 2 classes",
        ),
        (
            {"y": rows()[1] + 1},
            "the labels are 1 to 3; labels count from 0: subtract 1",
        ),
        (
            {"y": mistyped(9)},
            (
                "no row has label 3, and row 7 has 9: .*; if 3 is only rare, give"
                " classes=10"
            ),
        ),
        (
            {"y": mistyped(1_000_000)},
            "no row has label 3, and row 7 has 1000000: is it mistyped",
        ),
        (
            {"y": mistyped(2_000_000_000)},
            "no row has label 3, and row 7 has 2000000000",
        ),
        (
            {"y": mistyped(2**62)},
            "no row has label 3, and row 7 has 4611686018427387904",
        ),
        (
            {"y": mistyped(2_000_000_000), "classes": 2_000_000_001},
            "classes is 2000000001; .* at most 100000",
        ),
        (
            {"y": mistyped(2**62), "classes": 3},
            "row 7 has label 4611686018427387904, outside the 3 classes",
        ),
        (
            {"classes": 1_000_000},
            (
                "classes is 1000000; a model has an output for each, and at most 100000"
                " are possible"
            ),
        ),
        ({"y": np.repeat(mistyped(200_000)[:, None], 4, axis=1)}, "classes is 200001"),
        (
            {"y": np.zeros(300, int)},
            "every row has the label 0; with one class there is nothing to learn",
        ),
        (
            {"y": ["no"] * 300},
            "every row has the label 'no'; with one class there is nothing to learn",
        ),
        (
            {"y": mistyped(2**40), "classes": None},
            "row 7 of y is beyond 32 bits; convert y to floats",
        ),
        ({"y": np.ma.masked_equal(rows()[1], 2)}, r"row \d+ of y is masked"),
        (
            {"x": np.ma.masked_equal(rows()[0], 5)},
            "row 5 of x is masked; fill it in or drop the row",
        ),
        ({"client": np.ma.masked_equal(rows()[2], 5)}, r"row \d+ of client is masked"),
        ({"x": [[1.0], [2.0, 3.0]]}, "x is not an array: its rows differ in length"),
        ({"x": 3.0}, "x has no rows"),
        ({"x": np.zeros((300, 1), object)}, "x is object; convert"),
        (
            {"client": np.zeros((300, 2), int)},
            r"x has 300 rows and client has shape \(300, 2\)",
        ),
        ({"split": np.full((300, 1), "train")}, r"split has shape \(300, 1\)"),
        ({"group": np.zeros((300, 1), int)}, r"group has shape \(300, 1\)"),
        (
            {"group": np.full(300, np.nan)},
            "group is float64; give an integer or text for each row",
        ),
        ({"client": np.array(["", *["a"] * 299])}, "row 0 has an empty client"),
        (
            {"client": np.array([b"\xff", *[b"a"] * 299])},
            "a client is bytes that are not UTF-8",
        ),
        (
            {"client": np.array([" \t", *["a"] * 299])},
            "client 0 .counted from 0. has an empty name",
        ),
        ({"y": np.array(["a", ""] * 150)}, "row 1 has an empty label"),
        ({"y": np.array([np.nan, *[1.5] * 299], object)}, "row 0 of y is NaN or inf"),
        ({"x": None}, "x is None; give one entry for each example"),
        (
            {"y": np.arange(300).astype("timedelta64[s]")},
            r"y is timedelta64\[s\]; convert it",
        ),
        (
            {"shift": ["a"]},
            r"shift is \['a'\]; give one number, or one for each channel",
        ),
        ({"scale": None}, "scale is None; give one number"),
        (
            {"unseen": np.array(5.5)},
            r"unseen is array\(5.5\); it must be a finite number",
        ),
        (
            {"test": np.zeros((30, 3))},
            r"test is array\(\[\[0., 0., 0.\], .*\.\.\.; it is a fraction",
        ),
        ({"seed": -1}, "seed is -1; it must be 0 or more"),
        ({"seed": 2**32}, r"seed is 4294967296; it must be at most 2\^32 - 1"),
        ({"seed": 0.5}, "seed is 0.5; it must be a whole number"),
        ({"test": "0.2"}, "test is '0.2'; it is a fraction"),
        ({"val": None}, "val is None; it is a fraction"),
        ({"unseen": float("nan")}, "unseen is nan; it must be a finite number"),
        ({"unseen": True}, "unseen is True; it must be a finite number"),
        ({"unseen": None}, "unseen is None; it must be a finite number"),
        ({"test": 0.9, "val": 0.2}, "sum below 1"),
        ({"unseen": 6}, "unseen is 6 of 6 clients"),
        ({"unseen": ["9"]}, "unseen names client '9'"),
        ({"split": ["learn"] * 300}, "row 0 has split 'learn'"),
        (
            {"split": np.where(rows()[2] == 4, "test", "train")},
            "client '4' has no training samples",
        ),
        (
            {"group": np.arange(300) // 200},
            "client '0' is in group '0' and, in row 2.., in '1'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, message):
    x, y, client = rows()
    with pytest.raises(ValueError, match=message) as raised:
        from_arrays(**{"x": x, "y": y, "client": client, **changes})
    assert "\n" not in str(raised.value)


def dataset():
    x, y, client = rows(600)
    test = np.arange(600) >= 500
    return Dataset(
        x, y, 3, "toy", test, client, shift=2.0, scale=0.5, class_names=("a", "b", "c")
    )


def test_a_partition_becomes_a_federation():
    federation = from_partition(
        dataset(), IID(12), test=0.25, val=0.1, unseen=0.25, seed=4
    )
    assert federation.names[:2] == ("client-00", "client-01") and len(federation) == 12
    assert federation.unseen.sum() == 3 and federation.name == "toy"
    assert (
        federation.train.sizes.sum()
        + federation.val.sizes.sum()
        + federation.test.sizes.sum()
        == 600
    )
    assert (federation.shift, federation.scale, federation.class_names) == (
        2.0,
        0.5,
        ("a", "b", "c"),
    )
    assert content(federation) == content(
        from_partition(dataset(), IID(12), test=0.25, val=0.1, unseen=0.25, seed=4)
    )
    assert content(federation) != content(
        from_partition(dataset(), IID(12), test=0.25, val=0.1, unseen=0.25, seed=5)
    )


def test_published_test_examples_stay_test_examples():
    federation = from_partition(dataset(), Natural(), test="published", val=0.1)
    for name, (train, val, test) in content(federation).items():
        mine = np.flatnonzero(dataset().client == int(name))
        assert (
            test == set(mine[mine >= 500])
            and train | val == set(mine[mine < 500])
            and val
        )


def test_a_common_test_set_is_everybodys():
    federation = from_partition(
        dataset(), ClassesPerClient(3, 1), test="common", name="other"
    )
    assert federation.name == "other"
    splits = content(federation).values()
    assert {test for _, _, test in splits} == {frozenset(range(500, 600))}
    assert set.union(*(set(train) for train, _, _ in splits)) == set(range(500))


def test_examples_that_nobody_holds_leave_the_pool():
    def evens(data, seed):
        return [np.arange(0, 20, 2), np.arange(20, 40, 2)]

    federation = from_partition(dataset(), evens, test=0.2)
    assert len(federation.x) == 20 and set(federation.x[:, 0]) == set(range(0, 40, 2))
    assert set(federation.client(1).train.x[:, 0]) | set(
        federation.client(1).test.x[:, 0]
    ) == set(range(20, 40, 2))


def test_a_data_set_can_be_cut_down():
    some = dataset().sample(50, seed=1)
    assert len(some) == 50 and len(np.unique(some.x)) == 50 and some.classes == 3
    np.testing.assert_array_equal(some.y, dataset().y[some.x[:, 0].astype(int)])
    np.testing.assert_array_equal(some.x, dataset().sample(50, seed=1).x)
    assert "50 examples" in repr(some)


def test_some_classes_become_the_first_ones():
    some = dataset().only([2, 0])
    kept = dataset().y != 1
    np.testing.assert_array_equal(some.x, dataset().x[kept])
    np.testing.assert_array_equal(some.y, np.where(dataset().y[kept] == 2, 0, 1))
    assert (
        some.classes == 2
        and some.class_names == ("c", "a")
        and len(some.client) == len(some.test) == len(some)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dataset().only([0, 3]),
            r"labels \[0, 3\] are not different classes of 0..2",
        ),
        (lambda: dataset().only([1, 1]), "not different classes"),
        (lambda: Dataset(np.zeros((3, 1)), np.zeros(3)).only([0]), "has no classes"),
        (lambda: dataset().sample(601), "toy: cannot take 601 of 600 examples"),
        (lambda: Dataset(np.zeros((3, 1)), np.zeros(2)), "x has 3 rows and y has 2"),
        (
            lambda: from_partition(dataset(), IID(3), test="mine"),
            "no kind of test set 'mine'; choose one of published, common",
        ),
        (
            lambda: from_partition(
                Dataset(np.zeros((9, 1)), np.zeros(9, int), 1), IID(3), test="common"
            ),
            "data has no published test examples",
        ),
        (lambda: from_partition(dataset(), IID(3), test=1.0), "sum below 1"),
        (lambda: from_partition(dataset(), IID(3), seed=-1), "seed is -1"),
        (
            lambda: from_partition(
                dataset(), lambda data, seed: [np.arange(3), np.arange(600, 603)]
            ),
            "gives row 602",
        ),
        (
            lambda: from_partition(
                dataset(), lambda data, seed: [np.arange(3), np.arange(2, 9)]
            ),
            "gives row 2 twice",
        ),
        (
            lambda: from_partition(dataset(), lambda data, seed: np.arange(9)),
            "must give one array of row numbers for each client",
        ),
        (
            lambda: from_partition(dataset(), lambda data, seed: None),
            "must give one array of row numbers for each client",
        ),
        (
            lambda: from_arrays(
                np.zeros((4, 1)), [0, 1, 0, 1], np.array([1, "1", 2, 2], object)
            ),
            "client has 3 different values and 2 names",
        ),
        (
            lambda: from_arrays(np.zeros((4, 1)), [0.0] * 4, ["a"] * 4, loss="mse"),
            "loss is 'mse'; give a function",
        ),
        (
            lambda: from_partition(dataset(), lambda data, seed: [[-1, 0], [3]]),
            "row numbers run from -1",
        ),
        (
            lambda: from_partition(dataset(), lambda data, seed: [[0.5], [3.0]]),
            "row numbers are float64",
        ),
        (lambda: dataset().sample(2.5), "size is 2.5; it must be a whole number"),
        (lambda: dataset().sample(5, seed=2**32), "seed is 4294967296"),
        (
            lambda: Dataset(np.zeros((3, 1)), np.array([0, 1, 2]), 2),
            "data: row 2 has a label outside the 2 classes",
        ),
        (
            lambda: Dataset(np.zeros((3, 1)), np.zeros(3), 2),
            "y is float64; labels of classes are integers",
        ),
        (
            lambda: Dataset(np.zeros((3, 1)), np.zeros(3), test=np.zeros(3, int)),
            "test is int64; give True or False",
        ),
        (
            lambda: Dataset(np.ma.masked_equal([[1], [2]], 2), np.zeros(2)),
            "row 1 of x of data is masked",
        ),
        (lambda: Dataset(np.float64(3), np.zeros(2)), "x is float64 without rows"),
        (
            lambda: from_partition(
                Dataset(np.zeros((2, 1)), np.zeros(2), client=np.array(["a", ""])),
                Natural(),
            ),
            "row 1 has an empty client",
        ),
    ],
)
def test_impossible_partitions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
