"""Limits of the times that a coordinator waits for clients."""

from fedtailor._base.choice import require

MIN_WAIT_S = 5.0
"""The shortest wait in seconds: the clocks of two machines may differ by as much.

A shorter wait might be over, by the client's clock, when a request arrives.
"""

MAX_WAIT_S = 7 * 24 * 3600.0
"""The longest wait in seconds."""


def check_wait(name: str, seconds: float) -> None:
    """Check a time that a user sets.

    Args:
        name: name of the setting or option.
        seconds: its value.

    Raises:
        ValueError: the time is too short or too long.
    """
    require(
        MIN_WAIT_S <= seconds <= MAX_WAIT_S,
        f"{name} is {seconds:g} seconds; it must be at least {MIN_WAIT_S:g} (clocks may"
        f" differ by as much) and at most {MAX_WAIT_S:.0f} (a week)",
    )
