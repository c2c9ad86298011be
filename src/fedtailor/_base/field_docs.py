"""The strings below the fields of a dataclass, which say what the fields mean.

Python forgets them when it has compiled a class, so they are read from its source.
"""

import ast
import dataclasses
import inspect
import textwrap
from functools import cache


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the string below the field, which may be inherited, in one line."""
    docs: dict[str, str] = {}
    # The class itself comes last, so that its strings replace inherited ones.
    for base in reversed(cls.__mro__[:-1]):
        if dataclasses.is_dataclass(base):
            docs |= _own_docs(base)
    return docs


def _own_docs(cls: type) -> dict[str, str]:
    """The strings below the fields that the class itself defines.

    A class that was made without a file, such as one typed at a prompt, has none.
    """
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    docs, field = {}, None
    for statement in definition.body:
        if field is not None and isinstance(statement, ast.Expr):
            text = statement.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docs[field] = " ".join(text.value.split())
        field = None
        if isinstance(statement, ast.AnnAssign) and isinstance(
            statement.target, ast.Name
        ):
            field = statement.target.id
    return docs


class DocWithFields:
    """A class's `__doc__` that ends with the meaning of its fields, for `help`.

    The source is read only when somebody asks for the text.

    Attributes:
        text: the docstring in the source.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type) -> str:
        lines = [inspect.cleandoc(self.text), "", "Hyper-parameters:"]
        docs = field_docs(owner)
        for field in dataclasses.fields(owner):
            default = "" if field.default is dataclasses.MISSING else field.default
            meaning = docs.get(field.name, "")
            entry = f"{field.name} (default {default}): {meaning}"
            lines += textwrap.wrap(
                entry, 88, initial_indent="    ", subsequent_indent="        "
            )
        return "\n".join(lines)


def doc_without_fields(cls: type) -> str:
    """The docstring of a class as it stands in the source."""
    for base in cls.__mro__:
        doc = vars(base).get("__doc__")
        if doc is not None:
            text = doc.text if isinstance(doc, DocWithFields) else doc
            return inspect.cleandoc(text)
    return ""
