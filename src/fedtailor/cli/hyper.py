"""Descriptions of hyper-parameters, read from the docstrings of the methods."""

import dataclasses
from typing import Any

from docstring_parser import DocstringMeta, parse_from_object

from fedtailor.protocol import is_hyperparameters


def parameters(value: Any, prefix: str = "") -> list[dict[str, str]]:
    """Describes all hyper-parameters of a method, including nested ones.

    Returns:
        The name (as an option), default and description of each hyper-parameter.
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
    """Field name -> docstring of the field, which may be inherited."""
    docs: dict[str, str] = {}
    # The class itself comes last, so that its docstrings replace inherited ones.
    for base in reversed(kind.__mro__[:-1]):
        if dataclasses.is_dataclass(base):
            for entry in parse_from_object(base).params:
                docs[entry.arg_name] = description_of(entry)
    return docs


def description_of(entry: DocstringMeta) -> str:
    """The description of an entry of a docstring, without line breaks."""
    return " ".join((entry.description or "").split())
