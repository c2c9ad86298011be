"""The models that a file or a command line can name: each registers where it stands."""

from collections.abc import Callable
from typing import TypeVar

from fedtailor.models.model import Architecture

Builder = TypeVar("Builder", bound=Callable[..., Architecture])

_BUILDERS: dict[str, Callable[..., Architecture]] = {}


def register(build: Builder) -> Builder:
    """Make a function that returns an `Architecture` known by its name (decorator).

    Raises:
        ValueError: the name is taken by another function.
    """
    name = build.__name__
    known = _BUILDERS.setdefault(name, build)
    if known.__qualname__ != build.__qualname__ or known.__module__ != build.__module__:
        raise ValueError(
            f"there is a model {name!r} already, in {known.__module__}; choose another"
            " name"
        )
    return build


def builders() -> dict[str, Callable[..., Architecture]]:
    """Every registered function, by name, in the order in which they were
    registered.
    """
    return dict(_BUILDERS)
