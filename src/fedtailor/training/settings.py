"""The settings of a run as plain values, and the seed of a private run, which holds them."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtailor.models import Model
from fedtailor.protocol import Algorithm
from fedtailor.training.participation import Participation

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where an object lies in memory, in its `repr`: it differs from process to process."""


def settings(value: Any, *, closures: bool = False) -> Any:
    """Convert a dataclass, recursively, to a dict of TOML values.

    Arrays are represented by their digests, and functions by their names. Values that
    are None are left out, as TOML has no null.

    Args:
        value: the dataclass.
        closures: whether to represent functions by the values that they hold, too (the
            learning rate in an optimizer).
    """
    convert = functools.partial(settings, closures=closures)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        table: dict[str, Any] = _type_entry(value)
        later = later_fields(type(value))
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            is_new = field.name in later and part == field.default
            if part is not None and not is_new:
                table[field.name] = convert(part)
        return table
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [convert(part) for part in value if part is not None]
    if hasattr(value, "dtype"):
        sha256 = hashlib.sha256(np.ascontiguousarray(value).tobytes())
        return f"array {sha256.hexdigest()[:16]}"
    if closures:
        return _with_held_values(value)
    return getattr(value, "__qualname__", repr(value))


def later_fields(kind: type[Any]) -> tuple[str, ...]:
    """The names of fields that a class got after runs with it had been kept.

    A class lists them as `later_fields`. Settings hold them only if they differ from
    their defaults, so that older runs can be opened, and are not trained again.
    """
    return getattr(kind, "later_fields", ())


def _type_entry(value: Any) -> dict[str, str]:
    """An entry with a dataclass's type, or with the name of a method."""
    type_name = type(value).__name__
    if isinstance(value, Algorithm):
        has_name = hasattr(value, "about")
        return {"name": value.about.name if has_name else type_name.lower()}
    # A run has a single participation and model, which need no type.
    if isinstance(value, Participation | Model):
        return {}
    return {"type": type_name}


def _with_held_values(value: Any) -> Any:
    """The name of a function, and the values that it holds in its closure, its defaults
    or, for a `partial`, its arguments.
    """
    if isinstance(value, functools.partial):
        arguments = [*value.args, *sorted(value.keywords.items())]
        return settings([value.func, *arguments], closures=True)
    if isinstance(value, Mapping):
        return settings(sorted(value.items(), key=repr), closures=True)
    name = getattr(value, "__qualname__", _ADDRESS.sub("", repr(value)))
    held = [*(getattr(value, "__defaults__", None) or ())]
    for cell in getattr(value, "__closure__", None) or ():
        # A function may hold itself.
        if cell.cell_contents is not value:
            held.append(cell.cell_contents)
    return [name, *settings(held, closures=True)] if held else name


def private_seed(seed: int, what: Mapping[str, Any], data: str) -> int:
    """The seed of all that a private run draws: noise, batches, and who reports.

    Two releases with the same noise differ by what it was to hide, and noise of two
    strengths is found from both. So a private run draws from a seed that holds all that
    its releases depend on. Runs that differ in anything draw independently, and their
    privacy losses add up; equal runs draw, and release, the same.

    Args:
        seed: the run's seed.
        what: the settings, by name: dataclasses, sequences and plain values.
        data: a digest of the clients' examples.

    Returns:
        A seed of 64 bits.
    """
    content = {name: settings(value, closures=True) for name, value in what.items()}
    text = json.dumps([seed, data, content], sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
