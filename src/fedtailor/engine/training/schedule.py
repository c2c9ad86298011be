"""The phases of a training."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Algorithm


@dataclass
class SchedulePhase:
    """The phase of the schedule that a training is in.

    Most methods have one phase. A schedule such as `Then(FedAvg(), rounds=20, next=Ditto())`
    has several (`Algorithm.phases`). Each one starts with new states of server and
    clients.

    Attributes:
        index: its position in the schedule.
        algorithm: the method that is trained in it.
        rounds: how many rounds it takes; None = all remaining rounds.
        first_round: the number of rounds done before it.
        keeps_states: whether the method's clients keep a state between rounds.
        probe_is_due: whether the clients still have to answer the method's probe, a
            statistic of its data that each client sends once, before training.
        participated: [m] which clients have taken part in a round of this phase, in the
            order of the population.
    """

    index: int
    algorithm: Algorithm
    rounds: int | None
    first_round: int
    keeps_states: bool
    probe_is_due: bool
    participated: NDArray[np.bool_]
