"""The model that each client sent last."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedtailor.protocol import ClientRows, Cohort, ServerState, server_state


@server_state
class LastUploads(ServerState):
    """The model that each client sent last. The rounds may differ."""

    models: Float[Array, "r d"]
    """The models, in the order in which the executor left them."""
    row: Int[np.ndarray, " m"]
    """The row of each client."""
    sent: Bool[np.ndarray, " m"]
    """Which clients have ever sent a model; other rows hold the initial one."""

    @staticmethod
    def none_yet(initial: Float[Array, "m d"]) -> "LastUploads":
        """Before the first round, when all clients hold these models."""
        return LastUploads(
            initial, np.arange(len(initial)), np.zeros(len(initial), bool)
        )

    def after(self, models: ClientRows, cohort: Cohort) -> "LastUploads":
        """The last models after a round.

        Args:
            models: what the clients of the round sent.
            cohort: the clients of the round.

        Returns:
            With the models of the reporters in place of their earlier ones. Nothing is
            copied if all clients report.
        """
        if cohort.reporting.all() and len(cohort) == len(self.row):
            return LastUploads(
                jnp.asarray(models.values), models.row, np.ones(len(self.row), bool)
            )
        sent = self.sent.copy()
        sent[cohort.reporters] = True
        rows = self.row[cohort.reporters]
        updated = jnp.asarray(self.models).at[rows].set(models.take(cohort.reporting))
        return LastUploads(updated, self.row, sent)
