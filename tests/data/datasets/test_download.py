"""Downloads, from a server on this machine."""

import functools
import hashlib
import http.server
import io
import os
import stat
import tarfile
import threading
import zipfile

import pytest

from fedtailor.data.datasets import set_offline
from fedtailor.data.datasets.download import OFFLINE, download

FILES = {"a.bin": b"a" * 5000, "b.bin": b"b" * 70_000}
INSIDE = "batches/bin"


@pytest.fixture(autouse=True)
def online(monkeypatch):
    monkeypatch.delenv(OFFLINE, raising=False)


def packed(kind):
    """An archive that holds the files in a folder, and something else."""
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in {**FILES, "c.bin": b""}.items():
                archive.writestr(
                    zipfile.ZipInfo(f"{INSIDE}/{name}"), content
                )  # of 1980: always the same bytes
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in {**FILES, "c.bin": b""}.items():
                member = tarfile.TarInfo(f"{INSIDE}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def public(tmp_path):
    """The folder of the server: the files, and archives of them."""
    folder = tmp_path / "public"
    folder.mkdir()
    for name, content in {
        **FILES,
        "all.zip": packed("zip"),
        "all.tar.gz": packed("tar"),
    }.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def server(public):
    """The address of the folder, and what it has been asked for."""
    asked = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=public)
    ) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()


def hashes(public):
    return {
        path.name: f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in public.iterdir()
    }


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("source", ["", "/all.zip", "/all.tar.gz"])
def test_files_come_from_folders_and_archives(server, public, tmp_path, source):
    download(
        server[0] + source,
        ["a.bin", "b.bin"],
        tmp_path / "new/data",
        hashes(public),
        INSIDE,
    )
    archive = {source[1:]: (public / source[1:]).read_bytes()} if source else {}
    assert contents(tmp_path / "new/data") == {
        **FILES,
        **archive,
    }, "and nothing unfinished"


def test_what_is_downloaded_follows_the_umask(server, public, tmp_path):
    before = os.umask(0o027)
    try:
        download(server[0], ["a.bin"], tmp_path / "data", hashes(public))
        download(
            f"{server[0]}/all.zip", ["b.bin"], tmp_path / "data", hashes(public), INSIDE
        )
    finally:
        os.umask(before)
    modes = {
        stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()
    }
    assert modes == {0o640} and len(contents(tmp_path / "data")) == 3


def test_an_archive_that_is_at_hand_is_not_downloaded_again_unless_it_is_damaged(
    server, public, tmp_path
):
    address, asked = server
    for wanted in ("a.bin", "b.bin"):
        download(
            f"{address}/all.zip", [wanted], tmp_path / "data", hashes(public), INSIDE
        )
    assert asked == ["/all.zip"] and contents(tmp_path / "data").keys() == {
        "all.zip",
        "a.bin",
        "b.bin",
    }
    (tmp_path / "data/all.zip").write_bytes(packed("zip")[:-120])
    download(f"{address}/all.zip", ["a.bin"], tmp_path / "data", hashes(public), INSIDE)
    assert asked == ["/all.zip"] * 2 and contents(tmp_path / "data") == {
        **FILES,
        "all.zip": packed("zip"),
    }


@pytest.mark.parametrize(("source", "hashed"), [("", "a.bin"), ("/all.zip", "all.zip")])
def test_a_download_with_another_checksum_is_not_kept(server, tmp_path, source, hashed):
    with pytest.raises(ValueError, match="hash of downloaded file"):
        download(
            server[0] + source,
            ["a.bin"],
            tmp_path / "data",
            {hashed: f"sha256:{'0' * 64}"},
            INSIDE,
        )
    assert contents(tmp_path / "data") == {}


@pytest.mark.parametrize(
    "known", [{}, {"a.bin": "md5:c81e728d9d4c2f636f067f89cc14862c"}]
)
def test_nothing_is_downloaded_unchecked(server, tmp_path, known):
    address, asked = server
    with pytest.raises(ValueError, match=r"no SHA-256 of a\.bin is known"):
        download(address, ["a.bin"], tmp_path / "data", known)
    assert asked == [] and not (tmp_path / "data").exists()


def test_what_is_not_there_is_an_error(server, public, tmp_path):
    known = {**hashes(public), "z.bin": f"sha256:{'0' * 64}"}
    with pytest.raises(OSError, match="404"):
        download(server[0], ["z.bin"], tmp_path / "data", known)
    with pytest.raises(OSError, match=r"^no connection to 127\.0\.0\.1:9$"):
        download("http://127.0.0.1:9", ["a.bin"], tmp_path / "data", known)
    with pytest.raises(ValueError, match=r"all\.zip holds no z\.bin"):
        download(f"{server[0]}/all.zip", ["z.bin"], tmp_path / "data", known, INSIDE)
    assert contents(tmp_path / "data").keys() == {"all.zip"}


def test_a_line_says_what_is_fetched_before_it_is(server, public, tmp_path, capsys):
    address = server[0]
    download(address, ["a.bin"], tmp_path / "data", hashes(public))
    line = (
        f"fedtailor downloads {address}/a.bin to {tmp_path / 'data'}"
        " (FEDTAILOR_OFFLINE=1 forbids it)\n"
    )
    assert capsys.readouterr().err.startswith(line)
    with pytest.raises(OSError, match="no connection"):
        download("http://127.0.0.1:9", ["a.bin"], tmp_path / "data", hashes(public))
    assert capsys.readouterr().err.startswith(
        "fedtailor downloads http://127.0.0.1:9/a.bin"
    ), "before the connection"


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_offline_nothing_is_asked_for(
    server, public, tmp_path, monkeypatch, capsys, value
):
    monkeypatch.setenv(OFFLINE, value)
    address, asked = server
    for source in ("", "/all.zip"):
        with pytest.raises(OSError, match="FEDTAILOR_OFFLINE is set"):
            download(
                address + source, ["a.bin"], tmp_path / "data", hashes(public), INSIDE
            )
    assert (
        asked == []
        and not (tmp_path / "data").exists()
        and capsys.readouterr().err == ""
    )


def test_offline_is_switched_by_a_function_too(server, public, tmp_path, monkeypatch):
    monkeypatch.setenv(OFFLINE, "0")
    set_offline()
    with pytest.raises(OSError, match="FEDTAILOR_OFFLINE is set"):
        download(server[0], ["a.bin"], tmp_path / "data", hashes(public))
    set_offline(False)
    download(server[0], ["a.bin"], tmp_path / "data", hashes(public))
    assert contents(tmp_path / "data") == {"a.bin": FILES["a.bin"]}
