"""Parse the uplink, the transforms of the clients' updates, from files."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.aggregation.pipelines import (
    check_stages,
    find_transform,
    transform_names,
)
from fedtailor.protocol import Pipeline
from fedtailor.protocol.plain import ConfigError, KeyPath, configured


def uplink_of_tables(entries: Sequence[Mapping[str, Any]], place: KeyPath) -> Pipeline:
    """Build transforms from tables, `[{use = "clip", norm = 0.5}, {use = "quantize"}]`.

    Raises:
        ConfigError: a transform or a setting is unknown, a value is wrong, or the order
            of the transforms is wrong.
    """
    transforms = []
    for entry in entries:
        settings = dict(entry)
        name = settings.pop("use", None)
        if name is None:
            raise ConfigError(
                place,
                f"a transform needs a name: use = {' | '.join(transform_names())}",
            )
        try:
            transform = find_transform(str(name))
        except ValueError as error:
            raise ConfigError(place, str(error)) from None
        try:
            transforms.append(configured(transform(), settings, place))
        except ConfigError as error:
            raise ConfigError(place, f"{name}: {error}") from None
    try:
        check_stages(tuple(transforms))
    except ValueError as error:
        raise ConfigError(place, str(error)) from None
    return tuple(transforms)
