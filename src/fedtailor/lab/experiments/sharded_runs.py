"""The runs of a comparison, as tasks that several processes share (`sharding`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fedtailor.lab.experiments.choosing import Choosing
from fedtailor.lab.experiments.compared_runs import ComparedRuns
from fedtailor.lab.experiments.experiment import Candidate, ComparedMethod
from fedtailor.lab.experiments.index_entries import IndexEntries
from fedtailor.lab.experiments.sharding import ShardedTask


@dataclass
class ShardedRuns:
    """Makes the tasks.

    Attributes:
        runs: trains the runs.
    """

    runs: ComparedRuns

    def tasks(self) -> Iterator[ShardedTask]:
        """The runs that processes share: all candidates of a method on the first seed,
        from which the one for the other seeds is chosen.
        """
        seeds = self.runs.experiment.file.seeds
        for scenario in self.runs.experiment.scenarios:
            methods = self.runs.experiment.methods_of(scenario)
            for method in methods:
                # The last candidate that is done is followed by the choice.
                done: list[Candidate] = []
                if method.space:
                    # Each proposal depends on the scores before it.
                    yield partial(self._choose_shared, method, seeds[0])
                elif len(method.candidates) > 1:
                    for candidate in method.candidates:
                        yield partial(
                            self._train_shared, method, candidate, seeds[0], done
                        )
            # Seed by seed, as each seed has data of its own.
            for seed in seeds:
                for method in methods:
                    if method.tried == 1:
                        (candidate,) = method.candidates
                        yield partial(self._train_alone, method, candidate, seed)

    def _train_shared(
        self,
        method: ComparedMethod,
        candidate: Candidate,
        seed: int,
        done: list[Candidate],
    ) -> list[ShardedTask]:
        """Train one candidate; after the last of a method, the task is to choose."""
        self.runs.train(method, candidate, seed)
        done.append(candidate)
        if len(done) < len(method.candidates):
            return []
        return [partial(self._choose_shared, method, seed)]

    def _choose_shared(self, method: ComparedMethod, seed: int) -> list[ShardedTask]:
        """Choose among candidates whose runs are finished, or bracket them."""
        # The entries are left aside: the comparison makes this choice once more, with
        # all runs finished.
        chosen = Choosing(self.runs, IndexEntries()).choose(method, seed)
        if chosen is None:
            return []
        seeds = self.runs.experiment.file.seeds
        return [partial(self._train_alone, method, chosen, seed) for seed in seeds]

    def _train_alone(
        self, method: ComparedMethod, candidate: Candidate, seed: int
    ) -> list[ShardedTask]:
        self.runs.train(method, candidate, seed)
        return []
