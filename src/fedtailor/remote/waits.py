"""How long a coordinator may wait for clients, wherever a person sets it."""

from fedtailor.protocol import require

SHORTEST_S = 5.0
"""The clocks of two machines may differ by so much: a shorter wait may be over before a
request arrives.
"""

LONGEST_S = 7 * 24 * 3600.0
"""The SuperLink keeps a message for so long: nobody answers later."""


def check_wait(name: str, seconds: float) -> None:
    """Refuse a wait that no client can answer in, or that ends after its message is
    gone.

    Args:
        name: of the setting or the option.
        seconds: what it says.

    Raises:
        ValueError: with the name and what is allowed.
    """
    require(
        SHORTEST_S <= seconds <= LONGEST_S,
        f"{name} is {seconds:g} seconds; it must be at least {SHORTEST_S:g} (clocks may"
        f" differ by as much) and at most {LONGEST_S:.0f} (messages are kept for a"
        " week)",
    )
