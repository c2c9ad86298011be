"""Random numbers that one machine keeps to itself, so that nobody else can compute the
noise that it adds.
"""

import os
import secrets
from pathlib import Path

from fedtailor.protocol import require

SECRET = ".secret"
"""File with a seed of 64 bits, as a number in hexadecimal; only its owner can read it.
"""


def secret_in(directory: Path) -> int:
    """The seed that a directory keeps; drawn by the operating system at the first call.

    Raises:
        ValueError: it cannot be read or written.
    """
    path = directory / SECRET
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as file:
            file.write(f"{secrets.randbits(64):016x}\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
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
