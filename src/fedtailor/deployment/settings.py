"""What a manifest says that was run, as objects again.

Method, model, pipelines and participation.
"""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from fedtailor import algorithms, pipelines
from fedtailor.experiments.parsing import coerce
from fedtailor.models import (
    Architecture,
    Model,
    cross_entropy,
    squared_error,
    token_cross_entropy,
    zoo,
)
from fedtailor.protocol import Algorithm, Pipeline, Transform, require
from fedtailor.storage.manifest import settings
from fedtailor.training import Participation

_LOSSES = (cross_entropy, squared_error, token_cross_entropy)
_KINDS = ("name", "type")
"""Keys by which a manifest tells apart dataclasses with the same fields."""

assert algorithms.__all__
assert pipelines.__all__  # importing them registers all methods and transforms

T = TypeVar("T")


def rebuilt_algorithm(described: Mapping[str, Any]) -> Algorithm:
    """The method of a manifest.

    Raises:
        ValueError: it is not installed, or was given what only Python code knows.
    """
    name = described.get("name")
    try:
        kind = _kind(Algorithm, described)
    except ValueError:
        raise ValueError(
            f"the run's method {name!r} is not one that is installed; pass"
            " algorithm=..."
        ) from None
    return _rebuilt(kind, described, f"the run's method {name!r}", "algorithm")


def rebuilt_pipeline(described: list[dict[str, Any]], name: str) -> Pipeline:
    """The transforms of a manifest's `uplink` or `downlink`."""
    return tuple(
        _rebuilt(_kind(Transform, one), one, f"a transform of the run's {name}", name)
        for one in described
    )


def rebuilt_participation(described: Mapping[str, Any]) -> Participation:
    """Who reported in a round."""
    return Participation(**described)


def rebuilt_model(described: Mapping[str, Any]) -> Model:
    """The model of a manifest.

    Raises:
        ValueError: its network or its loss is the user's own.
    """
    architecture = described["architecture"]
    kind = None
    if isinstance(architecture, dict):
        kind = getattr(zoo, architecture["type"], None)
    losses = (loss for loss in _LOSSES if settings(loss) == described["loss"])
    loss = next(losses, None)
    if not isinstance(kind, type) or not issubclass(kind, Architecture) or loss is None:
        raise ValueError(
            "the run's model is one that only your code knows; pass model=..."
        )
    network = _rebuilt(kind, architecture, "the run's model", "model")
    return network.bind(
        tuple(described["input_shape"]),
        described["outputs"],
        loss=loss,
        dtype=described["dtype"],
    )


def _rebuilt(
    kind: type[T], described: Mapping[str, Any], what: str, argument: str
) -> T:
    """A dataclass of which `settings` gives what is described.

    Raises:
        ValueError: there is none: arrays and functions stand in a manifest as digests
            and names.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, kind))]
    try:
        values = {
            name: _value(described.get(name), hints[name], name) for name in names
        }
        rebuilt = kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{what} cannot be read from the run's directory ({error}); pass"
            f" {argument}=..."
        ) from None
    # Arrays and functions are described by digests and names, from which nothing can be
    # rebuilt: then the descriptions differ.
    same = settings(rebuilt) == dict(described)
    require(same, f"{what} was given what only your code knows; pass {argument}=...")
    return rebuilt


def _value(described: Any, hint: Any, name: str) -> Any:
    """The value of a field, whose annotation is `hint`."""
    if described is None:
        return None
    if not isinstance(described, dict):
        return coerce(described, hint, (name,))
    nested = (kind for kind in _classes(hint) if dataclasses.is_dataclass(kind))
    base = next(nested, Algorithm)
    kind = _kind(base, described)
    return _rebuilt(kind, described, f"its setting {name}", "algorithm")


def _kind(base: type[Any], described: Mapping[str, Any]) -> type[Any]:
    """The class that a description names: `base` or one that inherits from it."""
    method, name = described.get("name"), described.get("type")
    if method in Algorithm.registry and issubclass(Algorithm.registry[method], base):
        return Algorithm.registry[method]
    # A schedule of methods is none of those that are registered: a manifest has its
    # class, in small letters.
    for kind in _with_subclasses(base):
        if name == kind.__name__ or method == kind.__name__.lower():
            return kind
    raise ValueError(f"there is no {name or method!r} here")


def _with_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _with_subclasses(inner)


def _classes(hint: Any) -> Iterator[type[Any]]:
    """The classes that an annotation names."""
    if isinstance(hint, type):
        yield hint
    for inner in typing.get_args(hint):
        yield from _classes(inner)
