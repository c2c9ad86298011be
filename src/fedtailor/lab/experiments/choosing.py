"""Choosing a method's settings: the candidate with the best validation score on one
seed, and more candidates where the best one stands at the edge of its grid.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.lab.experiments import bracketing
from fedtailor.lab.experiments.compared_runs import ComparedRuns
from fedtailor.lab.experiments.experiment import (
    MODEL,
    Candidate,
    ComparedMethod,
    with_setting,
    with_settings,
)
from fedtailor.lab.experiments.index_entries import IndexEntries
from fedtailor.lab.experiments.run_scores import client_scores, validation_score
from fedtailor.lab.experiments.search import Study
from fedtailor.protocol.plain import RefusedSettings

ALL_FAILED = (
    "every candidate diverged or was refused; offer smaller learning rates in its grid"
)

Scored = tuple[Candidate, float | None]
"""A candidate, and its validation score; None if it failed."""


@dataclass
class Choosing:
    """Chooses among the candidates of methods.

    Attributes:
        runs: trains the candidates.
        entries: the entries of the index, to which candidates are added.
        studies: the file to which searches add their trials; None = they are not kept.
    """

    runs: ComparedRuns
    entries: IndexEntries
    studies: Path | None = None

    def choose_all(
        self, methods: Sequence[ComparedMethod], seed: int
    ) -> dict[int, Candidate | None]:
        """Choose a candidate of each method of a scenario, on one seed.

        Returns:
            For the id of each method, the candidate; None if there is none.
        """
        return {id(method): self.choose(method, seed) for method in methods}

    def choose(self, method: ComparedMethod, seed: int) -> Candidate | None:
        """Choose the candidate with the best validation score after the last round.

        Returns:
            The candidate; None if all candidates diverged or were refused.
        """
        self.entries.skip_refused(method)
        if method.tried == 1:
            return method.candidates[0]
        runs: dict[int, str] = {}

        def score(candidate: Candidate) -> float | None:
            name = self.runs.train(method, candidate, seed)
            runs[id(candidate)] = name
            if name in self.runs.refusals:
                refusal = self.runs.refusals[name]
                self.entries.skip(method, seed, candidate.parameters, refusal)
                return None
            return validation_score(self.runs.results / name)

        find = self._searched if method.space else self.bracketed
        scored = find(method, seed, score)
        best = self._best(method, scored, seed, None)
        if best is None:
            other_seeds = len(self.runs.experiment.file.seeds) - 1
            self.entries.skip(method, None, {}, ALL_FAILED, runs=other_seeds)
        for candidate, value in scored:
            self.entries.add_candidate(
                method,
                candidate,
                seed,
                run=runs[id(candidate)],
                val=value,
                chosen=candidate is best,
            )
        return best

    def _searched(
        self,
        method: ComparedMethod,
        seed: int,
        score: Callable[[Candidate], float | None],
    ) -> list[Scored]:
        """Score the settings that a search proposes, one after another."""
        scored: list[Scored] = []
        for first in method.candidates:
            study = study_of(method, first, seed, self.studies)
            known: dict[str, float | None] = {}
            for _ in range(method.trials):
                settings = study.propose()
                text = str(settings)
                # Values to choose from may be proposed again.
                if text not in known:
                    known[text] = None
                    try:
                        candidate = with_settings(first, settings, ("search",))
                    except RefusedSettings as error:
                        parameters = {**first.parameters, **settings}
                        self.entries.skip(method, seed, parameters, str(error), runs=1)
                    else:
                        known[text] = score(candidate)
                        scored.append((candidate, known[text]))
                else:
                    self.entries.added_runs -= 1
                study.tell(known[text])
        return scored

    def bracketed(
        self,
        method: ComparedMethod,
        seed: int,
        score: Callable[[Candidate], float | None],
        rounds: int | None = None,
    ) -> list[Scored]:
        """Score a method's candidates, and further ones until the best value of each
        bracketed setting lies inside its grid.

        Args:
            method: the method in its scenario.
            seed: the seed on which settings are chosen.
            score: trains a candidate and returns its validation score; None if it
                diverged or was refused.
            rounds: the rounds that `score` trains; None = to the end.

        Returns:
            All candidates with their scores.
        """
        scored: list[Scored] = []
        # Each model has a grid of its own.
        for model in dict.fromkeys(one.model for one in method.candidates):
            own = [one for one in method.candidates if one.model == model]
            scored += self._bracketed_model(method, own, seed, score, rounds)
        return scored

    def _bracketed_model(
        self,
        method: ComparedMethod,
        candidates: Sequence[Candidate],
        seed: int,
        score: Callable[[Candidate], float | None],
        rounds: int | None,
    ) -> list[Scored]:
        """`_bracketed` for the candidates of one model."""
        scored: list[Scored] = [(one, score(one)) for one in candidates]
        for setting in self.runs.experiment.file.bracket:
            refused: dict[float, None] = {}
            for _ in range(bracketing.MAX_EXTENSIONS):
                centre = self._best(method, scored, seed, rounds) or scored[-1][0]
                if setting not in centre.parameters:
                    break
                line = bracketing.line_through(
                    centre, (one for one, _ in scored), setting
                )
                scores = self._client_scores(method, line, seed, rounds)
                value = bracketing.next_value(scores | refused)
                if value is None:
                    break
                try:
                    candidate = with_setting(centre, setting, value)
                except RefusedSettings as error:
                    parameters = {**centre.parameters, setting: value}
                    self.entries.skip(method, None, parameters, str(error))
                    refused[value] = None
                    continue
                self.entries.added_runs += 1
                scored.append((candidate, score(candidate)))
        return scored

    def _best(
        self,
        method: ComparedMethod,
        scored: Sequence[Scored],
        seed: int,
        rounds: int | None,
    ) -> Candidate | None:
        """The candidate with the best score; None if all failed.

        Of equal scores, the first candidate is the best. Of several models it is one of
        the first model, unless another's is better by more than a standard error. Of
        the values of a bracketed setting it is the first one, unless another is better
        by more than chance.
        """
        best = _highest(scored)
        of_first = _highest(
            [(one, score) for one, score in scored if one.model == scored[0][0].model]
        )
        if best is not None and of_first is not None and best.model != of_first.model:
            by_client = [
                client_scores(
                    self.runs.results / self.runs.name_of(method, one, seed), rounds
                )
                for one in (best, of_first)
            ]
            if not bracketing.is_ahead(*by_client):
                best = of_first
        for setting in self.runs.experiment.file.bracket:
            if best is None or setting not in best.parameters:
                continue
            line = bracketing.line_through(best, (one for one, _ in scored), setting)
            value = bracketing.best_value(
                self._client_scores(method, line, seed, rounds)
            )
            if value is not None:
                best = line[value]
        return best

    def _client_scores(
        self,
        method: ComparedMethod,
        line: Mapping[float, Candidate],
        seed: int,
        rounds: int | None,
    ) -> dict[float, NDArray[np.float64] | None]:
        """The validation scores of candidates by client, after `rounds` rounds."""
        return {
            value: client_scores(
                self.runs.results / self.runs.name_of(method, candidate, seed), rounds
            )
            for value, candidate in line.items()
        }


def study_of(
    method: ComparedMethod, first: Candidate, seed: int, file: Path | None = None
) -> Study:
    """The search over a method's settings that begins with those of a candidate."""
    parts = [method.scenario.label, method.label, str(first.parameters.get(MODEL, ""))]
    begin: dict[str, Any] = {}
    for name in method.space:
        value: Any = first.algorithm
        for part in name.split("."):
            value = getattr(value, part, None)
        begin[name] = value
    name = ", ".join(filter(None, parts))
    return Study(name, method.space, seed, first=begin, file=file)


