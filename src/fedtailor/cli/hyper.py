"""Hyper-parameters as the command line shows them, read from the methods' own files."""

import dataclasses
from typing import Any

from docstring_parser import parse_from_object

from fedtailor.protocol import is_hyperparameters


def parameters(value: Any, prefix: str = "") -> list[dict[str, str]]:
    """Name (as an option), default and description of every hyper-parameter of a
    method, nested ones too.
    """
    rows, docs = [], field_docs(type(value))
    for field in dataclasses.fields(value):
        name, default = (
            f"{prefix}{field.name.replace('_', '-')}",
            getattr(value, field.name),
        )
        if is_hyperparameters(default):
            rows += parameters(default, f"{name}.")
        else:
            rows.append(
                {"name": name, "default": str(default), "doc": docs.get(field.name, "")}
            )
    return rows


def field_docs(kind: type) -> dict[str, str]:
    """Field name -> the string below it, in the class or where it inherits the field
    from.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if dataclasses.is_dataclass(base):
            found |= {
                entry.arg_name: " ".join((entry.description or "").split())
                for entry in parse_from_object(base).params
            }
    return found
