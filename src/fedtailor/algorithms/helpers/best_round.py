"""The server's state of the best round so far, by validation loss."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float

from fedtailor.protocol import (
    Answers,
    ClientUpdate,
    Cohort,
    LocalTrainer,
    ServerState,
    server_state,
)


@server_state
class BestRound(ServerState):
    """The server's state after the last round, and in the best round."""

    now: Any
    """The state after the last round."""
    best: Any
    """The state with the least validation loss of those that were sent to clients."""
    loss: float | None
    """That loss, the mean over reporters' validation samples; None if not known yet."""

    @property
    def model(self) -> Float[Array, "s d"]:
        """The models that training continues from."""
        return self.now.model

    def after(self, new: Any, answers: Answers, cohort: Cohort) -> "BestRound":
        """The state after one more round.

        Args:
            new: the new state after the round.
            answers: what clients sent, including `validation_loss`.
            cohort: the clients of the round.

        Returns:
            With `new` as the last state. `now` becomes the best state if its loss is
            the least: clients report the losses of the model that they received.
        """
        # as NumPy arrays [c]
        sent_counts = answers.host("validation_samples")
        sent_losses = answers.host("validation_loss")
        counts = np.where(cohort.reporting, sent_counts, 0).astype(np.float64)
        losses = np.where(cohort.reporting, sent_losses, 0).astype(np.float64)
        if not counts.any():
            return self.replace(now=new)
        # A mean over samples, because the split of a client may be small.
        loss = float(losses @ counts / counts.sum())
        if self.loss is not None and self.loss <= loss:
            return self.replace(now=new)
        return BestRound(now=new, best=self.now, loss=loss)


def training_state(server: Any) -> Any:
    """The state that training continues from, with or without a `BestRound`."""
    return server.now if isinstance(server, BestRound) else server


def serving_state(server: Any) -> Any:
    """The state that clients predict with: the best one if known, or else the last."""
    if isinstance(server, BestRound) and server.loss is not None:
        return server.best
    return training_state(server)


def validation_loss(theta: Float[Array, " d"], local: LocalTrainer) -> ClientUpdate:
    """What a client sends for `BestRound.after`, given the received model theta.

    Returns:
        The mean validation loss (0 without samples), and the number of samples, or the
        sum of their weights.
    """
    return {
        "validation_loss": local.loss(theta, "val"),
        "validation_samples": local.total("val"),
    }
