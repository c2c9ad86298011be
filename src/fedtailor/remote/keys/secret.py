"""Random numbers that a machine draws once and keeps: secret seeds of noise for privacy,
and the identities of runs.
"""

import hashlib
import secrets
from pathlib import Path

from fedtailor._base.choice import require
from fedtailor._base.files import create_secret, reason

SECRET = ".secret"
"""File with the seed of a machine's noise; only the owner can read it."""

RUN = ".run"
"""File with the identity of a run, in its directory."""


def secret_in(directory: Path) -> int:
    """Read the seed in a directory, or draw one at the first call.

    The seed is on disk before it is used. So an update that is computed again after a
    crash has the same noise: two draws of noise on one update could be averaged.

    Raises:
        ValueError: the seed cannot be read or written.
    """
    return int(_number_in(directory / SECRET), 16)


def run_identity(directory: Path) -> str:
    """Read the identity of a run in its directory, or draw one at the first call.

    Clients answer one request for each round and task of a run. A run that is resumed
    has the same identity, and one that starts again in a new directory has another.

    Raises:
        ValueError: the identity cannot be read or written.
    """
    return _number_in(directory / RUN)


def seed_from(secret: int, *parts: bytes) -> int:
    """Derive a seed of 64 bits from a secret and everything that the result depends on.

    Who does not know the secret cannot tell seeds of different parts from independent
    random numbers.
    """
    key = secret.to_bytes(8, "big")
    mixed = hashlib.blake2b(digest_size=8, key=key, person=b"fedtailor noise")
    for part in parts:
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        mixed.update(len(part).to_bytes(8, "big") + part)
    return int.from_bytes(mixed.digest(), "big")


def digest_of_secret(secret: int) -> str:
    """A digest that says whether a secret is the same, and not which it is."""
    return f"{seed_from(secret, b'digest of the secret'):016x}"


def _number_in(path: Path) -> str:
    """Read 64 bits in hexadecimal from a file, or draw them if there is no file."""
    try:
        if not path.exists():
            create_secret(path, f"{secrets.randbits(64):016x}\n".encode())
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot use {path}: {reason(error)}") from None
    is_number = len(text) == 16 and all(digit in "0123456789abcdef" for digit in text)
    require(
        is_number,
        f"{path} is damaged: restore it from a copy; without it nothing that was answered"
        " is answered again",
    )
    return text
