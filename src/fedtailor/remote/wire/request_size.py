"""How large arrays may be that a request makes a client compute."""

from fedtailor._base.choice import require
from fedtailor._base.memory import total_memory
from fedtailor.remote.wire.refusals import Refusal, refuse_unless

MAX_SHARE = 0.25
"""Largest share of this machine's memory that the arrays of a request may take.

There are up to three copies of an array while a request is answered.
"""

CACHED_SHARE = 0.125
"""Largest share of the memory that vectors take which may be named again."""


MAX_INBOX = 1024
"""The most vectors of a request, and rows of a client's inboxes: a method computes with each,
and a few bytes name any number of them.
"""

TEXT_SHARE = 1 / 256
"""Largest share of the memory that the text of a message may have.

As Python's objects JSON takes some thirty times its bytes.
"""


def check_text(size: int) -> None:
    """Check that a text can be parsed.

    Args:
        size: its bytes.

    Raises:
        ValueError: it is too long for this machine.
    """
    most = TEXT_SHARE * total_memory()
    require(
        size <= most,
        f"a text of {size / 1e6:,.1f} MB is too long; this machine takes up to"
        f" {most / 1e6:,.1f} MB",
    )


def most_cached() -> float:
    """The most bytes of vectors that are kept to be named again."""
    return CACHED_SHARE * total_memory()


def check_size(size: int) -> None:
    """Check that the arrays of a request fit this machine, before they are made.

    A few bytes of a request can ask for any number: by the shape of an empty array, or
    by naming one vector many times.

    Args:
        size: bytes of all arrays.

    Raises:
        Refused: they take more than `MAX_SHARE` of the memory.
    """
    most = MAX_SHARE * total_memory()
    refuse_unless(
        size <= most,
        Refusal.MALFORMED,
        f"a request asks for arrays of {size / 1e9:,.1f} GB; this machine takes up to"
        f" {most / 1e9:,.1f} GB",
    )
