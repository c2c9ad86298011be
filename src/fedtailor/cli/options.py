"""Parses options into dataclasses, and reports errors in one line."""

import difflib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from fedtailor.protocol import doc_without_fields, field_docs, require

T = TypeVar("T")

SEEDS = 2**32
"""Exclusive upper limit of seeds: random keys use only their last 32 bits."""

PLACEHOLDERS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "{None}|INT": "a whole number or None",
}
"""Descriptions of tyro's placeholders."""


def parse(target: Callable[..., T], arguments: list[str], program: str) -> T:
    """Calls a target with the options of a command line; --help prints and exits.

    Args:
        target: a dataclass, or a function of dataclasses.
        arguments: the options.
        program: name of the command in the help.

    Returns:
        The result of the target.

    Raises:
        ValueError: an option or a value is wrong; the message is one line.
    """
    import tyro

    # Errors as objects; tyro's public interface only prints them in boxes.
    from tyro import _errors as errors

    def raise_value_error(event: errors.ParseErrorEvent) -> NoReturn:
        message = _error_message(event, arguments, [*_names(target)])
        raise ValueError(f"{message}; `{program} --help` lists the options")

    given: set[str] = set()
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        previous = arguments[number - 1] if number else "the first argument"
        require(argument != "", f"{previous} is empty; give it a value")
        require(
            not (name.startswith("--") and equals and not value),
            f"{name} is empty; give it a value",
        )
        # argparse would keep the last one without a word.
        require(
            not name.startswith("--") or name not in given,
            f"{name} is given twice; give it once, with all its values after it",
        )
        given.add(name)
    if {"-h", "--help"} & {*arguments}:
        for cls in _dataclasses(target):
            _add_help(cls)
    # Fields without a text form (functions, arrays) are not options.
    config = (tyro.conf.SuppressFixed,)
    with errors.on_parse_error(raise_value_error):
        return tyro.cli(target, args=arguments, prog=program, config=config)


def _dataclasses(target: Callable[..., Any]) -> Iterator[type]:
    """Yields the target if it is a dataclass, and all dataclasses in its parameters."""
    if inspect.isclass(target):
        yield target
    for parameter in inspect.signature(target).parameters.values():
        if is_dataclass(parameter.default):
            yield from _dataclasses(type(parameter.default))


def _add_help(cls: type) -> None:
    """Sets the help of a dataclass's fields to their docstrings, without line breaks.

    If tyro read the docstrings itself, it would keep the line breaks of the source.
    """
    docs = field_docs(cls)
    # The fields are options of their own, and need not stand in the text above them, too.
    cls.__doc__ = doc_without_fields(cls)
    for field in fields(cls):
        if field.name in docs:
            help_text = {"help": docs[field.name]}
            field.metadata = MappingProxyType({**field.metadata, **help_text})


def check_counts(options: object, *names: str) -> None:
    """Checks that options are at least 1 or None.

    Raises:
        ValueError: an option is below 1.
    """
    for name in names:
        value = getattr(options, name)
        require(
            value is None or value >= 1,
            f"{as_option(name)} is {value}; it must be 1 or more",
        )


def check_seeds(name: str, *seeds: int) -> None:
    """Checks that the seeds of an option are in 0 to `SEEDS` - 1.

    Raises:
        ValueError: a seed is out of range.
    """
    for seed in seeds:
        require(
            0 <= seed < SEEDS,
            f"{as_option(name)} is {seed}; it must be in 0 to {SEEDS - 1}",
        )


def as_option(name: str) -> str:
    """The option of a field."""
    return "--" + name.replace("_", "-")


def _names(target: Callable[..., Any], prefix: str = "") -> Iterator[str]:
    """Yields the options of a dataclass, or of a function's dataclass parameters.

    The options of a nested dataclass have its name as a prefix ("sgd.lr").
    """
    for name, parameter in inspect.signature(target).parameters.items():
        # An annotation may rename the option.
        for note in getattr(parameter.annotation, "__metadata__", ()):
            if getattr(note, "name", None) is not None:
                name = note.name
                break
        if not is_dataclass(parameter.default):
            yield f"{prefix}{name}".replace("_", "-")
        elif inspect.isclass(target):
            yield from _names(type(parameter.default), f"{prefix}{name}.")
        else:
            yield from _names(type(parameter.default), prefix)


def _error_message(event: Any, arguments: list[str], names: list[str]) -> str:
    """The message of a parse error, with similar names for an unknown option."""
    from tyro import _errors as errors

    if isinstance(event, errors.UnrecognizedArgs):
        options = [token for token in event.tokens if token.startswith("-")]
        if not options:
            return f"unknown argument {event.tokens[0].partition('=')[0]}"
        unknown = options[0].partition("=")[0]
        suggestions = _suggestions(unknown.lstrip("-").replace("_", "-"), names)
        if not suggestions:
            return f"unknown option {unknown}"
        alternatives = " or ".join(f"--{name}" for name in suggestions)
        return f"unknown option {unknown}; perhaps {alternatives}"
    if isinstance(event, errors.MissingArgs):
        missing = [_option_name(entry.arg) for entry in event.missing_arguments]
        return f"missing: {', '.join(missing)}"
    if isinstance(event, errors.InvalidChoice):
        problem = f"{_option_name(event.argument)} is {event.value!r}"
        if event.choices == ("None",):
            return f"{problem}; it can be set in Python only"
        return f"{problem}; it must be one of {', '.join(event.choices)}"
    if isinstance(event, errors.BadValue):
        is_fixed = event.reason == "fixed"
        advice = "can be set in Python only" if is_fixed else "needs a value"
        return f"{_option_name(event.argument)} {advice}"
    if isinstance(event, errors.InstantiationFailure):
        if event.argument is None:  # raised by the dataclass itself
            return event.message
        value = _typed_value(event.argument, arguments)
        expected = str(event.argument.lowered.metavar)
        expected = PLACEHOLDERS.get(expected, expected)
        return f"{_option_name(event.argument)} is {value}; it must be {expected}"
    return f"the options are wrong ({type(event).__name__})"


def _option_name(argument: Any) -> str:
    """The name of an option with its dashes, or of a positional argument."""
    if argument.is_positional():
        return str(argument.lowered.metavar)
    return argument.display_name()


def _typed_value(argument: Any, arguments: list[str]) -> str:
    """The value of an argument on the command line, as typed."""
    for number, text in enumerate(arguments):
        name, equals, value = text.partition("=")
        if name.replace("_", "-") not in argument.lowered.name_or_flags:
            continue
        if equals:
            return repr(value)
        following = takewhile(
            lambda word: not word.startswith("--"), arguments[number + 1 :]
        )
        return " ".join(map(repr, following))
    return "wrong"


def _suggestions(unknown: str, names: list[str]) -> list[str]:
    """The options that end in the unknown name, or those with a similar spelling."""
    matches = [name for name in names if name.rpartition(".")[2] == unknown]
    return matches or difflib.get_close_matches(unknown, names, n=2, cutoff=0.5)
