"""Which commands there are.

They are the modules of `fedtailor.cli.commands`, and those that other packages offer. A
package offers a command by an entry point of the group `fedtailor.commands`: its name
is the command's, and it names a function that takes the arguments after the command's
name and returns the exit code.
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
    """The command of a name; its module is imported now.

    Raises:
        ValueError: there is no such command, or another package's cannot be loaded.
    """
    own, offered = _own(), _offered()
    if name in own:
        module = import_module(f"{commands.__name__}.{own[name]}")
        return getattr(module, own[name])
    if name in offered:
        try:
            return offered[name].load()
        except Exception as error:
            package = _package(offered[name])
            raise ValueError(
                f"the command {name!r} of {package} cannot be loaded: {error!r}"
            ) from error
    known = [*own, *offered]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"there is no command {name!r}; {hint}the commands are {', '.join(known)}"
    )


def summaries() -> dict[str, str]:
    """Command -> one line about it. No command is imported: that takes seconds."""
    offered = {name: f"(of {_package(entry)})" for name, entry in _offered().items()}
    own = {name: _summary(module) for name, module in _own().items()}
    return offered | own


def _own() -> dict[str, str]:
    """Command -> its module in `commands`."""
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return {name.replace("_", "-"): name for name in names if not name.startswith("_")}


def _offered() -> dict[str, EntryPoint]:
    """Command -> the entry point of another package."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _package(entry: EntryPoint) -> str:
    """The package that offers an entry point."""
    return entry.dist.name if entry.dist is not None else entry.value


def _summary(module: str) -> str:
    """The first sentence of a module's docstring, from the colon on."""
    source = files(commands).joinpath(f"{module}.py").read_text(encoding="utf-8")
    paragraph = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
    sentence = " ".join(paragraph.split())
    return sentence.partition("`: ")[2].rstrip(".")
