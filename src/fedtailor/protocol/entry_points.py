"""Finding methods, metrics and the like by name: in a package's folder, in installed
packages (entry points), in a user's file.
"""

import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar

from fedtailor.protocol.choice import check_choice
from fedtailor.protocol.hyperparameters import require

T = TypeVar("T")


def find_registered(
    registry: dict[str, T],
    name: str,
    what: str,
    group: str,
    *,
    base: type | None = None,
    listed_by: str | None = None,
) -> T:
    """What a registry holds under a name, which an installed package may provide.

    Args:
        registry: name -> what it names.
        name: what the user asked for.
        what: what it is, for messages: "metric".
        group: of entry points, such as "fedtailor.metrics".
        base: what a package's must be a subclass of, if it must be a class.
        listed_by: a command that lists the names, where they are too many for one line.

    Returns:
        What the registry holds under the name.

    Raises:
        ValueError: there is none of that name, or the package's is broken.
    """
    if name not in registry:
        kind = offered(group, name, what, base)
        if kind is not None:
            registry[name] = kind
    check_choice(name, sorted(registry), what, listed_by)
    return registry[name]


def offered(group: str, name: str, what: str, base: type | None = None) -> Any:
    """What an installed package offers under a name.

    Args:
        group: of entry points, such as "fedtailor.metrics".
        name: what the user asked for.
        what: what it is, for messages: "metric".
        base: what it must be a subclass of, if it must be a class.

    Returns:
        What the entry point names; None where no package offers the name.

    Raises:
        ValueError: it cannot be imported, or is something else.
    """
    for entry in entry_points(group=group, name=name):
        # Another package's module may raise anything while it is imported.
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
    """Import every module of a package's folder, so that their classes register
    themselves.

    Returns:
        The modules in alphabetical order.
    """
    folder = sys.modules[package].__path__
    return [
        importlib.import_module(f"{package}.{module.name}")
        for module in iter_modules(folder)
    ]


def named_in_file(name: str) -> tuple[Path, str] | None:
    """The file and the name of `FILE.py:NAME`; None of any other name."""
    file, colon, inner = name.rpartition(":")
    return (Path(file), inner) if colon and file.endswith(".py") else None


def module_of(path: Path) -> ModuleType:
    """A Python file as a module, loaded once under the file's own name.

    Raises:
        ValueError: there is no such file, it cannot be loaded, or another module has
            its name.
    """
    # Under the file's own name, so that its classes have the same name in every
    # process: checkpoints refer to them by it.
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
        f"there is no file {path}; name the file and what stands in it: FILE.py:NAME",
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # A script may exit where it is imported.
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return module
