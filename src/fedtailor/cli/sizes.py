"""A scenario's parameters (its sizes, or its file) as options of the command line."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import docstring_parser

from fedtailor.cli.options import as_option
from fedtailor.experiments.scenario import Scenario

PREFIX = "scenario."
"""Before a parameter whose name is also that of another option: `--scenario.alpha`."""


def sizes_of(scenario: Scenario, taken: Iterable[str]) -> Any:
    """A dataclass instance with the scenario's parameters and their defaults.

    `options.parse` takes it.

    Args:
        scenario: whose.
        taken: names of fields of other options; parameters of such names are given with
            `PREFIX`.
    """
    import tyro

    builder = inspect.unwrap(_function(scenario.build))
    annotations = inspect.get_annotations(builder, eval_str=True)
    _, explained = about_builder(scenario.build)
    taken, fields = set(taken), []
    for name, default in scenario.parameters.items():
        option = as_option(name).removeprefix("--")
        about = tyro.conf.arg(
            name=f"{PREFIX}{option}" if name in taken else option,
            # argparse would replace what follows a single one.
            help=explained.get(name, "").replace("%", "%%"),
        )
        annotation = Annotated[annotations[name], about]
        fields.append((name, annotation, dataclasses.field(default=default)))
    return dataclasses.make_dataclass("Sizes", fields, frozen=True)()


def sized(scenario: Scenario, sizes: Any) -> Scenario:
    """The scenario with the parameters that differ from its defaults.

    Raises:
        ValueError: a value is of another kind.
    """
    changed = {}
    for field in dataclasses.fields(sizes):
        value = getattr(sizes, field.name)
        if value != scenario.parameters[field.name]:
            changed[field.name] = value
    return scenario.sized(**changed)


def about_builder(build: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What a builder's docstring says before its arguments, and about each of them."""
    docstring = docstring_parser.parse(inspect.getdoc(_function(build)) or "")
    explained: dict[str, str] = {}
    for entry in docstring.params:
        description = " ".join((entry.description or "").split())
        # One entry may explain several arguments: "width, height: ...".
        for name in entry.arg_name.split(", "):
            explained[name] = description
    return (docstring.description or "").strip(), explained


def _function(build: Callable[..., Any]) -> Callable[..., Any]:
    """A builder itself, where some of its arguments are given already."""
    return build.func if isinstance(build, partial) else build
