"""Keys and certificates: trusted by this federation
only, and private.
"""

import datetime
import ipaddress
import os

import pytest

pytest.importorskip(
    "cryptography", reason="keys are made with `cryptography` (extra federation)"
)

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import verification

from fedtailor.remote.keys.keys import (
    check_secret,
    is_signed_by,
    make_authority,
    make_client_certificate,
    make_server_certificate,
    signature,
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
    for pair in (AUTHORITY, SERVER, make_client_certificate(AUTHORITY, "a")):
        certificate = x509.load_pem_x509_certificate(pair.public)
        key = serialization.load_pem_private_key(pair.private, None)
        assert key.public_key() == certificate.public_key()
        assert certificate.not_valid_before_utc < now
        assert certificate.not_valid_after_utc > now + datetime.timedelta(days=1000)


@pytest.mark.parametrize("address", ["https://a.org", "a.org:9092", "a b", "", "ä.org"])
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(ValueError, match="is not a host name or IP address"):
        make_server_certificate(AUTHORITY, [address])


def test_a_clients_certificate_is_for_clients_only_and_names_it():
    pair = make_client_certificate(AUTHORITY, "north")
    certificate = x509.load_pem_x509_certificate(pair.public)
    (name,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    assert name.value == "north"
    authority = x509.load_pem_x509_certificate(AUTHORITY.public)
    certificate.verify_directly_issued_by(authority)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert list(usage.value) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    with pytest.raises(verification.VerificationError):
        verify(AUTHORITY, pair, x509.DNSName("north"))


def test_what_was_signed_with_another_key_or_changed_is_told(tmp_path):
    pair, other = (make_client_certificate(AUTHORITY, name) for name in "ab")
    (tmp_path / "pem").write_bytes(pair.private + pair.public)
    signed = signature(tmp_path / "pem", b"challenge")
    assert is_signed_by(pair.public, b"challenge", signed)
    assert not is_signed_by(pair.public, b"another", signed)
    assert not is_signed_by(other.public, b"challenge", signed)
    assert not is_signed_by(pair.public, b"challenge", b"")


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
    with pytest.raises(ValueError, match="already exists, and nothing is overwritten"):
        write_new(tmp_path / "key", b"second", secret=True)
    assert (tmp_path / "key").read_bytes() == b"first"
    with pytest.raises(
        ValueError, match=r"^cannot write .*missing/key: No such file or directory$"
    ):
        write_new(tmp_path / "missing" / "key", b"x")
