"""What fails inside a network of the user's own, in one line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from fedtailor._base.own_code import is_own

_MODULES = ("equinox", "flax.linen")
"""Where the base classes of modules are defined."""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an error of the network's code into one line: what fails, in which module and
    line, and why.

    Args:
        what: of the network, such as "fails on inputs of shape (8, 8)".

    Raises:
        ValueError: any error in the block. Those that fedtailor itself words, and what the
            machine lacks, stay as they are.
    """
    try:
        yield
    except (MemoryError, RecursionError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, ValueError) and _package(frames[-1]) == "fedtailor":
            raise
        reason = str(error).strip().partition("\n")[0]
        if not isinstance(error, TypeError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        parts = [f"the network {what}", *_module(frames), *_line(error), reason]
        raise ValueError(": ".join(parts)) from error


def _module(frames: list[FrameType]) -> list[str]:
    """The innermost Equinox or Flax module that was called, and what it was given."""
    for frame in reversed(frames):
        module: Any = frame.f_locals.get("self")
        bases = [base.__module__ for base in type(module).__mro__]
        if not any(base.startswith(_MODULES) for base in bases):
            continue
        takes = [
            f"{name} {getattr(module, name)}"
            for name in ("in_features", "in_channels")
            if hasattr(module, name)
        ]
        title = type(module).__name__ + (f" ({takes[0]})" if takes else "")
        for name in ("x", "inputs"):
            given = getattr(frame.f_locals.get(name), "shape", None)
            if given is not None:
                return [f"{title} was given shape {tuple(given)}"]
        return [title]
    return []


def _line(error: Exception) -> list[str]:
    """The last line of the user's own code that an error came through."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if is_own(_package(frame)):
            return [f"{Path(frame.f_code.co_filename).name}, line {line}"]
    return []


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
