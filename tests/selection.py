"""Which tests `make test` runs: of tests of every method a covering part.

A test that is run on every registered method compiles each of them, and all such tests
together are most of the suite's work. `make test` runs each on a few methods of
different kinds, and each method under one of the general checks of `fedtailor.testing`;
CI runs each under another one. A method whose file, or a file of its package that it
imports, differs from main is tested by everything. What is left out runs in `make
test-all`.
"""

import ast
import subprocess
import sys
import zlib
from collections.abc import Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedtailor.protocol import Algorithm

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
SLOW = Path(__file__).parent / "slow.txt"
"""Tests that `make test` leaves out because of what they take: processor seconds, as
`benchmarks/suite.py` measured them, and the test; one a line, and `#` before what is
none."""
NIGHTLY_S = 6.0
"""CI leaves a test that takes more seconds to the nightly tests."""
SETTINGS = 4
"""CI runs a slow test in so many of its settings."""
EACH_TEST = 6
"""On so many methods a test of every method runs."""
WAIT = 3


def by_kind(names: Iterable[str]) -> list[str]:
    """The methods' names, those that work alike side by side."""

    def kind(name: str) -> tuple[str, ...]:
        about = Algorithm.registry[name].about
        return about.models_received, about.server_sees, about.client_keeps, name

    return sorted(names, key=kind)


def spread(test: str, names: Iterable[str], count: int = EACH_TEST) -> set[str]:
    """`count` of the methods, of kinds that lie far apart; others for another test."""
    ordered = by_kind(names)
    start, count = zlib.crc32(test.encode()), min(count, len(ordered))
    places = [start + place * len(ordered) // count for place in range(count)]
    return {ordered[place % len(ordered)] for place in places}


def measured() -> dict[str, float]:
    """The tests that `SLOW` names, as pytest names them, and their seconds."""
    seconds = {}
    for line in SLOW.read_text().splitlines():
        if line and not line.startswith("#"):
            taken, test = line.split(" ", 1)
            seconds[test] = float(taken)
    return seconds


def further(cases: Sequence[T], most: int = SETTINGS) -> list[T]:
    """Of the cases of one test all but `most`, which lie evenly among them."""
    kept = {place * len(cases) // most for place in range(most)}
    return [case for place, case in enumerate(cases) if place not in kept]


def covering(
    pairs: Iterable[tuple[str, str]], slow: Container[tuple[str, str]] = ()
) -> set[tuple[str, str]]:
    """Of the pairs (method, check) one for each method.

    Each method takes, of its checks, the one that was taken least often so far. So the
    checks are taken equally often, and each by methods of all kinds. A pair that is slow
    has its turn `WAIT` takings later.
    """

    def turn(name: str, check: str) -> int:
        return taken.get(check, 0) + WAIT * ((name, check) in slow)

    checks_of: dict[str, list[str]] = {}
    for name, check in pairs:
        checks_of.setdefault(name, []).append(check)
    taken: dict[str, int] = {}
    chosen = set()
    for name in by_kind(checks_of):
        # min takes, of equally many, the first in the order of the pairs
        check = min(checks_of[name], key=partial(turn, name))
        taken[check] = taken.get(check, 0) + 1
        chosen.add((name, check))
    return chosen


# Methods that a change touches
# --------------------------------------------------------------------------------------


def changed_methods() -> set[str]:
    """The registered methods whose files differ from main (see `_base`)."""
    changed = _changed_files()
    files_of: dict[str, set[Path]] = {}
    return {
        name
        for name, kind in Algorithm.registry.items()
        if _files(kind.__module__, files_of) & changed
    }


def _changed_files() -> set[Path]:
    """Files under src/ that differ from `_base`, in commits or beside them."""
    base = _base()
    if base is None:
        return set()
    found = [
        *_git("diff", "--name-only", base, "--", "src"),
        *_git("ls-files", "--others", "--exclude-standard", "--", "src"),
    ]
    return {ROOT / line for line in found}


def _base() -> str | None:
    """The commit that main and this branch have in common; on main the one before. None
    where there is no repository, as in an archive of the sources.
    """
    head = _git("rev-parse", "HEAD")
    for main in ("main", "origin/main"):
        common = _git("merge-base", main, "HEAD")
        if common and common != head:
            return common[0]
    return next(iter(_git("rev-parse", "--verify", "HEAD~1")), None)


def _git(*arguments: str) -> list[str]:
    """The lines that git prints; none if it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _files(module: str, known: dict[str, set[Path]]) -> set[Path]:
    """The file of a module, and those of the modules that it imports of its package."""
    if module in known:
        return known[module]
    found = known[module] = set()
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return found
    found.add(Path(file))
    package = ".".join(module.split(".")[:2])
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in [node.module, *imported]:
                # the package itself imports every method
                if name.startswith(f"{package}.") and name in sys.modules:
                    found |= _files(name, known)
    return found
