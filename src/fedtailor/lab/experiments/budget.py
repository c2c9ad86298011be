"""A comparison with a budget: all candidates of a scenario are compared by successive
halving (`halving`), so that only the best are trained to the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedtailor._base.choice import require
from fedtailor.algorithms import Local
from fedtailor.engine.storage.comparison_index import RoundBudget
from fedtailor.engine.storage.run_files import SUMMARY, read_summary
from fedtailor.engine.training.binding import bind
from fedtailor.lab.experiments import halving
from fedtailor.lab.experiments.choosing import ALL_FAILED, Choosing
from fedtailor.lab.experiments.experiment import (
    Candidate,
    ComparedMethod,
    ComparedScenario,
)
from fedtailor.lab.experiments.run_scores import has_diverged, stored_score
from fedtailor.models.metrics import Metric, find_metric, find_metrics


@dataclass
class Halving(Choosing):
    """Chooses among the candidates of all methods of a scenario, early.

    Attributes:
        rounds: the number of rounds trained so far.
    """

    rounds: int = 0

    def choose_all(
        self, methods: Sequence[ComparedMethod], seed: int
    ) -> dict[int, Candidate | None]:
        """Compare all candidates of a scenario by successive halving, on one seed.

        Runs that are stopped at a cut are resumed from their checkpoints.

        Returns:
            For the id of each method, the candidate that was trained to the end; None if
            all of its candidates were eliminated.
        """
        scenario = methods[0].scenario
        for method in methods:
            self.entries.skip_refused(method)

        # Train in stages, each of which ends with a cut. The last stage ends with the
        # scenario's rounds, and its finalists are then trained on all seeds.
        cuts = halving.cut_rounds(scenario.rounds, self.runs.evaluate_every(scenario))
        kept = halving.methods_after_cuts(len(methods), len(cuts))
        first_cut = [*cuts, scenario.rounds][0]
        remaining: list[tuple[ComparedMethod, Candidate]] = []
        for method in methods:
            # `partial`, as a lambda would see the last method of the loop.
            score = partial(self._score_after, method, seed=seed, rounds=first_cut)
            for candidate, _ in self.bracketed(method, seed, score, first_cut):
                remaining.append((method, candidate))
        done = 0
        for rounds, keep in zip(
            [*cuts, scenario.rounds], [*kept, halving.FINALISTS], strict=True
        ):
            scores = [
                self._score_after(method, candidate, seed, rounds)
                for method, candidate in remaining
            ]
            self.rounds += len(remaining) * (rounds - done)
            done = rounds
            selected = halving.select(
                scores,
                methods=[id(method) for method, _ in remaining],
                is_local=[
                    isinstance(candidate.algorithm, Local) for _, candidate in remaining
                ],
                keep=keep,
            )
            # Add each candidate to the index when its training ends.
            is_last = rounds == scenario.rounds
            for index, (method, candidate) in enumerate(remaining):
                if is_last or index not in selected:
                    self._add_halved(
                        method,
                        candidate,
                        seed,
                        rounds,
                        scores[index],
                        chosen=index in selected,
                    )
            remaining = [remaining[index] for index in selected]

        other_seeds = len(self.runs.experiment.file.seeds) - 1
        self.rounds += other_seeds * len(remaining) * scenario.rounds
        finalists: dict[int, Candidate | None] = dict.fromkeys(map(id, methods))
        finalists |= {id(method): candidate for method, candidate in remaining}
        for method in methods:
            if finalists[id(method)] is None:
                message = self._elimination_message(method)
                self.entries.skip(method, None, {}, message, runs=other_seeds)
        self.entries.budget = self._rounds_used()
        return finalists

    def _score_after(
        self, method: ComparedMethod, candidate: Candidate, seed: int, rounds: int
    ) -> float | None:
        """Train a candidate for some rounds.

        Returns:
            Its validation score; None if it diverged or was refused.
        """
        scenario = method.scenario
        name = self.runs.name_of(method, candidate, seed)
        path, metric = self.runs.results / name, self._metric(scenario, seed)
        if rounds < scenario.rounds:
            # An earlier comparison may have trained it to this round or further.
            score = stored_score(path, metric, rounds)
            if score is not None:
                return score
        if not has_diverged(path):
            self.runs.train(method, candidate, seed, rounds)
        if name in self.runs.refusals:
            self.entries.skip(
                method, seed, candidate.parameters, self.runs.refusals[name]
            )
            return None
        return None if has_diverged(path) else stored_score(path, metric, rounds)

    def _metric(self, scenario: ComparedScenario, seed: int) -> Metric:
        """The metric that the runs of a scenario are compared by."""
        federation = self.runs.data(scenario, seed)
        require(
            len(federation.val.rows) > 0,
            f"a budget is spent by validation data, and scenario {scenario.label!r} has"
            " none; give it some, such as val = 0.1, or leave out the budget",
        )
        model = bind(scenario.definition.model, federation)
        names = self.runs.experiment.file.measured or federation.default_metrics
        return find_metrics(names, model)[0] if names else find_metric(model.metric)

    def _add_halved(
        self,
        method: ComparedMethod,
        candidate: Candidate,
        seed: int,
        rounds: int,
        score: float | None,
        *,
        chosen: bool,
    ) -> None:
        """Add a candidate to the index, with its number of rounds."""
        name = self.runs.name_of(method, candidate, seed)
        summary_file = self.runs.results / name / SUMMARY
        # Where settings were refused nothing ran, and there is no summary.
        summary = {"seconds": 0.0, "core_seconds": 0.0}
        if summary_file.exists():
            summary = read_summary(summary_file)
        self.runs.add_time(name, summary)
        self.entries.add_candidate(
            method, candidate, seed, run=name, val=score, chosen=chosen, rounds=rounds
        )

    def _elimination_message(self, method: ComparedMethod) -> str:
        """The reason why halving has eliminated all candidates of a method."""
        candidates = [
            candidate
            for candidate in self.entries.candidates
            if (candidate.scenario, candidate.algorithm)
            == (method.scenario.label, method.label)
        ]
        if all(candidate.val is None for candidate in candidates):
            return ALL_FAILED
        total = method.scenario.rounds
        rounds = max(candidate.rounds_of(total) for candidate in candidates)
        return (
            f"left out after {rounds} of {total} rounds by its"
            " validation data (--budget)"
        )

    def _rounds_used(self) -> RoundBudget:
        """The number of rounds with successive halving, and without ("full").

        Without halving, all candidates are trained on one seed, and the best candidate
        of each method on the others.
        """
        other_seeds = len(self.runs.experiment.file.seeds) - 1
        full = sum(
            (len(method.candidates) + other_seeds) * method.scenario.rounds
            for method in self.runs.experiment.methods
        )
        scenario_rounds = self.runs.experiment.scenarios[0].rounds
        full += self.entries.added_runs * scenario_rounds
        return RoundBudget(self.rounds, full)
