"""Code of the user's own, which settings name and do not tell: its digests."""

import ast
import dataclasses
import hashlib
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from fedtailor._base.files import file_digest

NOT_THE_USERS = {*sys.stdlib_module_names, "jax", "jaxlib", "jaxtyping", "numpy"} | {
    "equinox",
    "fedtailor",
    "flax",
    "optax",
    "pandas",
    "polars",
    "scipy",
    "sklearn",
    "torch",
    "transformers",
}
"""Packages whose code is not the user's: their versions tell it."""

Code = type | FunctionType


def is_own(module: str) -> bool:
    """Whether a module, by its name, is the user's: a script, a file, another package."""
    return module.partition(".")[0] not in NOT_THE_USERS


def is_fedtailors(module: str) -> bool:
    """Whether a module, by its name, is part of fedtailor."""
    return module.partition(".")[0] == "fedtailor"


@cache
def _installed_folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(it) for it in ("stdlib", "purelib", "platlib"))


def is_installed(file: Path) -> bool:
    """Whether a file is Python's or an installed package's, whose version tells it."""
    return any(file.is_relative_to(folder) for folder in _installed_folders())


def own_code(values: Iterable[Any]) -> dict[str, str]:
    """The user's own classes and functions in values, and those that they read -> SHA-256
    of the files that define them, and of the plain values that they read.

    Of a script, which does more than define them, it is that of their own lines.

    Args:
        values: objects, whose classes count, too; dataclasses with others in their
            fields; tuples, lists and dicts of these.
    """
    found: dict[str, set[str]] = {}
    for code in _code_in(list(values), {}):
        if is_own(str(code.__module__)):
            name = f"{code.__module__}.{code.__qualname__}"
            read = sorted(_values_read(code).items())
            texts = [_definition(code), *([repr(read)] if read else [])]
            digest = texts[0] if len(texts) == 1 else _sha256(*texts)
            found.setdefault(name, set()).add(digest)
    # Several lambdas of a function have one name.
    return {
        name: digests.pop() if len(digests) == 1 else _sha256(*sorted(digests))
        for name, digests in found.items()
    }


def _code_in(value: Any, seen: dict[int, Any]) -> Iterator[Code]:
    """The classes and functions in a value, bases and what they read included.

    Args:
        value: any object.
        seen: what has been looked at, by its id; it is added to.
    """
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, tuple | list | set | frozenset):
        for entry in value:
            yield from _code_in(entry, seen)
    elif isinstance(value, FunctionType):
        if _is_generated(value):
            return
        yield value
        yield from _code_in(_code_read(value), seen)
    elif isinstance(value, type):
        for base in value.__mro__:
            yield base
            if is_own(base.__module__):
                yield from _code_in([_code_read(it) for it in _functions(base)], seen)
    elif isinstance(value, MethodType):
        yield from _code_in([value.__func__, value.__self__], seen)
    elif isinstance(value, Mapping):
        yield from _code_in(list(value.values()), seen)
    elif isinstance(value, partial):
        yield from _code_in([value.func, value.args, value.keywords], seen)
    # A compiled function.
    elif hasattr(value, "__wrapped__"):
        yield from _code_in(value.__wrapped__, seen)
    else:
        yield from _code_in(type(value), seen)
        if dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value)]
            yield from _code_in([getattr(value, it, None) for it in fields], seen)


def _functions(kind: type) -> list[FunctionType]:
    """The functions that a class defines, without those that `dataclass` makes."""
    own = [
        getattr(it, "__func__", getattr(it, "fget", it)) for it in vars(kind).values()
    ]
    functions = [it for it in own if isinstance(it, FunctionType)]
    return [it for it in functions if not _is_generated(it)]


def _is_generated(function: FunctionType) -> bool:
    return function.__code__.co_qualname.startswith("__create_fn__")


def _code_read(function: FunctionType) -> list[Any]:
    """The own functions and classes that a function reads, and what its closure holds."""
    file = Path(function.__code__.co_filename)
    if not is_own(str(function.__module__)) or is_installed(file):
        return []
    held = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            held.append(cell.cell_contents)
    named = [function.__globals__.get(name) for name in _names(function.__code__)]
    read = [it for it in named if isinstance(it, Code)]
    return [*held, *(it for it in read if is_own(str(it.__module__)))]


def _values_read(code: Code) -> dict[str, Any]:
    """The plain values of the module that own functions read, by name."""
    functions = [code] if isinstance(code, FunctionType) else _functions(code)
    found = {}
    for function in functions:
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            if isinstance(value, bool | int | float | str | tuple):
                found[name] = value
    return found


def _names(code: CodeType) -> Iterator[str]:
    """The names that code reads, those of functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# Once: a file that is edited during a run is not what is trained.
@cache
def _definition(code: Code) -> str:
    """SHA-256 of a class's or function's file, or of its own lines."""
    if code.__module__ != "__main__":
        with suppress(TypeError, OSError):
            return file_digest(Path(inspect.getfile(code)))
    if isinstance(code, FunctionType):
        return _sha256(_source(code))
    with suppress(TypeError, OSError):
        return _sha256(inspect.getsource(code))
    # A class of a notebook has no file, and its functions may have lines.
    return _sha256(*map(_source, _functions(code)))


def _source(function: FunctionType) -> str:
    """The lines of a function; of a lambda, without those around it."""
    try:
        lines = textwrap.dedent(inspect.getsource(function))
        if function.__name__ != "<lambda>":
            return lines
        parts = ast.walk(ast.parse(lines))
        return "".join(ast.dump(it) for it in parts if isinstance(it, ast.Lambda))
    except (OSError, SyntaxError):
        # It was typed in, or its lines are part of a statement.
        code = function.__code__
        constants = [it for it in code.co_consts if not isinstance(it, CodeType)]
        return f"{code.co_code.hex()} {code.co_names} {constants}"


def _sha256(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
