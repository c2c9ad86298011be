"""Finds mistyped names of columns before JAX is imported, which takes seconds."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from fedtailor.cli.advice import as_typed
from fedtailor.cli.names import asks_for_help

_ROLES = {
    "client": "client",
    "target": "label",
    "event": "",
    "split": "",
    "time": "",
    "group": "",
}
"""Option of one column -> its default; "" if it has none."""


def check_typed_columns(arguments: Sequence[str]) -> None:
    """Checks the columns that a command line names, if it is about a table of text.

    Nothing is said about any other mistake, so that the command itself reports it.

    Args:
        arguments: the whole command line, with the name of the command.

    Raises:
        ValueError: there is no such file, or the table lacks a column; the message is that
            of reading the table.
    """
    path = _table_of(arguments)
    if path is None or asks_for_help(arguments):
        return
    from fedtailor.data.tables.delimited import ENDINGS, read_header

    if path.name.lower().endswith(ENDINGS) and not path.exists():
        raise ValueError(
            f"there is no file {path} (No such file or directory); check the path"
        )
    if arguments[0] == "describe":
        return
    from fedtailor.data.tables.problems import LISTS, Problems, missing_columns

    if not path.name.lower().endswith(ENDINGS) or not path.is_file():
        return
    named = {role: option_values(arguments, role) for role in (*_ROLES, *LISTS)}
    format_options = [
        option_values(arguments, name) for name in ("separator", "encoding")
    ]
    separator, encoding = (values[0] if values else None for values in format_options)
    try:
        columns = read_header(path, separator, encoding)
    except (ValueError, OSError, LookupError):
        return
    # Of a table in which every named column is found, a role that is left out may be one
    # whose option is mistyped.
    if {column for values in named.values() for column in values} <= {*columns}:
        return
    roles = {
        role: named[role][0] if named[role] else default
        for role, default in _ROLES.items()
        if named[role] or default
    }
    problems = Problems(str(path))
    lists = {name: named[name] for name in LISTS}
    for problem in missing_columns(columns, roles, lists):
        problems.add(problem)
    with as_typed():
        problems.raise_if_any()


def _table_of(arguments: Sequence[str]) -> Path | None:
    """The path of the table, if the command is one that takes a table."""
    command, *rest = arguments
    if (
        command in ("compare", "diagnose", "describe", "fit")
        and rest
        and not rest[0].startswith("-")
    ):
        return Path(rest[0]).expanduser()
    if command == "run" and rest[1:2] == ["table"]:
        paths = option_values(arguments, "path")
        return Path(paths[0]).expanduser() if paths else None
    return None


def option_values(arguments: Sequence[str], name: str) -> list[str]:
    """The values of an option, as typed; empty if it is not given."""
    for number, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option.replace("_", "-") != f"--{name}":
            continue
        if equals:
            return [value]
        following = arguments[number + 1 :]
        return list(takewhile(lambda word: not word.startswith("--"), following))
    return []
