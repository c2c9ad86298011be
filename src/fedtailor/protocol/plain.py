"""The one notation of values in files: dataclasses as tables of plain values, and back.

`to_plain` makes the table of a value, and `from_plain` reads it: of runs, methods,
transforms and models, in manifests and exports. `to_json` and `parse` do so for JSON files
of one known type, such as the index of a comparison. `configured` changes what a table written
by a person names: hyper-parameters in experiments and jobs. `parse` checks a plain value
against a type, such as the type of one of these fields, or that of all tables of a file.

All of them say what is wrong in one line, as a `ConfigError` with the path of the key.
"""

import dataclasses
import functools
import hashlib
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from fedtailor._base.choice import check_choice
from fedtailor._base.entry_points import offered
from fedtailor._base.printable import name_of
from fedtailor.protocol.algorithm import Algorithm
from fedtailor.protocol.hyperparameters import is_hyperparameters, require
from fedtailor.protocol.sgd import SGD

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

KeyPath = tuple[str, ...]
"""The keys of nested tables that lead to a value."""

NONE = "none"
"""The word for None in a file that people write, as TOML has no null."""


class ConfigError(ValueError):
    """An error in the value at `place`."""

    def __init__(self, place: Sequence[Any], message: str) -> None:
        self.place = tuple(map(str, place))
        super().__init__(message)


class RefusedSettings(ConfigError):
    """The method refuses values of the right types, or their combination."""


# from values to tables
# --------------------------------------------------------------------------------------


def to_plain(value: Any, *, closures: bool = False) -> Any:
    """Convert a dataclass, recursively, to a table of TOML values.

    Its class is an entry of the table: `name` for a method, else `type`; it has none if
    the class sets `has_plain_type` to False. Arrays are represented by their digests, and
    functions by their names, from which they cannot be read again. Values that are None
    are left out, as TOML has no null.

    Args:
        value: the dataclass.
        closures: whether to represent functions by the values that they hold, too (the
            learning rate in an optimizer).
    """
    convert = functools.partial(to_plain, closures=closures)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        table: dict[str, Any] = _class_entry(value)
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if part is not None:
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
    return name_of(value)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to a dict by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _class_entry(value: Any) -> dict[str, str]:
    """The entry of a table that says the class of its value."""
    type_name = type(value).__name__
    if isinstance(value, Algorithm):
        has_name = hasattr(value, "about")
        return {"name": value.about.name if has_name else type_name.lower()}
    return {"type": type_name} if getattr(value, "has_plain_type", True) else {}


def _with_held_values(value: Any) -> Any:
    """The name of a function, and the values that it holds in its closure, its defaults
    or, for a `partial`, its arguments.
    """
    if isinstance(value, functools.partial):
        arguments = [*value.args, *sorted(value.keywords.items())]
        return to_plain([value.func, *arguments], closures=True)
    if isinstance(value, Mapping):
        return to_plain(sorted(value.items(), key=repr), closures=True)
    name = name_of(value)
    held = [*(getattr(value, "__defaults__", None) or ())]
    for cell in getattr(value, "__closure__", None) or ():
        # A function may hold itself.
        if cell.cell_contents is not value:
            held.append(cell.cell_contents)
    return [name, *to_plain(held, closures=True)] if held else name


# from tables to values
# --------------------------------------------------------------------------------------


def from_plain(
    base: type[T],
    table: Mapping[str, Any],
    place: KeyPath = (),
    *,
    known: Mapping[str, Any] = types.MappingProxyType({}),
) -> T:
    """Make the value of a table; the inverse of `to_plain`.

    Args:
        base: the class of the value, or a base of it, if the table says which.
        table: what `to_plain` returned.
        place: key path of the table, for errors.
        known: values by the texts that stand for them in the table, as they lie elsewhere,
            such as arrays in a file next to it.

    Raises:
        ConfigError: the class is not known here, an entry is unknown, missing or not
            valid, or stands for what only the user's code knows.
    """
    kind = class_of(base, table, place)
    annotations = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cast(Any, kind))}
    names = list(fields)
    for key in table:
        if key not in (*names, "type", "name"):
            raise ConfigError((*place, key), f"{key} is not known to this version")
    values = {}
    for name in names:
        # Tables leave out what is None.
        may_be_none = type(None) in typing.get_args(annotations[name])
        if name in table or may_be_none or fields[name].default is None:
            values[name] = _read(
                table.get(name), annotations[name], (*place, name), known
            )
        else:
            raise ConfigError(place, f"{name} is missing")
    try:
        value = kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(place, str(error)) from None
    for key, plain in to_plain(value).items():
        is_class = key in ("type", "name") and key not in table
        if table.get(key) != plain and not is_class:
            raise ConfigError((*place, key), f"{key} is what only your code knows")
    return cast(T, value)


