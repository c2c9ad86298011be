"""Hyper-parameters as the command line shows them, read from the methods' own files."""

import ast
import dataclasses
import inspect
import textwrap
from itertools import pairwise
from typing import Any

from fedtailor.protocol import is_hyperparameters


def parameters(value: Any, prefix: str = "") -> list[dict[str, str]]:
    """Name (as an option), default and description of every hyper-parameter of a method, nested ones too."""
    rows = []
    for field in dataclasses.fields(value):
        name, default = f"{prefix}{field.name.replace('_', '-')}", getattr(value, field.name)
        if is_hyperparameters(default):
            rows += parameters(default, f"{name}.")
        else:
            rows.append(
                {"name": name, "default": str(default), "doc": " ".join(_docs(type(value)).get(field.name, "").split())}
            )
    return rows


def _docs(kind: type) -> dict[str, str]:
    """Field name -> the string below it, in the class or where it inherits the field from."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr) \
                    and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):  # fmt: skip
                found[field.target.id] = text.value.value
    return found
