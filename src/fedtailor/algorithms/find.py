"""Which method a name means: a built-in one, one of an installed package, or a class in a file of one's own."""

import importlib.util
import sys
from pathlib import Path

from fedtailor.protocol import Algorithm, check_choice, offered, require

ENTRY_POINTS = "fedtailor.algorithms"
"""The group of entry points under which other packages offer methods."""


def find_algorithm(name: str) -> type[Algorithm]:
    """The method of a name, or of `FILE.py:CLASS`; it is registered under the name that its `about` gives it.

    Raises:
        ValueError: there is no such method, the file cannot be loaded, or it takes the name of another method.
    """
    file, colon, kind = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _from_file(Path(file), kind)
    if name not in Algorithm.registry:
        offered(ENTRY_POINTS, name, "algorithm", Algorithm)  # which registers it
    check_choice(name, Algorithm.registry, "algorithm", "fedtailor algorithms")
    return Algorithm.registry[name]


def _from_file(path: Path, kind: str) -> type[Algorithm]:
    """A class of a Python file, loaded once under the file's own name."""
    module_name, before = path.stem, dict(Algorithm.registry)
    module = sys.modules.get(module_name)
    if module is None or Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        require(module is None, f"{path}: a module is already called {module_name}; give the file another name")
        spec = importlib.util.spec_from_file_location(module_name, path)
        require(
            path.is_file() and spec is not None, f"there is no file {path}; name the file and the class: FILE.py:CLASS"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        taken = next((name for name, known in before.items() if Algorithm.registry[name] is not known), None)
        if taken is not None:
            Algorithm.registry.update(before)
            raise ValueError(f"{path}: there is already a method {taken!r}; give yours another name in its `about`")
    algorithm = getattr(module, kind, None)
    methods = sorted(it.__name__ for it in vars(module).values() if _is_method(it) and it.__module__ == module_name)
    require(_is_method(algorithm), f"{path} has no method {kind!r}; its methods are: {', '.join(methods) or 'none'}")
    assert isinstance(algorithm, type) and issubclass(algorithm, Algorithm)
    return algorithm


def _is_method(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Algorithm) and hasattr(value, "about")
