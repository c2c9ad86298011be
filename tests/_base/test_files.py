"""Files that are written whole or not at all, and what may go wrong when one is
read.
"""

import os
import stat
import subprocess
import sys

import polars as pl
import pytest

from fedtailor._base import files as module
from fedtailor._base.files import (
    atomic_write,
    existing_file,
    remove_leftovers,
    translate_read_errors,
)
from fedtailor._base.parquet import read_foreign_parquet, read_parquet, write_parquet
from fedtailor.data.tables import from_table
from fedtailor.engine.storage import Damaged
from fedtailor.engine.storage.run_files import read_frame


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_written_takes_the_place_of_the_old(tmp_path, folder):
    for content in ("old", "new"):
        with atomic_write(tmp_path / "f") as temporary:
            if folder:
                temporary.mkdir()
            (temporary / "part" if folder else temporary).write_text(content)
        assert (
            tmp_path / "f/part" if folder else tmp_path / "f"
        ).read_text() == content
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize(
    "error", [OSError("No space left on device"), KeyboardInterrupt()]
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "f").write_text("old")
    with pytest.raises(type(error)), atomic_write(tmp_path / "f") as temporary:
        temporary.write_text("half")
        raise error
    assert names(tmp_path) == ["f"] and (tmp_path / "f").read_text() == "old"


def test_names_of_many_bytes_are_written(tmp_path):
    name = "あ" * 80 + ".csv"  # 244 bytes; a file's name has up to 255
    with atomic_write(tmp_path / name) as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == [name]


def test_pipes_and_devices_stay_what_they_are(tmp_path):
    """An answer to `--out /dev/null` that moves a file there would leave the machine
    without it.
    """
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(OSError, match="it is not a regular file"),
        atomic_write(tmp_path / "pipe") as temporary,
    ):
        temporary.write_text("new")
    assert (tmp_path / "pipe").is_fifo() and [
        path.name for path in tmp_path.iterdir()
    ] == ["pipe"]


def test_modes_follow_the_umask_whatever_the_writer_chose(tmp_path):
    before = os.umask(0o026)
    try:
        with atomic_write(tmp_path / "f") as temporary:
            temporary.touch(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path, monkeypatch
):
    events = []

    def fsync(descriptor):
        events.append(
            (stat.S_ISDIR(os.fstat(descriptor).st_mode) and names(tmp_path)[-1] == "f")
            or "content"
        )

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_write(tmp_path / "f") as temporary:
        temporary.write_text("x")
    assert events == ["content", True]


KILL = """
import os, sys
from pathlib import Path
from fedtailor._base.files import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    temporary.with_name(".tmpXYZ").write_text("a library's own unfinished file")
    os._exit(9)
"""


def test_the_next_write_removes_what_a_killed_one_left(tmp_path):
    assert (
        subprocess.run(
            [sys.executable, "-c", KILL, str(tmp_path / "f")], check=False
        ).returncode
        == 9
    )
    (left,) = names(tmp_path)
    assert left.startswith(".f.") and left.endswith(".part")
    with atomic_write(tmp_path / "g") as temporary:
        temporary.write_text("whole")
    assert names(tmp_path) == ["g"]


def test_unfinished_files_of_others_stay(tmp_path, monkeypatch):
    with atomic_write(tmp_path / "mine") as mine:
        mine.touch()
        foreign = tmp_path / ".f.0badcafe.1.0.part"
        foreign.mkdir()
        (tmp_path / ".download.part").touch()  # of another program
        remove_leftovers(tmp_path)
        assert mine.exists() and foreign.exists()
    monkeypatch.setattr(
        module.time, "time", lambda: foreign.stat().st_mtime + 25 * 3600
    )
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [
        ".download.part",
        "mine",
    ], "another machine's go after a day"


