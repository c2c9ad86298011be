"""Methods of other packages in a federation of machines: every machine has the code
installed, and agrees to it by a digest in its copy of the job. Code never comes from the
coordinator.
"""

import hashlib
import inspect
import sys
from pathlib import Path

from fedtailor.protocol import Algorithm


def is_own(method: type[Algorithm]) -> bool:
    """Whether a method is one of this package, whose release all machines compare."""
    return method.__module__.partition(".")[0] == "fedtailor"


def package_of(method: type[Algorithm]) -> str:
    """The package or module that has a method's code."""
    return method.__module__.partition(".")[0]


def code_digest(method: type[Algorithm]) -> str:
    """A digest of the Python files of the package that a method belongs to.

    What that package imports from others is not in it.
    """
    root = sys.modules[package_of(method)]
    source = Path(inspect.getfile(method))
    # A package has a folder, a single module its file.
    folders = [Path(folder) for folder in getattr(root, "__path__", ())]
    files = [(source.name, source)]
    if folders:
        files = [
            (path.relative_to(folder).as_posix(), path)
            for folder in folders
            for path in folder.rglob("*.py")
        ]
    total = hashlib.sha256()
    for name, path in sorted(files):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{name} {content}\n".encode())
    return total.hexdigest()[:32]
