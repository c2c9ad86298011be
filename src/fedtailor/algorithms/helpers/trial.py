"""The trial of `sigma_batch="auto"`: several candidates for the weights of user-centric
aggregation train side by side.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedtailor.algorithms.helpers.user_centric import BeforeProbe, UCFLState
from fedtailor.protocol import Answers, Cohort, Downlink, Streams, server_state

MAX_TRIAL_FACTOR = 3
"""A trial takes at most this many times its number of rounds."""


@server_state
class Trial(BeforeProbe):
    """Several candidates for the weights, which train side by side until one is chosen."""

    candidates: list[UCFLState]
    """The server's state of each candidate."""
    shares: Float[np.ndarray, " k"]
    """n_k / n_i of each candidate; NaN for the kernel `bound`, which has no n_k."""
    validates: Bool[np.ndarray, " m"]
    """Which clients have validation data."""
    errors: Float[np.ndarray, "t k"]
    """The mean validation error over clients (see `validation_error`) with the models
    of each candidate, before each round."""

    def starting_at(self, model: Float[Array, " d"]) -> "Trial":
        """The trial before its first round, with this model for all streams."""
        candidates = [candidate.starting_at(model) for candidate in self.candidates]
        return self.replace(candidates=candidates)

    def is_over(self, rounds: int) -> bool:
        """Whether the candidates have trained long enough to choose one.

        The trial ends after `rounds` rounds if the leader is then wrong at most half as
        often as the initial model. Otherwise it continues, at most `MAX_TRIAL_FACTOR`
        times as long: early in training the errors do not show which candidate will be
        best (training alone is often ahead at first).
        """
        rounds_done = len(self.errors) - 1  # the first row is of the initial model
        if rounds_done < rounds:
            return False
        has_learned = bool(self.later_errors.min() <= self.errors[0].mean() / 2)
        return has_learned or rounds_done >= MAX_TRIAL_FACTOR * rounds

    def chosen(self) -> UCFLState:
        """The leader's state, with which the run continues."""
        shares_and_errors = np.stack([self.shares, self.later_errors], axis=1)
        return self.leader.replace(tried=shares_and_errors)

    @property
    def later_errors(self) -> Float[np.ndarray, " k"]:
        """The candidates' errors [k], averaged over the later half of the rounds.

        The errors of a single round would be too noisy.
        """
        return self.errors[len(self.errors) // 2 :].mean(axis=0)

    @property
    def leader(self) -> UCFLState:
        """The candidate with the least of `later_errors`, the first one on ties."""
        best = int(np.argmin(self.later_errors)) if len(self.errors) else 0
        return self.candidates[best]

    @property
    def model(self) -> Float[Array, "s d"]:
        """The models of the leader's streams."""
        return self.leader.model

    def downlink(self, cohort: Cohort) -> Downlink:
        """What the server sends in a round of the trial.

        Returns:
            For each client of the cohort, the model of its stream of every candidate.
        """
        # Before the first round clients still hold all these models, from the probe.
        no_round_done = self.candidates[0].fresh
        # The streams of all candidates are stacked. Those of a candidate begin at row
        # `first`.
        recipients = []
        first = 0
        for candidate in self.candidates:
            recipients.append(first + candidate.stream[cohort.position])
            first += len(candidate.model)
        models = Streams(
            jnp.concatenate([candidate.model for candidate in self.candidates]),
            np.stack(recipients, axis=1).astype(np.int32),
            already_held=no_round_done,
        )
        return Downlink({"model": models})

    def after(
        self, candidates: Sequence[UCFLState], answers: Answers, cohort: Cohort
    ) -> "Trial":
        """The trial after one more round.

        Args:
            candidates: the candidates' states after the round.
            answers: what the clients sent, with their validation errors.
            cohort: the clients of the round.
        """
        # The mean over clients with validation data; the others sent 0.
        is_counted = cohort.reporting & self.validates[cohort.position]
        errors = self.errors
        if is_counted.any():
            client_errors = answers.host("error")[is_counted]  # [c, k]
            round_errors = client_errors.mean(axis=0, dtype=np.float64)
            errors = np.concatenate([errors, round_errors[None]])
        return self.replace(candidates=list(candidates), errors=errors)
