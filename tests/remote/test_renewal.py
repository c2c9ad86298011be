"""A failed `federation init` leaves nothing wrong; certificates and keys are renewed, and
clients are taken out.
"""

import datetime
import shutil

import pytest

from fedtailor.cli import main

pytest.importorskip(
    "cryptography", reason="keys are made with `cryptography` (extra federation)"
)
pytest.importorskip("httpx", reason="machines need httpx (extra federation)")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from fedtailor.remote.job.job import read_job
from fedtailor.remote.keys import keys
from fedtailor.remote.keys import kit as kits
from fedtailor.remote.keys.keys import days_left
from fedtailor.remote.keys.kit import (
    first_to_end,
    make_federation,
    read_certificates,
    read_kit,
    renew_certificate,
)
from remote.test_kit import fails, files


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("federation") / "wards"
    make_federation(directory, ["north", "south"], address="127.0.0.1:9092")
    return directory


@pytest.fixture
def federation(made, tmp_path):
    return shutil.copytree(made, tmp_path / "wards")


@pytest.mark.parametrize(
    "address",
    [
        "https://x.org:9092",
        "x_y!:9092",
        "a b:9092",
        "x.org:0",
        "0.0.0.0:9092",
        "[::]:1",
    ],
)
def test_an_init_that_failed_can_be_repeated_with_the_right_address(
    address, tmp_path, capsys
):
    wards = tmp_path / "wards"
    fails(capsys, "init", wards, "--clients", "a,b", "--address", address)
    assert not wards.exists() or not files(wards)
    arguments = ["--clients", "a,b", "--address", "right.example.org:9092"]
    assert main(["federation", "init", str(wards), *arguments]) == 0
    assert read_job(wards / "job.toml").host == "right.example.org"


def test_an_init_that_was_cut_off_does_not_keep_another_address(federation, capsys):
    (federation / "coordinator" / "server.crt").unlink()
    said = fails(
        capsys, "init", federation, "--clients", "west", "--address", "other.org:9092"
    )
    assert "job.toml" in said and "127.0.0.1:9092" in said and "other.org" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0"])
def test_an_address_that_no_client_can_reach_is_refused_in_a_job_too(
    host, federation, tmp_path
):
    path = federation / "job.toml"
    path.write_text(path.read_text().replace("127.0.0.1", host))
    with pytest.raises(ValueError, match=r"line \d+.*all addresses of a machine"):
        read_job(path)


def test_names_that_differ_in_case_only_are_refused(federation, capsys, tmp_path):
    for names in ("North", "east,EAST"):
        before = files(federation)
        said = fails(capsys, "init", federation, "--clients", names)
        assert "differ in case only" in said and files(federation) == before
    options = ["--address", "127.0.0.1:9092"]
    said = fails(capsys, "init", tmp_path / "new", "--clients", "a,A", *options)
    assert "differ in case only" in said


def certificate(federation, name="server.crt"):
    return x509.load_pem_x509_certificate(
        (federation / "coordinator" / name).read_bytes()
    )


def test_a_certificate_is_renewed_for_the_address_of_the_job(federation, capsys):
    path = federation / "job.toml"
    path.write_text(path.read_text().replace("127.0.0.1", "new.example.org"))
    before, old = files(federation), certificate(federation)
    assert main(["federation", "renew", str(federation)]) == 0
    assert "within seconds" in capsys.readouterr().out
    new, after = certificate(federation), files(federation)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"coordinator/server.crt", "coordinator/server.key"}
    names = new.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert "new.example.org" in names.value.get_values_for_type(x509.DNSName)
    assert new.serial_number != old.serial_number
    new.verify_directly_issued_by(certificate(federation, "ca.crt"))
    mode = (federation / "coordinator" / "server.key").stat().st_mode
    assert mode & 0o777 == 0o600
    assert 1090 < days_left((federation / "coordinator/server.crt").read_bytes()) < 1096


def test_the_first_certificate_to_end_is_named_with_what_renews_it(
    federation, monkeypatch
):
    """Only the coordinator's was looked at, and clients' and the authority's ended on the
    same day, unseen.
    """
    coordinator = federation / "coordinator"
    days, renewal = first_to_end(coordinator)
    assert 1090 < days < 1096 and renewal.startswith("server.crt: ")
    assert days_left((federation / "kits/north/client.pem").read_bytes()) > 3640
    monkeypatch.setattr(keys, "AUTHORITY_DAYS", 30)
    assert main(["federation", "renew", str(federation), "--clients", "south"]) == 0
    days, renewal = first_to_end(coordinator)
    assert days == 29 and "clients/south.crt: " in renewal
    assert "renew DIR --clients south" in renewal
    renew_certificate(federation, authority=True)
    days, renewal = first_to_end(coordinator)
    assert days == 29 and "ca.crt: " in renewal and "--authority" in renewal


def test_no_certificate_outlives_the_authority_that_signs_it(
    federation, capsys, monkeypatch
):
    """A server's certificate of three years was made, and no client took it."""
    monkeypatch.setattr(keys, "AUTHORITY_DAYS", 10)
    renew_certificate(federation, authority=True)
    assert days_left((federation / "coordinator" / "server.crt").read_bytes()) == 9
    monkeypatch.undo()
    (federation / "coordinator" / "ca.crt").write_bytes(expired(federation))
    said = fails(capsys, "renew", federation)
    assert "has expired" in said and "--authority" in said
    assert main(["federation", "renew", str(federation), "--authority"]) == 0
    assert first_to_end(federation / "coordinator")[0] > 1000


