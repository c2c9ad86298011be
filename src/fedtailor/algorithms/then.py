"""Then: one method after another."""

from collections.abc import Sequence

from fedtailor.protocol import Algorithm, hyperparameters, require


@hyperparameters
class Then(Algorithm):
    """`first` for some rounds, then `next` from the model that it hands over.

    For warm starts and fine-tuned schedules.

        Then(FedAvg(), rounds=20, next=SelfFL())

    The second method starts anew from that model: its client states, and its probe if
    it has one, are made then. Either method may be a schedule itself; `rounds` then
    limits all of the first one.
    """

    first: Algorithm
    """What runs first."""
    rounds: int
    """Rounds of `first`."""
    next: Algorithm
    """What runs in the rounds that are left."""

    def __post_init__(self) -> None:
        require(self.rounds >= 0, f"rounds is {self.rounds}; it must be 0 or more")

    def phases(self) -> Sequence[tuple[Algorithm, int | None]]:
        # The phases of `first`, one after another, until its rounds are spent; a phase
        # without a limit takes all.
        phases = []
        left = self.rounds
        for phase, rounds in self.first.phases():
            taken = left if rounds is None else min(rounds, left)
            if taken:
                phases.append((phase, taken))
                left -= taken
        return [*phases, *self.next.phases()]
