"""The index of a comparison: what was compared, and which runs say so.

It is one JSON file.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedtailor._files import reason, replacing
from fedtailor.experiments.experiment import Column, Entry, Experiment
from fedtailor.protocol import require
from fedtailor.storage import Unusable
from fedtailor.storage.digests import sealed
from fedtailor.storage.manifest import stored_versions
from fedtailor.storage.run_files import MANIFEST


def require_own_index(index: Path, source: Path | None) -> None:
    """Two files of one name, in different directories, would write the same index.

    Args:
        index: where it stands.
        source: the file that says what is compared, if there is one.

    Raises:
        ValueError: the index is that of another file.
    """
    try:
        before = json.loads(index.read_text()).get("file")
    except (OSError, ValueError, AttributeError):
        # There is none, or a damaged one, which is written anew.
        return
    if source is None or not isinstance(before, str):
        return
    other = (index.parent / before).resolve()
    require(
        not other.exists() or other.samefile(source),
        f"{index.parent} holds the results of {other}; rename {source}, or name another"
        " directory",
    )


def described_experiment(
    experiment: Experiment, index: Path, source: Path | None
) -> dict[str, Any]:
    """What an index says of the experiment itself."""
    file = experiment.file
    # From the index: no path of this machine stands in results that are passed on.
    relative_source = None if source is None else os.path.relpath(source, index.parent)
    return {
        "name": experiment.name,
        "file": relative_source,
        "size": experiment.size,
        "title": file.title,
        "source": file.source,
        "note": file.note,
        "seeds": file.seeds,
        "metrics": file.metrics,
        "figures": file.figures,
        "scenarios": {
            column.label: _described_column(column) for column in experiment.columns
        },
        "algorithms": experiment.rows,
        "published": file.published,
        "sweeps": _sweeps(experiment),
        "limited": experiment.limited,
        "runs": experiment.runs,
    }


def write_index(index: Path, content: dict[str, Any]) -> None:
    """The index, whole or not at all.

    Raises:
        Unusable: it cannot be written.
    """
    # The digest is of what is read back: text for all that JSON does not know.
    plain = json.loads(json.dumps(content, default=str))
    text = json.dumps(sealed(plain), indent=1)
    try:
        with replacing(index) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise Unusable(
            f"cannot write to {index.parent}: {reason(error)}; finished runs are kept"
        ) from None


def names(entry: Entry) -> dict[str, str]:
    """What tells the entries of an index apart."""
    return {"scenario": entry.column.label, "algorithm": entry.row}


def versions_of(runs: Iterable[Path]) -> dict[str, str]:
    """The versions that made runs, as their manifests say; several where they differ."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in stored_versions(run / MANIFEST).items():
            versions.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(several)) for name, several in versions.items()}


def _described_column(column: Column) -> dict[str, Any]:
    """A scenario as `fedtailor.report.experiment.ScenarioUse` has it."""
    participation = column.participation
    share = participation.count
    if share is None:
        share = participation.fraction
    described = {
        "use": column.scenario.name,
        "arguments": dict(column.arguments),
        "model": repr(column.scenario.model),
        "rounds": column.rounds,
        "participation": share,
    }
    if participation.sampling:
        described["sampling"] = participation.sampling
    return described


def _sweeps(experiment: Experiment) -> dict[str, Any]:
    """Label in the file -> the parameter that its rows vary, and each value's row."""
    sweeps: dict[str, Any] = {}
    for entry in experiment.entries:
        if len(entry.varied) == 1:
            parameter, value = next(iter(entry.varied.items()))
            empty = {"parameter": parameter, "rows": {}}
            sweep = sweeps.setdefault(entry.algorithm, empty)
            sweep["rows"][str(value)] = entry.row
    return sweeps
