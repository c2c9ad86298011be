"""A scenario's parameters (its sizes, or the file it reads) as options of the command
line.
"""

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
    """A dataclass instance with the scenario's parameters and their defaults, for
    `options.parse`.

    Args:
        scenario: whose.
        taken: names of fields of other options; parameters of such names are given with
            `PREFIX`.
    """
    import tyro

    builder = inspect.unwrap(
        scenario.build.func if isinstance(scenario.build, partial) else scenario.build
    )
    annotations = inspect.get_annotations(builder, eval_str=True)
    _, explained = about_builder(scenario.build)
    taken, fields = set(taken), []
    for name, default in scenario.parameters.items():
        shown = f"{PREFIX if name in taken else ''}{as_option(name)[2:]}"
        option = tyro.conf.arg(
            name=shown, help=explained.get(name, "").replace("%", "%%")
        )
        fields.append(
            (
                name,
                Annotated[annotations[name], option],
                dataclasses.field(default=default),
            )
        )
    return dataclasses.make_dataclass("Sizes", fields, frozen=True)()


def sized(scenario: Scenario, sizes: Any) -> Scenario:
    """The scenario with the parameters that differ from its defaults.

    Raises:
        ValueError: a value is of another kind.
    """
    values = {
        field.name: getattr(sizes, field.name) for field in dataclasses.fields(sizes)
    }
    return scenario.sized(
        **{
            name: value
            for name, value in values.items()
            if value != scenario.parameters[name]
        }
    )


def about_builder(build: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What a builder's docstring says before its arguments, and about each of them."""
    found = docstring_parser.parse(
        inspect.getdoc(build.func if isinstance(build, partial) else build) or ""
    )
    explained: dict[str, str] = {}
    for entry in found.params:
        explained |= dict.fromkeys(
            entry.arg_name.split(", "), " ".join((entry.description or "").split())
        )
    about = "\n\n".join(
        text for text in (found.short_description, found.long_description) if text
    )
    return about, explained
