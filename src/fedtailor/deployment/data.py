"""Finds the data of a run by its manifest."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor._base.files import file_digest
from fedtailor.data.federation import Federation
from fedtailor.data.tables import from_table
from fedtailor.lab import scenarios

CLIENTS = "clients"
"""Key of an origin: names of the clients, if they are not all of the scenario's."""


def federation_of(
    directory: Path, manifest: Mapping[str, Any], table: Path | None = None
) -> Federation:
    """Find the data of a run, and check that they have not changed.

    Args:
        directory: the run directory.
        manifest: the settings of the run.
        table: path of the table, if the file was moved.

    Raises:
        ValueError: the manifest does not name the origin of the data, they are not
            found, or they have changed.
    """
    require_simulation(manifest, directory)
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
        # A manifest omits parameters that were None, even if that is not the default.
        unset = {
            name: None
            for name, default in scenario.parameters.items()
            if default is not None
        }
        federation = scenario.sized(**unset | parameters).build(origin["seed"])
        if CLIENTS in origin:
            federation = federation.only(origin[CLIENTS])
    require_same(federation, manifest, directory)
    return federation


def require_same(
    federation: Federation, manifest: Mapping[str, Any], directory: Path
) -> None:
    """Check that data are those that a run was trained on.

    Raises:
        ValueError: their digest differs.
    """
    require_simulation(manifest, directory)
    require(
        federation.digest == manifest["data"]["digest"],
        f"the data are not those that {directory} was trained on (their digest"
        " differs); give it the same",
    )


def require_simulation(manifest: Mapping[str, Any], directory: Path) -> None:
    """Check that a run's data are on this machine.

    Raises:
        ValueError: it is the run of a federation of machines.
    """
    require(
        not is_of_machines(manifest),
        f"{directory} is the run of a federation of machines, whose clients keep their"
        " data and their personal models: each predicts on its own machine, with"
        " `fedtailor federation predict KIT`",
    )


def is_of_machines(manifest: Mapping[str, Any]) -> bool:
    """Whether a run is one of a federation of machines, which keep their data."""
    return "job" in manifest["data"]


def _table(
    directory: Path,
    origin: Mapping[str, Any],
    parameters: Mapping[str, Any],
    new_path: Path | None,
) -> Federation:
    if new_path is None:
        # The manifest holds the path relative to the run directory.
        path = Path(directory.resolve(), origin["parameters"]["path"]).resolve()
    else:
        path = new_path.expanduser()
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
    return from_table(path, seed=origin["seed"], **options)
