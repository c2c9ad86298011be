"""Models in files: of a run's manifest, an exported model, and what people write."""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.entry_points import load_offered, module_of, named_in_file
from fedtailor.models.architecture import Architecture
from fedtailor.models.frozen_arrays import FrozenArrays, start_file
from fedtailor.models.frozen_network import frozen
from fedtailor.models.low_rank import lora
from fedtailor.models.model import Model
from fedtailor.models.precision import (
    FileDType,
    dtype_from_plain,
    dtype_of,
    plain_dtype,
)
from fedtailor.models.registry import ENTRY_POINTS, builders, find_builder
from fedtailor.models.tasks import loss_of, plain_loss
from fedtailor.protocol.plain import (
    ConfigError,
    KeyPath,
    check_choice_at,
    from_plain,
    parse,
    to_plain,
)

PRECISION = "precision"
"""The argument that each model has in a file: the type of its numbers."""


def plain_model(model: Model) -> dict[str, Any]:
    """Describe a model by a JSON object, which `model_from_plain` reads."""
    fields = to_plain(model.architecture)
    return {
        "architecture": fields.pop("type", type(model.architecture).__name__),
        "fields": fields,
        "input_shape": list(model.input_shape),
        "outputs": model.outputs,
        "loss": plain_loss(model.loss),
        "classification": model.classification,
        "dtype": plain_dtype(model.dtype),
    }


def model_from_plain(
    plain: Mapping[str, Any],
    given: Model | Architecture | None = None,
    held: Iterable[FrozenArrays] = (),
) -> Model:
    """Build the model that `plain_model`, or the manifest of a run, describes.

    Args:
        plain: the description.
        given: the model, or its network, if only the user's code knows how to make it.
        held: the arrays of the network that a file next to the description has
            (`Architecture.held`).

    Raises:
        ValueError: the network or the loss is one that only the user's code knows.
    """
    if isinstance(given, Model):
        return given
    network = _network(plain["architecture"], plain.get("fields"))
    known = {repr(arrays): arrays for arrays in held}
    return (_read(network, known) if given is None else given).bind(
        tuple(plain["input_shape"]),
        plain["outputs"],
        loss=loss_of(plain["loss"]),
        dtype=dtype_from_plain(plain["dtype"]),
    )


def _read(network: Any, known: Mapping[str, FrozenArrays]) -> Architecture:
    """The network of a table.

    Args:
        network: the table.
        known: the arrays that texts in it stand for.
    """
    name = network.get("type") if isinstance(network, Mapping) else network
    if isinstance(network, Mapping):
        for is_loaded in (False, True):
            if is_loaded:
                load_offered(ENTRY_POINTS, find_builder)
            try:
                return from_plain(Architecture, network, known=known)
            except ConfigError:
                continue
    raise ValueError(f"the network {name!r} is one that only your code knows")


def _network(name: Any, fields: Any) -> Any:
    """The table of a network, which exports write as the name of its class and fields."""
    if not isinstance(fields, Mapping):
        return name
    table: dict[str, Any] = {"type": name}
    for key, value in fields.items():
        if isinstance(value, Mapping) and "architecture" in value:
            value = _network(value["architecture"], value.get("fields"))
        table[key] = value
    return table


def architecture_of(
    value: str | Mapping[str, Any], place: KeyPath, *, own_files: bool = False
) -> Architecture:
    """Build the architecture that a file of a person describes.

    Args:
        value: the name of a model, or a table such as `{use = "mlp", hidden = 128}`. Each
            model has the argument `precision`.
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
        names = " | ".join(builders())
        raise ConfigError(place, f"{place[-1]} needs a name: use = {names}")
    in_file = named_in_file(name) if own_files and isinstance(name, str) else None
    try:
        build = _load_function(*in_file) if in_file else find_builder(name)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None
    hints = typing.get_type_hints(build)
    names = list(inspect.signature(build).parameters)
    precision = None
    if PRECISION in arguments and PRECISION not in names:
        key_path = (*place, PRECISION)
        precision = parse(FileDType, arguments.pop(PRECISION), key_path)
    wrapping = {
        key: arguments.pop(key)
        for key in _WRAPPING
        if key in arguments and key not in names
    }
    names.append(PRECISION)
    for key in arguments:
        check_choice_at(key, names, (*place, key), f"argument of {name}")
    parsed = {
        key: parse(hints.get(key, Any), value, (*place, key))
        for key, value in arguments.items()
    }
    try:
        result = build(**parsed)
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
    if wrapping:
        result = _wrapped(result, wrapping, place)
    return result if precision is None else result.in_precision(dtype_of(precision))


_WRAPPING: dict[str, Any] = {
    "frozen": str,
    "lora": int,
    "where": str,
    "alpha": float,
    "train": str,
    "freeze_a": bool,
    "local_rank": int,
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
        key: parse(_WRAPPING[key], value, (*place, key)) for key, value in keys.items()
    }
    kinds = [kind for kind in ("frozen", "lora") if kind in values]
    if len(kinds) != 1:
        raise ConfigError(
            place,
            f"{', '.join(keys)}: a network has frozen arrays (frozen = a part) or"
            " adapters (lora = a rank); name one of the two",
        )
    (kind,) = kinds
    digest = values.pop("start_digest", None)
    try:
        if "start" in values:
            values["start"] = start_file(values["start"], digest)
        if kind == "lora":
            return lora(model, values.pop("lora"), **values)
        unfit = sorted(set(values) - {"frozen", "start"})
        if unfit:
            raise ValueError(f"{unfit[0]} is a key of lora")
        return frozen(model, values["frozen"], start=values.get("start"))
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
