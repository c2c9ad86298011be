"""The registry of commands.

A command is a module of `fedtailor.cli.commands` or a plugin of another package. A
plugin is an entry point of the group `fedtailor.commands`. It has the name of the
command and refers to a function that takes the arguments after the command's name and
returns the exit code.
"""

import ast
import difflib
import pkgutil
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files

from fedtailor.cli import commands

Command = Callable[[list[str]], int]
"""The arguments after the command's name -> the exit code."""

GROUP = "fedtailor.commands"


def find(name: str) -> Command:
    """Imports the command with the given name.

    Raises:
        ValueError: there is no such command, or a plugin cannot be loaded.
    """
    builtin, plugins = _builtin_commands(), _plugins()
    if name in builtin:
        module = import_module(f"{commands.__name__}.{builtin[name]}")
        return getattr(module, builtin[name])
    if name in plugins:
        try:
            return plugins[name].load()
        except Exception as error:
            package = _package(plugins[name])
            raise ValueError(
                f"the command {name!r} of {package} cannot be loaded: {error!r}"
            ) from error
    names = [*builtin, *plugins]
    matches = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {matches[0]!r}? " if matches else ""
    raise ValueError(
        f"there is no command {name!r}; {hint}the commands are {', '.join(names)}"
    )


def summaries() -> dict[str, str]:
    """Command -> summary in one line, without the slow import of the commands."""
    plugins = {name: f"(of {_package(entry)})" for name, entry in _plugins().items()}
    builtin = {name: _summary(module) for name, module in _builtin_commands().items()}
    return plugins | builtin


def _builtin_commands() -> dict[str, str]:
    """Command -> name of its module in `commands`."""
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return {name.replace("_", "-"): name for name in names if not name.startswith("_")}


def _plugins() -> dict[str, EntryPoint]:
    """Command -> entry point of another package."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _package(entry: EntryPoint) -> str:
    """The package of an entry point."""
    return entry.dist.name if entry.dist is not None else entry.value


def _summary(module: str) -> str:
    """The first sentence of a module's docstring after the colon."""
    source = files(commands).joinpath(f"{module}.py").read_text(encoding="utf-8")
    paragraph = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
    sentence = " ".join(paragraph.split())
    return sentence.partition("`: ")[2].rstrip(".")
