"""Restores the method, the model and the pipelines of a run from its manifest."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import fedtailor.algorithms  # registers the methods
import fedtailor.pipelines  # noqa: F401  (registers the transforms)
from fedtailor.experiments.parsing import coerce
from fedtailor.models import Architecture, Model
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.plain import model_from_plain
from fedtailor.protocol import Algorithm, Pipeline, Transform, require
from fedtailor.training import Participation, RunSpec
from fedtailor.training.settings import later_fields, settings

T = TypeVar("T")


def algorithm_from_config(config: Mapping[str, Any]) -> Algorithm:
    """Make the method of a run from its entry in the manifest.

    Raises:
        ValueError: the method is not installed, or has settings (functions, arrays)
            that a manifest cannot hold.
    """
    name = config.get("name")
    try:
        kind = _class(Algorithm, config)
    except ValueError:
        raise ValueError(
            f"the run's method {name!r} is not one that is installed; pass"
            " algorithm=..."
        ) from None
    return _from_config(kind, config, f"the run's method {name!r}", "algorithm")


def pipeline_from_config(config: list[dict[str, Any]], name: str) -> Pipeline:
    """Make the transforms of a run from the manifest's `uplink` or `downlink`."""
    what = f"a transform of the run's {name}"
    return tuple(
        _from_config(_class(Transform, entry), entry, what, name) for entry in config
    )


def spec_of(
    manifest: Mapping[str, Any],
    rounds: int,
    *,
    algorithm: Algorithm | None = None,
    model: Model | Architecture | None = None,
) -> RunSpec:
    """The settings of a run from its manifest; the inverse of `RunSpec.to_plain`.

    Args:
        manifest: of the run.
        rounds: of the run, which the manifest does not hold.
        algorithm: the method, if the manifest's is not to be used.
        model: the model, likewise.

    Raises:
        ValueError: the manifest does not determine the run.
    """
    run = manifest["run"]
    return RunSpec(
        algorithm_from_config(manifest["algorithm"])
        if algorithm is None
        else algorithm,
        model_from_config(manifest["model"], model),
        rounds,
        seed=run["seed"],
        participation=Participation(**run["participation"]),
        uplink=pipeline_from_config(manifest.get("uplink", []), "uplink"),
        downlink=pipeline_from_config(manifest.get("downlink", []), "downlink"),
        metrics=run.get("metrics", ()),
        evaluate_every=run["evaluate_every"],
        until_still=run.get("until_still", False),
    )


def model_from_config(
    config: Mapping[str, Any],
    given: Model | Architecture | None = None,
    held: Iterable[FrozenArrays] = (),
) -> Model:
    """Make the model of a run from its entry in the manifest.

    Args:
        config: the entry.
        given: the model, or its network, if only the user's code knows it.
        held: the frozen arrays beside the manifest.

    Raises:
        ValueError: its network or its loss is not one of fedtailor's.
    """
    try:
        return model_from_plain(config, given, held)
    except ValueError as error:
        raise ValueError(
            f"{error}; pass model=... (`--model FILE.py:NAME` on the command line)"
        ) from None


def _from_config(
    kind: type[T], config: Mapping[str, Any], what: str, argument: str
) -> T:
    """Make a dataclass from its settings; the inverse of `storage.manifest.settings`.

    Args:
        kind: the dataclass.
        config: its settings.
        what: what it is, for messages of errors.
        argument: the argument of `open_run` with which a user can pass it.

    Raises:
        ValueError: the settings do not determine it, as they hold only digests of
            arrays and names of functions.
    """
    annotations = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, kind))]
    try:
        later = later_fields(kind)
        values = {
            name: _value(config.get(name), annotations[name], name)
            for name in names
            if name in config or name not in later
        }
        value = kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{what} cannot be read from the run's directory ({error}); pass"
            f" {argument}=..."
        ) from None
    # The settings differ if they hold a digest of an array or the name of a function.
    require(
        settings(value) == dict(config),
        f"{what} was given what only your code knows; pass {argument}=...",
    )
    return value


def _value(config: Any, annotation: Any, name: str) -> Any:
    """Make the value of the field `name` from its setting."""
    if config is None:
        return None
    if not isinstance(config, dict):
        return coerce(config, annotation, (name,))
    nested = (kind for kind in _classes(annotation) if dataclasses.is_dataclass(kind))
    kind = _class(next(nested, Algorithm), config)
    return _from_config(kind, config, f"its setting {name}", "algorithm")


def _class(base: type[Any], config: Mapping[str, Any]) -> type[Any]:
    """The class that settings name: `base` or one of its subclasses."""
    method, name = config.get("name"), config.get("type")
    if method in Algorithm.registry and issubclass(Algorithm.registry[method], base):
        return Algorithm.registry[method]
    # A schedule is not registered; its name in a manifest is its class in lower case.
    for kind in _subclasses(base):
        if name == kind.__name__ or method == kind.__name__.lower():
            return kind
    raise ValueError(f"there is no {name or method!r} here")


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """A class and all its subclasses, direct and indirect."""
    yield kind
    for inner in kind.__subclasses__():
        yield from _subclasses(inner)


def _classes(annotation: Any) -> Iterator[type[Any]]:
    """The classes in an annotation, such as those of a union."""
    if isinstance(annotation, type):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _classes(inner)
