"""What the server of user-centric aggregation holds: before the probe, in the rounds, and while candidates compete."""

from collections.abc import Sequence
from dataclasses import field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt64

from fedtailor.algorithms.helpers.last_uploads import LastUploads
from fedtailor.protocol import Answers, Cohort, Downlink, ServerState, Streams, server_state


@server_state
class BeforeProbe(ServerState):
    """What the server holds until the clients have answered the probe."""

    initial: Float[Array, " d"]
    """The common initial model theta^0."""
    ids: UInt64[np.ndarray, " m"]
    """The clients' ids."""
    sizes: Int[np.ndarray, " m"]
    """Their training samples."""


@server_state
class UCFLState(BeforeProbe):
    """The streams, and what clients that arrive later are compared with."""

    gradients: Float[np.ndarray, "m d"] | None
    """g_i, the clients' answers to the probe; None with rows of the user's own."""
    sigma2: Float[np.ndarray, " m"] | None
    """sigma_i^2 as the clients sent it, likewise."""
    bandwidth: float
    """What sigma_i^2 is multiplied with in the kernel: 1, unless the batch n_k was chosen after the probe."""
    rows: Float[np.ndarray, "m m"]
    """w_ij, the weights of all clients for each client."""
    weights: Float[np.ndarray, "s m"]
    """W_sj, the weights of all clients for each stream."""
    stream: Int[np.ndarray, " m"]
    """The stream of each client."""
    model: Float[Array, "s d"]
    """theta_s, the streams' models."""
    mixed: Bool[np.ndarray, " s"]
    """Which streams have been mixed at all; the models of the others are theta^0."""
    silhouettes: Float[np.ndarray, "k 2"]
    """The numbers of streams that "auto" compared, and their silhouettes."""
    fresh: bool
    """Whether no round has been done, so that all streams are the model of the probe."""
    uploads: LastUploads | None = None
    """The clients' last models, once there are any; kept where each client has a stream of its own."""
    tried: Float[np.ndarray, "k 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    """The batches of the variances that "auto" compared, as shares of a client's samples, and their losses."""

    @property
    def one_for_each(self) -> bool:
        """Whether each client has a stream of its own."""
        return len(self.weights) == len(self.rows)


@server_state
class Trial(BeforeProbe):
    """Several candidates for the weights, all of which train until one of them is chosen."""

    candidates: list[UCFLState]
    """What the server would hold with each candidate alone."""
    shares: Float[np.ndarray, " k"]
    """n_k of each candidate as a share of a client's samples."""
    validates: Bool[np.ndarray, " m"]
    """Which clients have validation data."""
    losses: Float[np.ndarray, "t k"]
    """The mean validation loss of the clients with each candidate's model, in the rounds done."""

    def chosen(self) -> UCFLState:
        """The leader, from now on alone."""
        return self.leader.replace(tried=np.stack([self.shares, self.losses[-1]], axis=1))

    @property
    def leader(self) -> UCFLState:
        """The candidate whose models had the least validation loss when it was last measured; at first, the first."""
        return self.candidates[int(np.argmin(self.losses[-1])) if len(self.losses) else 0]

    @property
    def model(self) -> Float[Array, "s d"]:
        """The leader's streams."""
        return self.leader.model

    def downlink(self, cohort: Cohort) -> Downlink:
        """The model of its stream of every candidate, for each client of the cohort."""
        sizes = [len(candidate.model) for candidate in self.candidates]
        first = np.cumsum([0, *sizes[:-1]])
        stream = np.stack([candidate.stream[cohort.position] for candidate in self.candidates], axis=1) + first
        models = jnp.concatenate([candidate.model for candidate in self.candidates])
        held = self.candidates[0].fresh
        return Downlink({"model": Streams(models, stream.astype(np.int32), already_held=held)})

    def after(self, candidates: Sequence[UCFLState], answers: Answers, cohort: Cohort) -> "Trial":
        """With the candidates as a round has left them, and the losses that the clients sent in it."""
        counted = cohort.reporting & self.validates[cohort.position]
        losses = self.losses
        if counted.any():
            losses = np.concatenate([losses, answers.host("loss")[counted].mean(axis=0, dtype=np.float64)[None]])
        return self.replace(candidates=list(candidates), losses=losses)
