"""Keys and certificates: in the forms that Flower reads, trusted by this federation
only, and private.
"""

import datetime
import ipaddress
import os

import pytest

pytest.importorskip(
    "cryptography", reason="keys are made with `cryptography` (extra flower)"
)

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import verification

from fedtailor.remote.keys.keys import (
    check_secret,
    make_authority,
    make_client_key,
    make_server_certificate,
    registered_form,
    write_new,
)

AUTHORITY = make_authority("ward study")
SERVER = make_server_certificate(AUTHORITY, ["coordinator.example.org", "192.0.2.7"])


def verify(authority, server, subject):
    """What a strict TLS client does."""
    store = verification.Store([x509.load_pem_x509_certificate(authority.public)])
    verifier = verification.PolicyBuilder().store(store).build_server_verifier(subject)
    return verifier.verify(x509.load_pem_x509_certificate(server.public), [])


@pytest.mark.parametrize(
    "subject",
    [
        x509.DNSName("coordinator.example.org"),
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ],
)
def test_the_servers_certificate_holds_for_its_addresses(subject):
    assert len(verify(AUTHORITY, SERVER, subject)) == 2


def test_it_holds_for_no_other_address_and_under_no_other_authority():
    with pytest.raises(verification.VerificationError):
        verify(AUTHORITY, SERVER, x509.DNSName("elsewhere.example.org"))
    with pytest.raises(verification.VerificationError):
        verify(
            make_authority("ward study"),
            SERVER,
            x509.DNSName("coordinator.example.org"),
        )


def test_the_private_keys_fit_and_certificates_hold_now_and_for_years():
    now = datetime.datetime.now(datetime.UTC)
    for pair in (AUTHORITY, SERVER):
        certificate = x509.load_pem_x509_certificate(pair.public)
        key = serialization.load_pem_private_key(pair.private, None)
        assert key.public_key() == certificate.public_key()
        assert certificate.not_valid_before_utc < now
        assert certificate.not_valid_after_utc > now + datetime.timedelta(days=1000)


@pytest.mark.parametrize("address", ["https://a.org", "a.org:9092", "a b", "", "ä.org"])
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(ValueError, match="is no host name or IP address"):
        make_server_certificate(AUTHORITY, [address])


def test_a_clients_key_is_what_flower_reads_and_its_halves_fit():
    pair = make_client_key()
    private = serialization.load_ssh_private_key(pair.private, None)
    assert (
        isinstance(private, ec.EllipticCurvePrivateKey)
        and private.curve.name == "secp384r1"
    )
    assert serialization.load_ssh_public_key(pair.public) == private.public_key()
    assert (
        serialization.load_pem_public_key(registered_form(pair.public))
        == private.public_key()
    )
    assert make_client_key().public != pair.public


def test_other_public_keys_are_refused():
    with pytest.raises(ValueError, match=r"^it is no public key in OpenSSH's form"):
        registered_form(b"ssh-nonsense AAAA")
    other = rsa.generate_private_key(65537, 2048).public_key()
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    with pytest.raises(ValueError, match=r"^it is no EC key"):
        registered_form(other.public_bytes(*form))


def test_secrets_are_their_owners_only_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        write_new(tmp_path / "secret", b"x", secret=True)
        write_new(tmp_path / "open", b"x")
    finally:
        os.umask(old)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644
    check_secret(tmp_path / "secret")
    with pytest.raises(
        ValueError,
        match=r"others can read the private key .*open \(mode 644\); run: chmod 600",
    ):
        check_secret(tmp_path / "open")


def test_nothing_is_overwritten(tmp_path):
    write_new(tmp_path / "key", b"first", secret=True)
    with pytest.raises(
        ValueError, match="is there already, and nothing is overwritten"
    ):
        write_new(tmp_path / "key", b"second", secret=True)
    assert (tmp_path / "key").read_bytes() == b"first"
    with pytest.raises(
        ValueError, match=r"^cannot write .*missing/key: No such file or directory$"
    ):
        write_new(tmp_path / "missing" / "key", b"x")
