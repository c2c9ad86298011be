"""The directory of a federation: the coordinator's files, and a kit for each client.

DIR/job.toml                  what is trained; a copy goes into every kit
DIR/coordinator/              ca.crt, ca.key, server.crt, server.key, clients/NAME.crt
DIR/kits/NAME/                ca.crt, client.pem, client.toml

A kit is copied to its client's machine. Only their owner can read private keys, and no
file is overwritten, but by `renew_certificate` and `renew_keys`. A command that was
interrupted can be repeated, as `server.crt` is the last of the coordinator's files to be
written, and a client's certificate is written there after its kit.
"""

import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtailor._base.choice import require
from fedtailor.remote.job.job import Job, read_job, split_address
from fedtailor.remote.job.job_template import EXAMPLE, Columns, template
from fedtailor.remote.keys.keys import (
    RENEW_AUTHORITY,
    KeyFiles,
    check_host,
    check_secret,
    days_left,
    make_authority,
    make_client_certificate,
    make_server_certificate,
    replace_file,
    write_new,
)

JOB, COORDINATOR, STATE = "job.toml", "coordinator", "state"

CLIENTS = "clients"
"""Subdirectory of the coordinator's with the certificates of the clients that are let in,
NAME.crt.
"""

REVOKED = "revoked"
"""Subdirectory of the coordinator's with the certificates of clients that are not let in
any more.
"""

PEM = "client.pem"
"""File of a kit with the client's private key and certificate."""

_OLD = "was made by fedtailor 0.2, whose keys have no certificates"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Kit:
    """A client's kit.

    Attributes:
        directory: directory of the kit.
        name: name of the client.
        job: job of the federation.
        authority: PEM certificate of the federation's authority.
        pem: file with the client's private key and certificate.
    """

    directory: Path
    name: str
    job: Job
    authority: bytes
    pem: Path

    @property
    def state(self) -> Path:
        """Directory of what the client keeps: its states, its personal model, its
        account, and its log of messages.
        """
        return self.directory / STATE


def make_federation(
    directory: Path,
    clients: Sequence[str],
    *,
    address: str | None = None,
    job: Path | None = None,
    columns: Columns | None = None,
) -> tuple[str, ...]:
    """Make the directory of a federation, or add clients to one.

    Args:
        directory: directory of the federation; no file in it is overwritten.
        clients: names of the (new) clients.
        address: "host:port" at which clients reach the coordinator; for a new
            federation only.
        job: file to copy as job.toml, for a new federation only. Without it a template
            is written.
        columns: the columns of the template, if a template is written.

    Returns:
        The names of the clients for which kits were made.

    Raises:
        ValueError: a name or the address is not valid, a client exists already, or a
            file cannot be written.
    """
    _check_names(clients)
    coordinator = directory / COORDINATOR
    _check_release(coordinator)
    _check_case(coordinator, clients)
    if not (coordinator / "server.crt").exists():
        _make_coordinator(directory, len(clients), address, job, columns)
    else:
        require(
            address is None and job is None and columns is None,
            f"{directory} holds a federation already; give only --clients, to add some",
        )
    for name in clients:
        require(
            not (coordinator / REVOKED / f"{name}.crt").exists(),
            f"the client {name} was revoked; renew --clients {name} lets it in again,"
            " with a new key",
        )
        require(
            not (coordinator / CLIENTS / f"{name}.crt").exists(),
            f"there is a client {name} already; choose another name",
        )
        kit = _kit_directory(directory, name)
        require(
            not kit.exists() or (kit / PEM).exists(),
            f"{kit} is in the way, and no kit; move it away first",
        )
    authority = _read_authority(coordinator)
    for name in clients:
        _give_key(directory, name, authority)
    return tuple(clients)


def read_kit(directory: Path) -> Kit:
    """Read a client's kit.

    Raises:
        ValueError: a file is missing or not valid, or others can read the private key.
    """
    require(directory.is_dir(), f"there is no kit {directory}")
    for name in ("client.toml", "ca.crt"):
        require(
            (directory / name).is_file(),
            f"{name} is missing in {directory}; copy the whole kit",
        )
    require(
        (directory / JOB).is_file(),
        f"copy the coordinator's {JOB} into {directory} first",
    )
    require(
        (directory / PEM).exists() or not (directory / "client.key").exists(),
        f"the kit {directory} {_OLD}; ask the coordinator for a new one",
    )
    check_secret(directory / PEM)
    settings = directory / "client.toml"
    try:
        name = tomllib.loads(settings.read_text(encoding="utf-8"))["name"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, RecursionError):
        raise ValueError(
            f"{settings} does not say the client's name; copy the whole kit"
        ) from None
    _check_names([name])
    return Kit(
        directory,
        name,
        read_job(directory / JOB),
        (directory / "ca.crt").read_bytes(),
        directory / PEM,
    )