def finished_runs(
    runs: ComparedRuns, method: ComparedMethod, seeds: Sequence[int]
) -> int:
    """How many of a method's runs are finished."""
    candidates = list(method.candidates)
    if method.space:
        candidates = _tried_so_far(runs, method, seeds[0])
    return sum(
        runs.is_finished(method, candidate, seed)
        for candidate in candidates
        for seed in seeds
    )


def _tried_so_far(
    runs: ComparedRuns, method: ComparedMethod, seed: int
) -> list[Candidate]:
    """The settings that a search has proposed, up to the first whose run is missing."""
    tried: dict[str, Candidate] = {}
    for first in method.candidates:
        study = study_of(method, first, seed)
        for _ in range(method.trials):
            try:
                candidate = with_settings(first, study.propose(), ("search",))
            except RefusedSettings:
                study.tell(None)
                continue
            name = runs.name_of(method, candidate, seed)
            if not runs.is_finished(method, candidate, seed):
                break
            tried[name] = candidate
            study.tell(validation_score(runs.results / name))
    return list(tried.values())


def _highest(scored: Sequence[Scored]) -> Candidate | None:
    """The first candidate with the highest score; None if all failed."""
    best, best_score = None, None
    for candidate, score in scored:
        if score is not None and (best_score is None or score > best_score):
            best, best_score = candidate, score
    return best
