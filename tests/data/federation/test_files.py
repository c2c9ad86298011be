"""Federations from .npz, Parquet and CSV files."""

import gzip
import io

import numpy as np
import polars as pl
import pytest

from fedtailor.data.federation import from_arrays, from_frame, from_npz


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "age": rng.integers(18, 80, 60),
            "weight": rng.normal(70, 9, 60),
            "user": [f"u{number % 4}" for number in range(60)],
            "kind": [("yes", "no")[number % 3 == 0] for number in range(60)],
            "part": [
                ("train", "train", "test")[number % 5 // 2] for number in range(60)
            ],
            "town": [number % 4 // 2 for number in range(60)],
        }
    )


ROLES = {"client": "user", "label": "kind", "features": ["age", "weight"]}


def same(a, b):
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.y, b.y)
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(getattr(a, split).rows, getattr(b, split).rows)
        np.testing.assert_array_equal(
            getattr(a, split).offsets, getattr(b, split).offsets
        )
    assert (a.names, a.classes, a.class_names) == (b.names, b.classes, b.class_names)


def test_a_frame_is_its_columns(frame):
    federation = from_frame(frame, **ROLES, split="part", group="town")
    assert federation.names == ("u0", "u1", "u2", "u3") and federation.class_names == (
        "no",
        "yes",
    )
    assert federation.groups is not None and federation.groups.tolist() == [0, 0, 1, 1]
    assert federation.x.dtype == np.float32 and federation.x.shape == (60, 2)
    np.testing.assert_allclose(
        federation.x, frame.select("age", "weight").to_numpy(), rtol=1e-6
    )
    assert federation.test.sizes.sum() == (frame["part"] == "test").sum()


def test_all_other_columns_are_the_features_by_default(frame):
    federation = from_frame(
        frame.drop("part"), client="user", label="kind", group="town"
    )
    same(federation, from_frame(frame, **ROLES))


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv", "csv.gz"])
def test_files_read_as_the_frame_they_hold(frame, ending, tmp_path):
    path = tmp_path / f"visits.{ending}"
    if ending == "parquet":
        frame.write_parquet(path)
    elif ending == "csv.gz":
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    else:
        frame.write_csv(path, separator="\t" if ending == "tsv" else ",")
    federation = from_frame(path, **ROLES)
    same(federation, from_frame(frame, **ROLES))
    assert (
        federation.name == "visits"
        and from_frame(str(path), **ROLES, name="mine").name == "mine"
    )


def test_a_column_of_arrays_holds_images():
    images = np.random.default_rng(0).integers(0, 256, (20, 16)).astype(np.uint8)
    for kind in (pl.Array(pl.UInt8, 16), pl.List(pl.UInt8)):
        frame = pl.DataFrame(
            {
                "client": [1, 2] * 10,
                "label": [0, 1] * 10,
                "image": pl.Series(images).cast(kind),
            }
        )
        federation = from_frame(frame)
        assert federation.x.dtype == np.uint8
        np.testing.assert_array_equal(federation.x, images)
    frame = frame.with_columns(pl.col("image").cast(pl.List(pl.Float64)))
    assert from_frame(frame, features="image").x.dtype == np.float32


def test_bytes_stay_bytes():
    frame = pl.DataFrame(
        {
            "client": [1, 1, 2, 2],
            "label": [0, 1, 0, 1],
            "a": [1, 2, 3, 255],
            "b": [0, 0, 0, 9],
        }
    )
    assert from_frame(frame.cast({"a": pl.UInt8, "b": pl.UInt8})).x.dtype == np.uint8
    assert (
        from_frame(frame.cast({"a": pl.UInt8, "b": pl.Boolean})).x.dtype == np.float32
    )


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda f: f,
            {"client": "usr"},
            "the frame has no column 'usr'; its columns are age, weight, user",
        ),
        (lambda f: f, {"features": ["age", "hight"]}, "no column 'hight'"),
        (
            lambda f: f,
            {"features": None},
            "feature column 'part' is String, not a number",
        ),
        (
            lambda f: f.select("user", "kind"),
            {"features": None},
            "no feature columns besides user, kind",
        ),
        (
            lambda f: f.with_columns(pl.when(pl.col("age") != f["age"][7]).then("age")),
            {},
            r"column 'age' is empty in row 7 \(client 'u3'\)",
        ),
        (
            lambda f: f.with_columns(kind=pl.lit(None)),
            {},
            "column 'kind' is empty in row 0",
        ),
        (
            lambda f: f.with_columns(weight=pl.lit(float("nan"))),
            {},
            "client 'u.': row 0 of x holds NaN or inf",
        ),
        (lambda f: f.with_columns(age=pl.lit(0.0) / 0 + 1), {}, "NaN"),
        (
            lambda f: f.with_columns(age=pl.Series([[1.0]] * 59 + [[1.0, 2.0]])),
            {"features": "age"},
            "the arrays of column 'age' have 1 to 2 entries",
        ),
        (
            lambda f: f.with_columns(age=pl.Series([["a"]] * 60)),
            {"features": "age"},
            "column 'age' holds .*encode it",
        ),
    ],
)
def test_unusable_columns_are_named(frame, change, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        from_frame(change(frame), **{**ROLES, **options})
    assert "\n" not in str(raised.value)


def test_an_npz_is_its_arrays(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(40, 3)),
        "y": rng.integers(0, 2, 40),
        "client": np.array(list("abcd") * 10),
    }
    np.savez(tmp_path / "own.npz", **arrays)
    federation = from_npz(tmp_path / "own.npz", seed=3)
    same(federation, from_arrays(**arrays, seed=3))
    assert federation.name == "own" and federation.x.dtype == np.float64
    group, split = (
        np.array([0, 0, 1, 1] * 10),
        np.array((["train"] * 4 + ["test"] * 4) * 5),
    )
    np.savez(tmp_path / "all.npz", **arrays, group=group, split=split)
    same(
        from_npz(tmp_path / "all.npz"), from_arrays(**arrays, group=group, split=split)
    )


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", None, "there is no file"),
        ("a.npz", b"not a zip", "not a readable .npz"),
        ("a.npz", npy(np.zeros(3)), "not a readable .npz"),
        (
            "a.npz",
            npz(x=np.zeros((9, 99)), y=np.zeros(9), client=np.zeros(9))[:-400],
            "not a readable .npz",
        ),
        (
            "a.npz",
            npz(x=np.zeros((9, 1)), y=np.zeros(9)),
            "has no array 'client', only x, y",
        ),
        (
            "a.npz",
            npz(x=np.array([{}]), y=np.zeros(1), client=np.zeros(1, int)),
            "not a readable .npz of plain arrays",
        ),
        ("a.parquet", None, "there is no file"),
        ("a.parquet", b"PAR1 nonsense", "a.parquet cannot be read"),
        ("a.csv", b"", "a.csv cannot be read"),
        ("a.xlsx", b"PK", "a.xlsx is of no known kind"),
    ],
)
def test_unusable_files_are_refused_in_one_line(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        (from_npz if name.endswith("npz") else from_frame)(tmp_path / name)
    assert "\n" not in str(raised.value)
