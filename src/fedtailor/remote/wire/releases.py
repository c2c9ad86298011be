"""Which releases of fedtailor talk to each other.

Two releases do if both are of the same minor version (0.3.1 and 0.3.4): within one,
models are the same to the bit, and messages and states have one form. A coordinator and
its clients compare their releases when they greet, and refuse each other by name. A
newer minor version reads a coordinator's run directory and a client's state if its
changelog says so; else a job is finished with the release that began it.
"""

import re

from fedtailor._version import __version__

RELEASE = __version__
"""The release of this process."""

MAX_LENGTH = 40
"""The largest number of characters of a release's name."""

_FORM = re.compile(r"(\d{1,6})\.(\d{1,6})(?:[.+a-z0-9-]{0,24})", re.ASCII)


def talk(one: str, other: str) -> bool:
    """Whether two releases talk to each other; False if one of them is not a release."""
    first, second = _FORM.fullmatch(one), _FORM.fullmatch(other)
    if first is None or second is None:
        return False
    return first.groups() == second.groups()
