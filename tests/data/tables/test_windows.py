"""Windows of a long table: whole stretches of one client, class and split."""

import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables import Preprocessing, from_table
from fedtailor.data.tables.windows import in_order, is_break, usual_gap, windows_of
from fedtailor.models import conv1d, gru

OPTIONS = {"client": "person", "target": "activity", "time": "t"}


def long_table(people=3, rows=60, activities=("walk", "sit"), seed=0):
    """Rows whose channels say who, what and when, so that a window can be checked."""
    rng = np.random.default_rng(seed)
    parts = []
    for person in range(people):
        for number, activity in enumerate(activities):
            start = 1000.0 * number
            parts.append(
                pl.DataFrame(
                    {
                        "person": f"p{person}",
                        "t": start + np.arange(rows) * 0.5,
                        "who": np.full(rows, float(person)) + rng.normal(0, 1e-3, rows),
                        "when": start + np.arange(rows) * 0.5,
                        "activity": activity,
                    }
                )
            )
    return pl.concat(parts).sample(fraction=1.0, shuffle=True, seed=1)


def spans(table):
    """Client, class, split, and first and last time of each window."""
    shift = table.preprocessing.columns[1]
    when = table.x[:, :, 1] * shift.deviation + shift.mean
    for number, split in enumerate((table.train, table.val, table.test)):
        for client in range(len(table)):
            for window in split[client]:
                yield client, table.y[window], number, when[window].round(2)


def test_no_window_crosses_a_client_a_class_a_split_or_a_gap():
    table = from_table(long_table(), window=8, step=4, test=0.25, val=0.2, **OPTIONS)
    assert table.x.shape[1:] == (8, 2)
    ends = {}
    for client, label, split, when in spans(table):
        np.testing.assert_allclose(np.diff(when), 0.5, atol=0.02)
        assert (when < 500).all() == (label == table.class_names.index("walk"))
        ends.setdefault((client, label, split), []).append((when[0], when[-1]))
    for client in range(3):
        for label in range(2):
            train, val, test = (ends[client, label, split] for split in range(3))
            assert max(last for _, last in train) < min(first for first, _ in val)
            assert max(last for _, last in val) < min(first for first, _ in test)
            # windows to train on overlap by half, those to test on share no rows
            starts = sorted(first for first, _ in train)
            np.testing.assert_allclose(np.diff(starts), 2.0, atol=0.02)
            starts = sorted(first for first, _ in test)
            assert (np.diff(starts) >= 3.9).all()


def test_a_gap_ends_a_window():
    frame = long_table(2, 60, ("walk", "sit"))
    lost = frame.filter(~pl.col("when").is_between(10.0, 12.0))
    table = from_table(lost, window=8, step=1, **OPTIONS)
    assert not any(when[0] < 10 < when[-1] for *_, when in spans(table))
    assert any("gap" in note for note in table.notes)


def test_the_rows_of_a_window_are_those_of_the_file():
    frame = long_table()
    table = from_table(frame, window=8, **OPTIONS)
    first = frame["when"].to_numpy()[table.rows]
    shift = table.preprocessing.columns[1]
    np.testing.assert_allclose(
        table.x[:, 0, 1] * shift.deviation + shift.mean, first, atol=0.01
    )


def test_windows_of_stretches():
    breaks = np.array([1, 0, 0, 0, 0, 1, 0, 1, 0, 0], bool)
    index = windows_of(breaks, 3, np.ones(10, int))
    np.testing.assert_array_equal(index[:, 0], [0, 1, 2, 7])
    np.testing.assert_array_equal(
        windows_of(breaks, 3, np.full(10, 2))[:, 0], [0, 2, 7]
    )
    assert windows_of(breaks, 6, np.ones(10, int)).shape == (0, 6)
    times = np.array([3.0, 1.0, 2.0, 1.0])
    owners = np.array([0, 0, 0, 1])
    np.testing.assert_array_equal(in_order(owners, times), [1, 2, 0, 3])
    assert usual_gap(owners, times) == 1.5
    # time that stands still is that of another recording
    assert is_break(np.array([1.0, 2.0, 2.0, 3.0]), 1.5, []).tolist() == [1, 0, 1, 0]


def test_new_rows_become_windows_as_well():
    frame = long_table()
    table = from_table(frame, window=8, step=4, **OPTIONS)
    again = Preprocessing.from_json(table.preprocessing.to_json())
    assert again == table.preprocessing
    rows = frame.filter(pl.col("person") == "p1").drop("activity")
    x = again.transform(rows)
    assert x.shape == (14, 8, 2)
    index = again.windows(rows)
    assert len(np.unique(index)) == index.size
    labelled = frame.filter(pl.col("person") == "p1")
    x, y = again.transform_labelled(labelled)
    assert len(x) == len(y) == 14 and set(y) == {0, 1}
    with pytest.raises(ValueError, match="no 8 rows follow"):
        again.transform(rows.head(3))
    with pytest.raises(ValueError, match="no column 't'"):
        again.transform(rows.drop("t"))


def test_series_of_a_regression_are_split_by_client():
    frame = long_table().with_columns(load=pl.col("when").sin())
    table = from_table(
        frame.drop("activity"), client="person", target="load", time="t", window=8
    )
    assert table.classes is None and table.x.shape[1:] == (8, 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"window": 8}, "with time"),
        ({"window": 0, "time": "t"}, "window is 0"),
        ({"step": 8, "time": "t"}, "how many rows one has with window"),
        ({"window": 500, "time": "t"}, "have no 500 training rows"),
        (
            {"window": 8, "time": "t", "preprocessing": "federated"},
            "preprocessing pooled",
        ),
    ],
)
def test_what_is_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        from_table(long_table(), client="person", target="activity", **options)


@pytest.mark.parametrize("model", [conv1d(4, size=3), gru(4)])
def test_models_of_series_take_windows_only(model):
    with pytest.raises(ValueError, match=r"takes series \[time, channels\]"):
        model.bind((9,), 2)


def test_short_windows_and_wrong_sizes():
    with pytest.raises(ValueError, match="leave nothing of windows of 8"):
        conv1d((4, 4), size=5).bind((8, 2), 2)
    with pytest.raises(ValueError, match="size is 0"):
        conv1d(size=0)
    with pytest.raises(ValueError, match="hidden is 0"):
        gru(0)
