"""How many numbers a job sends that are made from a client's cells.

A vector of d numbers in each of r rounds is d r equations in the cells of the rows on which
a client trains. Once there are as many as cells, the rows can follow from them, and with
many more they do: updates of few rows have been turned back into these rows (Zhu, Liu and
Han 2019, Deep Leakage from Gradients). Sums with other clients' numbers, and noise, are what
stands against it.
"""

from dataclasses import dataclass

from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.wire.refusals import Refusal, refuse_unless

NUMBERS_PER_CELL = 100.0
"""By default a client takes part in no job that sends more open numbers than this for each
of its cells.
"""


@dataclass(frozen=True)
class Exposure:
    """What a job sends of a client, in numbers.

    Attributes:
        size, rounds: how many numbers are sent in a round, and in how many rounds.
        cells: cells of the training rows, with the targets.
        is_summed: whether the coordinator sees sums over clients only.
        has_noise: whether the client adds noise in every phase.
    """

    size: int
    rounds: int
    cells: int
    is_summed: bool
    has_noise: bool

    @property
    def ratio(self) -> float:
        """Numbers for each cell."""
        return self.size * self.rounds / max(self.cells, 1)

    def __str__(self) -> str:
        noise = "with noise" if self.has_noise else "without noise"
        sums = "seen only in sums over clients" if self.is_summed else "seen one by one"
        return (
            f"this job sends {self.size * self.rounds:,} numbers ({self.size:,} in each of"
            f" {self.rounds:,} rounds) made from your {self.cells:,} cells, {noise}, {sums}"
        )

    def check(self, most: float) -> None:
        """Check that open numbers without noise are not too many.

        Args:
            most: numbers for each cell.

        Raises:
            Refused: they are.
        """
        refuse_unless(
            self.is_summed or self.has_noise or self.ratio <= most,
            Refusal.POLICY,
            f"{self}: {self.ratio:,.0f} for each cell, from which rows can follow, and the"
            f" policy here sends {most:g} at most. Add updates behind masks"
            " (secure_aggregation), add noise, train for fewer rounds or with a smaller"
            " model, or change numbers_per_cell in policy.toml",
        )


def exposure_of(plan: Plan, schema: Schema, rows: int) -> Exposure:
    """What a plan sends of a client in its rounds. Probes and losses are counted when they
    leave, together with these (`ClientAccount.record`).

    Args:
        plan: what is trained.
        schema: columns of the job. Each is one cell of a row, however many inputs of the
            model it becomes.
        rows: number of the client's training rows, each of which counts once, in however
            many windows it is.
    """
    phases = [method for method, _ in plan.algorithm.phases()]
    size = max(
        0 if method.server_sees == "nothing" else method.numbers_per_round(plan.model)
        for method in phases
    )
    columns = len(schema.columns) + 1 + (schema.event is not None)
    return Exposure(
        size=size,
        rounds=plan.rounds,
        cells=rows * columns,
        is_summed=plan.sums is not None,
        has_noise=plan.has_noise_in_every_phase,
    )
