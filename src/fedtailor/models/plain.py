"""Models in files: an exported model, and the model of a run's manifest."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from fedtailor.models.architecture import Architecture
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.model import Model
from fedtailor.models.precision import dtype_from_plain, plain_dtype
from fedtailor.models.registry import ENTRY_POINTS, find_builder
from fedtailor.protocol import load_offered
from fedtailor.tasks import loss_of, plain_loss


def plain_model(model: Model) -> dict[str, Any]:
    """Describe a model by a JSON object, which `model_from_plain` reads."""
    return {
        "architecture": type(model.architecture).__name__,
        "fields": _fields(model.architecture),
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
        held: the arrays of the network that a file beside the description has
            (`Architecture.held`).

    Raises:
        ValueError: the network or the loss is one that only the user's code knows.
    """
    if isinstance(given, Model):
        return given
    known = {repr(arrays): arrays for arrays in held}
    architecture = _architecture(plain, known) if given is None else given
    return architecture.bind(
        tuple(plain["input_shape"]),
        plain["outputs"],
        loss=loss_of(plain["loss"]),
        dtype=dtype_from_plain(plain["dtype"]),
    )


def _architecture(
    plain: Mapping[str, Any], known: Mapping[str, FrozenArrays]
) -> Architecture:
    """The network of a description, in the notation of exports or of manifests.

    Args:
        plain: the description.
        known: the arrays that texts in it stand for.
    """
    name, fields = plain["architecture"], plain.get("fields")
    if isinstance(name, Mapping):
        fields = {key: value for key, value in name.items() if key != "type"}
        name = name.get("type")
    kind = _kind(name)
    if kind is not None and isinstance(fields, Mapping):
        values = {key: _value(value, known) for key, value in fields.items()}
        try:
            architecture = kind(**values)
        except (TypeError, ValueError):
            architecture = None
        if architecture is not None and _is_read(architecture, values):
            return architecture
    raise ValueError(f"the network {name!r} is one that only your code knows")


def _kind(name: Any) -> Any:
    """The class of networks of that name; None if there is none."""
    for is_loaded in (False, True):
        if is_loaded:
            load_offered(ENTRY_POINTS, find_builder)
        for kind in _subclasses(Architecture):
            if kind.__name__ == name:
                return kind
    return None


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _subclasses(inner)


def _fields(architecture: Architecture) -> dict[str, Any]:
    """The fields of a network, with texts in place of what JSON does not have."""
    values = {}
    for field in dataclasses.fields(cast(Any, architecture)):
        value = getattr(architecture, field.name)
        if isinstance(value, Architecture):
            value = {"architecture": type(value).__name__, "fields": _fields(value)}
            values[field.name] = value
        else:
            values[field.name] = value if _is_plain(value) else repr(value)
    return values


def _is_read(architecture: Architecture, read: Mapping[str, Any]) -> bool:
    """Whether a network has the fields that were read, and no texts in place of
    functions and modules, which stand in files by their names.
    """
    hints = typing.get_type_hints(type(architecture))
    for name, value in _fields(architecture).items():
        # A network within another one was checked when it was made.
        if isinstance(read.get(name), Architecture | FrozenArrays):
            continue
        # Manifests leave out None.
        if read.get(name) != value:
            return False
        if isinstance(value, str) and not _takes_text(hints[name]):
            return False
    return True


def _takes_text(hint: Any) -> bool:
    """Whether a value of a type may be a text."""
    if hint is str or typing.get_origin(hint) is typing.Literal:
        return True
    return any(_takes_text(inner) for inner in typing.get_args(hint))


def _value(value: Any, known: Mapping[str, FrozenArrays]) -> Any:
    """A field of a network as it was: a network within it, its frozen arrays, or tuples
    in place of lists.
    """
    if isinstance(value, Mapping):
        is_export = "architecture" in value
        return _architecture(value if is_export else {"architecture": value}, known)
    if isinstance(value, str) and value in known:
        return known[value]
    return _tuple(value)


def _tuple(value: Any) -> Any:
    """A value of a file, with tuples in place of lists."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _is_plain(value: Any) -> bool:
    """Whether JSON can represent a value, except that tuples become lists."""
    if isinstance(value, tuple | list):
        return all(_is_plain(entry) for entry in value)
    return value is None or isinstance(value, bool | int | float | str)
