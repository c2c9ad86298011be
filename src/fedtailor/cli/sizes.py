"""Command-line options for the parameters of a scenario (its sizes, or its file)."""

import dataclasses
import inspect
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

import docstring_parser

from fedtailor._base.field_docs import field_docs
from fedtailor.cli.hyper import description_of
from fedtailor.cli.options import as_option
from fedtailor.lab.scenarios.scenario import Scenario

PREFIX = "scenario."
"""Prefix of a parameter with the same name as another option: `--scenario.alpha`."""


def sizes_of(scenario: Scenario, reserved_names: Iterable[str]) -> Any:
    """Makes a dataclass instance of a scenario's parameters, for `options.parse`.

    Args:
        scenario: the scenario.
        reserved_names: names of other options. Parameters with these names get the
            `PREFIX`.
    """
    import tyro

    annotations = scenario.types
    _, descriptions = parse_docstring(scenario)
    reserved_names, fields = set(reserved_names), []
    for name, default in scenario.parameters.items():
        option = as_option(name).removeprefix("--")
        argument = tyro.conf.arg(
            name=f"{PREFIX}{option}" if name in reserved_names else option,
            # argparse would interpret a single %.
            help=descriptions.get(name, "").replace("%", "%%"),
        )
        annotation = Annotated[annotations[name], argument]
        fields.append((name, annotation, dataclasses.field(default=default)))
    return dataclasses.make_dataclass("Sizes", fields, frozen=True)()


def with_sizes(scenario: Scenario, sizes: Any) -> Scenario:
    """The scenario with these parameters.

    Raises:
        ValueError: a value has the wrong type.
    """
    changed = {}
    for field in dataclasses.fields(sizes):
        value = getattr(sizes, field.name)
        if value != scenario.parameters[field.name]:
            changed[field.name] = value
    return scenario.sized(**changed)


def parse_docstring(scenario: Scenario) -> tuple[str, dict[str, str]]:
    """The description of a scenario's data, and those of its parameters."""
    build = scenario.build
    function = build.func if isinstance(build, partial) else build
    docstring = docstring_parser.parse(inspect.getdoc(function) or "")
    descriptions: dict[str, str] = {}
    for entry in docstring.params:
        # One entry may describe several arguments: "width, height: ...".
        for name in entry.arg_name.split(", "):
            descriptions[name] = description_of(entry)
    if scenario.options is not None:
        descriptions |= field_docs(scenario.options)
    return (docstring.description or "").strip(), descriptions