def test_a_file_is_found(tmp_path, monkeypatch):
    (tmp_path / "f").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert existing_file("~/f") == existing_file(tmp_path / "f") == tmp_path / "f"


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (None, "f", "there is no file .*f; check the path"),
        (os.mkdir, "f", "f is a folder; give a file"),
        (os.mkfifo, "f", "f is not a regular file; give a file"),
        (None, "x" * 300, "cannot be reached: File name too long"),
        (None, "a\0b", "there is no file|cannot be reached"),
        (None, "~nobody-here/f", "cannot be reached: Could not determine home"),
    ],
    ids=["nothing", "folder", "pipe", "long", "null", "home"],
)
def test_what_is_no_file_is_named(tmp_path, make, name, message):
    path = name if name.startswith("~") else f"{tmp_path}/{name}"
    if make is not None:
        make(path)
    with pytest.raises(ValueError, match=message) as raised:
        existing_file(path)
    assert "\n" not in str(raised.value)


def test_a_failing_disk_is_not_a_damaged_file(tmp_path):
    message = r"f cannot be read: Permission denied; check its permissions"
    with (
        pytest.raises(ValueError, match=message) as raised,
        translate_read_errors(tmp_path / "f"),
    ):
        raise PermissionError(13, "Permission denied", "f")
    assert "damaged" not in str(raised.value)


@pytest.mark.parametrize(
    "breakdown",
    [
        "os.abort()",
        (
            "class Panic(BaseException): pass\n    raise Panic('offset + length <="
            " self.length')"
        ),
    ],
    ids=["aborts", "panics"],
)
def test_a_table_at_which_the_reader_breaks_down_is_refused_and_nothing_is_printed(
    tmp_path, monkeypatch, capfd, breakdown
):
    """Rust says on the standard error, past Python, what happened; an abort ends the
    process that reads.
    """
    path = tmp_path / "t.parquet"
    pl.DataFrame({"c": ["a"], "y": [1.0]}).write_parquet(path)
    said = "os.write(2, b'thread async-executor-1 panicked at immutable.rs:329:9')"
    (tmp_path / "polars.py").write_text(
        f"import os\ndef read_parquet(path, glob):\n    {said}\n    {breakdown}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        pl.exceptions.ComputeError,
        match="the reader breaks down at it: it is damaged, or larger",
    ):
        read_foreign_parquet(path)
    with pytest.raises(
        ValueError, match=r"t.parquet cannot be read as Parquet: the reader breaks down"
    ):
        from_table(path, client="c", target="y")
    assert capfd.readouterr().err == ""


def test_a_table_of_another_program_is_read(tmp_path):
    frame = pl.DataFrame({"c": ["a", None], "y": [1.0, 2.5]})
    frame.write_parquet(tmp_path / "t.parquet")
    assert read_foreign_parquet(tmp_path / "t.parquet").equals(frame)
    assert read_parquet(tmp_path / "t.parquet").equals(frame)


def test_whatever_bit_flips_a_table_is_refused_or_read_as_written(tmp_path):
    frame = pl.DataFrame({"client": ["a", "b"], "value": [0.5, None]})
    path = tmp_path / "t.parquet"
    write_parquet(frame, path)
    assert read_parquet(path).equals(frame)
    written, refused = path.read_bytes(), 0
    # Without its name the digest is not found, and the file is taken for one of another
    # program.
    name = written.index(b"fedtailor.sha256")
    for place in {*range(len(written))} - {
        *range(name, name + len(b"fedtailor.sha256") + 2)
    }:
        flipped = bytearray(written)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        try:
            assert read_parquet(path).equals(frame), place
        except pl.exceptions.PolarsError:
            refused += 1
    assert refused == len(written) - len(b"fedtailor.sha256") - 2


def test_polars_never_sees_a_table_that_is_not_what_was_written(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    write_parquet(pl.DataFrame({"value": [1.0, 2.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"value", b"vbluf"))
    monkeypatch.setattr(
        pl, "read_parquet", lambda path, glob: pytest.fail("it was read")
    )
    with pytest.raises(
        Damaged, match=r"t.parquet is damaged \(it is not what was written\)"
    ):
        read_frame(path)
