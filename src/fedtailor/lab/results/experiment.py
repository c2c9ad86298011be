"""Reads the index of an experiment.

The index lists which algorithms ran on which scenarios, and where their runs are.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedtailor._base.choice import check_choice, require
from fedtailor._base.digests import DIGEST_KEY, with_digest
from fedtailor.engine.storage.comparison_index import (
    BaselineRun,
    CandidateRun,
    Index,
    MethodRun,
    read_index,
)
from fedtailor.engine.storage.manifest import stored_versions
from fedtailor.engine.storage.run_files import COMPARISON_INDEX, MANIFEST, SUMMARY
from fedtailor.lab.baselines import CHOSEN
from fedtailor.lab.results.measures import MEASURES
from fedtailor.lab.results.stored import RunsByScenario, StoredBaseline, StoredRun
from fedtailor.lab.results.units import Unit, unit_of

_OF_THE_CALL = ("seconds", "core_seconds", "machine", DIGEST_KEY)
"""What an index says of the call that wrote it, and not of what was compared."""


@dataclass(frozen=True)
class StoredExperiment:
    """An experiment's index with its runs.

    Attributes:
        results: the directory that the paths of runs are relative to.
        index: the content of the index.
    """

    results: Path
    index: Index

    @staticmethod
    def read(results: Path, name: str) -> "StoredExperiment":
        """Reads the experiment `name` in the directory `results`.

        Raises:
            ValueError: its index is damaged.
        """
        path = results / name / COMPARISON_INDEX
        index = read_index(path)
        # Reports are written to a directory of this name.
        is_file_name = Path(index.name).name == index.name
        require(
            is_file_name and index.name not in ("", ".", ".."),
            f"{path} has the name {index.name!r}; it must be one that a directory can"
            " have",
        )
        for metric in index.metrics:
            require(
                metric in MEASURES,
                f"{path} has the metric {metric!r}; it must be one of"
                f" {', '.join(MEASURES)}",
            )
        return StoredExperiment(results, index)

    @property
    def folder(self) -> Path:
        """The experiment's own directory, next to those of its runs."""
        return self.results / self.index.name

    @cached_property
    def digest(self) -> str:
        """A digest of what was compared and of all runs that were finished.

        How long the comparison took, and on which machine, is not part of it.
        """
        index = json.loads((self.folder / COMPARISON_INDEX).read_bytes())
        kept = {name: index[name] for name in index if name not in _OF_THE_CALL}
        digest = hashlib.sha256(with_digest(kept)[DIGEST_KEY].encode())
        listed = self.index
        runs = {run.run for run in (*listed.method_runs, *listed.baselines)}
        runs |= {candidate.run for candidate in listed.candidates if candidate.run}
        for run in sorted(runs):
            summary = self.results / run / SUMMARY
            content = summary.read_bytes() if summary.is_file() else b""
            digest.update(f"{run}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    @cached_property
    def runs(self) -> RunsByScenario:
        """Finished runs: scenario -> algorithm -> runs in the order of seeds.

        Runs that diverged are omitted. An algorithm without any run has an empty list.
        """
        runs: dict[str, dict[str, list[StoredRun]]] = {}
        for scenario in self.index.scenarios:
            runs[scenario] = {label: [] for label in self.index.algorithms}
        for listed, run in self._finished_runs:
            if not run.diverged:
                runs[listed.scenario][listed.algorithm].append(run)
        return runs

    @cached_property
    def diverged(self) -> Counter[tuple[str, str]]:
        """(scenario, algorithm) -> number of runs that diverged."""
        return Counter(
            (listed.scenario, listed.algorithm)
            for listed, run in self._finished_runs
            if run.diverged
        )

    @cached_property
    def baselines(self) -> dict[str, list[StoredBaseline]]:
        """Scenario -> results of a model that ignores the inputs, one for each seed.

        Seeds whose runs have not stored them are omitted.
        """
        baselines: dict[str, dict[int, StoredBaseline]] = {
            scenario: {} for scenario in self.index.scenarios
        }
        for listed, run in self._finished_runs:
            # The baseline depends only on the data, so any run of a seed has the same.
            baseline_by_seed = baselines[listed.scenario]
            if listed.seed in baseline_by_seed or run.diverged:
                continue
            if run.baseline is not None:
                baseline_by_seed[listed.seed] = run.baseline
        return {
            scenario: list(baseline_by_seed.values())
            for scenario, baseline_by_seed in baselines.items()
        }

    def trained_baselines(self, scenario: str) -> list["TrainedBaseline"]:
        """The baselines of a scenario, in the order of the index."""
        by_name: dict[str, list[BaselineRun]] = {}
        for listed in sorted(self.index.baselines, key=lambda listed: listed.seed):
            if listed.scenario == scenario:
                by_name.setdefault(listed.name, []).append(listed)
        # By seed above, but the index has the order in which they were asked for.
        order = dict.fromkeys(listed.name for listed in self.index.baselines)
        trained = []
        for name in order:
            if name in by_name:
                runs = [StoredRun(self.results / it.run) for it in by_name[name]]
                trained.append(TrainedBaseline(by_name[name][0], runs))
        return trained

    def candidates(self, scenario: str) -> dict[str, "TrainedBaseline"]:
        """Name -> baselines of a scenario that can be handed over as methods can."""
        return {
            it.about.name: it
            for it in self.trained_baselines(scenario)
            if it.is_candidate and it.about.name not in self.index.algorithms
        }

    @property
    def done(self) -> int:
        """How many of `index.runs` are finished or skipped."""
        index = self.index
        # A chosen candidate is also one of the method runs, and counts once.
        not_chosen = sum(not candidate.chosen for candidate in index.candidates)
        skipped = sum(skipped.runs for skipped in index.skipped)
        return len(index.method_runs) + not_chosen + skipped

    @property
    def unfinished(self) -> str:
        """How many runs are done, until all are; then ""."""
        if self.done == self.index.runs:
            return ""
        return f"unfinished: {self.done} of {self.index.runs} runs"

    @cached_property
    def versions(self) -> dict[str, Counter[str]]:
        """Package -> its versions in the manifests of the runs -> number of runs."""
        versions: dict[str, Counter[str]] = {}
        for _, run in self._finished_runs:
            for name, version in stored_versions(run.path / MANIFEST).items():
                versions.setdefault(name, Counter())[version] += 1
        return versions

    def refused(self, candidate: CandidateRun) -> bool:
        """Whether a method refused the settings of a candidate or its data."""
        return any(
            (one.scenario, one.algorithm) == (candidate.scenario, candidate.algorithm)
            and one.parameters == candidate.parameters
            and one.seed in (None, candidate.seed)
            and not one.runs
            for one in self.index.skipped
        )

    def skipped(self, scenario: str, algorithm: str) -> bool:
        """Whether runs of an algorithm on a scenario were skipped."""
        names = (scenario, algorithm)
        return any(
            (entry.scenario, entry.algorithm) == names and entry.runs
            for entry in self.index.skipped
        )

    def rounds_text(self, scenario: str) -> str:
        """How long the runs of a scenario trained, such as "50 rounds"."""
        rounds = self.index.scenarios[scenario].rounds
        if self.index.until_converged:
            return f"rounds until the validation loss has converged, {rounds:,} at most"
        return f"{rounds} rounds"

    @cached_property
    def lacks_unseen(self) -> bool:
        """Whether unseen clients were asked for and no finished run has any."""
        runs = [
            run
            for by_method in self.runs.values()
            for seeds in by_method.values()
            for run in seeds
        ]
        has_any = any(run.clients["unseen"].any() for run in runs)
        return bool(runs) and "unseen" in self.index.metrics and not has_any

    def unit(self, scenario: str) -> Unit:
        """The unit of a scenario's metric."""
        units = (run.unit for runs in self.runs[scenario].values() for run in runs)
        return next(units, unit_of("accuracy"))

    @cached_property
    def _finished_runs(self) -> Sequence[tuple[MethodRun, StoredRun]]:
        by_seed = sorted(self.index.method_runs, key=lambda listed: listed.seed)
        return [(listed, StoredRun(self.results / listed.run)) for listed in by_seed]


@dataclass(frozen=True)
class TrainedBaseline:
    """A baseline with its runs, one for each seed.

    Attributes:
        about: its first entry of the index.
        runs: its runs in the order of seeds.
    """

    about: BaselineRun
    runs: Sequence[StoredRun]

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.about.title

    @property
    def is_candidate(self) -> bool:
        """Whether its models can be handed over: it keeps them, and needs no pooled
        rows."""
        return not self.about.needs_pooled_data and all(
            CHOSEN in run.summary for run in self.runs
        )


def experiments(results: Path, names: Sequence[str] = ()) -> list[StoredExperiment]:
    """Reads all experiments of a results directory, or those with the given names.

    Raises:
        ValueError: the directory has no experiment, or none of a given name; the
            message suggests similar names.
    """
    require(results.is_dir(), f"there is no directory {results}; check the path")
    stored_names = sorted(
        path.parent.name for path in results.glob(f"*/{COMPARISON_INDEX}")
    )
    require(
        bool(stored_names) or not (results / MANIFEST).is_file(),
        f"{results} is a single run, which `fedtailor models {results}` shows; a report"
        " is of the comparisons that `fedtailor compare` makes",
    )
    require(
        bool(stored_names),
        f"there are no results in {results}: it has no EXPERIMENT/{COMPARISON_INDEX}; `fedtailor"
        " compare` makes them",
    )
    for name in names:
        check_choice(name, stored_names, "experiment", f"ls {results}")
    return [StoredExperiment.read(results, name) for name in names or stored_names]
