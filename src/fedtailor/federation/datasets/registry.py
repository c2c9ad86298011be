"""The data sets by name.

A new one is one file in this folder: a function under `@register`, and it is found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from fedtailor.federation.datasets.store import Source
from fedtailor.protocol import import_modules

Reader = TypeVar("Reader", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registered:
    """A data set or synthetic task.

    Attributes:
        name: of its function, which is `fedtailor.federation.datasets.NAME` too.
        read: the function; it returns a `Dataset` to partition, or for synthetic tasks
            the `Federation`.
        sources: the public files that it needs, each in every form that it reads; none
            where nothing has to be at hand.
    """

    name: str
    read: Callable[..., Any]
    sources: tuple[Source, ...]

    @property
    def summary(self) -> str:
        """What it holds, in one line."""
        paragraph = (self.read.__doc__ or "").strip().partition("\n\n")[0]
        return " ".join(paragraph.split())


DATASETS: dict[str, Registered] = {}
"""Name -> data set."""


def register(*sources: Source) -> Callable[[Reader], Reader]:
    """Decorator of a function that reads or makes a data set.

    Args:
        sources: what it reads; none where it makes the data from nothing.
    """

    def add(read: Reader) -> Reader:
        DATASETS[read.__name__] = Registered(read.__name__, read, sources)
        return read

    return add


def discover(package: ModuleType) -> None:
    """Import every module of a package, so that its data sets are registered.

    They become attributes of the package.
    """
    # to import a module is to run its decorators
    import_modules(package.__name__)
    for name, registered in DATASETS.items():
        setattr(package, name, registered.read)
