"""`fedtailor federation init`: the directory of a federation and its kits."""

import os
import shutil
import subprocess
import sys

import pytest

from fedtailor.cli import main

pytest.importorskip(
    "cryptography", reason="keys are made with `cryptography` (extra federation)"
)
pytest.importorskip("httpx", reason="machines need httpx (extra federation)")

from fedtailor.remote.client.policy import POLICY
from fedtailor.remote.demo import OPEN_POLICY
from fedtailor.remote.keys import keys
from fedtailor.remote.keys.kit import make_federation, read_certificates, read_kit


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("federation") / "wards"
    make_federation(directory, ["north", "south"], address="127.0.0.1:9092")
    return directory


@pytest.fixture
def federation(made, tmp_path):
    return shutil.copytree(made, tmp_path / "wards")


def files(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def fails(capsys, *arguments):
    assert main(["federation", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedtailor: ") and said.count("\n") == 1
    return said


def test_the_directory_holds_what_each_side_needs_and_secrets_are_private(made):
    secret = {
        "coordinator/ca.key",
        "coordinator/server.key",
        "kits/north/client.pem",
        "kits/south/client.pem",
    }
    kit = {
        f"kits/{name}/{file}"
        for name in ("north", "south")
        for file in ("ca.crt", "client.toml")
    }
    public = {"job.toml", "coordinator/ca.crt", "coordinator/server.crt"}
    assert set(files(made)) == secret | kit | public | {
        f"coordinator/clients/{n}.crt" for n in ("north", "south")
    }
    modes = {name: (made / name).stat().st_mode & 0o777 for name in files(made)}
    assert {name for name, mode in modes.items() if mode == 0o600} == secret
    assert (made / "coordinator").stat().st_mode & 0o777 == 0o700
    assert list(read_certificates(made / "coordinator")) == ["north", "south"]


def test_a_kit_is_read_with_the_job_in_it(federation):
    kit = federation / "kits" / "north"
    with pytest.raises(ValueError, match=r"^copy the coordinator's job.toml into "):
        read_kit(kit)
    shutil.copy(federation / "job.toml", kit)
    got = read_kit(kit)
    assert (
        got.name == "north"
        and got.job.title == "wards"
        and got.authority.startswith(b"-----BEGIN CERT")
    )
    (kit / "client.pem").chmod(0o640)
    with pytest.raises(
        ValueError, match=r"others can read the private key .* run: chmod 600"
    ):
        read_kit(kit)
    (kit / "client.pem").unlink()
    with pytest.raises(
        ValueError, match=r"there is no private key .*client.pem; copy the whole kit"
    ):
        read_kit(kit)


def test_what_0_2_made_is_refused_in_a_line(federation, capsys):
    kit, coordinator = federation / "kits" / "north", federation / "coordinator"
    shutil.copy(federation / "job.toml", kit)
    (kit / "client.pem").rename(kit / "client.key")
    said = fails(capsys, "join", kit, "--data", "rows.csv")
    assert "was made by fedtailor 0.2" in said and "ask the coordinator" in said
    old = coordinator / "clients" / "north.crt"
    old.rename(old.with_suffix(".pub"))
    for arguments in (
        ("serve", federation),
        ("init", federation, "--clients", "x"),
        ("renew", federation, "--clients", "north"),
        ("revoke", federation, "north"),
    ):
        said = fails(capsys, *arguments)
        assert "was made by fedtailor 0.2" in said and "federation init" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "wards", "--clients", "a", "--address", "127.0.0.1:9092"),
        ("serve", "wards"),
        ("join", "kit", "--data", "rows.csv"),
    ],
)
def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch, tmp_path, capsys, arguments
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keys, "find_spec", lambda name: None)
    said = fails(capsys, *arguments)
    assert "pip install 'fedtailor[federation]'" in said
    assert not list(tmp_path.iterdir())


