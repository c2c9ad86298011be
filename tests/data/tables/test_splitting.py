"""Which rows are trained, validated and tested on."""

import numpy as np
import polars as pl
import pytest

from fedtailor.data.federation import from_arrays
from fedtailor.data.tables import from_table
from fedtailor.data.tables.splitting import most_frequent

ROLES = {"client": "site", "target": "y"}
N = 240


@pytest.fixture(scope="module")
def frame():
    """Four sites; patients with one to five visits each, some of them seen at two
    sites.
    """
    rng = np.random.default_rng(3)
    patient = np.sort(rng.integers(0, 80, N))
    site = np.where(rng.random(N) < 0.1, rng.integers(0, 4, N), patient % 4)
    order = rng.permutation(N)
    return pl.DataFrame(
        {
            "site": [f"s{number}" for number in site],
            "patient": [f"p{number}" for number in patient],
            "when": rng.integers(0, 50, N),
            "a": rng.normal(size=N),
            "y": rng.integers(0, 2, N),
        }
    )[order]


def rows(table, split):
    ragged = getattr(table, split)
    return ragged.rows, ragged.owners


def check_partition(table, sites):
    """Every row stands in one split of its own client."""
    parts = [rows(table, split) for split in ("train", "val", "test")]
    assert sorted(np.concatenate([part for part, _ in parts])) == list(
        range(len(sites))
    )
    for part, owners in parts:
        assert [table.names[owner] for owner in owners] == sites[part].to_list()


def test_random_splits_are_those_of_from_arrays(frame):
    """Stratified by class, keyed by client: the same rows whether or not the table
    needed encoding.
    """
    table = from_table(frame, **ROLES, features=["a"], seed=5)
    check_partition(table, frame["site"])
    plain = from_arrays(
        frame.select("a").to_numpy(),
        frame["y"].to_numpy(),
        frame["site"].to_numpy(),
        val=0.1,
        seed=5,
    )
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(
            getattr(table, split).rows, getattr(plain, split).rows
        )


@pytest.mark.parametrize("options", [{}, {"folds": 3}])
@pytest.mark.parametrize("seed", range(3))
def test_a_patients_visits_never_straddle(frame, options, seed):
    table = from_table(
        frame, **ROLES, features=["a"], group="patient", seed=seed, **options
    )
    check_partition(table, frame["site"])
    whose = [
        set(frame["patient"][rows(table, split)[0]].to_list())
        for split in ("train", "val", "test")
    ]
    assert (
        not whose[0] & whose[1] and not whose[0] & whose[2] and not whose[1] & whose[2]
    )
    assert (
        [len(part) for part in whose] > [20, 2, 8]
        and len(whose[2]) >= 10
        and len(whose[1]) >= 4
    )
    assert "patient" not in table.preprocessing.inputs


def test_a_group_belongs_to_the_client_with_most_of_its_rows():
    """Of equally frequent ones the smallest: groups 0 to 3 with clients 2 2 0, 1 0, 3,
    and 0 1 1 1.
    """
    groups, clients = (
        np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3]),
        np.array([2, 2, 0, 1, 0, 3, 0, 1, 1, 1]),
    )
    order = np.random.default_rng(0).permutation(10)
    assert most_frequent(groups[order], clients[order], 4).tolist() == [2, 0, 3, 1]


def test_rows_without_a_patient_are_groups_of_their_own(frame):
    some = frame.with_columns(patient=pl.when(pl.int_range(N) % 2 == 0).then("patient"))
    table = from_table(some, **ROLES, features=["a"], group="patient", seed=1)
    check_partition(table, frame["site"])
    loose = some["patient"].is_null().to_numpy()
    for split in ("train", "val", "test"):
        assert loose[rows(table, split)[0]].sum() > 3


@pytest.mark.parametrize("as_date", [False, True])
def test_the_last_rows_of_each_client_are_its_test(frame, as_date):
    given = (
        frame.with_columns(when=pl.date(2024, 1, 1) + pl.duration(days="when"))
        if as_date
        else frame
    )
    table = from_table(
        given.cast({"when": pl.String}) if as_date else given,
        **ROLES,
        time="when",
        seed=9,
    )
    check_partition(table, frame["site"])
    when = frame["when"].to_numpy()
    for client in range(len(table)):
        train, val, test = (
            when[getattr(table, split)[client]] for split in ("train", "val", "test")
        )
        assert (
            train.max() <= val.min()
            and val.max() <= test.min()
            and train.max() < test.max()
        )
        total = len(train) + len(val) + len(test)
        assert (len(test), len(val)) == (
            np.floor(total * 0.2 + 0.5),
            np.floor(total * 0.1 + 0.5),
        )
    assert "when" not in table.preprocessing.inputs


