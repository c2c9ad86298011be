"""Saving and loading a federation: an exact round trip, whole files or none."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedtailor.federation import from_arrays, load, save


def federation(dtype=np.float32, **options):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (60, 4, 3)).astype(dtype)
    return from_arrays(x, rng.integers(0, 3, 60), np.arange(60) % 5, val=0.2, unseen=2, **options)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_the_round_trip_is_exact(tmp_path, dtype):
    options = {} if dtype == np.int32 else {"shift": (1.0, 2.0, 0.1), "scale": 1 / 3}
    before = federation(dtype, group=np.arange(60) % 5 // 2, name="täst", **options)
    after = load(save(before, tmp_path / "f.safetensors"))
    for array in ("x", "y", "unseen", "groups"):
        assert getattr(after, array).dtype == getattr(before, array).dtype
        np.testing.assert_array_equal(getattr(after, array), getattr(before, array))
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(getattr(after, split).rows, getattr(before, split).rows)
        np.testing.assert_array_equal(getattr(after, split).offsets, getattr(before, split).offsets)
    for plain in ("names", "classes", "shift", "scale", "name", "class_names"):
        assert getattr(after, plain) == getattr(before, plain), plain


def test_views_and_missing_groups_survive(tmp_path):
    x = np.arange(120, dtype=np.float32).reshape(2, 60).T
    before = from_arrays(x, np.array(["b", "a"] * 30), np.arange(60) % 5)
    after = load(save(before, tmp_path / "f"))
    np.testing.assert_array_equal(after.x, x)
    assert after.groups is None and after.class_names == ("a", "b")


def test_a_failing_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(federation(), tmp_path / "f.safetensors")
    old = path.read_bytes()

    def full(arrays, partial, metadata):
        with open(partial, "wb") as file:
            file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("fedtailor.federation.storage.save_file", full)
    with pytest.raises(ValueError, match=r"cannot write .*No space left on device; make room"):
        save(federation(name="new"), path)
    assert path.read_bytes() == old and [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        (b"", "damaged or holds no federation"),
        (b"something else entirely", "damaged or holds no federation"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "f.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_foreign_and_truncated_tensors_are_refused(tmp_path):
    path = tmp_path / "f.safetensors"
    save_file({"x": np.zeros(3)}, path)
    with pytest.raises(ValueError, match="holds no federation"):
        load(path)
    save(federation(), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        load(path)
    save_file({"x": np.zeros(3)}, path, {"format": "fedtailor federation 1", "federation": "{}"})
    with pytest.raises(ValueError, match="damaged"):
        load(path)
