"""Parse the uplink, the transforms of the clients' updates, from files and options."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from fedtailor.experiments.document import ConfigError, KeyPath
from fedtailor.experiments.parsing import configure
from fedtailor.pipelines import check_order, find_transform, transform_names
from fedtailor.protocol import Pipeline, require


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
            transforms.append(configure(transform(), settings, place))
        except ConfigError as error:
            raise ConfigError(place, f"{name}: {error}") from None
    try:
        check_order(tuple(transforms))
    except ValueError as error:
        raise ConfigError(place, str(error)) from None
    return tuple(transforms)


def uplink_of_texts(texts: Sequence[str]) -> Pipeline:
    """Build transforms from options such as `gaussian-noise:1.1,norm=0.5,by=client`.

    The name of the first setting can be omitted.

    Raises:
        ValueError: as for `uplink_of_tables`.
    """
    entries = []
    for text in texts:
        name, _, settings = text.partition(":")
        transform = find_transform(name)
        entry: dict[str, Any] = {"use": name}
        for number, setting in enumerate(filter(None, settings.split(","))):
            key, equals, value = setting.partition("=")
            require(
                bool(equals) or number == 0,
                f"--uplink {text}: write {key!r} as name=value",
            )
            if not equals:
                first = fields(cast(Any, transform))[0]
                key, value = first.name, key
            entry[key] = _parse_value(value)
        entries.append(entry)
    return uplink_of_tables(entries, ())


def _parse_value(text: str) -> Any:
    """Convert text to a number or boolean if possible."""
    try:
        return json.loads(text)
    except ValueError:
        return text
