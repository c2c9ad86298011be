"""Advice in messages, which is written for Python, as it is typed on the command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_OPTIONS = (
    "skip-unlabelled|task|positive|missing|categories|unseen|client|target|features|drop"
    "|group|time|split|folds"
)
_ADVICE = re.compile(
    rf"\b(say|with|in) (?:`({_OPTIONS})`|({_OPTIONS})(?=[;,.)]| regression"
    r"| classification|$))",
    re.MULTILINE,
)
"""An option in advice, such as "leave these rows out with skip-unlabelled"."""


@contextmanager
def as_typed() -> Iterator[None]:
    """Rewrites advice in error messages from Python to the command line.

    For example, `missing='impute'` becomes `--missing impute`.

    Raises:
        ValueError: the error of the block with the new message.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(as_typed_text(str(error))) from error


def as_typed_text(text: str) -> str:
    """Writes the options in advice for Python as they are typed on the command line."""
    text = re.sub(r"\b(missing|unknown)='(\w+)'", r"--\1 \2", text)
    return _ADVICE.sub(lambda found: f"{found[1]} --{found[2] or found[3]}", text)
