"""How long a coordinator may wait for clients, wherever a person sets it."""

from fedtailor.protocol import require

SHORTEST_S = 5.0
"""The shortest wait: by as much may the clocks of two machines differ.

A shorter one might be over on the client's clock before a request arrives.
"""

LONGEST_S = 7 * 24 * 3600.0
"""The longest wait: the SuperLink deletes a message after as much."""


def check_wait(name: str, seconds: float) -> None:
    """Refuse a wait in which no client can answer.

    Args:
        name: of the setting or the option.
        seconds: its value.

    Raises:
        ValueError: it is too short or too long.
    """
    require(
        SHORTEST_S <= seconds <= LONGEST_S,
        f"{name} is {seconds:g} seconds; it must be at least {SHORTEST_S:g} (clocks may"
        f" differ by as much) and at most {LONGEST_S:.0f} (messages are kept for a"
        " week)",
    )
