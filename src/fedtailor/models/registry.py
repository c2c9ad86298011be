"""A registry of models, by whose names files and the command line refer to them."""

from collections.abc import Callable
from typing import TypeVar

from fedtailor._base.entry_points import find_registered
from fedtailor.models.architecture import Architecture

ENTRY_POINTS = "fedtailor.models"
"""The group of entry points under which other packages offer models: functions that
return an `Architecture`.
"""

Builder = TypeVar("Builder", bound=Callable[..., Architecture])

_BUILDERS: dict[str, Callable[..., Architecture]] = {}


def register(build: Builder) -> Builder:
    """Register a function that returns an `Architecture` under its name (decorator).

    Raises:
        ValueError: the name is taken by another function.

    Example:
        >>> @ft.models.register
        ... def wide():
        ...     return ft.models.mlp(hidden=256)
        >>> "wide" in ft.models.builders()
        True
    """
    name = build.__name__
    old = _BUILDERS.setdefault(name, build)
    if old.__qualname__ != build.__qualname__ or old.__module__ != build.__module__:
        raise ValueError(
            f"there is a model {name!r} already, in {old.__module__}; choose another name"
        )
    return build


def builders() -> dict[str, Callable[..., Architecture]]:
    """All registered functions by name, in the order of registration.

    Example:
        >>> sorted(ft.models.builders())[:3]
        ['cnn', 'cnn_5x5', 'conv1d']
    """
    return dict(_BUILDERS)


def find_builder(name: str) -> Callable[..., Architecture]:
    """The function that builds the models of that name.

    Raises:
        ValueError: neither fedtailor nor an installed package has a model of that name,
            or the package's is broken.

    Example:
        >>> ft.models.find_builder("mlp")(hidden=8)
        MLP(hidden=(8,))
    """
    return find_registered(_BUILDERS, name, "model", ENTRY_POINTS)
