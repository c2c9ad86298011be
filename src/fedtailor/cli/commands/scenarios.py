"""`fedtailor scenarios [NAME]`: data, model and settings that belong together."""

import json
from itertools import groupby
from typing import Any

from fedtailor.cli.names import parse_name_and_json
from fedtailor.cli.sizes import parse_docstring
from fedtailor.experiments import scenarios as known_scenarios
from fedtailor.experiments.scenario import Scenario
from fedtailor.models import logistic


def scenarios(arguments: list[str]) -> int:
    """The list of all scenarios, or all about one."""
    name, as_json = parse_name_and_json(
        arguments, "usage: fedtailor scenarios [NAME] [--json]"
    )
    if name is not None:
        _scenario(known_scenarios.find(name), as_json)
        return 0
    rows = [_row(scenario) for scenario in known_scenarios.SCENARIOS.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _listed(rows)
    return 0


def _row(scenario: Scenario) -> dict[str, Any]:
    """What the list of scenarios shows of one.

    Without a number of clients all of the data set's own take part.
    """
    is_logistic = scenario.model == logistic()
    return {
        "name": scenario.name,
        "clients": scenario.parameters.get("clients"),
        "model": "logistic" if is_logistic else type(scenario.model).__name__,
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
            shown = {"clients": row["clients"] or "all", "data": row["data"] or "-"}
            print(line.format(**row | shown))
    print("\n`fedtailor scenarios NAME` says more.")


def _scenario(scenario: Scenario, as_json: bool) -> None:
    about, explained = parse_docstring(scenario.build)
    row = _row(scenario)
    if as_json:
        content = {**row, "doc": about, "parameters": scenario.parameters}
        print(json.dumps(content, indent=2))
        return
    print(f"{row.pop('name')}: {row.pop('description')}\n\n{about}\n")
    row["model"] = scenario.model
    row["clients"] = row["clients"] or "all"
    for name, value in row.items():
        if value:
            print(f"{name:>13}: {value}")
    print("\nParameters, options of `fedtailor run`:")
    for name, default in scenario.parameters.items():
        print(f"  --{name.replace('_', '-')} (default {default!r})")
        print(f"      {explained[name]}")
