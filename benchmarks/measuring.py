"""Timing side by side: contenders take turns, so that whatever else the machine does
falls on all of them alike.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

MEASURED = Path(__file__).resolve().parent / "measured"
"""Where `show` records tables."""


@dataclass(frozen=True)
class Times:
    """Seconds of one contender's turns."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    def per(self, calls: int) -> "Times":
        """Seconds of each of the `calls` that a turn was made of."""
        return Times(tuple(seconds / calls for seconds in self.seconds))

    def __str__(self) -> str:
        return f"{1e3 * self.minimum:.1f} / {1e3 * self.median:.1f}"


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, Times]:
    """Every contender once to warm up, then `turns` rounds of one call each, in
    alternating order. `clock` is in seconds (`process_time` on a busy machine).
    """
    for call in contenders.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            started = clock()
            contenders[name]()
            seconds[name].append(clock() - started)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def ratio(slow: Times, fast: Times) -> str:
    """How many times faster: by minimum / by median."""
    return f"{slow.minimum / fast.minimum:.2f} / {slow.median / fast.median:.2f}"


def peak_memory() -> int:
    """The most bytes that this process has had in memory so far."""
    # On Linux `getrusage` also counts what the parent process held.
    with suppress(OSError), open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine(*packages: str) -> str:
    """One line about where and on what this ran."""
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return (
        f"{_processor()}, {cores()} cores, load {load()}; Python"
        f" {platform.python_version()}, {versions}"
    )


def show(
    console: Console, table: Table, name: str, *packages: str, command: str = ""
) -> None:
    """Print a table. If the environment has RECORD=1, write it to measured/NAME.json,
    from which `speed_tables.py` makes a table of a page.

    Args:
        console: where it is printed.
        table: the table.
        name: of the file.
        packages: whose versions are recorded.
        command: what measured it; "" = this program with its arguments.
    """
    console.print(table)
    if os.environ.get("RECORD") != "1":
        return
    this_one = " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])
    content = {
        "command": command or this_one,
        "machine": machine("fedtailor", *packages),
        "versions": {package: version(package) for package in packages},
        "commit": _commit(),
        "load": load(),
        "note": "",
        "columns": [str(column.header) for column in table.columns],
        "rows": [
            list(row) for row in zip(*(c.cells for c in table.columns), strict=True)
        ],
    }
    MEASURED.mkdir(exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (MEASURED / f"{name}.json").write_text(text, "utf-8")


class Results:
    """Results in a file that are written one by one, so that a second call of a benchmark
    goes on where the first one was ended.

    Args:
        path: of the file; None = nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, Any] = {}
        if path is not None and path.exists():
            self.found = json.loads(path.read_text("utf-8"))

    def of(self, name: str, measure: Callable[[], Any]) -> Any:
        """The result of this name, which `measure` makes if it is not there."""
        # Not at the top: `versions.py` measures older versions, too, which lack it.
        from fedtailor._base.files import atomic_write

        if name not in self.found:
            self.found[name] = measure()
            if self.path is not None:
                with atomic_write(self.path) as file:
                    file.write_text(json.dumps(self.found, indent=1), "utf-8")
        return self.found[name]


def _commit() -> str:
    """The commit that stands here, with "+" if files differ from it."""
    git = ["git", "-C", str(MEASURED.parent)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], **_CAPTURED).stdout
    changed = subprocess.run([*git, "status", "--porcelain"], **_CAPTURED).stdout
    return commit.strip() + ("+" if changed.strip() else "")


_CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "check": False}


def cores() -> int:
    """Cores that this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def load() -> str:
    """Processes that want to run, on average over the last minute (what this benchmark
    runs itself included).
    """
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(
                line.split(":")[1].strip()
                for line in lines
                if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
