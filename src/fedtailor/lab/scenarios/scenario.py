"""`Scenario`: a named combination of data, model and recommended settings."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, get_type_hints

from fedtailor._base.choice import require
from fedtailor.algorithms.find import find_algorithm
from fedtailor.data.federation import Federation
from fedtailor.models import Architecture
from fedtailor.models.low_rank import has_adapters
from fedtailor.protocol import SGD, Algorithm
from fedtailor.protocol.plain import ConfigError, parse

ADAPTER_RATE = 0.5
"""The learning rate of adapters, as a share of the scenario's. At widths of 32 to 512 and
ranks of 2 to 8 their largest stable rate is 0.5 or 1 times the scenario's, and grows with
neither (`benchmarks/adapter_rates.py`).
"""


def defaults_with(sgd: SGD) -> Callable[[str], Algorithm]:
    """A value for `Scenario.default`: methods with default settings, except for `sgd`.

    If a method refuses momentum, it is omitted. If it refuses the learning rate as
    well, its default SGD is used.
    """

    def recommended(name: str) -> Algorithm:
        kind: Any = Algorithm.registry[name]
        if "sgd" not in inspect.signature(kind).parameters:
            return kind()
        for candidate in (sgd, replace(sgd, momentum=0.0)):
            with suppress(ValueError):
                return kind(sgd=candidate)
        return kind()

    return recommended


@dataclass(frozen=True)
class Scenario:
    """A reproducible setting for comparing methods.

    Attributes:
        name: name on the command line.
        description: one line.
        build: a function of the seed that returns the federation. Its keyword-only
            parameters, which have annotations and defaults, are the scenario's
            parameters.
        model: the architecture.
        rounds: number of rounds for which the settings are meant.
        settings: the recommended methods by name.
        default: method name -> method, for methods that are not in `settings`.
        participation: share (up to 1) or number (from 2) of the seen clients that
            report in a round.
        source: publication of the scenario.
        data: the data set that it needs; "" if it needs no files.
        options: a dataclass whose fields are parameters of `build`, too.
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
    options: type | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Names and defaults of the scenario's parameters."""
        return {name: value.default for name, value in self._parameters().items()}

    @property
    def types(self) -> dict[str, Any]:
        """The annotations of the scenario's parameters, by name."""
        return {name: value.annotation for name, value in self._parameters().items()}

    def origin(self, seed: int) -> dict[str, Any]:
        """The entries of a run's manifest from which its data can be rebuilt."""
        return {"scenario": self.name, "seed": seed, "parameters": self.parameters}

    def sized(self, **arguments: Any) -> "Scenario":
        """The same scenario with other defaults for some of its parameters.

        Raises:
            ValueError: a parameter does not exist, or a value has another type.
        """
        parameters = self._parameters()
        for name, value in arguments.items():
            allowed = ", ".join(parameters) or "none"
            require(
                name in parameters,
                f"{self.name} has no parameter {name!r}; its parameters are: {allowed}",
            )
            arguments[name] = self._validate(name, value, parameters[name].annotation)
        return replace(self, build=partial(self.build, **arguments))

    def _parameters(self) -> dict[str, inspect.Parameter]:
        parameters = {}
        for name, parameter in inspect.signature(self.build).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                parameters[name] = parameter
        if self.options is None:
            return parameters
        # What `sized` has set instead of the defaults of the options.
        changed = self.build.keywords if isinstance(self.build, partial) else {}
        types = get_type_hints(self.options)
        for one in fields(self.options):
            parameters[one.name] = inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=changed.get(one.name, one.default),
                annotation=types[one.name],
            )
        return parameters

    def _validate(self, name: str, value: Any, annotation: Any) -> Any:
        """Validate the type of a value; integers are valid floats, and lists tuples."""
        try:
            return parse(annotation, value, (name,))
        except ConfigError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def algorithm(self, name: str) -> Algorithm:
        """The method that this scenario recommends under a name. The learning rate of
        low-rank adapters is `ADAPTER_RATE` times that of a whole network.

        Raises:
            ValueError: the method does not exist.
        """
        registered = find_algorithm(name).about.name
        if registered in self.settings:
            algorithm: Any = self.settings[registered]
        else:
            algorithm = self.default(registered)
        if has_adapters(self.model) and hasattr(algorithm, "sgd"):
            sgd = replace(algorithm.sgd, lr=ADAPTER_RATE * algorithm.sgd.lr)
            return replace(algorithm, sgd=sgd)
        return algorithm
