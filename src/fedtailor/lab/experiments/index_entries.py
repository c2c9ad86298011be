"""Makes the index of a comparison: its entries, run by run, and the file."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor._base.choice import require
from fedtailor.engine.storage.comparison_index import (
    BaselineRun,
    CandidateRun,
    Index,
    MethodRun,
    RoundBudget,
    ScenarioUse,
    Skipped,
    Sweep,
)
from fedtailor.engine.storage.manifest import stored_versions
from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.lab.baselines import Baseline
from fedtailor.lab.experiments.experiment import (
    Candidate,
    ComparedMethod,
    ComparedScenario,
    Experiment,
)


@dataclass
class IndexEntries:
    """What a comparison has done so far, as its index lists it.

    Attributes:
        method_runs: the runs of selected candidates.
        candidates: all candidates that were compared.
        baselines: the runs of baselines.
        skipped: what was not run, with the reasons.
        added_runs: number of runs that bracketing has added to the experiment.
        budget: the number of rounds with successive halving, and without; None = methods
            were not halved.
    """

    method_runs: list[MethodRun] = field(default_factory=list)
    candidates: list[CandidateRun] = field(default_factory=list)
    baselines: list[BaselineRun] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    added_runs: int = 0
    budget: RoundBudget | None = None

    def add_candidate(
        self, method: ComparedMethod, candidate: Candidate, seed: int, **result: Any
    ) -> None:
        """Add a candidate."""
        self.candidates.append(
            CandidateRun(
                **labels_of(method),
                parameters=dict(candidate.parameters),
                seed=seed,
                **result,
            )
        )

    def skip(
        self,
        method: ComparedMethod,
        seed: int | None,
        parameters: Mapping[str, Any],
        message: str,
        *,
        runs: int = 0,
    ) -> None:
        """Add skipped runs.

        Args:
            method: the method in its scenario.
            seed: the seed; None for all seeds.
            parameters: the values from the grid.
            message: the reason, in one line.
            runs: number of runs of the experiment that are skipped.
        """
        self.skipped.append(
            Skipped(
                **labels_of(method),
                seed=seed,
                parameters=dict(parameters),
                why=message,
                runs=runs,
            )
        )

    def skip_refused(self, method: ComparedMethod) -> None:
        """Add the settings that the method refuses."""
        for refusal in method.refused:
            self.skip(method, None, refusal.parameters, refusal.message)

    def skip_baseline(
        self, scenario: ComparedScenario, baseline: Baseline, why: str
    ) -> None:
        """Add a baseline that cannot be trained."""
        self.skipped.append(
            Skipped(scenario.label, baseline.title, None, {}, why=why, runs=0)
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
    experiment: Experiment,
    path: Path,
    source: Path | None,
    entries: IndexEntries,
    **circumstances: Any,
) -> Index:
    """The index of an experiment.

    Args:
        experiment: the experiment.
        path: of the index.
        source: the experiment file, if there is one.
        entries: what was done.
        circumstances: the further fields of the index: versions, the machine, seconds.
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
        runs=experiment.runs + entries.added_runs,
        method_runs=entries.method_runs,
        baselines=entries.baselines,
        deployable=file.deployable,
        candidates=entries.candidates,
        skipped=entries.skipped,
        budget=entries.budget,
        **circumstances,
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
        model=" or ".join(map(str, scenario.models.values()))
        or str(scenario.definition.model),
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
