"""The index of a comparison: a JSON file with its settings and its runs."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedtailor._files import atomic_write, reason
from fedtailor.experiments.experiment import (
    ComparedMethod,
    ComparedScenario,
    Experiment,
)
from fedtailor.protocol import require
from fedtailor.storage import Unusable
from fedtailor.storage.digests import with_digest
from fedtailor.storage.manifest import stored_versions
from fedtailor.storage.run_files import MANIFEST


def require_own_index(index: Path, source: Path | None) -> None:
    """Require that an existing index belongs to this experiment file.

    Files of the same name in different directories would write the same index.

    Args:
        index: path of the index.
        source: the experiment file, if there is one.

    Raises:
        ValueError: the index belongs to another experiment file.
    """
    try:
        old_source = json.loads(index.read_text()).get("file")
    except (OSError, ValueError, AttributeError):
        # The index does not exist, or is damaged and will be replaced.
        return
    if source is None or not isinstance(old_source, str):
        return
    other = (index.parent / old_source).resolve()
    require(
        not other.exists() or other.samefile(source),
        f"{index.parent} holds the results of {other}; rename {source}, or name another"
        " directory",
    )


def describe_experiment(
    experiment: Experiment, index: Path, source: Path | None
) -> dict[str, Any]:
    """The entries of an index that describe the experiment."""
    file = experiment.file
    # Relative to the index, as results are shared and should not contain local paths.
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
            scenario.label: _describe_scenario(scenario)
            for scenario in experiment.scenarios
        },
        "algorithms": experiment.method_labels,
        "published": file.published,
        "sweeps": _sweeps(experiment),
        "until_still": file.until_still,
        "runs": experiment.runs,
    }


def write_index(index: Path, content: dict[str, Any]) -> None:
    """Write the index, atomically.

    Raises:
        Unusable: it cannot be written.
    """
    # Convert to JSON and back first, as the digest is that of the JSON values.
    json_content = json.loads(json.dumps(content, default=str))
    text = json.dumps(with_digest(json_content), indent=1)
    try:
        with atomic_write(index) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise Unusable(
            f"cannot write to {index.parent}: {reason(error)}; finished runs are kept"
        ) from None


def labels_of(method: ComparedMethod) -> dict[str, str]:
    """The labels of a method in a scenario, which identify it in the index."""
    return {"scenario": method.scenario.label, "algorithm": method.label}


def collect_versions(runs: Iterable[Path]) -> dict[str, str]:
    """The versions in the manifests of runs, joined by commas if there are several."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in stored_versions(run / MANIFEST).items():
            versions.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(several)) for name, several in versions.items()}


def _describe_scenario(scenario: ComparedScenario) -> dict[str, Any]:
    """A scenario in the form of `fedtailor.report.experiment.ScenarioUse`."""
    participation = scenario.participation
    share = participation.count
    if share is None:
        share = participation.fraction
    description = {
        "use": scenario.definition.name,
        "arguments": dict(scenario.arguments),
        "model": " or ".join(map(repr, scenario.models.values()))
        or repr(scenario.definition.model),
        "rounds": scenario.rounds,
        "participation": share,
    }
    if participation.sampling:
        description["sampling"] = participation.sampling
    return description


def _sweeps(experiment: Experiment) -> dict[str, Any]:
    """The sweeps by label: the parameter that varies, and the row of each value."""
    sweeps: dict[str, Any] = {}
    for method in experiment.methods:
        if len(method.varied) == 1:
            parameter, value = next(iter(method.varied.items()))
            new_sweep = {"parameter": parameter, "rows": {}}
            sweep = sweeps.setdefault(method.key, new_sweep)
            sweep["rows"][str(value)] = method.label
    return sweeps
