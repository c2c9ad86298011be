"""Registers methods, metrics and other classes by name, and finds them: in a package's
folder, in installed packages (entry points), or in a user's file.
"""

import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar

from fedtailor._base.choice import check_choice, require
from fedtailor._base.own_code import is_fedtailors

T = TypeVar("T")


def register_class(
    registry: dict[str, type[Any]], name: str, new: type, what: str
) -> None:
    """Enter a class into the registry of its kind. One of the same name is replaced, as
    when a cell of a notebook is run again, but not one of fedtailor's.

    Args:
        registry: name -> class.
        name: the name of the class.
        new: the class.
        what: what it is, for messages: "metric".

    Raises:
        ValueError: a class of fedtailor's has that name, so that results of the new one
            would be taken for its results.
    """
    known = registry.get(name)
    require(
        known is None
        or not is_fedtailors(known.__module__)
        or is_fedtailors(new.__module__),
        f"there is already a {what} {name!r}; give {new.__name__} another name",
    )
    registry[name] = new


def find_registered(
    registry: dict[str, T],
    name: str,
    what: str,
    group: str,
    *,
    base: type | None = None,
    listed_by: str | None = None,
) -> T:
    """Find an entry of a registry by name. If there is none, an installed package may
    provide it.

    Args:
        registry: name -> entry.
        name: the name of the entry.
        what: what an entry is, for messages: "metric".
        group: the group of entry points, such as "fedtailor.metrics".
        base: the base class of entries; None if they need not be classes.
        listed_by: as for `check_choice`.

    Returns:
        The entry.

    Raises:
        ValueError: there is no entry of that name, or that of a package is broken.
    """
    if name in registry:
        return registry[name]
    entry = offered(group, name, what, base)
    if entry is not None:
        registry[name] = entry
    check_choice(name, sorted({*registry, *offered_names(group)}), what, listed_by)
    return registry[name]


def load_offered(group: str, find: Callable[[str], object]) -> list[str]:
    """Load everything that installed packages offer in a group, for a list of all names.

    Args:
        group: the group of entry points, such as "fedtailor.metrics".
        find: loads and registers an entry by its name; it raises `ValueError` if the
            entry is broken.

    Returns:
        What is wrong with the broken entries, one line each.
    """
    problems = []
    for name in offered_names(group):
        try:
            find(name)
        except ValueError as error:
            problems.append(str(error))
    return problems


def offered_names(group: str) -> list[str]:
    """The names that installed packages offer in a group of entry points, which need not
    be loaded yet, in alphabetical order.
    """
    return sorted({entry.name for entry in entry_points(group=group)})


def offered(group: str, name: str, what: str, base: type | None = None) -> Any:
    """Load an entry point of an installed package.

    Args:
        group: the group of entry points, such as "fedtailor.metrics".
        name: the name of the entry point.
        what: what it loads, for messages: "metric".
        base: the base class of what it loads; None if that need not be a class.

    Returns:
        The loaded object; None if no package offers the name.

    Raises:
        ValueError: it cannot be imported, or is not a subclass of `base`.
    """
    for entry in entry_points(group=group, name=name):
        # The import of another package may raise any exception.
        try:
            loaded = entry.load()
        except Exception as error:
            raise ValueError(
                f"the {what} {name!r} of {entry.value} cannot be imported: {error}"
            ) from error
        if base is not None:
            require(
                isinstance(loaded, type) and issubclass(loaded, base),
                f"the {what} {name!r} of {entry.value} is {loaded!r}; it must be a"
                f" subclass of {base.__name__}",
            )
        return loaded
    return None


def import_modules(package: str) -> list[ModuleType]:
    """Import every module (no packages) of a package's folder, so that their classes register
    themselves.

    Returns:
        The modules in alphabetical order.
    """
    folder = sys.modules[package].__path__
    return [
        importlib.import_module(f"{package}.{module.name}")
        for module in iter_modules(folder)
        if not module.ispkg
    ]


def named_in_file(name: str) -> tuple[Path, str] | None:
    """Split `FILE.py:NAME` into the file and the name; None for all other names."""
    file, colon, inner = name.rpartition(":")
    return (Path(file), inner) if colon and file.endswith(".py") else None


def module_of(path: Path) -> ModuleType:
    """Load a Python file as a module, once, under the file's own name.

    Raises:
        ValueError: there is no such file, it cannot be loaded, or another module has
            its name.
    """
    # Checkpoints refer to classes by the names of their modules, which must therefore be
    # the same in every process.
    name = path.stem
    module = sys.modules.get(name)
    if (
        module is not None
        and Path(getattr(module, "__file__", None) or "").resolve() == path.resolve()
    ):
        return module
    require(
        module is None,
        f"{path}: a module is already called {name}; give the file another name",
    )
    spec = importlib.util.spec_from_file_location(name, path)
    require(
        path.is_file() and spec is not None,
        f"there is no file {path}; name the file and an object in it: FILE.py:NAME",
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # A script may call `exit` when it is imported.
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return module
