"""Command-line options for the parameters of a scenario (its sizes, or its file)."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import docstring_parser

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

    builder = inspect.unwrap(_unwrap_partial(scenario.build))
    annotations = inspect.get_annotations(builder, eval_str=True)
    _, descriptions = parse_docstring(scenario.build)
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


def parse_docstring(build: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description in a builder's docstring, and those of its arguments."""
    docstring = docstring_parser.parse(inspect.getdoc(_unwrap_partial(build)) or "")
    descriptions: dict[str, str] = {}
    for entry in docstring.params:
        # One entry may describe several arguments: "width, height: ...".
        for name in entry.arg_name.split(", "):
            descriptions[name] = description_of(entry)
    return (docstring.description or "").strip(), descriptions


def _unwrap_partial(build: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a builder, which may be a partial."""
    return build.func if isinstance(build, partial) else build
