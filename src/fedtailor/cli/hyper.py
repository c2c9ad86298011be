"""Descriptions of hyper-parameters, read from the docstrings of the methods."""

import dataclasses
from typing import Any

from docstring_parser import DocstringMeta

from fedtailor._base.field_docs import field_docs
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


def description_of(entry: DocstringMeta) -> str:
    """The description of an entry of a docstring, without line breaks."""
    return " ".join((entry.description or "").split())
