"""A registry of models, by whose names files and the command line refer to them."""

from collections.abc import Callable
from typing import TypeVar

from fedtailor.models.architecture import Architecture

Builder = TypeVar("Builder", bound=Callable[..., Architecture])

_BUILDERS: dict[str, Callable[..., Architecture]] = {}


def register(build: Builder) -> Builder:
    """Register a function that returns an `Architecture` under its name (decorator).

    Raises:
        ValueError: the name is taken by another function.
    """
    name = build.__name__
    old = _BUILDERS.setdefault(name, build)
    if old.__qualname__ != build.__qualname__ or old.__module__ != build.__module__:
        raise ValueError(
            f"there is a model {name!r} already, in {old.__module__}; choose another name"
        )
    return build


def builders() -> dict[str, Callable[..., Architecture]]:
    """All registered functions by name, in the order of registration."""
    return dict(_BUILDERS)
