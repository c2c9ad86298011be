"""Knows the methods and scenarios before JAX is imported, which takes seconds, and finds
mistyped names.

The names are read from the package's sources and from the metadata of other packages.
"""

import ast
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import takewhile
from pathlib import Path

from fedtailor._base.about import About
from fedtailor._base.choice import check_choice
from fedtailor.cli.columns import option_values

_METHODS = "fedtailor.algorithms"
"""The group of entry points of other packages' methods."""


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
        is_own = ":" in method or method.endswith(".py")
        if not is_own and not _is_built_in(method):
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


def _is_built_in(method: str) -> bool:
    """Whether a source of this package describes a method of this name: quicker than
    reading what all of them say.
    """
    described = f'name="{method}",'
    folder = files("fedtailor") / "algorithms"
    return any(
        described in source.read_text(encoding="utf-8")
        for source in folder.iterdir()
        if source.is_file()
    )


def _methods() -> list[str]:
    """The methods of this and other packages, by name."""
    return sorted([*built_in_methods(), *_offered(_METHODS)])


def built_in_methods() -> dict[str, About]:
    """The methods of this package by name, as their sources describe them.

    What a source gives to `About` is text, or the name of a text above it.
    """
    methods: dict[str, About] = {}
    for source in (files("fedtailor") / "algorithms").iterdir():
        text = source.read_text(encoding="utf-8") if source.is_file() else ""
        if "About(" not in text:
            continue
        texts: dict[str, str] = {}
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Assign([ast.Name(name)], ast.Constant(str(value))):
                    texts[name] = value
                case ast.Call(ast.Name("About"), keywords=keywords):
                    about = About(
                        **{str(one.arg): _text(one.value, texts) for one in keywords}  # pyright: ignore[reportArgumentType]
                    )
                    methods[about.name] = about
    return methods


def others_offer_methods() -> bool:
    """Whether an installed package offers methods."""
    return bool(_offered(_METHODS))


def _text(value: ast.expr, texts: dict[str, str]) -> str:
    """The text of an argument: a constant, or the name of one."""
    if isinstance(value, ast.Name):
        return texts[value.id]
    return ast.literal_eval(value)


def _scenarios() -> list[str]:
    """The scenarios of this and other packages, by name."""
    source = files("fedtailor") / "lab" / "scenarios" / "__init__.py"
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
