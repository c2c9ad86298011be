"""The registry of data sets.

To add a data set, add a file to this folder with a function decorated by `@register`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from fedtailor._base.choice import check_choice
from fedtailor._base.entry_points import import_modules, offered, offered_names
from fedtailor.data.datasets.store import Source

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registered:
    """A registered data set or synthetic task.

    Attributes:
        name: name of its function, which is an attribute of
            `fedtailor.data.datasets`.
        read: the function, which returns a `Dataset`, or a `Federation` for a synthetic
            task.
        sources: the public files that it can read; empty if it needs no files.
    """

    name: str
    read: Callable[..., Any]
    sources: tuple[Source, ...]

    @property
    def summary(self) -> str:
        """The first paragraph of the function's docstring, in one line."""
        paragraph = (self.read.__doc__ or "").strip().partition("\n\n")[0]
        return " ".join(paragraph.split())


ENTRY_POINTS = "fedtailor.datasets"
"""The group of entry points under which other packages offer data sets: functions with
the decorator `register`.
"""

DATASETS: dict[str, Registered] = {}
"""Name -> data set."""


def register(*sources: Source) -> Callable[[F], F]:
    """Decorator of a function that reads or generates a data set.

    Args:
        sources: the public files that the function reads, if any.
    """

    def add(read: F) -> F:
        DATASETS[read.__name__] = Registered(read.__name__, read, sources)
        return read

    return add


def discover(package: ModuleType) -> None:
    """Import all modules of a package, which registers their data sets.

    The functions of all data sets become attributes of the package.
    """
    import_modules(package.__name__)
    for name, registered in DATASETS.items():
        setattr(package, name, registered.read)


def find(name: str) -> Callable[..., Any]:
    """The function of a data set, of this package or of another installed one.

    Raises:
        ValueError: there is no data set of that name, or that of a package is broken.
    """
    if name not in DATASETS:
        read = offered(ENTRY_POINTS, name, "data set")
        if read is not None and name not in DATASETS:
            DATASETS[name] = Registered(name, read, ())
    check_choice(name, sorted({*DATASETS, *offered_names(ENTRY_POINTS)}), "data set")
    return DATASETS[name].read
