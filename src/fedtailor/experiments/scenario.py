"""`Scenario`: data, a model and settings that belong together, under one name."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedtailor.algorithms.find import find_algorithm
from fedtailor.federation import Federation
from fedtailor.models import Architecture
from fedtailor.protocol import SGD, Algorithm, require


def defaults_with(sgd: SGD) -> Callable[[str], Algorithm]:
    """A `Scenario.default`: methods with their defaults, trained locally by `sgd`.

    A method that is defined for plain SGD only does without the momentum, and one that
    the rate does not suit keeps its own local training.
    """

    def recommended(name: str) -> Algorithm:
        kind: Any = Algorithm.registry[name]
        if "sgd" not in inspect.signature(kind).parameters:
            return kind()
        for local in (sgd, replace(sgd, momentum=0.0)):
            with suppress(ValueError):
                return kind(sgd=local)
        return kind()

    return recommended


@dataclass(frozen=True)
class Scenario:
    """A reproducible setting for comparing methods.

    Attributes:
        name: on the command line.
        description: one line.
        build: seed -> the federation. Its keyword-only parameters are the scenario's
            sizes: annotated, with defaults as published.
        model: what is trained.
        rounds: how many rounds the settings are meant for.
        settings: method name -> the method as this scenario recommends it; others run
            with `default`.
        default: method name -> the method as recommended where `settings` has none.
        participation: who reports in a round: a share of the seen clients, or (from 2)
            a number of them.
        source: where the scenario was published.
        data: the data set that it needs; "" where nothing has to be at hand.
    """

    name: str
    description: str
    build: Callable[..., Federation]
    model: Architecture
    rounds: int
    settings: Mapping[str, Algorithm] = field(default_factory=dict)
    default: Callable[[str], Algorithm] = lambda name: Algorithm.registry[name]()
    participation: float = 1.0
    source: str = ""
    data: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The scenario's sizes, by name, with their defaults."""
        return {name: parameter.default for name, parameter in self._sizes().items()}

    def origin(self, seed: int) -> dict[str, Any]:
        """What a run's directory says of its data, so that they can be made again."""
        return {"scenario": self.name, "seed": seed, "parameters": self.parameters}

    def sized(self, **arguments: Any) -> "Scenario":
        """The same scenario with other defaults of some of its `parameters`.

        Raises:
            ValueError: there is no such parameter, or a value is of another type.
        """
        sizes = self._sizes()
        for name, value in arguments.items():
            allowed = ", ".join(sizes) or "none"
            require(
                name in sizes,
                f"{self.name} has no parameter {name!r}; its parameters are: {allowed}",
            )
            arguments[name] = self._checked(name, value, sizes[name].annotation)
        return replace(self, build=partial(self.build, **arguments))

    def _sizes(self) -> dict[str, inspect.Parameter]:
        found = inspect.signature(self.build).parameters
        return {
            name: parameter
            for name, parameter in found.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    def _checked(self, name: str, value: Any, kind: Any) -> Any:
        """A value of the annotated kind.

        Whole numbers serve as floats, and lists (as in TOML) as tuples.
        """
        try:
            given = tuple(value) if isinstance(value, list) else value
            return TypeAdapter(kind).validate_python(given, strict=True)
        except ValidationError as error:
            messages = (problem["msg"] for problem in error.errors())
            wanted = [text.removeprefix("Input should be ") for text in messages]
            raise ValueError(
                f"{self.name}: {name} is {value!r}; it must be"
                f" {' or '.join(dict.fromkeys(wanted))}"
            ) from None

    def algorithm(self, name: str) -> Algorithm:
        """A method as this scenario recommends it.

        Raises:
            ValueError: there is no such method.
        """
        registered = find_algorithm(name).about.name
        if registered in self.settings:
            return self.settings[registered]
        return self.default(registered)
