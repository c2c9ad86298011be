"""Names that a user gives: one of a list, or one clear line."""

import difflib
from collections.abc import Iterable


def check_choice(name: str, choices: Iterable[str], what: str, otherwise: str | None = None) -> None:
    """Refuse a name that is not one of `choices`.

    Args:
        what: what the name stands for ("algorithm").
        otherwise: what to say where no choice is near; None = list them all.

    Raises:
        ValueError: with the nearest choice.
    """
    known = list(choices)
    if name in known:
        return
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = otherwise or f"allowed are {', '.join(known) or 'none'}"
    raise ValueError(f"there is no {what} {name!r}; " + (f"did you mean {near[0]!r}?" if near else hint))
