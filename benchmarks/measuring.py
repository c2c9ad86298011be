"""Timing side by side: contenders take turns, so that whatever else the machine does
falls on all of them alike.
"""

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter


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
    contenders: Mapping[str, Callable[[], object]], turns: int
) -> dict[str, Times]:
    """Every contender once to warm up, then `turns` rounds of one call each, in
    alternating order.
    """
    for call in contenders.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            started = perf_counter()
            contenders[name]()
            seconds[name].append(perf_counter() - started)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def ratio(slow: Times, fast: Times) -> str:
    """How many times faster: by minimum / by median."""
    return f"{slow.minimum / fast.minimum:.2f} / {slow.median / fast.median:.2f}"


def machine(*packages: str) -> str:
    """One line about where and on what this ran."""
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return (
        f"{_processor()}, {cores()} cores, load {load()}; Python"
        f" {platform.python_version()}, {versions}"
    )


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
