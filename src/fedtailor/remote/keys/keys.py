"""Keys and certificates of a federation, as TLS takes them.

The coordinator and its clients have certificates, signed by an authority that only this
federation trusts. Needs the extra `federation` (package `cryptography`).
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor._base.choice import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.x509 import (
        Certificate,
        CertificateBuilder,
        GeneralName,
        KeyUsage,
        Name,
        ObjectIdentifier,
    )

SERVER_DAYS = 3 * 365
"""Days for which the coordinator's certificate is valid: longer than a study takes."""

AUTHORITY_DAYS = 10 * 365
"""Days for which the authority and the clients' certificates are valid. To renew these,
files go to every client.
"""

FEW_DAYS = 60
"""Warn of a certificate that is valid for fewer days."""

RENEW_AUTHORITY = (
    "run fedtailor federation renew DIR --authority, and copy ca.crt to all clients"
)
"""What to do about an authority that signs no certificate any more."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names in every server certificate, for clients on the coordinator's machine."""

PACKAGES = ("cryptography", "h11", "httpx")
"""What a federation of machines imports in addition to the dependencies of fedtailor."""


@dataclass(frozen=True)
class KeyFiles:
    """The contents of two files: a private key, and its public key or certificate."""

    private: bytes
    public: bytes


def require_packages() -> None:
    """Check that what a federation of machines needs is installed.

    Raises:
        ValueError: it is not.
    """
    require(
        all(find_spec(name) is not None for name in PACKAGES),
        "a federation of machines needs more packages; run: pip install"
        " 'fedtailor[federation]'",
    )


def make_authority(name: str) -> KeyFiles:
    """Make a certificate authority for one federation.

    Args:
        name: name of the federation.

    Returns:
        Its private key and its certificate (both PEM).
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    subject = _x509_name(f"fedtailor authority of {name}")
    builder = (
        _certificate(subject, subject, key.public_key(), _days_from_now(AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
    )
    return KeyFiles(_private_pem(key), _signed(builder, key))


def make_server_certificate(authority: KeyFiles, addresses: Sequence[str]) -> KeyFiles:
    """Make the coordinator's TLS key, and have the authority sign its certificate.

    Args:
        authority: result of `make_authority`.
        addresses: host names and IP addresses at which clients reach the coordinator;
            loopback addresses are added.

    Returns:
        The private key and the certificate (both PEM).

    Raises:
        ValueError: an address is neither a host name nor an IP address.
    """
    from cryptography import x509

    names = list(dict.fromkeys((*addresses, *LOOPBACK)))
    alternatives = [_alternative_name(name) for name in names]
    usage = x509.oid.ExtendedKeyUsageOID.SERVER_AUTH
    return _issue(authority, names[0], alternatives, usage, SERVER_DAYS)


def make_client_certificate(authority: KeyFiles, name: str) -> KeyFiles:
    """Make a client's TLS key, and have the authority sign its certificate.

    Args:
        authority: result of `make_authority`.
        name: name of the client.

    Returns:
        The private key and the certificate (both PEM).
    """
    from cryptography import x509

    usage = x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH
    return _issue(authority, name, [], usage, AUTHORITY_DAYS)


def _issue(
    authority: KeyFiles,
    name: str,
    alternatives: "Sequence[GeneralName]",
    usage: "ObjectIdentifier",
    days: int,
) -> KeyFiles:
    """Make a key, and have the authority sign its certificate.

    Args:
        authority: result of `make_authority`.
        name: whose certificate it is.
        alternatives: the addresses for which it holds.
        usage: on which side of a connection the key may be used.
        days: for which it is valid, but not longer than the authority.

    Raises:
        ValueError: the authority's files are not its key and certificate, or the
            authority's certificate has expired.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_certificate = x509.load_pem_x509_certificate(authority.public)
    authority_key = serialization.load_pem_private_key(authority.private, None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    require(
        authority_key.public_key() == authority_certificate.public_key(),
        "ca.key and ca.crt of the authority do not belong together, as a renewal was"
        f" interrupted; {RENEW_AUTHORITY}",
    )
    authority_end = authority_certificate.not_valid_after_utc
    require(
        authority_end > _days_from_now(0),
        "the certificate of the authority, which signs the others, has expired;"
        f" {RENEW_AUTHORITY}",
    )
    # A handshake takes a tenth of the time that it takes with a key on P-384.
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority_certificate.subject
    end = min(_days_from_now(days), authority_end)
    builder = _certificate(_x509_name(name), issuer, key.public_key(), end)
    if alternatives:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(alternatives), critical=False
        )
    builder = (
        builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(_issuer_identifier(authority_certificate), critical=False)
    )
    return KeyFiles(_private_pem(key), _signed(builder, authority_key))


