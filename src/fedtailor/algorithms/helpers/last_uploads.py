"""The model that each client sent last."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedtailor.protocol import ClientRows, Cohort, ServerState, server_state


@server_state
class LastUploads(ServerState):
    """The model that each client sent last, whether it reported in the last round or
    not.
    """

    models: Float[Array, "r d"]
    """The models, in the rows in which they arrived."""
    row: Int[np.ndarray, " m"]
    """The row of each client."""
    sent: Bool[np.ndarray, " m"]
    """Who has ever sent one; the rows of the others hold the initial model."""

    @staticmethod
    def none_yet(initial: Float[Array, "m d"]) -> "LastUploads":
        """Before the first round, when all clients hold these models."""
        return LastUploads(
            initial, np.arange(len(initial)), np.zeros(len(initial), bool)
        )

    def after(self, models: ClientRows, cohort: Cohort) -> "LastUploads":
        """With what the reporters of a cohort sent in place of what they sent before.

        Returns:
            The table after the round; copied only if some clients are absent.
        """
        # All have sent one: the answers are the table, in whatever rows the executor
        # left them.
        if cohort.reporting.all() and len(cohort) == len(self.row):
            return LastUploads(
                jnp.asarray(models.values), models.row, np.ones(len(self.row), bool)
            )
        sent = self.sent.copy()
        sent[cohort.reporters] = True
        rows = self.row[cohort.reporters]
        updated = jnp.asarray(self.models).at[rows].set(models.take(cohort.reporting))
        return LastUploads(updated, self.row, sent)
