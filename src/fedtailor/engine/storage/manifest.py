"""The manifest of a run: all settings, the data and the versions, as TOML values."""

import dataclasses
import platform
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.digests import json_digest
from fedtailor._base.documentation import see
from fedtailor._base.own_code import own_code
from fedtailor._version import __version__
from fedtailor.engine.training import RunSpec
from fedtailor.protocol import DataFacts
from fedtailor.protocol.plain import to_plain

ENVIRONMENT = ("versions", "machine", "origin")
"""The tables of a manifest in which a resumed run may differ.

Other versions or another machine may change the last bits of results. `origin` only
says where the data come from; their digest is in the table "data".
"""


def manifest(
    spec: RunSpec,
    data: DataFacts,
    *,
    machine: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of a run, its data and its environment, as nested dicts.

    Runs with equal manifests give equal results. With other versions, or with another
    number of devices (unless `canonical`), results are equal up to rounding.

    Args:
        spec: the settings, bound to the data.
        data: what is known about the data.
        machine: the devices on which clients are simulated (`Executor.machine`).
        origin: where the data come from, as plain values.

    Raises:
        ValueError: the method's class has no name of its own.
    """
    for method, _ in spec.algorithm.phases():
        kind = type(method)
        require(
            "about" in vars(kind),
            f"{kind.__name__} has no `about` of its own, only that of"
            f" {method.about.name!r}, and a stored run would be taken for one of it; give"
            f" it one with a new name{see('write-an-algorithm#1-the-file')}",
        )
    settings = spec.to_plain()
    code = _own_code(spec, settings)
    return {
        **settings,
        **({"code": code} if code else {}),
        "data": dict(data.description),
        **({} if origin is None else {"origin": origin_settings(origin)}),
        **({} if machine is None else {"machine": dict(machine)}),
        "versions": versions(),
    }


def _own_code(spec: RunSpec, settings: Mapping[str, Any]) -> dict[str, str]:
    """Digests of what the settings of a run name and do not tell: the user's own code, and
    what functions and metrics hold (the rate in an optimizer of optax).

    Args:
        spec: the run.
        settings: `spec.to_plain()`.
    """
    parts = {
        "method": (spec.algorithm, settings["algorithm"]),
        "model": (spec.model, settings["model"]),
        "uplink": (spec.uplink, settings.get("uplink", [])),
        "downlink": (spec.downlink, settings.get("downlink", [])),
    }
    metrics = [metric for metric in spec.metrics if not isinstance(metric, str)]
    held: dict[str, Any] = {}
    for name, (value, told) in parts.items():
        plain = to_plain(value, closures=True)
        if plain != told:
            held[name] = plain
    with_settings = [to_plain(it) for it in metrics if dataclasses.fields(it)]
    if with_settings:
        held["metrics"] = with_settings
    code = own_code([*(value for value, _ in parts.values()), *metrics])
    digests = {f"functions of {name}": json_digest(it) for name, it in held.items()}
    return code | digests


def versions() -> dict[str, str]:
    """The versions of fedtailor, Python, JAX and NumPy.

    They may change results by rounding.
    """
    libraries = {name: version(name) for name in ("jax", "numpy")}
    return {"fedtailor": __version__, "python": platform.python_version(), **libraries}


def origin_settings(origin: Mapping[str, Any]) -> dict[str, Any]:
    """An origin as TOML values, without entries that are None."""
    return {
        name: origin_settings(value) if isinstance(value, Mapping) else to_plain(value)
        for name, value in origin.items()
        if value is not None
    }


def difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> str | None:
    """Compare two manifests, except for the tables in `ENVIRONMENT`.

    Args:
        old, new: the manifests, or tables of them.
        path: the prefix of the names of settings in these tables, such as "algorithm.".

    Returns:
        The first setting that differs, as "name: old, now new"; None if all are equal.
    """
    # A setting says more than the digest of what it holds, and is named first.
    names = sorted(old.keys() | new.keys(), key=lambda name: (name == "code", name))
    for name in names:
        if not path and name in ENVIRONMENT:
            continue
        old_value = old.get(name)
        new_value = new.get(name)
        # Runs of earlier versions do not tell it.
        if not path and name == "code" and old_value is None:
            continue
        if isinstance(old_value, dict) and isinstance(new_value, dict):
            nested = difference(old_value, new_value, f"{path}{name}.")
            if nested is not None:
                return nested
        elif old_value != new_value:
            if path == "code.":
                return f"the code of {name} has changed since; restore it to go on"
            texts = ["not set" if v is None else v for v in (old_value, new_value)]
            return f"{path}{name}: {texts[0]}, now {texts[1]}"
    return None


def stored_versions(path: Path) -> dict[str, str]:
    """The versions in the manifest file of a run; empty if it cannot be read."""
    try:
        versions = tomllib.loads(path.read_text("utf-8")).get("versions")
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(versions, dict):
        return {}
    return {name: str(value) for name, value in versions.items()}


def environment_changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Describe changes of a resumed run's environment that may change its last bits.

    These are the entries of the tables in `ENVIRONMENT`, and the number of devices unless
    aggregation is canonical.

    Returns:
        One line; "" if nothing has changed.
    """
    changes = []
    for table in ENVIRONMENT:
        old_values = old.get(table)
        new_values = new.get(table)
        if isinstance(old_values, dict) and isinstance(new_values, dict):
            changes += [
                f"{name} {new_values[name]} instead of {old_values[name]}"
                for name in new_values
                if name in old_values and old_values[name] != new_values[name]
            ]
    machines = [manifest.get("machine", {}) for manifest in (old, new)]
    # Canonical aggregation gives the same bits on any number of devices.
    if all(
        isinstance(machine, dict) and machine.get("canonical") for machine in machines
    ):
        changes = [change for change in changes if not change.startswith("devices ")]
    if not changes:
        return ""
    line = f"{', '.join(changes)}: last bits may differ"
    if any(change.startswith("devices ") for change in changes):
        line += (
            "; canonical aggregation (--canonical) makes results independent of the"
            " number of devices"
        )
    return line
