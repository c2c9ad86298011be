"""Finding the files of data sets, and the cache of decoded arrays."""

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedtailor.data.datasets import MissingData, data_home
from fedtailor.data.datasets import store as module
from fedtailor.data.datasets.store import Source, cached, find, read

PUBLISHED = {"a.bin": b"1", "b.bin": b"2"}
HASHES = {
    name: f"sha256:{hashlib.sha256(content).hexdigest()}"
    for name, content in PUBLISHED.items()
}
SOURCE = Source(
    "Toys", ("toys", "Other/raw"), ("a.bin", "b.bin"), "https://localhost/toys", HASHES
)
UNCHECKED = Source("Toys", ("toys", "Other/raw"), ("a.bin", "b.bin"), None)


def fill(folder, **contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.bin").write_bytes(content)


def test_the_argument_goes_before_the_environment_before_the_cache(
    tmp_path, monkeypatch
):
    assert data_home("~/x") == Path("~/x").expanduser()
    assert data_home() == tmp_path / "data"
    monkeypatch.delenv("FEDTAILOR_DATA")
    assert data_home() == tmp_path / "cache" / "fedtailor" / "data"


def test_files_are_found_in_any_of_their_folders(data_dir):
    fill(data_dir / "Other/raw", a=b"1", b=b"2")
    assert find(SOURCE) == [data_dir / "Other/raw" / name for name in SOURCE.files]
    fill(data_dir / "toys", a=b"1", b=b"2")
    assert find(SOURCE) == [data_dir / "toys" / name for name in SOURCE.files]


def test_only_missing_files_are_downloaded(data_dir, monkeypatch):
    fill(data_dir / "toys", a=b"1")
    asked = []
    monkeypatch.setattr(module, "download", lambda *args: asked.append(args))
    find(SOURCE)
    assert asked == [(SOURCE.url, ["b.bin"], data_dir / "toys", HASHES, "")]


@pytest.mark.usefixtures("offline")
def test_offline_and_absent_says_what_is_expected_where(data_dir):
    with pytest.raises(MissingData) as raised:
        find(SOURCE)
    message = str(raised.value)
    assert "\n" not in message
    for part in (
        "Toys",
        "no network at all",
        "a.bin, b.bin",
        str(data_dir / "toys"),
        "FEDTAILOR_DATA",
    ):
        assert part in message
    assert isinstance(raised.value, ValueError) and isinstance(
        raised.value, FileNotFoundError
    )


def test_a_set_without_an_address_says_so(data_dir):
    with pytest.raises(MissingData, match="no public address"):
        find(Source("Toys", ("toys",), ("a.bin",), None))


def test_decoded_arrays_are_kept_until_a_file_changes(data_dir):
    calls = []

    def decode(paths):
        calls.append(paths)
        return {"x": np.frombuffer(paths[0].read_bytes(), np.uint8), "y": np.arange(3)}

    fill(data_dir / "toys", a=b"123", b=b"")
    for _ in range(3):
        arrays = read(UNCHECKED, decode, None)
        assert (
            arrays["x"].tolist() == [49, 50, 51]
            and arrays["y"].tolist() == [0, 1, 2]
            and len(calls) == 1
        )
    assert type(arrays["x"]) is np.ndarray and not arrays["x"].flags.owndata, (
        "mapped, not read"
    )
    fill(data_dir / "toys", a=b"4567")
    assert (
        read(UNCHECKED, decode, None)["x"].tolist() == [52, 53, 54, 55]
        and len(calls) == 2
    )
    read(UNCHECKED, decode, None, "-variant")
    assert len(calls) == 3


def toys(data_dir):
    fill(data_dir / "toys", a=b"", b=b"")
    return find(UNCHECKED)


def entry_of(tmp_path):
    (entry,) = (tmp_path / "cache/fedtailor/decoded").iterdir()
    return entry


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["x.npy", "digests.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:30]),
        lambda path: path.unlink(),
        *(lambda path, at=at: flip(path, at) for at in (1, 12, 40, -2)),
    ],
    ids=["empty", "cut", "gone", "flipped 1", "flipped 12", "flipped 40", "flipped -2"],
)
def test_a_damaged_entry_of_the_cache_is_decoded_again(
    data_dir, tmp_path, name, damage
):
    paths = toys(data_dir)
    cached("toys", paths, lambda: {"x": np.arange(1000), "y": np.ones(2)})
    damage(entry_of(tmp_path) / name)
    assert cached("toys", paths, lambda: {"x": np.arange(5)})["x"].tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert cached("toys", paths, pytest.fail)["x"].tolist() == [0, 1, 2, 3, 4]
    assert not list(entry_of(tmp_path).glob(".*")) and json.loads(
        (entry_of(tmp_path) / "digests.json").read_text()
    )


def test_an_entry_of_the_first_release_is_decoded_again(data_dir, tmp_path):
    paths = toys(data_dir)
    cached("toys", paths, lambda: {"x": np.arange(3)})
    (entry_of(tmp_path) / "digests.json").unlink()
    assert cached("toys", paths, lambda: {"x": np.arange(4)})["x"].tolist() == [
        0,
        1,
        2,
        3,
    ]
    entry_of(tmp_path)  # still one


