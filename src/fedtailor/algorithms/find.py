"""Find a method by its name: built in, of an installed package, or in a user's file."""

from pathlib import Path

from fedtailor._base.choice import check_choice, require
from fedtailor._base.entry_points import (
    load_offered,
    module_of,
    named_in_file,
    offered,
    offered_names,
)
from fedtailor.protocol import Algorithm

ENTRY_POINTS = "fedtailor.algorithms"
"""The group of entry points under which other packages offer methods."""


def find_algorithm(name: str, *, own_files: bool = False) -> type[Algorithm]:
    """The method with a name, or the class in `FILE.py:CLASS`.

    The method is registered under the name in its `about`.

    Args:
        name: the name.
        own_files: also accept `FILE.py:CLASS`. It runs the file, so it must be False for
            names from files of other people, such as jobs and results.

    Raises:
        ValueError: there is no such method, the file cannot be loaded, or it takes the
            name of another method.
    """
    own = named_in_file(name) if own_files else None
    if own is not None:
        return _from_file(*own)
    require(
        not name.endswith(".py"),
        f"{name!r} is a file; name the class in it, too, as in {name}:Method",
    )
    if name not in Algorithm.registry:
        loaded = offered(ENTRY_POINTS, name, "algorithm", Algorithm)
        # Importing it has registered it, under the name in its `about`.
        require(
            loaded is None or name in Algorithm.registry,
            f"the algorithm {name!r} of an installed package calls itself"
            f" {getattr(getattr(loaded, 'about', None), 'name', None)!r}; its entry point"
            " must have the name in its `about`",
        )
    names = sorted({*Algorithm.registry, *offered_names(ENTRY_POINTS)})
    check_choice(name, names, "algorithm", "fedtailor algorithms")
    return Algorithm.registry[name]


def load_installed_algorithms() -> list[str]:
    """Load the methods of all installed packages, which registers them.

    Returns:
        What is wrong with those that cannot be loaded, one line each.
    """
    return load_offered(ENTRY_POINTS, find_algorithm)


def _from_file(path: Path, kind: str) -> type[Algorithm]:
    """A method that a Python file defines.

    Args:
        path: the file.
        kind: the name of its class.

    Returns:
        The class, which is registered under the name of its `about`.

    Raises:
        ValueError: the file has no such method, or one of a name that is taken.
    """
    # Loading the file registers its methods. A method that replaces another one is
    # refused.
    before = dict(Algorithm.registry)
    module = module_of(path)
    for name, known in before.items():
        if Algorithm.registry[name] is not known:
            Algorithm.registry.update(before)
            raise ValueError(
                f"{path}: there is already a method {name!r}; give yours another name in"
                " its `about`"
            )
    algorithm = getattr(module, kind, None)
    # The classes that the file defines, without those that it imports.
    methods = sorted(
        value.__name__
        for value in vars(module).values()
        if _is_method(value) and value.__module__ == module.__name__
    )
    require(
        _is_method(algorithm),
        f"{path} has no method {kind!r}; its methods are:"
        f" {', '.join(methods) or 'none'}",
    )
    assert isinstance(algorithm, type) and issubclass(algorithm, Algorithm)
    name = algorithm.about.name
    # Methods are found by their names, so that the base would be trained.
    require(
        Algorithm.registry[name] is algorithm,
        f"{path}: {kind} has no `about` of its own, only that of {name!r}; give it one"
        " with a new name",
    )
    return algorithm


def _is_method(value: object) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, Algorithm)
        and hasattr(value, "about")
    )
