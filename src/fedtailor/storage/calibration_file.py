"""The file that exported models have beside them for sets, intervals and temperatures."""

import json
from pathlib import Path

from fedtailor._files import atomic_write, reason
from fedtailor.conformal import Calibration
from fedtailor.storage.digests import DIGEST_KEY, has_valid_digest, with_digest

CALIBRATION = "calibration.json"
_FORMAT = "fedtailor calibration 1"


def write_calibration(calibration: Calibration, directory: Path) -> Path:
    """Write a calibration into a directory of models.

    Returns:
        The file.

    Raises:
        ValueError: it cannot be written.
    """
    path = directory / CALIBRATION
    content = with_digest({"format": _FORMAT, **calibration.as_dict()})
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(content, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {reason(error)}; make room, or name another directory"
        ) from None
    return path


def read_calibration(directory: Path) -> Calibration:
    """Read the calibration of a directory of models.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    path = directory / CALIBRATION
    if not path.exists():
        raise ValueError(
            f"{directory} holds no {CALIBRATION}, which sets and intervals are from;"
            " export the models of a run with validation rows"
        )
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({reason(error)}); export again") from None
    is_valid = (
        isinstance(content, dict)
        and content.get("format") == _FORMAT
        and DIGEST_KEY in content
        and has_valid_digest(content)
    )
    if not is_valid:
        raise ValueError(f"{path} is damaged (its digest is wrong); export again")
    try:
        return Calibration.from_dict(content)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; export again") from None