def check_host(host: str) -> None:
    """Check that a certificate can be made for a host.

    Raises:
        ValueError: it is neither a host name nor an IP address.
    """
    _alternative_name(host)


def days_left(certificate: bytes) -> int:
    """The number of days for which a certificate (PEM) is still valid; 0 if none."""
    from cryptography import x509

    end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return max(0, (end - datetime.datetime.now(datetime.UTC)).days)


def signature(pem: Path, content: bytes) -> bytes:
    """Sign bytes with the private key in a file (PEM)."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.sign(content, ec.ECDSA(hashes.SHA256()))


def is_signed_by(certificate: bytes, content: bytes, signed: bytes) -> bool:
    """Whether bytes were signed with the key of a certificate (PEM)."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = x509.load_pem_x509_certificate(certificate).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(signed, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def write_new(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a file that must not exist.

    Args:
        path: path of the file.
        content: content of the file.
        secret: whether only the owner can read the file, from its creation on.

    Raises:
        ValueError: the file exists, or cannot be written.
    """
    mode = 0o600 if secret else 0o644
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ValueError(
            f"{path} already exists, and nothing is overwritten; move it away first"
        ) from None
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a file atomically, replacing an existing one.

    Args:
        path: path of the file.
        content: content of the file.
        secret: whether only the owner can read the file, from its creation on.

    Raises:
        ValueError: the file cannot be written.
    """
    new = path.with_name(f".{path.name}.part")
    new.unlink(missing_ok=True)
    write_new(new, content, secret=secret)
    new.replace(path)


def check_secret(path: Path) -> None:
    """Check that only its owner can read a private key, as ssh does.

    Raises:
        ValueError: the file is missing, or the group or others can read it.
    """
    require(path.is_file(), f"there is no private key {path}; copy the whole kit")
    mode = path.stat().st_mode & 0o777
    require(
        mode & 0o077 == 0,
        f"others can read the private key {path} (mode {mode:o}); run: chmod 600"
        f" {path}",
    )


def _x509_name(name: str) -> "Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _key_usage(*usages: str) -> "KeyUsage":
    """Restrict the key of a certificate to some usages."""
    from cryptography import x509

    all_usages = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{usage: usage in usages for usage in all_usages})


def _alternative_name(address: str) -> "GeneralName":
    """Make a certificate's alternative name of an IP address or a host name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    labels = address.rstrip(".").split(".")
    is_host_name = all(
        label and label.replace("-", "").isalnum() and label.isascii()
        for label in labels
    )
    require(
        is_host_name,
        f"{address!r} is not a host name or IP address; write it without https:// and"
        " without the port",
    )
    return x509.DNSName(address)


def _certificate(
    subject: "Name",
    issuer: "Name",
    public: "EllipticCurvePublicKey",
    end: datetime.datetime,
) -> "CertificateBuilder":
    from cryptography import x509

    start = _days_from_now(0) - datetime.timedelta(hours=1)  # clocks of machines differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _days_from_now(days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


# The return type is left out, as `cryptography` is imported only when needed.
def _issuer_identifier(certificate: "Certificate"):  # noqa: ANN202
    from cryptography import x509

    identifier = certificate.extensions.get_extension_for_class(
        x509.SubjectKeyIdentifier
    ).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _signed(builder: "CertificateBuilder", key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _private_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