def read_certificates(coordinator: Path) -> dict[str, bytes]:
    """Read the certificates of the clients that are let in.

    Returns:
        The certificate of each client (PEM), in the order of the names.

    Raises:
        ValueError: there are none.
    """
    _check_release(coordinator)
    paths = sorted((coordinator / CLIENTS).glob("*.crt"))
    require(
        bool(paths),
        f"{coordinator} knows no clients; make kits with `fedtailor federation init`",
    )
    return {path.stem: path.read_bytes() for path in paths}


def first_to_end(coordinator: Path) -> tuple[int, str]:
    """The certificate of a federation that ends first.

    Args:
        coordinator: directory of the coordinator.

    Returns:
        The days for which it is still valid, and which it is and what to do.

    Raises:
        ValueError, OSError: a certificate cannot be read.
    """
    # Of several that end together, the authority is named: it signs the others.
    renewals = {
        coordinator / "ca.crt": RENEW_AUTHORITY,
        coordinator / "server.crt": "run fedtailor federation renew DIR",
    }
    for path in sorted((coordinator / CLIENTS).glob("*.crt")):
        renewals[path] = (
            f"run fedtailor federation renew DIR --clients {path.stem}, and copy its"
            f" {PEM} to the client"
        )
    days = {path: days_left(path.read_bytes()) for path in renewals}
    first = min(renewals, key=days.__getitem__)
    return days[first], f"{first.relative_to(coordinator)}: {renewals[first]}"


def _check_release(coordinator: Path) -> None:
    """Check that a directory was not made by a release whose kits had no certificates.

    Raises:
        ValueError: it was.
    """
    require(
        not any((coordinator / CLIENTS).glob("*.pub")),
        f"{coordinator.parent} {_OLD}; make a federation with new kits in another"
        " directory: fedtailor federation init, with --job for this job.toml",
    )


def _check_names(clients: Sequence[str]) -> None:
    require(len(clients) > 0, "there are no clients; name some: --clients a,b,c")
    for name in clients:
        # Names are used as file names, so they must not contain a path.
        is_valid = isinstance(name, str) and _NAME.fullmatch(name) and ".." not in name
        require(
            bool(is_valid),
            f"{name!r} is not a name for a client; use letters, digits, dots, dashes and"
            " underscores",
        )
    duplicates = sorted({name for name in clients if clients.count(name) > 1})
    require(not duplicates, f"the client {', '.join(duplicates)} is named twice")


def _check_case(coordinator: Path, clients: Sequence[str]) -> None:
    """Check that no two names of clients differ in case only.

    Some file systems do not tell such names apart, and people neither.
    """
    known = [path.stem for path in coordinator.glob("*/*.crt")]
    for index, name in enumerate(clients):
        for other in (*known, *clients[:index]):
            require(
                name == other or name.casefold() != other.casefold(),
                f"the clients {other} and {name} differ in case only; choose another"
                " name",
            )


def renew_certificate(directory: Path, *, authority: bool = False) -> None:
    """Renew the coordinator's certificate, for the address in job.toml.

    Args:
        directory: directory of the federation.
        authority: whether to renew the authority, too. Clients then need its
            certificate instead of the old one; it is put into the kits that are here.

    Raises:
        ValueError: the job, or a key, is missing or not valid.
    """
    coordinator, job = directory / COORDINATOR, read_job(directory / JOB)
    _require_federation(directory)
    name = directory.resolve().name
    pair = make_authority(name) if authority else _read_authority(coordinator)
    server = make_server_certificate(pair, [job.host])
    if authority:
        replace_file(coordinator / "ca.key", pair.private, secret=True)
        replace_file(coordinator / "ca.crt", pair.public)
        for kit in (directory / "kits").glob("*/ca.crt"):
            replace_file(kit, pair.public)
    replace_file(coordinator / "server.key", server.private, secret=True)
    replace_file(coordinator / "server.crt", server.public)


def renew_keys(directory: Path, clients: Sequence[str]) -> None:
    """Renew clients' keys and certificates; the old ones are not accepted any more.

    A kit that is here gets the new ones and keeps everything else. For others a kit is
    made, of which the client needs only `client.pem`. A revoked client is let in again.

    Args:
        directory: directory of the federation.
        clients: names of the clients.

    Raises:
        ValueError: there is no such client, the authority's key is missing, or a file
            cannot be written.
    """
    _require_federation(directory)
    coordinator = directory / COORDINATOR
    for name in clients:
        _require_client(coordinator, name, (CLIENTS, REVOKED))
    authority = _read_authority(coordinator)
    for name in clients:
        _give_key(directory, name, authority)
        (coordinator / REVOKED / f"{name}.crt").unlink(missing_ok=True)


