"""The secret seed of one machine, so that nobody else can compute the noise it adds."""

import os
import secrets
from pathlib import Path

from fedtailor.protocol import require

SECRET = ".secret"
"""File with a seed of 64 bits in hexadecimal; only its owner can read it."""


def secret_in(directory: Path) -> int:
    """The seed that a directory keeps.

    The operating system draws it at the first call. It is on the disk before it is
    used, so what is computed again after a crash adds the same noise: two draws of
    noise on one update could be averaged.

    Raises:
        ValueError: it cannot be read or written.
    """
    path = directory / SECRET
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.randbits(64):016x}\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass  # it was drawn before, or by another process just now
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    fits = len(text) == 16 and all(digit in "0123456789abcdef" for digit in text)
    require(
        fits,
        f"{path} is damaged; remove it, and the run starts to draw other random"
        " numbers",
    )
    return int(text, 16)
