"""Errors of a run that are not caused by a wrong argument."""

from fedtailor._base.documentation import see

LARGE_RATE = (
    "a learning rate that is too large: try a tenth of it, or bound gradients by"
    " sgd.clip 10"
)
"""The likely cause of most divergences."""
IN_FIRST_ROUND = "; or the network gives NaN without training, on some of the inputs"
"""What may be the cause, too, if nothing was trained before."""


def negative_variance(path: str) -> str:
    """The cause where a running variance of batch normalisation is negative.

    Args:
        path: of the variance in the model.
    """
    return (
        f"that the running variance {path} is negative: a method's server may average"
        " running statistics only (Cohort.is_statistic)"
    )


class RefusedStatistics(ValueError):
    """A method is not defined for models with running statistics (batch normalisation)."""


class Diverged(ArithmeticError):
    """A model, a message or a loss became NaN or infinite.

    Attributes:
        client: the name of the first client at which it happened.
        round: the round (from 0) in which it happened.
        step: the local step (from 0), which only the debug executor knows; else None.
        doing: what became NaN or infinite, such as "training".

    Example:
        >>> try:
        ...     ft.run(
        ...         ft.FedAvg(sgd=ft.SGD(lr=1e30)), federation, ft.models.mlp(8), rounds=2
        ...     )
        ... except ft.Diverged as error:
        ...     print(error.round)
        0
    """

    def __init__(
        self,
        client: str,
        round: int,
        *,
        step: int | None = None,
        doing: str = "training",
        cause: str = LARGE_RATE,
    ) -> None:
        self.client, self.round, self.step = client, round, step
        self.doing = doing
        if round == 0 and cause == LARGE_RATE:
            cause += IN_FIRST_ROUND
        where = f"round {round}" if step is None else f"round {round}, step {step}"
        super().__init__(
            f"client {client!r}: {doing} gave NaN or infinity in {where}; the likely cause"
            f" is {cause}{see('errors#a-run-that-diverged')}"
        )

    def with_cause(self, cause: str) -> "Diverged":
        """The same error with another likely cause."""
        return Diverged(
            self.client, self.round, step=self.step, doing=self.doing, cause=cause
        )
