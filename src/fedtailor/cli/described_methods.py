"""The methods of this package as their sources describe them, for a list that appears
before JAX is imported, which takes seconds.
"""

import ast
from importlib.metadata import entry_points
from importlib.resources import files

from fedtailor._base.about import About


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
    return bool(entry_points(group="fedtailor.algorithms"))


def _text(value: ast.expr, texts: dict[str, str]) -> str:
    """The text of an argument: a constant, or the name of one."""
    if isinstance(value, ast.Name):
        return texts[value.id]
    return ast.literal_eval(value)
