"""Which skips are allowed, and why."""

import tomllib
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ALLOWED = Path(__file__).parent / "allowed_skips.toml"


def judged(
    reports: Iterable[Any], file: Path = ALLOWED
) -> list[tuple[str, str, str | None]]:
    """Of reports of skipped tests and modules (test, reason of the skip, why `file`
    allows it); None if it does not.
    """
    allowed = tomllib.loads(file.read_text())["skip"]
    found = []
    for report in reports:
        place = report.longrepr  # (file, line, reason)
        reason = place[2] if isinstance(place, tuple) else str(place)
        why = next(
            (
                entry["because"]
                for entry in allowed
                if fnmatch(report.nodeid, entry["test"]) and entry["says"] in reason
            ),
            None,
        )
        found.append((report.nodeid, reason.removeprefix("Skipped: "), why))
    return found
