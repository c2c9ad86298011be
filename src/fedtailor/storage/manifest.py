"""What was run: every setting, the data and the versions, as plain values for
`manifest.toml`.
"""

import dataclasses
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

CIRCUMSTANCES = ("versions", "machine", "origin")
"""The tables of a manifest that change last bits at most.

`origin` changes nothing: it says where to find the data, whose digest is in "data"."""


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
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of a run. Two runs with equal manifests give equal results, with
    other versions or (unless `canonical`) another number of devices to rounding.

    Args:
        devices: how many devices train.
        canonical: whether results do not depend on that.
        origin: where the data came from, so that they can be found again: plain values.
    """
    return {
        "run": {
            "seed": seed,
            "evaluate_every": every,
            "participation": settings(participation),
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
        **({} if origin is None else {"origin": _plain_origin(origin)}),
        "machine": {
            "devices": devices,
            "platform": jax.default_backend(),
            "canonical": canonical,
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """What a run's results depend on to rounding: the versions of fedtailor, Python,
    JAX and NumPy.
    """
    libraries = {name: version(name) for name in ("jax", "numpy")}
    return {"fedtailor": __version__, "python": platform.python_version(), **libraries}


def _plain_origin(origin: Mapping[str, Any]) -> dict[str, Any]:
    """An origin as TOML holds it: without None."""
    return {
        name: _plain_origin(value) if isinstance(value, Mapping) else settings(value)
        for name, value in origin.items()
        if value is not None
    }


def settings(value: Any) -> Any:
    """A dataclass as a nested dict of TOML values: arrays by digest, functions by name,
    None left out, which TOML does not have.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        described: dict[str, Any] = _kind(value)
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if part is not None:
                described[field.name] = settings(part)
        return described
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [settings(part) for part in value if part is not None]
    if hasattr(value, "dtype"):
        sha256 = hashlib.sha256(np.ascontiguousarray(value).tobytes())
        return f"array {sha256.hexdigest()[:16]}"
    return getattr(value, "__qualname__", repr(value))


def _kind(value: Any) -> dict[str, str]:
    """What tells apart dataclasses with the same fields; methods go by their names."""
    type_name = type(value).__name__
    if isinstance(value, Algorithm):
        has_name = hasattr(value, "about")
        return {"name": value.about.name if has_name else type_name.lower()}
    # A run has one participation and one model: nothing to tell apart.
    if isinstance(value, Participation | Model):
        return {}
    return {"type": type_name}


def digest(federation: Federation) -> str:
    """A fingerprint of all that a federation holds: a run is resumed and opened with
    the same data only.
    """
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
    """Compare two manifests; versions and machine do not count.

    Args:
        old, new: what is compared.
        path: what stands before the names of settings, such as "algorithm.".

    Returns:
        The first setting in which they differ, as "name: old, now new"; None where they
        agree.
    """
    for name in sorted(old.keys() | new.keys()):
        if not path and name in CIRCUMSTANCES:
            continue
        before = old.get(name)
        now = new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            inner = difference(before, now, f"{path}{name}.")
            if inner is not None:
                return inner
        elif before != now:
            return f"{path}{name}: {_or_not_set(before)}, now {_or_not_set(now)}"
    return None


def _or_not_set(setting: Any) -> Any:
    return "not set" if setting is None else setting


def stored_versions(path: Path) -> dict[str, str]:
    """The versions in a run's manifest (`path` is its file); empty where that cannot be
    read.
    """
    try:
        versions = tomllib.loads(path.read_text("utf-8")).get("versions")
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(versions, dict):
        return {}
    return {name: str(value) for name, value in versions.items()}


def other_circumstances(old: dict[str, Any], new: dict[str, Any]) -> str:
    """What may change the last bits of a run that goes on: versions, and the number of
    devices where results depend on it.

    Returns:
        One line; "" for nothing.
    """
    changes = []
    for table in CIRCUMSTANCES:
        before = old.get(table)
        now = new.get(table)
        if isinstance(before, dict) and isinstance(now, dict):
            changes += [
                f"{name} {now[name]} instead of {before[name]}"
                for name in now
                if name in before and before[name] != now[name]
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
