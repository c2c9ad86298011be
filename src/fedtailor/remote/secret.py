"""The secret seed of one machine, from which it draws noise for privacy."""

import os
import secrets
from pathlib import Path

from fedtailor.protocol import require

SECRET = ".secret"
"""File with a seed of 64 bits in hexadecimal; only the owner can read it."""


def secret_in(directory: Path) -> int:
    """Read the seed in a directory, or draw one at the first call.

    The seed is on disk before it is used. So an update that is computed again after a
    crash has the same noise: two draws of noise on one update could be averaged.

    Raises:
        ValueError: the seed cannot be read or written.
    """
    path = directory / SECRET
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.randbits(64):016x}\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass  # an earlier call, or another process, has drawn it
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    is_seed = len(text) == 16 and all(digit in "0123456789abcdef" for digit in text)
    require(
        is_seed,
        f"{path} is damaged; remove it, and the run starts to draw other random"
        " numbers",
    )
    return int(text, 16)