def class_of(base: type[Any], table: Mapping[str, Any], place: KeyPath) -> type[Any]:
    """The class of a table's value: `base`, or the subclass that the table names.

    Raises:
        ConfigError: there is no such class here.
    """
    type_name, method = table.get("type"), None
    if issubclass(base, Algorithm):
        method = table.get("name")
    if type_name is None and method is None:
        return base
    known = Algorithm.registry.get(str(method))
    if known is None and method is not None:
        # Importing the method of an installed package registers it.
        offered("fedtailor.algorithms", str(method), "algorithm", Algorithm)
        known = Algorithm.registry.get(str(method))
    if known is not None and issubclass(known, base):
        return known
    # A schedule is not registered; its name is its class in lower case.
    for kind in subclasses(base):
        if type_name == kind.__name__ or method == kind.__name__.lower():
            return kind
    raise ConfigError(place, f"there is no {type_name or method!r} installed here")


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """A class and all its subclasses, direct and indirect."""
    yield kind
    for inner in kind.__subclasses__():
        yield from subclasses(inner)


def _read(plain: Any, annotation: Any, place: KeyPath, known: Mapping[str, Any]) -> Any:
    """Make the value of a field from its entry in a table."""
    if plain is None:
        return None
    if isinstance(plain, str) and plain in known:
        return known[plain]
    bases = [
        kind for kind in _classes(annotation) if kind not in (str, int, float, bool)
    ]
    if isinstance(plain, Mapping) and bases:
        for base in bases:
            try:
                class_of(base, plain, place)
            except ConfigError:
                continue
            return from_plain(base, plain, place, known=known)
        return from_plain(bases[0], plain, place, known=known)
    if isinstance(plain, list) and any(isinstance(part, Mapping) for part in plain):
        parts = [
            _read(part, annotation, (*place, str(number)), known)
            for number, part in enumerate(plain)
        ]
        return tuple(parts)
    return parse(annotation, plain, place)


def _classes(annotation: Any) -> Iterator[type[Any]]:
    """The classes in an annotation, such as those of a union."""
    if isinstance(annotation, type):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _classes(inner)


# what people write
# --------------------------------------------------------------------------------------


def configured(value: T, changes: Mapping[str, Any], place: KeyPath = ()) -> T:
    """Set hyper-parameters of a method, or of a part of it.

    Args:
        value: the method.
        changes: values by name. A table sets hyper-parameters of a part of the method,
            as in `sgd = {lr = 0.1}`.
        place: key path of the changes, for errors.

    Raises:
        ConfigError: a hyper-parameter does not exist, cannot be set in a file, or has
            another type.
        RefusedSettings: the method refuses the values.
    """
    hints = typing.get_type_hints(type(value), include_extras=True)
    names = [field.name for field in dataclasses.fields(cast(Any, value))]
    changed = {}
    for name, plain in changes.items():
        key_path = (*place, name)
        check_choice_at(name, names, key_path, "hyper-parameter")
        old = getattr(value, name)
        if isinstance(plain, Mapping):
            part = old if is_hyperparameters(old) else _new_part(hints[name], key_path)
            changed[name] = configured(part, plain, key_path)
        else:
            changed[name] = parse(hints[name], plain, key_path)
    try:
        result = dataclasses.replace(cast(Any, value), **changed)
        check_trains(result)
        return result
    except ValueError as error:
        # Most messages contain the name of the setting.
        mentioned = [name for name in changes if name in str(error)]
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


def _new_part(annotation: Any, place: KeyPath) -> Any:
    """A default instance of the class in an annotation such as `SGD | None`."""
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation)
    for cls in typing.get_args(annotation) if is_union else (annotation,):
        if isinstance(cls, type) and getattr(cls, "__is_hyperparameters__", False):
            return cls()
    raise ConfigError(place, f"{place[-1]} is not a table; give it a value")


def check_choice_at(name: str, names: Sequence[str], place: KeyPath, what: str) -> None:
    """Require that a name is one of `names`.

    Raises:
        ConfigError: it is not. The message suggests a similar name, or lists all names.
    """
    try:
        check_choice(name, names, what)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None


# one value of a type
# --------------------------------------------------------------------------------------