def expired(federation):
    """The certificate of the federation's authority, as if it had ended."""
    coordinator, now = federation / "coordinator", datetime.datetime.now(datetime.UTC)
    key = serialization.load_pem_private_key(
        (coordinator / "ca.key").read_bytes(), None
    )
    old = certificate(federation, "ca.crt")
    builder = x509.CertificateBuilder(
        old.issuer,
        old.subject,
        key.public_key(),
        old.serial_number,
        now - datetime.timedelta(days=4000),
        now - datetime.timedelta(hours=1),
        list(old.extensions),
    )
    signed = builder.sign(key, hashes.SHA384())
    return signed.public_bytes(serialization.Encoding.PEM)


def test_an_init_that_could_not_register_a_client_can_be_repeated(
    federation, capsys, monkeypatch
):
    """It said that the client exists already, and `renew` that it does not."""

    def full(path, content, *, secret=False):
        raise ValueError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(kits, "replace_file", full)
    assert "No space" in fails(capsys, "init", federation, "--clients", "west")
    monkeypatch.undo()
    assert main(["federation", "init", str(federation), "--clients", "west"]) == 0
    registered = read_certificates(federation / "coordinator")["west"]
    assert (federation / "kits/west/client.pem").read_bytes().endswith(registered)
    (federation / "kits" / "east").mkdir()
    said = fails(capsys, "init", federation, "--clients", "east")
    assert "east is in the way" in said


def test_without_the_authoritys_key_nothing_is_renewed(federation, capsys):
    (federation / "coordinator" / "ca.key").unlink()
    before = files(federation)
    assert "ca.key" in fails(capsys, "renew", federation)
    assert files(federation) == before


def test_a_clients_key_is_renewed_and_its_state_is_left_alone(federation, capsys):
    kit = federation / "kits" / "north"
    (kit / "state").mkdir()
    (kit / "state" / "round-1").write_text("state")
    shutil.copy(federation / "job.toml", kit)
    before, public = files(federation), read_certificates(federation / "coordinator")
    assert main(["federation", "renew", str(federation), "--clients", "north"]) == 0
    said = capsys.readouterr().out
    assert "client.pem" in said and "north" in said
    after = files(federation)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"coordinator/clients/north.crt", "kits/north/client.pem"}
    assert read_kit(kit).pem.stat().st_mode & 0o777 == 0o600
    again = read_certificates(federation / "coordinator")
    assert again["south"] == public["south"] and again["north"] != public["north"]
    # Kits that were handed out and removed here come back with the new key only.
    shutil.rmtree(federation / "kits")
    assert main(["federation", "renew", str(federation), "--clients", "north"]) == 0
    assert set(files(federation / "kits")) == {
        f"north/{name}" for name in ("ca.crt", "client.pem", "client.toml")
    }
    assert "no client east" in fails(
        capsys, "renew", federation, "--clients", "north,east"
    )


def test_the_authority_is_renewed_with_the_certificate(federation, capsys):
    before = files(federation)
    assert main(["federation", "renew", str(federation), "--authority"]) == 0
    assert "ca.crt" in capsys.readouterr().out
    after = files(federation)
    changed = {name for name in after if after[name] != before.get(name)}
    own = {f"coordinator/{name}" for name in ("ca.crt", "ca.key", "server.crt")}
    assert changed == own | {"coordinator/server.key"} | {
        f"kits/{name}/ca.crt" for name in ("north", "south")
    }
    certificate(federation).verify_directly_issued_by(certificate(federation, "ca.crt"))


def test_after_an_interrupted_renewal_nothing_is_signed(federation, capsys):
    """A certificate was made that no client trusted, without a word."""
    certificate = federation / "coordinator" / "ca.crt"
    before = certificate.read_bytes()
    assert main(["federation", "renew", str(federation), "--authority"]) == 0
    certificate.write_bytes(before)  # killed between both files
    stored = files(federation)
    said = fails(capsys, "renew", federation)
    assert "do not belong together" in said and "--authority" in said
    assert files(federation) == stored
    assert main(["federation", "renew", str(federation), "--authority"]) == 0
    assert main(["federation", "renew", str(federation)]) == 0


def test_a_client_is_revoked(federation, capsys):
    assert main(["federation", "revoke", str(federation), "north"]) == 0
    assert "north" in capsys.readouterr().out
    assert list(read_certificates(federation / "coordinator")) == ["south"]
    revoked = list((federation / "coordinator" / "revoked").iterdir())
    assert [path.name for path in revoked] == ["north.crt"]
    assert "no client north" in fails(capsys, "revoke", federation, "north")
    assert "no client ../x" in fails(capsys, "revoke", federation, "../x")
    # The name is taken, as the run knows it; the client comes back with a new key.
    said = fails(capsys, "init", federation, "--clients", "north")
    assert "renew" in said
    assert main(["federation", "renew", str(federation), "--clients", "north"]) == 0
    assert list(read_certificates(federation / "coordinator")) == ["north", "south"]
    assert not list((federation / "coordinator" / "revoked").iterdir())


def test_the_last_client_is_not_revoked(federation, capsys):
    main(["federation", "revoke", str(federation), "north"])
    assert "last" in fails(capsys, "revoke", federation, "south")
