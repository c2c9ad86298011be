"""The server's state of the best round so far, by the validation loss of the model that
clients were sent.
"""

from typing import Any

import jax.numpy as jnp
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
    """What training goes on from, and what it had reached in its best round."""

    now: Any
    """The state after the last round."""
    best: Any
    """The state whose model had the least validation loss of those that were sent to
    clients.
    """
    loss: float | None
    """That loss, the mean over reporters' validation samples; None = there were no such
    samples yet.
    """

    @property
    def model(self) -> Float[Array, "s d"]:
        """The models that training goes on from."""
        return self.now.model

    def after(self, new: Any, answers: Answers, cohort: Cohort) -> "BestRound":
        """After one more round.

        Args:
            new: the state that the round made of `now`.
            answers: what clients sent, with what `validation_loss` adds.
            cohort: the clients of the round.

        Returns:
            `new`, and the better of `now` and the best so far: the losses are those of
            the model that was sent out.
        """
        counts = np.where(
            cohort.reporting, answers.host("validation_samples"), 0
        ).astype(np.float64)
        if not counts.any():
            return self.replace(now=new)
        losses = np.where(cohort.reporting, answers.host("validation_loss"), 0).astype(
            np.float64
        )
        # the mean over samples, not over clients: one client's split may be a few
        # samples
        loss = float(losses @ counts / counts.sum())
        if self.loss is not None and self.loss <= loss:
            return self.replace(now=new)
        return BestRound(now=new, best=self.now, loss=loss)


def present(server: Any) -> Any:
    """What training goes on from, with or without a memory of the best round."""
    return server.now if isinstance(server, BestRound) else server


def chosen(server: Any) -> Any:
    """What clients are served: the best round's state where one is known, else the
    present one.
    """
    return (
        server.best
        if isinstance(server, BestRound) and server.loss is not None
        else present(server)
    )


def validation_loss(theta: Float[Array, " d"], local: LocalTrainer) -> ClientUpdate:
    """What a client sends of the model that it received.

    Returns:
        Its mean validation loss (0 without samples), and of how many samples it is.
    """
    return {
        "validation_loss": local.loss(theta, "val"),
        "validation_samples": local.count("val").astype(jnp.int32),
    }