def to_json(value: Any, leaf: Callable[[Any], Any] = lambda value: value) -> Any:
    """Convert a dataclass of plain values, recursively, to what `parse` reads: the
    content of a JSON file, in which None is null.

    Args:
        value: the dataclass, or a mapping or sequence of such values.
        leaf: converts what is neither.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value), include_extras=True)
        return {
            _key_in_files(field.name, hints[field.name]): to_json(
                getattr(value, field.name), leaf
            )
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: to_json(part, leaf) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part, leaf) for part in value]
    return leaf(value)


def _key_in_files(name: str, annotation: Any) -> str:
    """The key of a field: its name, or the alias that its annotation has."""
    aliases = [
        getattr(note, "alias", None) for note in getattr(annotation, "__metadata__", ())
    ]
    return next((alias for alias in aliases if alias is not None), name)


def parse(
    annotation: Any,
    plain: Any,
    place: KeyPath = (),
    *,
    what: str = "key",
    also: Sequence[str] = (),
) -> Any:
    """Convert a plain value to a type; values of another type are refused.

    Args:
        annotation: the type. Of a table it is a dataclass or a model of pydantic.
        plain: the value.
        place: its key path, for errors.
        what: what the keys of the table name, for errors.
        also: keys that are allowed in the table and read elsewhere, for suggestions.

    Raises:
        ConfigError: the value has another type, or the type cannot be used in a file. Of
            several faults, the message names the first that a person should correct.
    """
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    if plain == NONE and type(None) in typing.get_args(annotation):
        return None
    # In strict mode, pydantic accepts a list for a tuple only in JSON. Dates, which only
    # TOML has, become strings.
    text = json.dumps(plain, default=str)
    try:
        return TypeAdapter(annotation).validate_json(text, strict=True)
    except ValidationError as error:
        raise _explained(error, annotation, plain, place, what, also) from None
    except PydanticSchemaGenerationError:
        raise ConfigError(
            place, f"{place[-1]} can be set in Python only, not in a file"
        ) from None


def _explained(
    error: "ValidationError",
    annotation: Any,
    plain: Any,
    place: KeyPath,
    what: str,
    also: Sequence[str],
) -> ConfigError:
    """The first problem that a person should correct; arguments as of `parse`."""
    problems = error.errors(include_url=False)
    # A misspelt key gives two problems: unknown, and missing. The message names the unknown key.
    unknown = [
        problem
        for problem in problems
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    ]
    first = (unknown or problems)[0]
    path, value = _path_in(plain, first["loc"])
    here = (*place, *path)
    if unknown:
        names = [*_names_of(annotation), *also]
        try:
            check_choice_at(here[-1], names, here, what)
        except ConfigError as refused:
            return refused
    table = f" in [{here[-1]}]" if here else ""
    if first["type"] in ("missing", "missing_argument"):
        return ConfigError(here, f"{first['loc'][-1]} is missing{table}")
    same_place = [
        problem for problem in problems if _path_in(plain, problem["loc"])[0] == path
    ]
    messages = dict.fromkeys(_message(problem["msg"]) for problem in same_place)
    expected = " or ".join(messages)
    if first["loc"][-1:] == ("[key]",):
        place_text = ".".join(here[:-1])
        return ConfigError(here, f"{place_text} has the key {here[-1]!r}; {expected}")
    if isinstance(value, Mapping) and first["type"] == "value_error":
        # A check of the whole table; most messages contain the name of a setting.
        mentioned = [name for name in value if name in expected]
        return ConfigError((*here, *mentioned[:1]), expected)
    name = here[-1] if here else "it"
    return ConfigError(here, f"{name} is {value!r}; {expected}")


_WORDS = {
    "a valid array": "a list",
    "a valid tuple": "a list",
    "a valid dictionary": "a table",
    "an object": "a table",
    "a valid string": "a text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
}
"""What pydantic calls the kinds of values -> what files of settings call them."""


def _message(text: str) -> str:
    """A message of pydantic or of a check of ours, as the end of a line."""
    text = text.removeprefix("Value error, ")
    text = re.sub("^Input should be ", "it must be ", text)
    for theirs, ours in _WORDS.items():
        text = text.replace(f"it must be {theirs}", f"it must be {ours}")
    return text[:1].lower() + text[1:]


def _path_in(plain: Any, location: Sequence[int | str]) -> tuple[KeyPath, Any]:
    """The key path of a problem's location, and the value there.

    Parts of a location that name an alternative of a union are not keys. A plain value
    in a list is named together with the list.
    """
    path: list[str] = []
    value: Any = plain
    for part in location:
        inner: Any = None
        is_key = isinstance(value, Mapping) and part in value
        if is_key or (isinstance(value, list) and isinstance(part, int)):
            inner = cast(Any, value)[part]
        if is_key or isinstance(inner, Mapping):
            path.append(str(part))
            value = inner
    return tuple(path), value


def _names_of(kind: Any) -> list[str]:
    """The keys of a table that has this type."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(getattr(kind, "model_fields", ()))
