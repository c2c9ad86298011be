"""Build hyper-parameters and models from the values of a file."""

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

MAX_COMBINATIONS = 10_000
"""The largest number of combinations of a grid. Each of them is a run."""

NONE = "none"
"""The word for None in a file, as TOML has no null."""


class RefusedSettings(ConfigError):
    """The method refuses values of the right types, or their combination."""


def configure(value: T, settings: Mapping[str, Any], place: KeyPath = ()) -> T:
    """Set hyper-parameters of a method, or of a part of it.

    Args:
        value: the method.
        settings: values by name. A table sets hyper-parameters of a part of the method,
            as in `sgd = {lr = 0.1}`.
        place: key path of the settings, for errors.

    Raises:
        ConfigError: a hyper-parameter does not exist, cannot be set in a file, or has
            another type.
        RefusedSettings: the method refuses the values.
    """
    hints = typing.get_type_hints(type(value), include_extras=True)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, value))]
    changes = {}
    for name, setting in settings.items():
        key_path = (*place, name)
        check_choice_at(name, names, key_path, "hyper-parameter")
        old = getattr(value, name)
        if isinstance(setting, Mapping):
            part = old if is_hyperparameters(old) else _new_part(hints[name], key_path)
            changes[name] = configure(part, setting, key_path)
        else:
            changes[name] = coerce(setting, hints[name], key_path)
    try:
        configured = dataclasses.replace(typing.cast(Any, value), **changes)
        check_trains(configured)
        return configured
    except ValueError as error:
        # Most messages contain the name of the setting.
        mentioned = [name for name in settings if name in str(error)]
        raise RefusedSettings((*place, *mentioned[:1]), str(error)) from None


def check_trains(part: Any, prefix: str = "") -> None:
    """Refuse SGD with 0 steps, which is only useful in Python.

    Raises:
        ValueError: the number of steps or epochs is 0. The message has `prefix` before
            the name of the setting.
    """
    if isinstance(part, SGD):
        name = "epochs" if part.steps is None else "steps"
        require(getattr(part, name) != 0, f"{prefix}{name} is 0; it must be 1 or more")


def coerce(value: Any, annotation: Any, place: KeyPath) -> Any:
    """Convert a value of a file to the type of an annotation.

    Raises:
        ConfigError: the value has another type, or the type cannot be used in a file.
    """
    if value == NONE and type(None) in typing.get_args(annotation):
        return None
    try:
        # In strict mode, pydantic accepts a list for a tuple only in JSON.
        text = json.dumps(value, default=str)
        return TypeAdapter(annotation).validate_json(text, strict=True)
    except ValidationError as error:
        messages = dict.fromkeys(problem["msg"] for problem in error.errors())
        expected = " or ".join(messages).lower()
        raise ConfigError(place, f"{place[-1]} is {value!r}; {expected}") from None
    except PydanticSchemaGenerationError:
        raise ConfigError(
            place, f"{place[-1]} can be set in Python only, not in a file"
        ) from None