def test_every_row_is_tested_on_by_one_fold(frame):
    tested = []
    for seed in range(4):
        table = from_table(frame, **ROLES, features=["a"], folds=4, seed=seed)
        check_partition(table, frame["site"])
        tested.append(rows(table, "test")[0])
        share = table.test.sizes / (
            table.train.sizes + table.val.sizes + table.test.sizes
        )
        assert np.all(abs(share - 0.25) < 0.03)
        assert np.all(table.val.sizes > 0)
    assert sorted(np.concatenate(tested)) == list(range(N))
    again = from_table(frame, **ROLES, features=["a"], folds=4, seed=4)
    assert sorted(rows(again, "test")[0]) != sorted(tested[0])  # another division


def test_a_column_gives_the_split(frame):
    words = pl.Series("part", ["Train", "test", "valid", "train"] * (N // 4))
    table = from_table(frame.with_columns(words), **ROLES, split="part")
    check_partition(table, frame["site"])
    for split, word in (("train", "Train"), ("test", "test"), ("val", "valid")):
        assert word in words[rows(table, split)[0]].to_list()
        assert set(words[rows(table, split)[0]].str.to_lowercase()) == {word.lower()}
    even = frame["patient"].str.strip_chars_start("p").cast(pl.Int64) % 4 == 0
    given = frame.with_columns(
        part=pl.when(even).then(pl.lit("test")).otherwise(pl.lit("train"))
    )
    drawn = from_table(
        given, **ROLES, split="part", group="patient", val=0.2, drop=["when"]
    )
    check_partition(drawn, frame["site"])
    whose = [
        set(frame["patient"][rows(drawn, split)[0]].to_list())
        for split in ("train", "val")
    ]
    assert not whose[0] & whose[1] and 20 < drawn.val.sizes.sum() < 60
    np.testing.assert_array_equal(np.sort(rows(drawn, "test")[0]), np.flatnonzero(even))


def test_a_column_called_split_is_used_without_asking(frame):
    given = frame.with_columns(
        split=pl.Series(["train", "train", "val", "test"] * (N // 4))
    )
    table = from_table(given, **ROLES)
    assert (
        table.test.sizes.sum() == N // 4
        and "Column 'split' gives the split (drop it to draw one at random)."
        in table.notes
    )
    other = from_table(given, **ROLES, drop=["split"], seed=2)
    assert sorted(rows(other, "test")[0]) != sorted(rows(table, "test")[0])
    # a slip of the pen is not a category: an input would tell which rows are the test
    slip = given.with_columns(
        split=pl.Series(["train", "tarin", "val", "test"] * (N // 4))
    )
    with pytest.raises(
        ValueError,
        match=(
            r"column 'split' gives the split, and says tarin in .* first in row 2;"
            r" write"
        ),
    ):
        from_table(slip, **ROLES)
    odd = given.with_columns(split=pl.Series(["left", "right"] * (N // 2)))
    assert "split = left" in from_table(odd, **ROLES).preprocessing.inputs


def test_other_clients_change_nobodys_split(frame):
    table = from_table(frame, **ROLES, features=["a"], seed=3)
    kept = frame.with_row_index().filter(pl.col("site") != "s0")
    fewer = from_table(kept, **ROLES, features=["a"], seed=3)
    for name in ("s1", "s3"):
        before = table.test[table.names.index(name)]
        after = kept["index"].to_numpy()[fewer.test[fewer.names.index(name)]]
        np.testing.assert_array_equal(before, after)


def test_small_clients_are_named(frame):
    lone = pl.DataFrame(
        {"site": ["z"], "patient": ["p0"], "when": [1], "a": [0.5], "y": [0]}
    )
    table = from_table(pl.concat([frame, lone]), **ROLES, features=["a"])
    assert "Clients of a single row train and are not tested: z." in table.notes
    assert table.train.sizes[-1] == 1 and table.test.sizes[-1] == 0


def test_unlabelled_rows_are_left_out_if_asked(frame):
    gaps = frame.with_columns(
        y=pl.when(pl.int_range(N) % 7 > 0).then("y"),
        site=pl.when(pl.int_range(N) > 2).then("site"),
    )
    table = from_table(gaps, **ROLES, features=["a"], skip_unlabelled=True)
    expected = np.flatnonzero((np.arange(N) % 7 > 0) & (np.arange(N) > 2))
    np.testing.assert_array_equal(table.rows, expected)
    assert (
        f"{N - len(expected)} rows without a target or a client are left out."
        in table.notes
    )
    np.testing.assert_array_equal(table.y, frame["y"].to_numpy()[expected])