def test_clients_are_added_and_nothing_that_is_there_changes(federation, capsys):
    before = files(federation)
    assert main(["federation", "init", str(federation), "--clients", "west"]) == 0
    assert "kits for west" in capsys.readouterr().out
    after = files(federation)
    assert before.items() < after.items() and "coordinator/clients/west.crt" in after
    assert "there is a client north already" in fails(
        capsys, "init", federation, "--clients", "east,north"
    )
    assert "give only --clients" in fails(
        capsys, "init", federation, "--clients", "east", "--address", "127.0.0.1:9092"
    )
    assert files(federation) == after


def test_init_says_what_the_clients_have_to_agree_with(tmp_path, capsys):
    new = tmp_path / "new"
    start = ["federation", "init", str(new), "--clients"]
    assert main([*start, "north,south", "--address", "h:1"]) == 0
    said = capsys.readouterr().out
    # Secure sums, which clients insist on, are in the template.
    assert "secure_aggregation_only" not in said
    assert "3 clients or more, and 2 have a kit" in said
    assert main([*start, "west"]) == 0
    assert "have a kit" not in capsys.readouterr().out
    assert "Note" not in capsys.readouterr().out


def test_an_init_that_was_cut_off_is_completed(federation):
    (federation / "coordinator" / "server.crt").unlink()
    authority = (federation / "coordinator" / "ca.crt").read_bytes()
    (federation / "kits" / ".west.part").mkdir()
    make_federation(federation, ["west"], address="127.0.0.1:9092")
    assert (federation / "kits" / "west" / "ca.crt").read_bytes() == authority
    assert not list((federation / "kits").glob(".*"))


def test_a_job_file_is_copied(federation, tmp_path):
    text = (federation / "job.toml").read_text().replace("wards", "beds")
    (tmp_path / "mine.toml").write_text(text)
    make_federation(tmp_path / "new", ["a"], job=tmp_path / "mine.toml")
    assert (tmp_path / "new" / "job.toml").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--clients", "a"),
            "say where clients reach the coordinator: --address HOST:PORT",
        ),
        (
            ("--clients", "a", "--address", "here"),
            "'here' is not an address; write host:port",
        ),
        (
            ("--clients", "a b:9:9", "--address", "h:1"),
            "'a b:9:9' is not a name for a client",
        ),
        (
            ("--clients", "../a", "--address", "h:1"),
            "'../a' is not a name for a client",
        ),
        (("--clients", "a,a", "--address", "h:1"), "the client a is named twice"),
        (
            ("--clients", ",", "--address", "h:1"),
            "there are no clients; name some: --clients a,b,c",
        ),
        (("--clients", "a", "--job", "none.toml"), "cannot read none.toml"),
        (
            ("--clients", "a", "--weight", "n"),
            "--weight: rows of machines all count the same; leave it out, or simulate"
            " weights with `fedtailor compare TABLE.csv --weight`",
        ),
        (
            ("--clients", "a", "--class_weights=balanced"),
            "--class-weights: rows of machines all count the same; leave it out, or",
        ),
        ((), "--clients"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, capsys, arguments, said):
    assert said in fails(capsys, "init", tmp_path / "new", *arguments)
    assert not (tmp_path / "new").exists()


def test_other_commands_say_what_is_missing(federation, tmp_path, capsys):
    assert "there is no command federation start" in fails(capsys, "start")
    assert "there is no kit" in fails(
        capsys, "join", tmp_path / "none", "--data", "x.csv"
    )
    assert "cannot read" in fails(capsys, "serve", tmp_path / "none")
    shutil.copy(federation / "job.toml", federation / "kits" / "north")
    (federation / "kits" / "north" / POLICY).write_text(OPEN_POLICY)
    assert "there is no file none.csv" in fails(
        capsys, "join", federation / "kits" / "north", "--data", "none.csv"
    )


def test_fedtailor_and_its_help_import_nothing_of_the_extra():
    code = (
        "import sys, fedtailor, fedtailor.remote.job.job, fedtailor.remote.wire.transport,"
        " fedtailor.remote.keys.kit\nfrom fedtailor.cli import main\nassert"
        " main(['federation', '--help']) == 0\nassert not {'httpx', 'h11', 'cryptography'} &"
        " set(sys.modules), 'imported'"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
