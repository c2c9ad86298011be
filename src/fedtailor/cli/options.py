"""Options read from dataclasses, and what is wrong with them in one line."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from fedtailor.protocol import require

T = TypeVar("T")

SEEDS = 2**32
"""Seeds are below this.

Keys are made of their last 32 bits, so larger ones would repeat smaller ones.
"""

KINDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "{None}|INT": "a whole number or None",
}
"""What tyro's placeholders mean."""


def parse(target: Callable[..., T], arguments: list[str], program: str) -> T:
    """What a target makes of a command line; --help prints and exits.

    Args:
        target: a dataclass, or a function of dataclasses.
        arguments: the options.
        program: what the help calls the command.

    Raises:
        ValueError: a wrong option or value, in one line.
    """
    import tyro

    # tyro's structured errors; its public interface only prints drawn boxes.
    from tyro import _errors as errors

    def refuse(event: errors.ParseErrorEvent) -> NoReturn:
        complaint = _complaint(event, arguments, [*_names(target)])
        raise ValueError(f"{complaint}; `{program} --help` lists the options")

    for number, argument in enumerate(arguments):
        name, given, value = argument.partition("=")
        before = arguments[number - 1] if number else "the first argument"
        require(argument != "", f"{before} is empty; give it a value")
        require(
            not (name.startswith("--") and given and not value),
            f"{name} is empty; give it a value",
        )
    if {"-h", "--help"} & {*arguments}:
        for kind in _dataclasses(target):
            _add_help(kind)
    # Fields that no text can express (functions, arrays) are Python's alone.
    config = (tyro.conf.SuppressFixed,)
    with errors.on_parse_error(refuse):
        return tyro.cli(target, args=arguments, prog=program, config=config)


def _dataclasses(target: Callable[..., Any]) -> Iterator[type]:
    """The dataclass that a target is, and those that it takes, nested ones too."""
    if inspect.isclass(target):
        yield target
    for parameter in inspect.signature(target).parameters.values():
        if is_dataclass(parameter.default):
            yield from _dataclasses(type(parameter.default))


def _add_help(kind: type) -> None:
    """Tell tyro what the strings below a dataclass's fields say, as flowing text.

    Read by tyro itself, they would keep the line breaks of the source.
    """
    # Reads the source of the class: only for help, not for every command.
    from fedtailor.cli.hyper import field_docs

    docs = field_docs(kind)
    for field in fields(kind):
        if field.name in docs:
            help_text = {"help": docs[field.name]}
            field.metadata = MappingProxyType({**field.metadata, **help_text})


@contextmanager
def as_typed() -> Iterator[None]:
    """Errors that advise to call a function say how that is typed on a command line.

    `missing='impute'` becomes `--missing impute`.

    Raises:
        ValueError: in place of the block's.
    """
    try:
        yield
    except ValueError as error:
        text = re.sub(r"\b(missing|unknown)='(\w+)'", r"--\1 \2", str(error))
        raise ValueError(text) from error


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
    """The options of a dataclass, or of the dataclasses that a function takes.

    Those of a dataclass inside a dataclass have its name before them ("sgd.lr").
    """
    for name, parameter in inspect.signature(target).parameters.items():
        # An annotation may give the option another name.
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


def _complaint(event: Any, arguments: list[str], names: list[str]) -> str:
    """What a parse error of tyro's says, in one line.

    Of an unknown option, with those that may have been meant.
    """
    from tyro import _errors as errors

    if isinstance(event, errors.UnrecognizedArgs):
        options = [token for token in event.tokens if token.startswith("-")]
        if not options:
            return f"unknown argument {event.tokens[0].partition('=')[0]}"
        unknown = options[0].partition("=")[0]
        near = _near(unknown.lstrip("-").replace("_", "-"), names)
        if not near:
            return f"unknown option {unknown}"
        meant = " or ".join(f"--{name}" for name in near)
        return f"unknown option {unknown}; perhaps {meant}"
    if isinstance(event, errors.MissingArgs):
        missing = [_shown(entry.arg) for entry in event.missing_arguments]
        return f"missing: {', '.join(missing)}"
    if isinstance(event, errors.InvalidChoice):
        wrong = f"{_shown(event.argument)} is {event.value!r}"
        if event.choices == ("None",):
            return f"{wrong}; it can be set in Python only"
        return f"{wrong}; it must be one of {', '.join(event.choices)}"
    if isinstance(event, errors.BadValue):
        is_fixed = event.reason == "fixed"
        advice = "can be set in Python only" if is_fixed else "needs a value"
        return f"{_shown(event.argument)} {advice}"
    if isinstance(event, errors.InstantiationFailure):
        if event.argument is None:  # what the dataclass itself says
            return event.message
        given = _given(event.argument, arguments)
        wanted = str(event.argument.lowered.metavar)
        wanted = KINDS.get(wanted, wanted)
        return f"{_shown(event.argument)} is {given}; it must be {wanted}"
    return f"the options are wrong ({type(event).__name__})"


def _shown(argument: Any) -> str:
    """An option with its dashes, or the capitals of a positional argument."""
    if argument.is_positional():
        return str(argument.lowered.metavar)
    return argument.display_name()


def _given(argument: Any, arguments: list[str]) -> str:
    """What the command line has for an argument, as typed."""
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


def _near(unknown: str, names: list[str]) -> list[str]:
    """The options of which `unknown` is the last part, or else those spelled alike."""
    ends = [name for name in names if name.rpartition(".")[2] == unknown]
    return ends or difflib.get_close_matches(unknown, names, n=2, cutoff=0.5)
