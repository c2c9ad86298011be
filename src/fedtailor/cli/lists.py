"""`fedtailor algorithms` and `fedtailor scenarios`."""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

from fedtailor.algorithms.find import find_algorithm
from fedtailor.cli.hyper import parameters
from fedtailor.experiments import scenarios as known_scenarios
from fedtailor.experiments.scenario import Scenario
from fedtailor.models import logistic
from fedtailor.protocol import Algorithm, require

ORDER = (
    *("local", "fedavg", "fedavgm", "finetune", "oracle", "ucfl", "ucfl-parallel", "hypcluster", "dapper", "mapper"),
    *("afl", "self-fl", "cgpfl", "cgpfl-heur", "fedprox", "scaffold", "cfl", "fedfomo", "pfedme", "ditto"),
    *("per-fedavg", "apfl", "l2gd", "ifca"),
)
"""Families together; methods that are not listed come last."""


def algorithms(arguments: list[str]) -> int:
    """`fedtailor algorithms [NAME] [--json]`"""
    names, as_json = _names(arguments, "usage: fedtailor algorithms [NAME] [--json]")
    if names is None:
        return 0
    require(len(names) <= 1, "usage: fedtailor algorithms [NAME] [--json]")
    if names:
        find_algorithm(names[0])
        return _one(Algorithm.registry[names[0]], as_json)
    listed = sorted(Algorithm.registry, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    rows = [dataclasses.asdict(Algorithm.registry[name].about) for name in listed]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _table(rows, ["name", "paper", "down", "up", "keeps", "unseen"])
    return 0


def scenarios(arguments: list[str]) -> int:
    """`fedtailor scenarios [NAME] [--json]`"""
    usage = "usage: fedtailor scenarios [NAME] [--json]"
    names, as_json = _names(arguments, usage)
    if names is None:
        return 0
    require(len(names) <= 1, usage)
    if names:
        return _scenario(known_scenarios.find(names[0]), as_json)
    rows = [_row(scenario) for scenario in known_scenarios.SCENARIOS.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _listed(rows)
    return 0


def _names(arguments: list[str], usage: str) -> tuple[list[str] | None, bool]:
    """Positional arguments (None = help was asked for and given) and whether JSON is wanted."""
    if "-h" in arguments or "--help" in arguments:
        print(usage)
        return None, False
    names = [argument for argument in arguments if not argument.startswith("-")]
    unknown = [argument for argument in arguments if argument.startswith("-") and argument != "--json"]
    require(not unknown, f"unknown option {unknown[:1]}; {usage}")
    return names, "--json" in arguments


def _one(kind: type[Algorithm], as_json: bool) -> int:
    about, found = dataclasses.asdict(kind.about), parameters(kind())
    if as_json:
        print(json.dumps({**about, "doc": inspect.getdoc(kind), "parameters": found}, indent=2))
        return 0
    print(f"{kind.about.name}: {kind.about.paper}\n\n{inspect.getdoc(kind)}\n")
    for name in ("down", "up", "keeps", "unseen"):
        print(f"{name:>7}: {about[name]}")
    print("\nHyper-parameters:")
    for row in found:
        print(f"  --{row['name']} (default {row['default']})\n      {row['doc']}")
    return 0


def _row(scenario: Scenario) -> dict[str, Any]:
    """What the list of scenarios shows of one; without a number of clients all of the data set's own take part."""
    return {
        "name": scenario.name,
        "clients": scenario.parameters.get("clients"),
        "model": "logistic" if scenario.model == logistic() else type(scenario.model).__name__,
        "rounds": scenario.rounds,
        "participation": scenario.participation,
        "data": scenario.data,
        "source": scenario.source,
        "description": scenario.description,
    }


def _listed(rows: list[dict[str, Any]]) -> None:
    line = "  {name:<20} {clients:>7}  {model:<12}  {rounds:>6}  {data}"
    head = {name: name for name in ("name", "clients", "model", "rounds")}
    print(line.format(**head, data="data that must be at hand"))
    for source, group in groupby(rows, lambda row: row["source"]):
        print(f"\n{source}")
        for row in group:
            print(line.format(**{**row, "clients": row["clients"] or "all", "data": row["data"] or "-"}))
    print("\n`fedtailor scenarios NAME` says more.")


def _scenario(scenario: Scenario, as_json: bool) -> int:
    about, explained = _explained(scenario.build)
    row = _row(scenario)
    if as_json:
        print(json.dumps({**row, "doc": about, "parameters": scenario.parameters}, indent=2))
        return 0
    print(f"{row.pop('name')}: {row.pop('description')}\n\n{about}\n")
    row["model"] = scenario.model
    row["clients"] = row["clients"] or "all"
    for name, value in row.items():
        if value:
            print(f"{name:>13}: {value}")
    print("\nParameters:")
    for name, default in scenario.parameters.items():
        print(f"  {name} (default {default!r})\n      {explained[name]}")
    return 0


def _explained(build: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What a builder's docstring says before its arguments, and about each of them."""
    doc = inspect.getdoc(build.func if isinstance(build, partial) else build) or ""
    about, _, rest = doc.partition("\n\nArgs:\n")
    entries = re.split(r"^    (?=\w)", rest.partition("\n\nRaises:")[0], flags=re.MULTILINE)
    found = {}
    for names, _, text in (entry.partition(": ") for entry in entries):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return about, found


def _table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)