def test_what_is_cached_follows_the_umask(data_dir, tmp_path):
    paths = toys(data_dir)
    before = os.umask(0o022)
    try:
        cached("toys", paths, lambda: {"x": np.arange(3)})
    finally:
        os.umask(before)
    entry = entry_of(tmp_path)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (entry, entry / "x.npy")] == [
        0o755,
        0o644,
    ]


def test_what_a_killed_process_left_in_the_cache_goes(data_dir, tmp_path):
    paths = toys(data_dir)
    kill = """if True:
        import os, sys
        from pathlib import Path
        import numpy as np
        from fedtailor.data.datasets.store import cached
        np.save = lambda path, array, allow_pickle: (path.write_bytes(b"half"), os._exit(9))
        cached("toys", [Path(name) for name in sys.argv[1:]], lambda: {"x": np.arange(3)})
    """
    done = subprocess.run([sys.executable, "-c", kill, *map(str, paths)], check=False)
    assert done.returncode == 9 and entry_of(tmp_path).name.endswith(".part")
    assert cached("toys", paths, lambda: {"x": np.arange(3)})["x"].tolist() == [0, 1, 2]
    assert not entry_of(tmp_path).name.startswith("."), "one entry, whole"


def test_without_a_writable_cache_everything_works(data_dir, tmp_path):
    fill(data_dir / "toys", a=b"", b=b"")
    (tmp_path / "cache").write_text("a file where the folder should be")
    for _ in range(2):
        assert cached("toys", find(SOURCE), lambda: {"x": np.arange(3)})[
            "x"
        ].tolist() == [0, 1, 2]


def test_a_full_disk_leaves_no_half_entry(data_dir, tmp_path, monkeypatch):
    fill(data_dir / "toys", a=b"", b=b"")

    def full(path, array, allow_pickle):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert cached("toys", find(SOURCE), lambda: {"x": np.arange(3)})["x"].tolist() == [
        0,
        1,
        2,
    ]
    assert os.listdir(tmp_path / "cache/fedtailor/decoded") == []


def test_a_file_with_another_checksum_is_refused(data_dir):
    fill(data_dir / "toys", a=b"1", b=b"2")
    known = {**HASHES, "a.bin": "sha256:" + "0" * 64}
    with pytest.raises(
        ValueError, match=r"toys/a.bin is not the published file \(sha256:6b86b273ff34"
    ) as raised:
        read(
            Source("Toys", ("toys",), SOURCE.files, None, known), lambda paths: {}, None
        )
    assert "\n" not in str(raised.value)
    assert read(SOURCE, lambda paths: {"x": np.ones(1)}, None)["x"] == 1


def unreadable(path):
    """A file that is there and whose reading fails, whoever asks."""
    path.symlink_to("/proc/self/mem")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("known", [{}, HASHES])
def test_an_unreadable_file_is_not_called_damaged(data_dir, known):
    (data_dir / "toys").mkdir(parents=True)
    for name in SOURCE.files:
        unreadable(data_dir / "toys" / name)
    source = Source("Toys", ("toys",), SOURCE.files, None, known)
    with pytest.raises(
        ValueError, match=r"cannot be read: Input/output error; check"
    ) as raised:
        read(source, lambda paths: {"x": np.frombuffer(paths[0].read_bytes())}, None)
    assert "damaged" not in str(raised.value) and "delete" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "what"), [(os.mkfifo, "not a regular file"), (os.mkdir, "a folder")]
)
def test_what_is_no_file_is_named_and_not_waited_for(data_dir, make, what):
    fill(data_dir / "toys", b=b"2")
    make(data_dir / "toys/a.bin")
    with pytest.raises(ValueError, match=rf"toys/a\.bin is {what}; give a file"):
        find(SOURCE)


@pytest.mark.parametrize(
    ("url", "known", "message"),
    [
        (
            "http://localhost/toys",
            HASHES,
            "http://localhost/toys is not an https address",
        ),
        (
            "https://localhost/toys",
            {"a.bin": HASHES["a.bin"]},
            "b.bin is downloaded and needs a SHA-256",
        ),
        (
            "https://localhost/toys.zip",
            HASHES,
            "toys.zip is downloaded and needs a SHA-256",
        ),
        (
            "https://localhost/toys.zip",
            {"toys.zip": "md5:00"},
            "toys.zip is downloaded and needs a SHA-256",
        ),
    ],
)
def test_a_source_is_downloaded_safely_or_not_at_all(url, known, message):
    with pytest.raises(ValueError, match=message):
        Source("Toys", ("toys",), SOURCE.files, url, known)


def test_offline_is_said_where_data_are_missing(data_dir, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_OFFLINE", "1")
    with pytest.raises(
        MissingData,
        match=r"was not downloaded \(FEDTAILOR_OFFLINE is set\); expected a.bin, b.bin",
    ):
        find(SOURCE)


def test_the_home_of_nobody_is_no_data_directory():
    with pytest.raises(
        ValueError, match="there is no data directory ~nobody-here/data"
    ):
        data_home("~nobody-here/data")
