"""The manifest of a run: all settings, the data and the versions, as TOML values."""

import hashlib
import platform
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedtailor._version import __version__
from fedtailor.federation import Federation
from fedtailor.metrics import Metric
from fedtailor.models import Model
from fedtailor.protocol import Algorithm, Pipeline
from fedtailor.training.participation import Participation
from fedtailor.training.settings import settings

ENVIRONMENT = ("versions", "machine", "origin")
"""The tables of a manifest in which a resumed run may differ.

Other versions or another machine may change the last bits of results. `origin` only
says where the data come from; their digest is in the table "data".
"""


def manifest(
    algorithm: Algorithm,
    federation: Federation,
    model: Model,
    seed: int,
    participation: Participation,
    every: int,
    uplink: Pipeline = (),
    downlink: Pipeline = (),
    metrics: Sequence[Metric] = (),
    *,
    devices: int = 1,
    canonical: bool = False,
    until_still: bool = False,
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of a run, as nested dicts.

    Runs with equal manifests give equal results. With other versions, or with another
    number of devices (unless `canonical`), results are equal up to rounding.

    Args:
        devices: the number of devices.
        until_still: whether the run ends when its validation loss stands still.
        canonical: whether results are independent of the number of devices.
        origin: where the data come from, as plain values.
    """
    return {
        "run": {
            "seed": seed,
            "evaluate_every": every,
            "participation": settings(participation),
            **({"until_still": True} if until_still else {}),
            **({"metrics": [metric.name for metric in metrics]} if metrics else {}),
        },
        "algorithm": settings(algorithm),
        **({"uplink": settings(uplink)} if uplink else {}),
        **({"downlink": settings(downlink)} if downlink else {}),
        "model": settings(model),
        "data": {
            "name": federation.name,
            "clients": len(federation),
            "digest": digest(federation),
        },
        **({} if origin is None else {"origin": _origin_settings(origin)}),
        "machine": {
            "devices": devices,
            "platform": jax.default_backend(),
            "canonical": canonical,
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of fedtailor, Python, JAX and NumPy.

    They may change results by rounding.
    """
    libraries = {name: version(name) for name in ("jax", "numpy")}
    return {"fedtailor": __version__, "python": platform.python_version(), **libraries}


def _origin_settings(origin: Mapping[str, Any]) -> dict[str, Any]:
    """An origin as TOML values, without entries that are None."""
    return {
        name: _origin_settings(value) if isinstance(value, Mapping) else settings(value)
        for name, value in origin.items()
        if value is not None
    }


def digest(federation: Federation) -> str:
    """A digest of a federation's data, which must be equal when a run is resumed."""
    header = repr(
        (federation.names, federation.classes, federation.shift, federation.scale)
    )
    sha256 = hashlib.sha256(header.encode())
    groups = federation.unseen if federation.groups is None else federation.groups
    splits = (federation.train, federation.val, federation.test)
    parts = [part for split in splits for part in (split.rows, split.offsets)]
    for array in (federation.x, federation.y, groups, federation.unseen, *parts):
        sha256.update(f"{array.dtype} {array.shape}".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return sha256.hexdigest()[:16]


def difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> str | None:
    """Compare two manifests, except for the tables in `ENVIRONMENT`.

    Args:
        old, new: the manifests, or tables of them.
        path: the prefix of the names of settings in these tables, such as "algorithm.".

    Returns:
        The first setting that differs, as "name: old, now new"; None if all are equal.
    """
    for name in sorted(old.keys() | new.keys()):
        if not path and name in ENVIRONMENT:
            continue
        old_value = old.get(name)
        new_value = new.get(name)
        if isinstance(old_value, dict) and isinstance(new_value, dict):
            nested = difference(old_value, new_value, f"{path}{name}.")
            if nested is not None:
                return nested
        elif old_value != new_value:
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
