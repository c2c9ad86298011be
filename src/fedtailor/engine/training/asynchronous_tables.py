"""Parse the settings of late clients, from files and from the command line."""

import csv
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.files import reason
from fedtailor.aggregation.accounting import Wireless
from fedtailor.engine.training.asynchronous import RELIABLE, AsynchronousServer
from fedtailor.protocol.plain import ConfigError, KeyPath, check_choice_at, parse

CLOCK = tuple(field.name for field in fields(Wireless) if field.name != "uplink")
SETTINGS = tuple(
    field.name for field in fields(AsynchronousServer) if field.name != "clock"
)
COLUMNS = ("client", "slowness")


def asynchronous_of_table(
    table: Mapping[str, Any] | None, place: KeyPath
) -> AsynchronousServer | None:
    """Build the settings of late clients of a table, `{buffer = 5, mean_delay = 1.0}`.

    Besides those of `AsynchronousServer` it has the times of its clock (rho, t_min,
    mean_delay, t_dl). `slowness` may be the name of a CSV file with the columns client
    and slowness.

    Returns:
        The settings; None for no table.

    Raises:
        ConfigError: a setting is unknown, missing or has a wrong value.
    """
    if table is None:
        return None
    settings: dict[str, Any] = {}
    clock = {name: getattr(RELIABLE, name) for name in CLOCK}
    for name, value in table.items():
        check_choice_at(
            name, (*SETTINGS, *CLOCK), (*place, name), "setting of asynchronous"
        )
        if name in CLOCK:
            clock[name] = parse(float, value, (*place, name))
        else:
            settings[name] = value
    if "buffer" not in settings:
        raise ConfigError(
            place, "asynchronous needs buffer, the number of answers for a step"
        )
    slowness = settings.get("slowness", "")
    try:
        if isinstance(slowness, str) and slowness.endswith(".csv"):
            settings["slowness"] = _slowness_of(Path(slowness))
        return AsynchronousServer(clock=Wireless(**clock), **settings)
    except (TypeError, ValueError) as error:
        mentioned = [name for name in table if name in str(error)]
        raise ConfigError((*place, *mentioned[:1]), str(error)) from None


def _slowness_of(path: Path) -> dict[str, float]:
    """The factors of a CSV file, by client.

    Raises:
        ValueError: the file cannot be read, or is not a table of clients and factors.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"slowness: cannot read {path}: {reason(error)}") from None
    factors: dict[str, float] = {}
    for number, row in enumerate(rows, 2):
        require(
            all(row.get(column) for column in COLUMNS),
            f"slowness: line {number} of {path} needs a value in each of the columns"
            f" {' and '.join(COLUMNS)}",
        )
        name, factor = row["client"], row["slowness"]
        require(
            name not in factors,
            f"slowness: line {number} of {path} names {name!r} a second time",
        )
        try:
            factors[name] = float(factor)
        except ValueError:
            raise ValueError(
                f"slowness: line {number} of {path} has {factor!r}, which is not a number"
            ) from None
    require(bool(factors), f"slowness: {path} names no clients")
    return factors
