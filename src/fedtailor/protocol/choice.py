"""Names that a user chooses from, and the error message for a mistyped one."""

import difflib
from collections.abc import Iterable


def check_choice(
    name: object, names: Iterable[str], what: str, listed_by: str | None = None
) -> None:
    """Refuse a name that is not one of `names`, with the nearest one and with all, or
    with where all are listed.

    Args:
        name: what the user gave.
        names: what there is.
        what: what they are names of: "method", "part of EMNIST".
        listed_by: a command that lists them, where they are too many for one line.

    Raises:
        ValueError: "there is no method 'ucfll'; did you mean 'ucfl'? choose one of afl,
            apfl, ..."
    """
    known = list(names)
    if isinstance(name, str) and name in known:
        return
    # One line for both: a user who mistyped sees the name, one who guessed all names.
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    rest = f"choose one of {', '.join(known) or 'none'}"
    if listed_by is not None:
        rest = f"`{listed_by}` lists them"
    raise ValueError(f"there is no {what} {name!r}; {hint}{rest}")
