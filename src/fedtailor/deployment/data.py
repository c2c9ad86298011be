"""The data that a run was made from, found again by what its manifest says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.experiments import scenarios
from fedtailor.federation import Federation
from fedtailor.protocol import require
from fedtailor.storage.digests import file_digest
from fedtailor.storage.export import PREPROCESSING
from fedtailor.storage.manifest import digest
from fedtailor.tables import Preprocessing, from_table

CLIENTS = "clients"
"""In an origin: the clients that were taken, where a scenario has more."""


def federation_of(
    directory: Path, manifest: Mapping[str, Any], table: Path | None = None
) -> Federation:
    """The data of a run, which must be those that it was trained on.

    Args:
        directory: of the run.
        manifest: its settings.
        table: where the table is now, if it is not where it was.

    Raises:
        ValueError: the run does not say where they came from, or they are not there, or
            no longer the same.
    """
    origin = manifest.get("origin")
    if not isinstance(origin, dict):
        raise ValueError(
            f"{directory} does not say where its data came from (they were made in"
            f" Python); open it there: ft.open({str(directory)!r}, federation=...)"
        )
    parameters = origin.get("parameters", {})
    if origin["scenario"] == "table":
        federation = _table(directory, origin, parameters, table)
        # The file may have been renamed.
        federation = replace(federation, name=manifest["data"]["name"])
    else:
        require(
            table is None,
            f"{directory} was made from the scenario {origin['scenario']}, not from a"
            " table",
        )
        scenario = scenarios.find(origin["scenario"])
        # A parameter that the manifest does not name was None, whatever its default.
        unset = {
            name: None
            for name, default in scenario.parameters.items()
            if default is not None
        }
        federation = scenario.sized(**unset | parameters).build(origin["seed"])
        if CLIENTS in origin:
            federation = only_clients(federation, origin[CLIENTS])
    require_same(federation, manifest, directory)
    return federation


def require_same(
    federation: Federation, manifest: Mapping[str, Any], directory: Path
) -> None:
    """Refuse other data than those that a run was trained on.

    Raises:
        ValueError: their digest differs.
    """
    same = digest(federation) == manifest["data"]["digest"]
    require(
        same,
        f"the data are not those that {directory} was trained on (their digest"
        " differs); give it the same",
    )


def _table(
    directory: Path,
    origin: Mapping[str, Any],
    parameters: Mapping[str, Any],
    moved: Path | None,
) -> Federation:
    path = table_path(directory, origin) if moved is None else moved.expanduser()
    require(
        path.is_file(),
        f"the table of {directory} is not at {path}; say where it is with --table",
    )
    require(
        file_digest(path) == origin["file"],
        f"{path} is not the table that {directory} was trained on (its digest differs);"
        " give the same file, or train again on the new one",
    )
    options = {name: value for name, value in parameters.items() if name != "path"}
    if _stayed_correlated(directory):
        options["keep_correlated"] = True
    return from_table(path, seed=origin["seed"], **options)


def _stayed_correlated(directory: Path) -> bool:
    """Whether a run is a regression on inputs that were not decorrelated.

    Such are those from before there was an option for it.
    """
    file = directory / PREPROCESSING
    if not file.is_file():
        return False
    learned = Preprocessing.load(file)
    return learned.target.task == "regression" and learned.decorrelation is None


def table_path(directory: Path, origin: Mapping[str, Any]) -> Path:
    """Where a run's table is: its manifest says it from the run's own directory."""
    return Path(directory.resolve(), origin["parameters"]["path"]).resolve()


def only_clients(federation: Federation, names: Sequence[str]) -> Federation:
    """Some clients of a federation, with nothing of the others left in it.

    Raises:
        ValueError: there is no such client, or none of them trains.
    """
    places = np.array([federation.client(str(name)).index for name in names])
    splits = {
        split: getattr(federation, split).take(places)
        for split in ("train", "val", "test")
    }
    rows = np.unique(np.concatenate([split.rows for split in splits.values()]))
    renumbered = {
        name: split.renumber(np.searchsorted(rows, split.rows))
        for name, split in splits.items()
    }
    return replace(
        federation,
        x=federation.x[rows],
        y=federation.y[rows],
        **renumbered,
        names=tuple(federation.names[place] for place in places),
        groups=None if federation.groups is None else federation.groups[places],
        unseen=federation.unseen[places],
    )
