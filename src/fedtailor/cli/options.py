"""Parses options into dataclasses, and reports errors in one line."""

import inspect
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from fedtailor._base.choice import require
from fedtailor._base.field_docs import doc_without_fields, field_docs
from fedtailor.cli.names import HELP, asks_for_help
from fedtailor.cli.wrong_options import unknown_option, what_is_wrong

T = TypeVar("T")

SEEDS = 2**32
"""Exclusive upper limit of seeds: random keys use only their last 32 bits."""


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
    # Fields without a text form (functions, arrays) are not options.
    config = (tyro.conf.SuppressFixed,)
    if asks_for_help(arguments):
        for cls in _dataclasses(target):
            _add_help(cls)
        # Mistakes in other options must not hide the help.
        asked = next(n for n, word in enumerate(arguments) if word in HELP)
        with redirect_stderr(io.StringIO()):
            try:
                tyro.cli(
                    target, args=arguments[: asked + 1], prog=program, config=config
                )
            except SystemExit as error:
                if not error.code:
                    raise
        return tyro.cli(target, args=["--help"], prog=program, config=config)
    advice = f"`{program} --help` lists the options"
    # Before tyro, which would read `--quick=no` of a switch as `--quick`.
    unknown = unknown_option(target, arguments)
    require(unknown is None, f"{unknown}; {advice}")
    try:
        # tyro prints errors in boxes, which people would have to search.
        with redirect_stderr(io.StringIO()):
            result, rest = tyro.cli(
                target,
                args=arguments,
                config=config,
                return_unknown_args=True,
                console_outputs=False,
            )
    except SystemExit as error:
        wrong = what_is_wrong(target, arguments, error)
        raise ValueError(f"{wrong}; {advice}") from None
    first = rest[0].partition("=")[0] if rest else ""
    kind = "option" if first.startswith("-") else "argument"
    require(not rest, f"unknown {kind} {first}; {advice}")
    return result


def parse_parts(
    parts: Mapping[str, Any], summary: str, arguments: list[str], program: str
) -> dict[str, Any]:
    """Parses the options of several dataclasses as those of one command, so that a mistake
    in any of them gives one message.

    Args:
        parts: instances, whose values are the defaults, by name.
        summary: what the command does, for its help.
        arguments: the options.
        program: name of the command in the help.

    Returns:
        Instances with the values of the options, by name.

    Raises:
        ValueError: an option or a value is wrong; the message is one line.
    """
    import tyro

    def collect(**parsed: Any) -> dict[str, Any]:
        return parsed

    # tyro reads a function's signature. The options have no prefixes.
    flat = tyro.conf.arg(name="")
    types = {name: Annotated[type(part), flat] for name, part in parts.items()}
    parameters = []
    for name, part in parts.items():
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=part,
                annotation=types[name],
            )
        )
    # The tests wrap functions in type checkers; tyro needs the function itself.
    target: Any = inspect.unwrap(collect)
    target.__signature__ = inspect.Signature(parameters)
    target.__annotations__ = types
    target.__doc__ = summary
    return parse(target, arguments, program)


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
