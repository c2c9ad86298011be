"""Hyper-parameters as the command line shows them, read from the methods' own files."""

import dataclasses
from typing import Any

from docstring_parser import parse_from_object

from fedtailor.protocol import is_hyperparameters


def parameters(value: Any, prefix: str = "") -> list[dict[str, str]]:
    """Every hyper-parameter of a method, nested ones too.

    Returns:
        Of each its name (as an option), default and description.
    """
    rows, docs = [], field_docs(type(value))
    for field in dataclasses.fields(value):
        name = f"{prefix}{field.name.replace('_', '-')}"
        default, doc = getattr(value, field.name), docs.get(field.name, "")
        if is_hyperparameters(default):
            rows += parameters(default, f"{name}.")
        else:
            rows.append({"name": name, "default": str(default), "doc": doc})
    return rows


def field_docs(kind: type) -> dict[str, str]:
    """Field name -> the string below it, in the class or where it inherits it from."""
    docs: dict[str, str] = {}
    # The class itself comes last: its strings replace those that it inherits.
    for base in reversed(kind.__mro__[:-1]):
        if dataclasses.is_dataclass(base):
            for entry in parse_from_object(base).params:
                docs[entry.arg_name] = " ".join((entry.description or "").split())
    return docs
