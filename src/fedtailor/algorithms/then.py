"""Then: one method after another."""

from collections.abc import Sequence

from fedtailor._base.choice import require
from fedtailor.protocol import Algorithm, hyperparameters


@hyperparameters
class Then(Algorithm):
    """`first` for some rounds, then `next` from the model that it hands over.

    For example, to start from a model that FedAvg has trained:

        Then(FedAvg(), rounds=20, next=SelfFL())

    The second method starts from the model of the first. Its client states and, if it
    has one, its probe are made at that time. Either method may be a schedule itself;
    `rounds` then limits the total of the first one.

    Example:
        >>> warm = ft.Then(ft.FedAvg(), rounds=1, next=ft.SelfFL())
        >>> ft.run(warm, federation, ft.models.logistic(), rounds=2).summary().rounds
        2
    """

    first: Algorithm
    """The first method."""
    rounds: int
    """Rounds of `first`."""
    next: Algorithm
    """The method for the remaining rounds."""

    def __post_init__(self) -> None:
        require(self.rounds >= 0, f"rounds is {self.rounds}; it must be 0 or more")

    def phases(self) -> Sequence[tuple[Algorithm, int | None]]:
        # The phases of `first` share its rounds. A phase without a limit takes all
        # remaining rounds.
        phases = []
        remaining = self.rounds
        for phase, rounds in self.first.phases():
            duration = remaining if rounds is None else min(rounds, remaining)
            if duration:
                phases.append((phase, duration))
                remaining -= duration
        return [*phases, *self.next.phases()]
