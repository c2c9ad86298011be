"""The directory of a federation: the coordinator's files, and a kit for each client.

DIR/job.toml                  what is trained; a copy goes into every kit
DIR/coordinator/              ca.crt, ca.key, server.crt, server.key, clients/NAME.pub
DIR/kits/NAME/                ca.crt, client.key, client.toml

A kit is copied to its client's machine. Only their owner can read private keys, and no
file is overwritten. A command that was interrupted can be repeated, as `server.crt` is
the last of the coordinator's files to be written, and a client's public key is written
after its kit.
"""

import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtailor.protocol import require
from fedtailor.remote.job import Job, read_job, split_address
from fedtailor.remote.job_template import template
from fedtailor.remote.keys import (
    Pair,
    check_secret,
    make_authority,
    make_client_key,
    make_server_certificate,
    write_new,
)

JOB, COORDINATOR, STATE = "job.toml", "coordinator", "state"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Kit:
    """A client's kit.

    Attributes:
        directory: directory of the kit.
        name: name of the client.
        job: job of the federation.
        authority: PEM certificate of the federation's authority.
        key: file with the client's private key.
    """

    directory: Path
    name: str
    job: Job
    authority: bytes
    key: Path

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
) -> tuple[str, ...]:
    """Make the directory of a federation, or add clients to one.

    Args:
        directory: directory of the federation; no file in it is overwritten.
        clients: names of the (new) clients.
        address: "host:port" at which clients reach the coordinator; for a new
            federation only.
        job: file to copy as job.toml, for a new federation only. Without it a template
            is written.

    Returns:
        The names of the clients for which kits were made.

    Raises:
        ValueError: a name or the address is not valid, a client exists already, or a
            file cannot be written.
    """
    _check_names(clients)
    coordinator = directory / COORDINATOR
    if not (coordinator / "server.crt").exists():
        _make_coordinator(directory, len(clients), address, job)
    else:
        require(
            address is None and job is None,
            f"{directory} holds a federation already; give only --clients, to add some",
        )
    for name in clients:
        key = coordinator / "clients" / f"{name}.pub"
        require(
            not key.exists() and not _kit_directory(directory, name).exists(),
            f"there is a client {name} already; choose another name",
        )
    for name in clients:
        _make_kit(directory, name)
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
    check_secret(directory / "client.key")
    settings = directory / "client.toml"
    try:
        name = tomllib.loads(settings.read_text(encoding="utf-8"))["name"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError):
        raise ValueError(
            f"{settings} does not say the client's name; copy the whole kit"
        ) from None
    _check_names([name])
    return Kit(
        directory,
        name,
        read_job(directory / JOB),
        (directory / "ca.crt").read_bytes(),
        directory / "client.key",
    )


def read_public_keys(coordinator: Path) -> dict[str, bytes]:
    """Read the clients' public keys.

    Returns:
        The key of each client (in OpenSSH format), in the order of the names.

    Raises:
        ValueError: there are no keys.
    """
    paths = sorted((coordinator / "clients").glob("*.pub"))
    require(
        bool(paths),
        f"{coordinator} knows no clients; make kits with `fedtailor federation init`",
    )
    return {path.stem: path.read_bytes() for path in paths}


def _check_names(clients: Sequence[str]) -> None:
    require(len(clients) > 0, "there are no clients; name some: --clients a,b,c")
    for name in clients:
        # Names are used as file names, so they must not contain a path.
        is_valid = isinstance(name, str) and _NAME.fullmatch(name) and ".." not in name
        require(
            bool(is_valid),
            f"{name!r} is no name for a client; use letters, digits, dots, dashes and"
            " underscores",
        )
    duplicates = sorted({name for name in clients if clients.count(name) > 1})
    require(not duplicates, f"the client {', '.join(duplicates)} is named twice")


def _make_coordinator(
    directory: Path, clients: int, address: str | None, job: Path | None
) -> None:
    """Write the job, the authority and the coordinator's certificate.

    Args:
        directory: directory of the federation.
        clients: number of its first clients.
        address: "host:port" for the template of a job file.
        job: job file to copy; exactly one of `address` and `job` must be given.
    """
    coordinator, job_file = directory / COORDINATOR, directory / JOB
    if job is not None:
        require(
            address is None, "the address stands in the job file; leave out --address"
        )
        host = read_job(job).host
        content = job.read_bytes()
    else:
        require(
            address is not None,
            "say where clients reach the coordinator: --address HOST:PORT",
        )
        assert address is not None
        host, _ = split_address(address)
        content = template(directory.resolve().name, address, clients).encode()
    try:
        (coordinator / "clients").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make {coordinator}: {error.strerror}") from None
    coordinator.chmod(0o700)
    authority = _authority(coordinator, directory.resolve().name)
    if not job_file.exists():
        write_new(job_file, content)
    server = make_server_certificate(authority, [host])
    # Remove a key without a certificate, which an interrupted call has left. Write the
    # certificate last, as it marks the directory as complete.
    (coordinator / "server.key").unlink(missing_ok=True)
    write_new(coordinator / "server.key", server.private, secret=True)
    write_new(coordinator / "server.crt", server.public)


def _authority(coordinator: Path, name: str) -> Pair:
    """Make the authority, or read the one that an interrupted call has made."""
    key, certificate = coordinator / "ca.key", coordinator / "ca.crt"
    if certificate.exists():
        return Pair(key.read_bytes(), certificate.read_bytes())
    key.unlink(missing_ok=True)  # a key without a certificate is useless
    authority = make_authority(name)
    write_new(key, authority.private, secret=True)
    write_new(certificate, authority.public)
    return authority


def _make_kit(directory: Path, name: str) -> None:
    """Make a client's kit, then register the client's public key."""
    pair, coordinator = make_client_key(), directory / COORDINATOR
    unfinished = directory / "kits" / f".{name}.part"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700, parents=True)
    write_new(unfinished / "ca.crt", (coordinator / "ca.crt").read_bytes())
    write_new(unfinished / "client.key", pair.private, secret=True)
    write_new(unfinished / "client.toml", f'name = "{name}"\n'.encode())
    unfinished.rename(_kit_directory(directory, name))
    write_new(coordinator / "clients" / f"{name}.pub", pair.public)


def _kit_directory(directory: Path, name: str) -> Path:
    return directory / "kits" / name
