"""Reads command lines without a dataclass: help, and lists with `[NAME] [--json]`."""

from collections.abc import Sequence

from fedtailor._base.choice import require
from fedtailor._base.printable import say_block

HELP = ("-h", "--help")
"""The arguments that ask for help."""


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the arguments contain `-h` or `--help`."""
    return any(argument in HELP for argument in arguments)


def print_help_or_raise(
    arguments: list[str], usage: str, note: str, hint: str = ""
) -> int:
    """Handles a command line that lacks its positional arguments.

    Args:
        arguments: the command line.
        usage: usage of the command.
        note: what to print below the usage if the arguments ask for help.
        hint: what to append to the usage in the error message.

    Returns:
        The exit code after printing the help.

    Raises:
        ValueError: the arguments do not ask for help.
    """
    if not asks_for_help(arguments):
        raise ValueError(f"usage: {usage}{hint}")
    say_block(f"usage: {usage}\n\n{note}")
    return 0


def parse_name_and_json(arguments: list[str], usage: str) -> tuple[str | None, bool]:
    """Parses `[NAME] [--json]`.

    Returns:
        The name or None, and whether to print JSON.

    Raises:
        ValueError: an option is unknown, or there are several names.
        SystemExit: the arguments ask for help; `usage` has been printed.
    """
    if asks_for_help(arguments):
        say_block(usage)
        raise SystemExit(0)
    names = [argument for argument in arguments if not argument.startswith("-")]
    for argument in arguments:
        is_known = argument in names or argument == "--json"
        require(is_known, f"unknown option {argument}; {usage}")
    require(len(names) <= 1, usage)
    return (names[0] if names else None), "--json" in arguments
