"""Methods, models, metrics and transforms of other packages in a federation of
machines: every machine has the code installed, and agrees to it by a digest in its copy
of the job. Code never comes from the coordinator.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedtailor._base.documentation import see
from fedtailor.protocol.plain import ConfigError

OWN = "fedtailor"
"""This package, whose release all machines compare."""


def check_code(uses: Mapping[str, Callable[..., Any]], agreed: Any) -> None:
    """Require that a job names the code of other packages that is installed here.

    Args:
        uses: what the job uses, "the method ditto" -> its class or function.
        agreed: the table [code] of the job, package -> digest.

    Raises:
        ConfigError: a package is missing there, has another digest, or is not used.
    """
    if not isinstance(agreed, Mapping):
        raise ConfigError(("code",), '[code] is a table: PACKAGE = "DIGEST"')
    packages: dict[str, str] = {}
    for what, code in uses.items():
        package = package_of(code)
        if package == OWN:
            continue
        if package not in packages:
            packages[package] = code_digest(code)
        digest = packages[package]
        if package not in agreed:
            raise ConfigError(
                ("code",),
                f"{what} is code of the package {package}: read it, and agree to it by"
                f' {package} = "{digest}" in [code], on every machine'
                f"{see('write-an-algorithm#deploy-your-method')}",
            )
        if agreed[package] != digest:
            raise ConfigError(
                ("code", package),
                f"the package {package} installed here has the digest {digest}, and the"
                " job was made for another; install the same version on every machine",
            )
    for package in agreed:
        if package not in packages:
            raise ConfigError(
                ("code", package),
                f"the job uses nothing of a package {package}; leave it out",
            )


def package_of(code: Callable[..., Any]) -> str:
    """The package or module that a class or a function is in."""
    return code.__module__.partition(".")[0]


def code_digest(code: Callable[..., Any]) -> str:
    """A digest of the Python files of the package that a class or a function belongs to.

    What that package imports from others is not in it.
    """
    root = sys.modules[package_of(code)]
    source = Path(inspect.getfile(code))
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
