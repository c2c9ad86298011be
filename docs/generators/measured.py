"""What results/ and benchmarks/orderings.toml say of each method."""

import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from scipy.stats import t as student

from fedtailor.algorithms.find import find_algorithm
from fedtailor.protocol.document import read_document

ROOT = Path(__file__).parents[2]
RESULTS, EXPERIMENTS = ROOT / "results", ROOT / "experiments"


@dataclass(frozen=True)
class Figure:
    """One measured number of a method beside what was published."""

    experiment: str
    source: str
    """Of the paper's table."""
    column: str
    label: str
    """The method's name in the experiment, which may say a setting."""
    measure: str
    published: str
    mean: float
    deviation: float | None
    seeds: int

    @property
    def quick(self) -> bool:
        """Whether it is of a smaller size than published."""
        return self.experiment.endswith("-quick")

    @property
    def text(self) -> str:
        """The mean with its 95 % interval over seeds."""
        digits = 1 if abs(self.mean) >= 10 else 3
        if self.deviation is None or self.seeds < 2:
            return f"{self.mean:.{digits}f}"
        half = student.ppf(0.975, self.seeds - 1) * self.deviation
        half /= math.sqrt(self.seeds)
        low, high = self.mean - half, self.mean + half
        return f"{self.mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


@cache
def orderings() -> ModuleType:
    """benchmarks/orderings.py as a module."""
    path = ROOT / "benchmarks" / "orderings.py"
    sys.path.append(str(path.parent))  # it imports modules that lie beside it
    spec = importlib.util.spec_from_file_location("published_orderings", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def methods_of(experiment: str) -> dict[str, str]:
    """Label in an experiment -> method."""
    file = EXPERIMENTS / f"{base_name(experiment)}.toml"
    if not file.exists():
        return {}
    entries = read_document(file).content["algorithms"]
    return {
        label: find_algorithm(entry.get("use") or label).about.name
        for label, entry in entries.items()
        if entry
    }


def base_name(experiment: str) -> str:
    """The name of the file in experiments/."""
    return experiment.removesuffix("-quick")


def method_of(experiment: str, label: str) -> str | None:
    """The method of a row, which may say values of a grid after the label."""
    methods = methods_of(experiment)
    while label:
        if label in methods:
            return methods[label]
        label = label.rpartition(",")[0]
    return None


def claims(method: str) -> list[tuple[Any, bool]]:
    """Published orderings that a method is part of, and whether it is the better one."""
    found = []
    for above, below, ordering in _orderings():
        if method_of(above, ordering.above) == method:
            found.append((ordering, True))
        elif method_of(below, ordering.below.removesuffix(" (mean)")) == method:
            found.append((ordering, False))
    return found


@cache
def _orderings() -> list[tuple[str, str, Any]]:
    """The published orderings that were measured, with the two experiments of each."""
    return list(orderings().orderings_of_experiments())


@cache
def figures() -> list[Figure]:
    """All rows of results/ that belong to a method, full sizes first."""
    found = [
        figure
        for folder in sorted(RESULTS.iterdir())
        if (folder / "tables.csv").exists()
        for figure in _figures(folder)
    ]
    return sorted(found, key=lambda figure: figure.quick)


def _figures(folder: Path) -> Iterator[Figure]:
    report = (folder / "report.md").read_text()
    stored = orderings().read_tables(folder / "tables.csv")
    kind = next(
        (name for name in ("mean", "weighted", "worst") if name in stored), None
    )
    if kind is None:
        return
    source = re.search(r"^- Source: (.+)$", report, re.MULTILINE)
    measure = re.search(r"^\*\*(.+?)\*\*$", report, re.MULTILINE)
    rows = orderings()._rows(folder, kind)
    for label, row in rows.items():
        if method_of(folder.name, label) is None:
            continue
        for column in row:
            if column in ("algorithm", "(table)") or re.search(
                r"(?:^|, )published(?: std)?$| (?:std|runs)$", column
            ):
                continue
            number = _number(row, column, report)
            if number is not None:
                yield Figure(
                    folder.name,
                    source[1] if source else "",
                    column,
                    label,
                    measure[1] if measure else kind,
                    orderings()._published(row, column) or "",
                    *number,
                )


def _number(
    row: dict[str, str], column: str, report: str
) -> tuple[float, float | None, int] | None:
    """Mean, deviation and seeds of a cell."""
    cell = row[column]
    if not cell or cell == "-":
        return None
    if " ± " in cell:
        mean, deviation = map(float, cell.split(" ± "))
        seeds = re.search(r"seeds ([\d, ]+);", report)
        return mean, deviation, len(seeds[1].split(",")) if seeds else 1
    deviation = row.get(f"{column} std")
    runs = row.get(f"{column} runs")
    return float(cell), float(deviation) if deviation else None, int(runs or 1)
