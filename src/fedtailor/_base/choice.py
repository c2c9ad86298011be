"""Requirements on what users give, and the error message for a mistyped name."""

import difflib
from collections.abc import Callable, Collection, Iterable
from typing import Any


class MachineFailed(RuntimeError):
    """This machine, or a program on it, failed at what was rightly asked; the message is
    one line that says what to do.
    """


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless the condition is True.

    Args:
        condition: what must be True.
        message: one line that says what is wrong and what to do.
    """
    if not condition:
        raise ValueError(message)


def require_one_of(
    value: object,
    allowed: Collection[Any],
    setting: str,
    shown: Callable[[Any], str] = str,
) -> None:
    """Raise `ValueError` unless a setting has one of few values.

    Args:
        value: the user's choice.
        allowed: the values that it may have.
        setting: its name, for the message.
        shown: how the message writes the values: `repr` where words hold commas.
    """
    require(
        value in allowed,
        f"{setting} is {value!r}; it must be one of {', '.join(map(shown, allowed))}",
    )


def require_one_or_more(setting: str, *values: float) -> None:
    """Raise `ValueError` unless all values of a setting are 1 or more.

    Args:
        setting: its name, for the message.
        values: what the user gave.
    """
    for value in values:
        require(value >= 1, f"{setting} is {value}; it must be 1 or more")


def check_choice(
    name: object, names: Iterable[str], what: str, listed_by: str | None = None
) -> None:
    """Refuse a name that is not one of `names`.

    Args:
        name: the user's choice.
        names: the known names.
        what: what they name: "method", "part of EMNIST".
        listed_by: a command that lists the names; None = the message lists them.

    Raises:
        ValueError: "there is no method 'ucfll'; did you mean 'ucfl'? choose one of afl,
            apfl, ..."
    """
    known = list(names)
    if isinstance(name, str) and name in known:
        return
    matches = difflib.get_close_matches(str(name), known, n=1)
    suggestion = f"did you mean {matches[0]!r}? " if matches else ""
    choices = f"choose one of {', '.join(known) or 'none'}"
    if listed_by is not None:
        choices = f"`{listed_by}` lists them"
    raise ValueError(f"there is no {what} {name!r}; {suggestion}{choices}")
