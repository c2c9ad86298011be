"""Makes the index of a comparison."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor.engine.storage.comparison_index import Index, ScenarioUse, Sweep
from fedtailor.engine.storage.manifest import stored_versions
from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.lab.experiments.experiment import (
    ComparedMethod,
    ComparedScenario,
    Experiment,
)


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
    except (OSError, ValueError, AttributeError, RecursionError):
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


def index_of(
    experiment: Experiment, path: Path, source: Path | None, **runs: Any
) -> Index:
    """The index of an experiment.

    Args:
        experiment: the experiment.
        path: of the index.
        source: the experiment file, if there is one.
        runs: the fields of the index that are about runs.
    """
    file = experiment.file
    # Relative to the index, as results are shared and should not contain local paths.
    relative_source = None if source is None else os.path.relpath(source, path.parent)
    return Index(
        name=experiment.name,
        file=relative_source,
        size=experiment.size,
        title=file.title,
        source=file.source,
        note=file.note,
        seeds=list(file.seeds),
        metrics=list(file.metrics),
        figures=list(file.figures),
        scenarios={
            scenario.label: _scenario_use(scenario) for scenario in experiment.scenarios
        },
        algorithms=list(experiment.method_labels),
        published=file.published,
        sweeps=_sweeps(experiment),
        until_converged=file.until_converged,
        **runs,
    )


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


def _scenario_use(scenario: ComparedScenario) -> ScenarioUse:
    """A scenario with the settings of the experiment."""
    participation = scenario.participation
    share = participation.count
    if share is None:
        share = participation.fraction
    return ScenarioUse(
        use=scenario.definition.name,
        arguments=dict(scenario.arguments),
        model=" or ".join(map(repr, scenario.models.values()))
        or repr(scenario.definition.model),
        rounds=scenario.rounds,
        participation=share,
        sampling=participation.sampling or "uniform",
    )


def _sweeps(experiment: Experiment) -> dict[str, Sweep]:
    """The sweeps by label: the parameter that varies, and the row of each value."""
    sweeps: dict[str, Sweep] = {}
    for method in experiment.methods:
        if len(method.varied) == 1:
            parameter, value = next(iter(method.varied.items()))
            sweep = sweeps.setdefault(method.key, Sweep(parameter, {}))
            sweep.rows[str(value)] = method.label
    return sweeps
