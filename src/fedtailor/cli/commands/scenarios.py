"""`fedtailor scenarios [NAME]`: data, model and settings that belong together."""

import json
from itertools import groupby
from typing import Any

from fedtailor._base.printable import say, say_block, say_status
from fedtailor.cli.names import parse_name_and_json
from fedtailor.cli.sizes import parse_docstring
from fedtailor.lab import scenarios as scenario_registry
from fedtailor.lab.scenarios.scenario import Scenario
from fedtailor.models import logistic


def scenarios(arguments: list[str]) -> int:
    """Prints the list of all scenarios, or one scenario."""
    name, as_json = parse_name_and_json(
        arguments, "usage: fedtailor scenarios [NAME] [--json]"
    )
    if name is not None:
        _print_scenario(scenario_registry.find(name), as_json)
        return 0
    for problem in scenario_registry.load_installed():
        say_status(f"not listed: {problem}")
    rows = [
        _scenario_dict(scenario) for scenario in scenario_registry.SCENARIOS.values()
    ]
    if as_json:
        say_block(json.dumps(rows, indent=2))
    else:
        _print_list(rows)
    return 0


def _scenario_dict(scenario: Scenario) -> dict[str, Any]:
    """A scenario as a dict for the list.

    If the number of clients is None, all clients of the data set take part.
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


def _print_list(rows: list[dict[str, Any]]) -> None:
    line = "  {name:<20} {clients:>7}  {model:<12}  {rounds:>6}  {data}"
    header = {name: name for name in ("name", "clients", "model", "rounds")}
    say(line.format(**header, data="data that must be at hand"))
    for source, group in groupby(rows, lambda row: row["source"]):
        say("", f"{source}")
        for row in group:
            displayed = {"clients": row["clients"] or "all", "data": row["data"] or "-"}
            say(line.format(**row | displayed))
    say("", "`fedtailor scenarios NAME` says more.")


def _print_scenario(scenario: Scenario, as_json: bool) -> None:
    doc, parameter_docs = parse_docstring(scenario)
    row = _scenario_dict(scenario)
    if as_json:
        content = {**row, "doc": doc, "parameters": scenario.parameters}
        say_block(json.dumps(content, indent=2))
        return
    say_block(f"{row.pop('name')}: {row.pop('description')}\n\n{doc}\n")
    row["model"] = scenario.model
    row["clients"] = row["clients"] or "all"
    for name, value in row.items():
        if value:
            say(f"{name:>13}: {value}")
    say("", "Parameters, options of `fedtailor run`:")
    for name, default in scenario.parameters.items():
        say(f"  --{name.replace('_', '-')} (default {default!r})")
        say(f"      {parameter_docs.get(name, '(not described)')}")