def revoke(directory: Path, name: str) -> None:
    """Do not accept a client's certificate any more.

    Raises:
        ValueError: there is no such client, or it is the last one.
    """
    _require_federation(directory)
    coordinator = directory / COORDINATOR
    _require_client(coordinator, name, (CLIENTS,))
    require(
        len(read_certificates(coordinator)) > 1,
        f"{name} is the last client; stop the coordinator instead",
    )
    (coordinator / REVOKED).mkdir(exist_ok=True)
    certificate = coordinator / CLIENTS / f"{name}.crt"
    certificate.rename(coordinator / REVOKED / certificate.name)


def _require_federation(directory: Path) -> None:
    require(
        (directory / COORDINATOR / "server.crt").is_file(),
        f"{directory} holds no federation; make it with `fedtailor federation init`",
    )
    _check_release(directory / COORDINATOR)


def _require_client(coordinator: Path, name: str, folders: Sequence[str]) -> None:
    paths = [coordinator / folder / f"{name}.crt" for folder in folders]
    is_known = bool(_NAME.fullmatch(name)) and any(path.exists() for path in paths)
    known = sorted(path.stem for path in (coordinator / CLIENTS).glob("*.crt"))
    require(is_known, f"there is no client {name}; the clients are {', '.join(known)}")


def _make_coordinator(
    directory: Path,
    clients: int,
    address: str | None,
    job: Path | None,
    columns: Columns | None = None,
) -> None:
    """Write the job, the authority and the coordinator's certificate.

    Args:
        directory: directory of the federation.
        clients: number of its first clients.
        address: "host:port" for the template of a job file.
        job: job file to copy; exactly one of `address` and `job` must be given.
        columns: the columns of the template.
    """
    coordinator, job_file = directory / COORDINATOR, directory / JOB
    if job is not None:
        require(address is None, "the address is in the job file; leave out --address")
        require(columns is None, "the columns are in the job file; leave out --data")
        host = read_job(job).host
        content = job.read_bytes()
        require(
            not job_file.exists() or job_file.read_bytes() == content,
            f"there is another {job_file} already; remove it first",
        )
    else:
        require(
            address is not None,
            "say where clients reach the coordinator: --address HOST:PORT",
        )
        assert address is not None
        host, port = split_address(address)
        content = template(
            directory.resolve().name, address, clients, columns or EXAMPLE
        ).encode()
        if job_file.exists():
            # An earlier call was interrupted, or the file was put here to be used.
            there = read_job(job_file)
            require(
                (there.host, there.port) == (host, port),
                f"{job_file} says that the coordinator is at {there.address}, and"
                f" --address {address}; change one of them, or remove the file",
            )
    # What may be wrong is found before anything is written.
    check_host(host)
    try:
        (coordinator / CLIENTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make {coordinator}: {error.strerror}") from None
    coordinator.chmod(0o700)
    authority = _authority(coordinator, directory.resolve().name)
    server = make_server_certificate(authority, [host])
    if not job_file.exists():
        write_new(job_file, content)
    # Remove a key without a certificate, which an interrupted call has left. Write the
    # certificate last, as it marks the directory as complete.
    (coordinator / "server.key").unlink(missing_ok=True)
    write_new(coordinator / "server.key", server.private, secret=True)
    write_new(coordinator / "server.crt", server.public)


def _authority(coordinator: Path, name: str) -> KeyFiles:
    """Make the authority, or read the one that an interrupted call has made."""
    key, certificate = coordinator / "ca.key", coordinator / "ca.crt"
    if certificate.exists():
        return KeyFiles(key.read_bytes(), certificate.read_bytes())
    key.unlink(missing_ok=True)  # a key without a certificate is useless
    authority = make_authority(name)
    write_new(key, authority.private, secret=True)
    write_new(certificate, authority.public)
    return authority


def _read_authority(coordinator: Path) -> KeyFiles:
    """Read the authority, which signs certificates.

    Raises:
        ValueError: its key is missing, or others can read it.
    """
    key = coordinator / "ca.key"
    require(
        key.exists(),
        f"certificates are signed with {key}, and it is missing; bring it back for this",
    )
    check_secret(key)
    return KeyFiles(key.read_bytes(), (coordinator / "ca.crt").read_bytes())


def _give_key(directory: Path, name: str, authority: KeyFiles) -> None:
    """Put a new key into a client's kit, which is made if it is not here, then register the
    client's certificate.
    """
    pair = make_client_certificate(authority, name)
    coordinator, kit = directory / COORDINATOR, _kit_directory(directory, name)
    if kit.exists():
        replace_file(kit / PEM, pair.private + pair.public, secret=True)
    else:
        unfinished = directory / "kits" / f".{name}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700, parents=True)
        write_new(unfinished / "ca.crt", (coordinator / "ca.crt").read_bytes())
        write_new(unfinished / PEM, pair.private + pair.public, secret=True)
        write_new(unfinished / "client.toml", f'name = "{name}"\n'.encode())
        unfinished.rename(kit)
    replace_file(coordinator / CLIENTS / f"{name}.crt", pair.public)


def _kit_directory(directory: Path, name: str) -> Path:
    return directory / "kits" / name
