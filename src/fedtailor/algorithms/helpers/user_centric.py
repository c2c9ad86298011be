"""The server's states of user-centric aggregation, and weights for newcomers."""

from collections.abc import Sequence
from dataclasses import field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt64

from fedtailor.aggregation import Kernel, Probe, newcomer_weights
from fedtailor.algorithms.helpers.last_uploads import LastUploads
from fedtailor.protocol import (
    Answers,
    Cohort,
    Diagnostic,
    Downlink,
    LineDiagnostic,
    MatrixDiagnostic,
    ServerState,
    Streams,
    require,
    server_state,
)

LONGEST_TRIAL = 3
"""A trial ends after this many times its rounds, whether or not a candidate learned."""


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
    """g_i, the clients' answers to the probe; None if the user gave the rows."""
    sigma2: Float[np.ndarray, " m"] | None
    """sigma_i^2 as the clients sent it; None if the user gave the rows."""
    kernel: Kernel
    """The rule that gives rows of weights from gradients and sigma_i^2."""
    bandwidth: float
    """The factor of sigma_i^2 in the kernel: 1, unless the batch n_k was chosen after
    the probe.
    """
    rows: Float[np.ndarray, "m m"]
    """w_ij, the weights of all clients for each client."""
    weights: Float[np.ndarray, "s m"]
    """W_sj, the weights of all clients for each stream."""
    stream: Int[np.ndarray, " m"]
    """The stream of each client."""
    model: Float[Array, "s d"]
    """theta_s, the streams' models."""
    mixed: Bool[np.ndarray, " s"]
    """Which streams have ever been mixed; the models of the others are theta^0."""
    silhouettes: Float[np.ndarray, "k 2"]
    """The numbers of streams that "auto" compared, and their silhouettes."""
    fresh: bool
    """Whether this is before the first round: all streams are the model of the probe.
    """
    uploads: LastUploads | None = None
    """The models that clients sent last, if each client has a stream of its own; None
    before the first round, or with fewer streams.
    """
    tried: Float[np.ndarray, "k 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    """The batches of the variances that "auto" compared, as shares of a client's
    samples (NaN: the kernel `bound`), and the validation errors by which it chose."""

    @property
    def one_for_each(self) -> bool:
        """Whether each client has a stream of its own."""
        return len(self.weights) == len(self.rows)


@server_state
class Trial(BeforeProbe):
    """Several candidates for the weights, which train side by side until one is chosen."""

    candidates: list[UCFLState]
    """What the server would hold with each candidate alone."""
    shares: Float[np.ndarray, " k"]
    """n_k of each candidate as a share of a client's samples; NaN for the kernel
    `bound`, which has no n_k.
    """
    validates: Bool[np.ndarray, " m"]
    """Which clients have validation data."""
    errors: Float[np.ndarray, "t k"]
    """The mean validation error over clients (see `validation_error`) with each
    candidate's models, before each round."""

    def is_over(self, rounds: int) -> bool:
        """Whether the candidates have trained long enough to be told apart.

        That is after `rounds` rounds, if the leader is then wrong at most half as often
        as the initial model. Otherwise the trial continues, at most `LONGEST_TRIAL` times
        as long: models that have hardly begun to learn do not tell which candidate will
        be best (training alone is often ahead for a while).
        """
        trained = len(self.errors) - 1  # the first row is of the initial model
        if trained < rounds:
            return False
        has_learned = bool(self.later_errors.min() <= self.errors[0].mean() / 2)
        return has_learned or trained >= LONGEST_TRIAL * rounds

    def chosen(self) -> UCFLState:
        """The state of the leader, which continues alone."""
        compared = np.stack([self.shares, self.later_errors], axis=1)
        return self.leader.replace(tried=compared)

    @property
    def later_errors(self) -> Float[np.ndarray, " k"]:
        """The candidates' errors, averaged over the later half of the rounds.

        The errors of a single round are a few mistakes.
        """
        return self.errors[len(self.errors) // 2 :].mean(axis=0)

    @property
    def leader(self) -> UCFLState:
        """The candidate of the least error (`later_errors`), the first on ties."""
        best = int(np.argmin(self.later_errors)) if len(self.errors) else 0
        return self.candidates[best]

    @property
    def model(self) -> Float[Array, "s d"]:
        """The leader's streams."""
        return self.leader.model

    def downlink(self, cohort: Cohort) -> Downlink:
        """What the server sends in a round of the trial.

        Returns:
            For each client of the cohort, the model of its stream of every candidate.
        """
        # The candidates' streams are stacked; those of candidate k begin at row
        # `first`.
        recipients = []
        first = 0
        for candidate in self.candidates:
            recipients.append(first + candidate.stream[cohort.position])
            first += len(candidate.model)
        models = Streams(
            jnp.concatenate([candidate.model for candidate in self.candidates]),
            np.stack(recipients, axis=1).astype(np.int32),
            already_held=self.candidates[0].fresh,
        )
        return Downlink({"model": models})

    def after(
        self, candidates: Sequence[UCFLState], answers: Answers, cohort: Cohort
    ) -> "Trial":
        """The trial after one more round.

        Args:
            candidates: their states after the round.
            answers: what the clients sent, with their validation errors.
            cohort: the clients of the round.
        """
        # The mean over clients with validation data (the others sent 0), as runs are
        # judged by the mean over clients.
        is_counted = cohort.reporting & self.validates[cohort.position]
        errors = self.errors
        if is_counted.any():
            sent = answers.host("error")[is_counted]  # [c, k]
            of_round = sent.mean(axis=0, dtype=np.float64)
            errors = np.concatenate([errors, of_round[None]])
        return self.replace(candidates=list(candidates), errors=errors)


def probe_of(answers: Answers, cohort: Cohort) -> Probe:
    """The answers to the probe, in the order of the cohort."""
    return Probe(
        answers.host("gradient"),
        answers.host("sigma2").astype(np.float64),
        cohort.sizes,
    )


def newcomer_rows(
    server: UCFLState, cohort: Cohort, usable: Bool[np.ndarray, " m"]
) -> Float[np.ndarray, "c m"]:
    """Rows of weights for clients that arrive when training is under way or over.

    Args:
        server: what the probe told of the seen clients.
        cohort: the newcomers: unseen clients, or seen ones whose stream was never
            mixed.
        usable: [m] the seen clients that may have weight.

    Returns:
        Weights [c, m] of the usable clients; rows of zeros where no client is usable.

    Raises:
        ValueError: an unseen client, and the rows are the user's own, so that there is
            none for it.
    """
    if not usable.any():
        return np.zeros((len(cohort), len(usable)))
    if server.gradients is not None and server.sigma2 is not None:
        seen = Probe(server.gradients, server.sigma2, server.sizes)
        if cohort.probes is not None:
            newcomers = probe_of(cohort.probes, cohort)
        else:
            # Seen clients answered the probe before training.
            own = cohort.position
            newcomers = Probe(
                server.gradients[own], server.sigma2[own], server.sizes[own]
            )
        # The same n_k as that of the rows in use.
        newcomers = newcomers.widened(server.bandwidth)
        seen = seen.widened(server.bandwidth)
        return newcomer_weights(newcomers, seen, server.kernel, usable)
    require(
        bool(np.isin(cohort.ids, server.ids).all()),
        "with rows of your own ucfl cannot weigh clients that have no row: an unseen"
        " client",
    )
    # Rows of the user's own, renormalised over the usable clients.
    own_rows = server.rows[np.searchsorted(server.ids, cohort.ids)]
    rows = np.where(usable, own_rows, 0.0)
    mass = rows.sum(axis=1, keepdims=True)
    return np.divide(rows, mass, out=np.zeros_like(rows), where=mass > 0)


def nearest_streams(
    server: UCFLState, rows: Float[np.ndarray, "c m"]
) -> Int[np.ndarray, " c"]:
    """For each row of weights the stream whose weights are nearest to it.

    Streams that were never mixed still are theta^0. They do not count, unless all
    streams are.
    """
    differences = rows[:, None] - server.weights[None]  # [c, s, m]
    distances = np.square(differences).sum(-1)
    if server.mixed.any():
        distances[:, ~server.mixed] = np.inf
    return distances.argmin(axis=1)


def stream_diagnostics(server: UCFLState) -> list[Diagnostic]:
    """The weights, and how the number of streams and n_k were chosen, if they were."""
    diagnostics: list[Diagnostic] = [
        MatrixDiagnostic(
            "collaboration", "Weights of all clients for each client", server.rows
        )
    ]
    if len(server.silhouettes):
        streams, silhouettes = server.silhouettes.T
        diagnostics.append(
            LineDiagnostic(
                name="silhouette",
                title="Silhouette of each number of streams",
                x=streams,
                y=silhouettes,
                x_label="streams",
                y_label="silhouette",
                chosen=float(len(server.weights)),
            )
        )
    if len(server.tried):
        shares, errors = server.tried[~np.isnan(server.tried[:, 0])].T
        diagnostics.append(
            LineDiagnostic(
                name="sigma_batch",
                title="Validation error with each batch of the variances",
                x=shares,
                y=errors,
                x_label="share of the samples",
                y_label="error",
                chosen=None if server.kernel == "bound" else 1 / (1 + server.bandwidth),
            )
        )
    return diagnostics
