"""How large arrays may be that a request makes a client compute."""

from fedtailor._base.memory import total_memory
from fedtailor.remote.wire.refusals import Refusal, refuse_unless

MAX_SHARE = 0.25
"""Largest share of this machine's memory that one array may take.

There are up to three copies of an array while a request is answered.
"""


def check_size(size: int) -> None:
    """Check that an array fits this machine, before it is made.

    A few bytes of a request can ask for any number: by the shape of an empty array, or
    by naming one vector many times.

    Args:
        size: bytes of the array.

    Raises:
        Refused: it takes more than `MAX_SHARE` of the memory.
    """
    most = MAX_SHARE * total_memory()
    refuse_unless(
        size <= most,
        Refusal.MALFORMED,
        f"a request asks for an array of {size / 1e9:,.1f} GB; this machine takes up to"
        f" {most / 1e9:,.1f} GB",
    )
