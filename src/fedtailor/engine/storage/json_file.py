"""JSON objects with a format and a digest, next to a run or models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor._base.digests import DIGEST_KEY, has_valid_digest, with_digest
from fedtailor._base.files import atomic_write, reason


def write_json(path: Path, file_format: str, content: Mapping[str, Any]) -> Path:
    """Write a JSON object, atomically.

    Args:
        path: the file.
        file_format: its name and version.
        content: NaN and infinity, which JSON does not have, become null.

    Returns:
        The file.

    Raises:
        ValueError: it cannot be written.
    """
    whole = with_digest({"format": file_format, **content})
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(whole, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {reason(error)}; make room, or name another directory"
        ) from None
    return path


def read_json(path: Path, file_format: str, again: str) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote, without its digest.

    Args:
        path: the file.
        file_format: its name and version.
        again: what to do if it is damaged, for messages.

    Raises:
        ValueError: it is damaged.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({reason(error)}); {again}") from None
    if not has_valid_digest(content) or content.get("format") != file_format:
        raise ValueError(f"{path} is damaged (its digest is wrong); {again}")
    del content[DIGEST_KEY]
    return content
