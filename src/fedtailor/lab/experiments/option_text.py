"""Values of options on the command line: models and transforms with their settings, such
as `mlp:hidden=64` and `gaussian-noise:1.1,norm=0.5`.
"""

import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast

from fedtailor._base.choice import require
from fedtailor.aggregation.pipelines import find_transform
from fedtailor.aggregation.uplink_tables import uplink_of_tables
from fedtailor.engine.training import AsynchronousServer
from fedtailor.engine.training.asynchronous_tables import (
    SETTINGS,
    asynchronous_of_table,
)
from fedtailor.models import Architecture, find_builder
from fedtailor.models.plain import architecture_of
from fedtailor.protocol import Pipeline

AUTO = "auto"
"""The word for a choice between a linear model and a small network."""

_NAME = re.compile(r"(?P<name>.*\.py:\w+|[^:]*)(:(?P<settings>.*))?", re.DOTALL)
"""A name, or an object in a file, FILE.py:NAME; its settings follow after a colon."""


def uplink_of_texts(texts: Sequence[str]) -> Pipeline:
    """Build transforms from options such as `gaussian-noise:1.1,norm=0.5,by=client`.

    The name of the first setting can be omitted.

    Raises:
        ValueError: as for `uplink_of_tables`.
    """
    entries = []
    for text in texts:
        name, settings = _split(text)
        names = [field.name for field in fields(cast(Any, find_transform(name)))]
        entries.append({"use": name, **_parse(settings, names, f"--uplink {text}")})
    return uplink_of_tables(entries, ())


def asynchronous_of_text(text: str | None) -> AsynchronousServer | None:
    """Build the settings of late clients from an option such as `5,weight=hinge`.

    Raises:
        ValueError: as for `asynchronous_of_table`.
    """
    if text is None:
        return None
    return asynchronous_of_table(_parse(text, SETTINGS, f"--asynchronous {text}"), ())


def architecture_of_text(text: str) -> Architecture:
    """Build a model from an option such as `mlp:hidden=64` or `net.py:Net`.

    The name of the first argument can be omitted.

    Raises:
        ValueError: the model or an argument does not exist, or a value has another type.
    """
    return architecture_of(model_of_text(text), ("--model",), own_files=True)


def model_of_text(text: str) -> dict[str, Any]:
    """The model of such an option, as an experiment file has it.

    Raises:
        ValueError: the model does not exist, or a setting has no name.
    """
    name, settings = _split(text)
    names: list[str] = []
    if ".py:" not in name:
        names = list(inspect.signature(find_builder(name)).parameters)
    return {"use": name, **_parse(settings, names, f"--model {text}")}


def given_model(text: str | None) -> Architecture | None:
    """The network that an option names to open a run whose model is the user's own code;
    None without the option.

    Raises:
        ValueError: as `architecture_of_text`.
    """
    return None if text is None else architecture_of_text(text)


def _split(text: str) -> tuple[str, str]:
    """The name in a text, and its settings after the colon."""
    match = _NAME.fullmatch(text)
    assert match is not None
    return match["name"], match["settings"] or ""


def _parse(settings: str, names: Sequence[str], place: str) -> dict[str, Any]:
    """Parse settings that are separated by commas.

    Args:
        settings: the text after the colon.
        names: the names of all settings; a first value without a name is that of the
            first one.
        place: the option, for messages.
    """
    entry: dict[str, Any] = {}
    for number, setting in enumerate(filter(None, settings.split(","))):
        key, equals, value = setting.partition("=")
        require(
            bool(equals) or (number == 0 and bool(names)),
            f"{place}: write {key!r} as name=value",
        )
        if not equals:
            key, value = names[0], key
        entry[key] = _parse_value(value)
    return entry


def _parse_value(text: str) -> Any:
    """Convert text to a number or boolean if possible."""
    try:
        return json.loads(text)
    except ValueError:
        return text
