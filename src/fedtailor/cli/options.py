"""Options read from dataclasses, and what is wrong with them in one line."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any, NoReturn, TypeVar

from fedtailor.protocol import require

T = TypeVar("T")

SEEDS = 2**32
"""Seeds are below this: keys are made of their last 32 bits, so larger ones would
repeat smaller ones.
"""

KINDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "{None}|INT": "a whole number or None",
}
"""What tyro's placeholders mean."""


def parse(target: Callable[..., T], arguments: list[str], program: str) -> T:
    """What `target` (a dataclass, or a function of dataclasses) makes of a command
    line; --help prints and exits.

    Raises:
        ValueError: a wrong option or value, in one line.
    """
    import tyro
    from tyro import (
        _errors as errors,
    )  # tyro's structured errors; its public interface only prints drawn boxes

    def refuse(event: errors.ParseErrorEvent) -> NoReturn:
        raise ValueError(
            f"{_complaint(event, arguments, [*_names(target)])}; `{program} --help`"
            " lists the options"
        )

    for number, argument in enumerate(arguments):
        name, given, value = argument.partition("=")
        before = arguments[number - 1] if number else "the first argument"
        require(argument != "", f"{before} is empty; give it a value")
        require(
            not (name.startswith("--") and given and not value),
            f"{name} is empty; give it a value",
        )
    config = (
        tyro.conf.SuppressFixed,
    )  # fields that no text can express (functions, arrays) are Python's alone
    with errors.on_parse_error(refuse):
        return tyro.cli(target, args=arguments, prog=program, config=config)


@contextmanager
def as_typed() -> Iterator[None]:
    """Errors that advise to call a function with `missing='impute'` say how that is
    typed on a command line.

    Raises:
        ValueError: in place of the block's.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(
            re.sub(r"\b(missing|unknown)='(\w+)'", r"--\1 \2", str(error))
        ) from error


def check_counts(options: object, *names: str) -> None:
    """Refuse an option that is below 1.

    Raises:
        ValueError: with the option's name.
    """
    for name in names:
        value = getattr(options, name)
        require(
            value is None or value >= 1,
            f"{as_option(name)} is {value}; it must be 1 or more",
        )


def check_seeds(name: str, *seeds: int) -> None:
    """Refuse a seed that is negative, or so large that it would repeat another one.

    Raises:
        ValueError: with the option's name.
    """
    for seed in seeds:
        require(
            0 <= seed < SEEDS,
            f"{as_option(name)} is {seed}; it must be in 0 to {SEEDS - 1}",
        )


def as_option(name: str) -> str:
    """How a field is written on the command line."""
    return "--" + name.replace("_", "-")


def _names(target: Callable[..., Any], prefix: str = "") -> Iterator[str]:
    """The options of a dataclass, of those in it ("sgd.lr"), or of the dataclasses that
    a function takes.
    """
    flat = not inspect.isclass(target)
    for name, parameter in inspect.signature(target).parameters.items():
        annotations = getattr(parameter.annotation, "__metadata__", ())
        named = next(
            (
                note.name
                for note in annotations
                if getattr(note, "name", None) is not None
            ),
            name,
        )
        inner = type(parameter.default) if is_dataclass(parameter.default) else None
        if inner is not None:
            yield from _names(inner, prefix if flat else f"{prefix}{named}.")
        else:
            yield f"{prefix}{named}".replace("_", "-")


def _complaint(event: Any, arguments: list[str], names: list[str]) -> str:
    """What a parse error of tyro's says, in one line, with the options that may have
    been meant.
    """
    from tyro import _errors as errors

    if isinstance(event, errors.UnrecognizedArgs):
        unknown = next(
            (token for token in event.tokens if token.startswith("-")), event.tokens[0]
        ).partition("=")[0]
        near = (
            _near(unknown.lstrip("-").replace("_", "-"), names)
            if unknown.startswith("-")
            else []
        )
        meant = f"; perhaps {' or '.join(f'--{name}' for name in near)}" if near else ""
        return (
            f"unknown {'option' if unknown.startswith('-') else 'argument'}"
            f" {unknown}{meant}"
        )
    if isinstance(event, errors.MissingArgs):
        return (
            "missing:"
            f" {', '.join(_shown(entry.arg) for entry in event.missing_arguments)}"
        )
    if isinstance(event, errors.InvalidChoice):
        if event.choices == ("None",):
            return (
                f"{_shown(event.argument)} is {event.value!r}; it can be set in Python"
                " only"
            )
        return (
            f"{_shown(event.argument)} is {event.value!r}; it must be one of"
            f" {', '.join(event.choices)}"
        )
    if isinstance(event, errors.BadValue):
        return (
            f"{_shown(event.argument)}"
            f" {'can be set in Python only' if event.reason == 'fixed' else 'needs a value'}"
        )
    if isinstance(event, errors.InstantiationFailure):
        if event.argument is None:  # what the dataclass itself says
            return event.message
        given, wanted = (
            _given(event.argument, arguments),
            str(event.argument.lowered.metavar),
        )
        return (
            f"{_shown(event.argument)} is {given}; it must be"
            f" {KINDS.get(wanted, wanted)}"
        )
    return f"the options are wrong ({type(event).__name__})"


def _shown(argument: Any) -> str:
    """An option with its dashes, or the capitals of a positional argument."""
    return (
        str(argument.lowered.metavar)
        if argument.is_positional()
        else argument.display_name()
    )


def _given(argument: Any, arguments: list[str]) -> str:
    """What the command line has for an argument, as typed."""
    for number, text in enumerate(arguments):
        name, equals, value = text.partition("=")
        if name.replace("_", "-") in argument.lowered.name_or_flags:
            following = [] if equals else arguments[number + 1 :]
            end = next(
                (
                    place
                    for place, word in enumerate(following)
                    if word.startswith("--")
                ),
                len(following),
            )
            return " ".join(map(repr, [value] if equals else following[:end]))
    return "wrong"


def _near(unknown: str, names: list[str]) -> list[str]:
    """The options of which `unknown` is the last part, or else those that are spelled
    alike.
    """
    ends = [name for name in names if name.rpartition(".")[2] == unknown]
    return ends or difflib.get_close_matches(unknown, names, n=2, cutoff=0.5)