def architecture(
    value: str | Mapping[str, Any], place: KeyPath, *, own_files: bool = False
) -> Architecture:
    """Build the architecture that a file describes.

    Args:
        value: the name of a model, or a table such as `{use = "mlp", hidden = 128}`.
        place: key path of the setting, for errors.
        own_files: also accept `use = "FILE.py:FUNCTION"`, a function that returns an
            architecture. It runs the user's code, so it must be False for files of
            other people, such as jobs.

    Raises:
        ConfigError: the model or an argument does not exist, or a value has another
            type.
    """
    arguments = {"use": value} if isinstance(value, str) else dict(value)
    name = arguments.pop("use", None)
    if name is None:
        names = " | ".join(models.builders())
        raise ConfigError(place, f"{place[-1]} needs a name: use = {names}")
    in_file = named_in_file(name) if own_files and isinstance(name, str) else None
    try:
        build = _load_function(*in_file) if in_file else models.find_builder(name)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None
    hints = typing.get_type_hints(build)
    names = list(inspect.signature(build).parameters)
    wrapping = {
        key: arguments.pop(key)
        for key in _WRAPPING
        if key in arguments and key not in names
    }
    for key in arguments:
        check_choice_at(key, names, (*place, key), f"argument of {name}")
    coerced = {
        key: coerce(value, hints.get(key, Any), (*place, key))
        for key, value in arguments.items()
    }
    try:
        result = build(**coerced)
    except (TypeError, ValueError) as error:
        raise ConfigError(place, str(error)) from None
    except Exception as error:
        if in_file is None:
            raise
        raise ConfigError(
            place, f"{name} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(result, Architecture):
        raise ConfigError(
            place,
            f"{name} gives {result!r}; it must give an architecture, such as"
            " from_torch(...)",
        )
    return _wrapped(result, wrapping, place) if wrapping else result


_WRAPPING: dict[str, Any] = {
    "frozen": str,
    "lora": int,
    "where": str,
    "alpha": float,
    "train": str,
    "freeze_a": bool,
    "start": str,
    "start_digest": str,
}
"""Keys of a model that has frozen arrays or adapters, besides its own arguments."""


def _wrapped(
    model: Architecture, keys: Mapping[str, Any], place: KeyPath
) -> Architecture:
    """A network of a file with frozen arrays (`frozen = WHERE`) or with adapters
    (`lora = RANK`).

    Raises:
        ConfigError: a key is missing, of another type, or does not go with the others.
    """
    values = {
        key: coerce(value, _WRAPPING[key], (*place, key)) for key, value in keys.items()
    }
    kinds = [kind for kind in ("frozen", "lora") if kind in values]
    if len(kinds) != 1:
        raise ConfigError(
            place,
            f"{', '.join(keys)}: a network has frozen arrays (frozen = a part) or"
            " adapters (lora = a rank); name one of both",
        )
    (kind,) = kinds
    digest = values.pop("start_digest", None)
    try:
        if "start" in values:
            values["start"] = models.start_file(values["start"], digest)
        if kind == "lora":
            return models.lora(model, values.pop("lora"), **values)
        unfit = sorted(set(values) - {"frozen", "start"})
        if unfit:
            raise ValueError(f"{unfit[0]} is a key of lora")
        return models.frozen(model, values["frozen"], start=values.get("start"))
    except ValueError as error:
        raise ConfigError(place, str(error)) from None


def _load_function(path: Path, name: str) -> Callable[..., Any]:
    """Load a function of a Python file.

    Raises:
        ValueError: the file cannot be loaded, or has no such function.
    """
    function = getattr(module_of(path), name, None)
    require(callable(function), f"{path} has no function {name!r}")
    assert callable(function)
    return function


def combinations(lists: Mapping[str, Any], place: KeyPath) -> list[dict[str, Any]]:
    """All combinations of the values in a (nested) table of lists, as nested dicts.

    Raises:
        ConfigError: a value is not a list or is empty, or there are too many
            combinations.
    """
    flat = list(_leaves(lists, place))
    count = math.prod(len(values) for _, values in flat)
    if count > MAX_COMBINATIONS:
        advice = f"at most {MAX_COMBINATIONS:,} are possible: shorten its lists"
        raise ConfigError(place, f"{place[-1]} has {count:,} combinations; {advice}")
    paths = [path for path, _ in flat]
    products = product(*(values for _, values in flat))
    return [_nested(zip(paths, values, strict=True)) for values in products]


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to a dict by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def check_choice_at(name: str, names: Sequence[str], place: KeyPath, what: str) -> None:
    """Require that a name is one of `names`.

    Raises:
        ConfigError: it is not. The message suggests a similar name, or lists all names.
    """
    try:
        check_choice(name, names, what)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None


def _new_part(annotation: Any, place: KeyPath) -> Any:
    """A default instance of the class in an annotation such as `SGD | None`."""
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation)
    for cls in typing.get_args(annotation) if is_union else (annotation,):
        if isinstance(cls, type) and getattr(cls, "__is_hyperparameters__", False):
            return cls()
    raise ConfigError(place, f"{place[-1]} is no table; give it a value")


def _leaves(
    lists: Mapping[str, Any], place: KeyPath
) -> Iterable[tuple[KeyPath, list[Any]]]:
    """The lists in a nested table, with their key paths."""
    for name, values in lists.items():
        if isinstance(values, Mapping):
            for path, leaf in _leaves(values, (*place, name)):
                yield (name, *path), leaf
        elif isinstance(values, list) and values:
            yield (name,), values
        else:
            raise ConfigError(
                (*place, name),
                f"{name} is {values!r}; it must be a list of values, such as [0.1,"
                " 1.0]",
            )


def _nested(settings: Iterable[tuple[KeyPath, Any]]) -> dict[str, Any]:
    """Build nested dicts from values and their key paths."""
    tree: dict[str, Any] = {}
    for path, value in settings:
        table = tree
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return tree
