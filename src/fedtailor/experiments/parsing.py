"""Hyper-parameters and models from the plain values of a file."""

import dataclasses
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from fedtailor import models
from fedtailor.experiments.document import ConfigError, KeyPath
from fedtailor.models import Architecture
from fedtailor.protocol import (
    SGD,
    check_choice,
    is_hyperparameters,
    module_of,
    named_in_file,
    require,
)

T = TypeVar("T")

MOST_COMBINATIONS = 10_000
"""Each is a training.

More are a mistake, and would fill the memory before the first begins.
"""

NONE = "none"
"""How a file says None, for settings that may be None (TOML has no null)."""


class RefusedSettings(ConfigError):
    """Values of the right types that the method does not take, alone or together."""


def configure(value: T, settings: Mapping[str, Any], place: KeyPath = ()) -> T:
    """A method with some hyper-parameters set.

    Tables set those of its parts (`sgd = {lr = 0.1}`).

    Raises:
        ConfigError: there is no such hyper-parameter, it cannot be set in a file, or it
            is of another type.
        RefusedSettings: the method refuses the values.
    """
    hints = typing.get_type_hints(type(value), include_extras=True)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, value))]
    changes = {}
    for name, given in settings.items():
        here = (*place, name)
        check_choice_at(name, names, here, "hyper-parameter")
        old = getattr(value, name)
        if isinstance(given, Mapping):
            part = old if is_hyperparameters(old) else _part(hints[name], here)
            changes[name] = configure(part, given, here)
        else:
            changes[name] = coerce(given, hints[name], here)
    try:
        made = dataclasses.replace(typing.cast(Any, value), **changes)
        check_trains(made)
        return made
    except ValueError as error:
        # The error names the setting, as a rule.
        named = [name for name in settings if name in str(error)]
        raise RefusedSettings((*place, *named[:1]), str(error)) from None


def check_trains(part: Any, prefix: str = "") -> None:
    """Refuse local training that does nothing.

    In Python it is allowed, as the neutral element of the formulas.

    Raises:
        ValueError: with the setting's name, behind `prefix`.
    """
    if isinstance(part, SGD):
        name = "epochs" if part.steps is None else "steps"
        require(getattr(part, name) != 0, f"{prefix}{name} is 0; it must be 1 or more")


def coerce(given: Any, hint: Any, place: KeyPath) -> Any:
    """A value of a file as the type that an annotation asks for.

    Raises:
        ConfigError: it is of another type, or the type cannot be written in a file.
    """
    if given == NONE and type(None) in typing.get_args(hint):
        return None
    try:
        # As JSON: there lists may stand for tuples, strictly.
        text = json.dumps(given, default=str)
        return TypeAdapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        messages = dict.fromkeys(problem["msg"] for problem in error.errors())
        wanted = " or ".join(messages).lower()
        raise ConfigError(place, f"{place[-1]} is {given!r}; {wanted}") from None
    except PydanticSchemaGenerationError:
        raise ConfigError(
            place, f"{place[-1]} can be set in Python only, not in a file"
        ) from None


def architecture(
    given: str | Mapping[str, Any], place: KeyPath, *, own_files: bool = False
) -> Architecture:
    """A model of the zoo: its name, or a table `{use = "mlp", hidden = 128}`.

    Args:
        given: what the file says.
        place: where it says so.
        own_files: whether `use = "FILE.py:FUNCTION"`, a function that makes an
            architecture, may be given, too. Python files of experiments are the user's
            own; a job's would be somebody else's.

    Raises:
        ConfigError: there is no such model or argument, or a value has the wrong type.
    """
    arguments = {"use": given} if isinstance(given, str) else dict(given)
    name = arguments.pop("use", None)
    known = models.builders()
    if name is None:
        raise ConfigError(place, f"{place[-1]} needs a name: use = {' | '.join(known)}")
    own = named_in_file(name) if own_files and isinstance(name, str) else None
    if own is None:
        check_choice_at(name, list(known), place, "model")
    build = known[name] if own is None else _own_function(*own, place)
    hints = typing.get_type_hints(build)
    names = list(inspect.signature(build).parameters)
    for key in arguments:
        check_choice_at(key, names, (*place, key), f"argument of {name}")
    coerced = {
        key: coerce(value, hints.get(key, Any), (*place, key))
        for key, value in arguments.items()
    }
    try:
        built = build(**coerced)
    except (TypeError, ValueError) as error:
        raise ConfigError(place, str(error)) from None
    except Exception as error:
        if own is None:
            raise
        raise ConfigError(
            place, f"{name} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(built, Architecture):
        raise ConfigError(
            place,
            f"{name} gives {built!r}; it must give an architecture, such as"
            " from_torch(...)",
        )
    return built


def _own_function(path: Path, name: str, place: KeyPath) -> Callable[..., Any]:
    """A function of a Python file."""
    try:
        function = getattr(module_of(path), name, None)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None
    if not callable(function):
        raise ConfigError(place, f"{path} has no function {name!r}")
    return function


def combinations(lists: Mapping[str, Any], place: KeyPath) -> list[dict[str, Any]]:
    """Every combination of the values in a table of lists, as nested dicts.

    Nested tables are for nested settings.

    Raises:
        ConfigError: a value is no list, or an empty one; or there are more than anybody
            trains.
    """
    flat = list(_leaves(lists, place))
    count = math.prod(len(values) for _, values in flat)
    if count > MOST_COMBINATIONS:
        advice = f"at most {MOST_COMBINATIONS:,} are possible: shorten its lists"
        raise ConfigError(place, f"{place[-1]} has {count:,} combinations; {advice}")
    paths = [path for path, _ in flat]
    every = product(*(values for _, values in flat))
    return [_nested(zip(paths, values, strict=True)) for values in every]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def check_choice_at(name: str, names: Sequence[str], place: KeyPath, what: str) -> None:
    """Refuse a name that is not one of `names`.

    Raises:
        ConfigError: with the nearest name, or all that are allowed.
    """
    try:
        check_choice(name, names, what)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None


def _part(hint: Any, place: KeyPath) -> Any:
    """A new instance of the method that an annotation such as `SGD | None` names."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint)
    for kind in typing.get_args(hint) if is_union else (hint,):
        if isinstance(kind, type) and getattr(kind, "__is_hyperparameters__", False):
            return kind()
    raise ConfigError(place, f"{place[-1]} is no table; give it a value")


def _leaves(
    lists: Mapping[str, Any], place: KeyPath
) -> Iterable[tuple[KeyPath, list[Any]]]:
    """The lists of a table with the keys on the way to each."""
    for name, values in lists.items():
        if isinstance(values, Mapping):
            for path, inner in _leaves(values, (*place, name)):
                yield (name, *path), inner
        elif isinstance(values, list) and values:
            yield (name,), values
        else:
            raise ConfigError(
                (*place, name),
                f"{name} is {values!r}; it must be a list of values, such as [0.1,"
                " 1.0]",
            )


def _nested(settings: Iterable[tuple[KeyPath, Any]]) -> dict[str, Any]:
    """Settings by the keys on the way to them, as nested dicts."""
    tree: dict[str, Any] = {}
    for path, value in settings:
        table = tree
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return tree
