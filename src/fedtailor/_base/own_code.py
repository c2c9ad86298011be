"""Code of the user's own, which settings name and do not tell: its digests."""

import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

from fedtailor._base.files import file_digest

NOT_THE_USERS = {*sys.stdlib_module_names, "jax", "jaxlib", "jaxtyping", "numpy"} | {
    "equinox",
    "flax",
    "optax",
    "fedtailor",
}
"""Packages whose code is not the user's: their versions tell it."""


def is_own(module: str) -> bool:
    """Whether a module, by its name, is the user's: a script, a file, another package."""
    root = module.partition(".")[0]
    return root == "__main__" or root not in NOT_THE_USERS


def own_code(values: Iterable[Any]) -> dict[str, str]:
    """The user's own classes and functions in values -> SHA-256 of the files that define
    them (in a script, of their own lines).

    Args:
        values: objects, whose classes count, too; dataclasses with others in their
            fields; tuples, lists and dicts of these.
    """
    code: dict[str, str] = {}
    for kind in _code_in(values):
        digest = _digest(kind) if is_own(str(kind.__module__)) else None
        if digest is not None:
            code[f"{kind.__module__}.{kind.__qualname__}"] = digest
    return code


def _code_in(value: Any) -> Iterator[type | FunctionType]:
    """The classes and functions in a value, bases included."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, type):
        yield from value.__mro__
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _code_in(entry)
    elif isinstance(value, tuple | list | set | frozenset):
        for entry in value:
            yield from _code_in(entry)
    elif isinstance(value, partial):
        yield from _code_in((value.func, value.args, value.keywords))
    # A compiled function.
    elif isinstance(getattr(value, "__wrapped__", None), FunctionType):
        yield value.__wrapped__
    else:
        yield from type(value).__mro__
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                yield from _code_in(getattr(value, field.name))


# Once: a file that is edited during a run is not what is trained.
@cache
def _digest(kind: type | FunctionType) -> str | None:
    """SHA-256 of a class's file; None for a class of a notebook, which has none."""
    with suppress(TypeError, OSError):
        # A script does more than define it.
        if kind.__module__ == "__main__":
            return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
        return file_digest(Path(inspect.getfile(kind)))
    return None
