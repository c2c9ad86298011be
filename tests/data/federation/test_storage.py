"""Saving and loading a federation: an exact round trip, whole files or none."""

import os
import stat
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedtailor.data.federation import from_arrays, load, save
from fedtailor.data.federation.storage import arrays_digest


def federation(dtype=np.float32, **options):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (60, 4, 3)).astype(dtype)
    return from_arrays(
        x, rng.integers(0, 3, 60), np.arange(60) % 5, val=0.2, unseen=2, **options
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_the_round_trip_is_exact(tmp_path, dtype):
    options = {} if dtype == np.int32 else {"shift": (1.0, 2.0, 0.1), "scale": 1 / 3}
    before = federation(dtype, group=np.arange(60) % 5 // 2, name="täst", **options)
    after = load(save(before, tmp_path / "f.safetensors"))
    for array in ("x", "y", "unseen", "groups"):
        assert getattr(after, array).dtype == getattr(before, array).dtype
        np.testing.assert_array_equal(getattr(after, array), getattr(before, array))
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(
            getattr(after, split).rows, getattr(before, split).rows
        )
        np.testing.assert_array_equal(
            getattr(after, split).offsets, getattr(before, split).offsets
        )
    for plain in ("names", "classes", "shift", "scale", "name", "class_names"):
        assert getattr(after, plain) == getattr(before, plain), plain


def test_views_and_missing_groups_survive(tmp_path):
    x = np.arange(120, dtype=np.float32).reshape(2, 60).T
    before = from_arrays(x, np.array(["b", "a"] * 30), np.arange(60) % 5)
    after = load(save(before, tmp_path / "f"))
    np.testing.assert_array_equal(after.x, x)
    assert after.groups is None and after.class_names == ("a", "b")


def flip(content, bit):
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_flipped_bit_is_never_believed(tmp_path):
    path = save(federation(group=np.arange(60) % 5 // 2), tmp_path / "f.safetensors")
    whole, bits = path.read_bytes(), np.random.default_rng(0)
    header = int.from_bytes(whole[:8], "little")
    for bit in (
        *bits.integers(0, 8 * len(whole), 100),
        *bits.integers(64, 8 * header, 100),
    ):
        path.write_bytes(flip(whole, int(bit)))
        try:
            load(path)
        except ValueError as error:
            assert "\n" not in str(error) and str(path) in str(error), bit
        else:
            pytest.fail(f"bit {bit} is not noticed")


def test_a_file_of_another_format_is_refused_in_one_line(tmp_path):
    path = tmp_path / "f.safetensors"
    save_file({"x": np.zeros(3)}, path, {"format": "fedtailor federation 1"})
    with pytest.raises(ValueError, match="that this version's save wrote") as raised:
        load(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "3",
        '{"names": 3}',
        '{"other": 1}',
        "[" * 100_000,
        "{}",
        '{"names": ["a"], "unseen": 3}',
    ],
)
def test_headers_of_other_content_are_refused_in_one_line(tmp_path, header):
    save(federation(), tmp_path / "f")
    arrays = load_file(tmp_path / "f")
    save_file(
        arrays,
        tmp_path / "f",
        {
            "format": "fedtailor federation 2",
            "federation": header,
            "federation_digest": "",
            "digest": arrays_digest(header, arrays),
        },
    )
    with pytest.raises(ValueError, match="damaged or holds no federation") as raised:
        load(tmp_path / "f")
    assert "\n" not in str(raised.value)


def test_the_file_follows_the_umask(tmp_path):
    before = os.umask(0o026)
    try:
        path = save(federation(), tmp_path / "f.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "none/f",
            (
                "cannot write .*none/f: No such file or directory; make room, or name"
                " another file"
            ),
        ),
        ("folder", "cannot write .*folder: Is a directory"),
        ("x" * 300, "cannot write .*: File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path, path, message):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=message):
        save(federation(), tmp_path / path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("make", "message"),
    [(os.mkfifo, "is not a regular file"), (os.mkdir, "is a folder")],
)
def test_what_is_no_file_is_not_waited_for(tmp_path, make, message):
    make(tmp_path / "f")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "f")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_unreadable_file_is_not_called_damaged(tmp_path):
    (tmp_path / "f").symlink_to(
        "/proc/self/mem"
    )  # it is there, and reading it fails, whoever asks
    with pytest.raises(ValueError, match="cannot be read") as raised:
        load(tmp_path / "f")
    assert "damaged" not in str(raised.value)


def test_a_failing_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(federation(), tmp_path / "f.safetensors")
    old = path.read_bytes()

    def full(arrays, partial, metadata):
        with open(partial, "wb") as file:
            file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("fedtailor.data.federation.storage.save_file", full)
    with pytest.raises(
        ValueError, match=r"cannot write .*No space left on device; make room"
    ):
        save(federation(name="new"), path)
    assert path.read_bytes() == old and [
        entry.name for entry in tmp_path.iterdir()
    ] == [path.name]


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
    save_file(
        {"x": np.zeros(3)},
        path,
        {"format": "fedtailor federation 2", "federation": "{}"},
    )
    with pytest.raises(ValueError, match="damaged"):
        load(path)
