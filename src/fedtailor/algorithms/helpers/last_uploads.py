"""The model that each client sent last."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedtailor.protocol import ClientRows, Cohort, ServerState, server_state


@server_state
class LastUploads(ServerState):
    """The model that each client sent last. The rounds may differ."""

    models: Float[Array, "r d"]
    """The models, in the executor's order."""
    row: Int[np.ndarray, " m"]
    """The row of each client."""
    sent: Bool[np.ndarray, " m"]
    """Which clients have ever sent a model. The others have the initial model."""

    @staticmethod
    def none_yet(initial: Float[Array, "m d"]) -> "LastUploads":
        """The state before the first round, when all clients hold the given models."""
        return LastUploads(
            initial, np.arange(len(initial)), np.zeros(len(initial), bool)
        )

    def after(self, models: ClientRows, cohort: Cohort) -> "LastUploads":
        """The state after a round.

        Args:
            models: the models that the cohort sent.
            cohort: the clients of the round.

        Returns:
            With the models of the reporters instead of their earlier models. If all
            clients report, no model is copied.
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
