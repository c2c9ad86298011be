"""Finds mistyped names of methods and scenarios before JAX is imported, which takes
seconds.

The names are read from the package's sources and from the metadata of other packages.
"""

import ast
import re
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import takewhile
from pathlib import Path

from fedtailor._choice import check_choice
from fedtailor.cli.columns import option_values

_METHOD = re.compile(r'About\(\s*name="([^"]+)"')


def check_names(arguments: Sequence[str]) -> None:
    """Checks the methods and scenarios that a command line names.

    Nothing is checked where JAX is imported already: a program that runs a command may
    have methods of its own, and there is no time to save.

    Args:
        arguments: the whole command line, with the name of the command.

    Raises:
        ValueError: there is no such method or scenario; the message is that of finding
            it.
    """
    if "jax" in sys.modules:
        return
    scenario, methods = _named(arguments)
    if scenario:
        check_choice(scenario, _scenarios(), "scenario", "fedtailor scenarios")
    for method in methods:
        # FILE.py:CLASS is a method of the user's own; without the class it is refused
        # when it is looked for.
        if ":" not in method and not method.endswith(".py"):
            check_choice(method, _methods(), "algorithm", "fedtailor algorithms")


def _named(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The scenario that a command line names, or "", and the methods."""
    command, *rest = arguments
    # Names come before all options.
    names = list(takewhile(lambda word: not word.startswith("-"), rest))
    match command, names:
        case "run", [method, scenario, *_]:
            return scenario, [method]
        case "compare", [path, *_] if not path.endswith(".toml"):
            return "", option_values(rest, "algorithms")
        # The name of a table ends with that of its format.
        case "diagnose", [name, *_] if "." not in name and not Path(name).is_file():
            return name, []
        case "scenarios", [name]:
            return name, []
        case "algorithms", [name]:
            return "", [name]
    return "", []


def _methods() -> list[str]:
    """The methods of this and other packages, by name."""
    found = _offered("fedtailor.algorithms")
    for source in (files("fedtailor") / "algorithms").iterdir():
        if source.name.endswith(".py"):
            found += _METHOD.findall(source.read_text(encoding="utf-8"))
    return sorted(found)


def _scenarios() -> list[str]:
    """The scenarios of this and other packages, by name."""
    source = files("fedtailor") / "experiments" / "scenarios" / "__init__.py"
    found = _offered("fedtailor.scenarios")
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                # A scenario has the name of its function.
                found += ast.literal_eval(node.value)
    return sorted(name.replace("_", "-") for name in found)


def _offered(group: str) -> list[str]:
    """The names that installed packages offer, which need not be loaded for this."""
    return [entry.name for entry in entry_points(group=group)]
