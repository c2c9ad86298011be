"""The server's states of user-centric aggregation, and weights for unseen clients.

The server keeps s models, its streams: each is a weighted average of the clients' models
and is sent to the clients assigned to it.

The probe is one request, before training: each client sends its gradient g_i at the
initial model, and the variance sigma_i^2 of its gradients over disjoint batches of n_k
samples (Mestoukirdi et al. 2021, eq. 10). The batch size n_k decides how the weights
turn out, and is stored as its share n_k / n_i of the client's n_i samples. If it is
chosen after the probe, clients send tr S_i / n_i, where S_i is the covariance of a single
sample's gradient, and sigma_i^2 is `bandwidth` times that (see `bandwidth_of`).
"""

from dataclasses import field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt64

from fedtailor._base.choice import require
from fedtailor.aggregation import Kernel, Probe, newcomer_weights
from fedtailor.algorithms.helpers.last_uploads import LastUploads
from fedtailor.protocol import (
    Answers,
    Cohort,
    Diagnostic,
    LineDiagnostic,
    MatrixDiagnostic,
    ServerState,
    server_state,
)


@server_state
class BeforeProbe(ServerState):
    """The server before the clients have answered the probe."""

    initial: Float[Array, " d"]
    """The common initial model theta^0."""
    ids: UInt64[np.ndarray, " m"]
    """The clients' ids."""
    sizes: Int[np.ndarray, " m"]
    """Their training samples."""


@server_state
class UCFLState(BeforeProbe):
    """The streams, and the answers to the probe, which weights of unseen clients need."""

    gradients: Float[np.ndarray, "m d"] | None
    """g_i, or a sketch of it, from the probe; None without a probe, if the user gave
    `UCFL.rows`.
    """
    sigma2: Float[np.ndarray, " m"] | None
    """sigma_i^2 (or tr S_i / n_i), from the probe; None without a probe."""
    kernel: Kernel
    """The rule that computes rows of weights from gradients and sigma_i^2."""
    bandwidth: float
    """The factor on `sigma2` in the kernel; 1 unless n_k is chosen after the probe."""
    rows: Float[np.ndarray, "m m"]
    """w_ij, the weight of client j's model in the average for client i."""
    weights: Float[np.ndarray, "s m"]
    """W_sj, the weight of client j's model in stream s."""
    stream: Int[np.ndarray, " m"]
    """The number of the stream that each client receives."""
    model: Float[Array, "s d"]
    """theta_s, the streams' models."""
    mixed: Bool[np.ndarray, " s"]
    """Which streams were ever averaged from reporters' models; the others are theta^0."""
    silhouettes: Float[np.ndarray, "k 2"]
    """The numbers of streams that "auto" compared, and their silhouettes."""
    fresh: bool
    """Whether no round is over yet. All streams are still theta^0, which clients hold
    already if they answered the probe.
    """
    uploads: LastUploads | None = None
    """The models that clients sent last, if each client has a stream of its own; None
    before the first round, or with fewer streams.
    """
    tried: Float[np.ndarray, "k 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    """The batch sizes that "auto" compared: n_k / n_i (NaN for the kernel `bound`, which
    has no n_k), and the validation error with it.
    """
    sketch: int | None = None
    """The seed of the sketches that `gradients` holds; None = they are whole gradients."""
    asked: Float[np.ndarray, "k 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    """After how many rounds of FedAvg clients were asked, and the best silhouette of each
    probe (see `WarmUp`); empty if the round of the probe was given.
    """

    @property
    def one_for_each(self) -> bool:
        """Whether each client has a stream of its own."""
        return len(self.weights) == len(self.rows)

    def starting_at(self, model: Float[Array, " d"]) -> "UCFLState":
        """The streams before their first round, with this model for all of them, which
        clients hold.
        """
        return self.replace(
            model=jnp.repeat(model[None], len(self.weights), axis=0),
            mixed=np.zeros(len(self.weights), bool),
            fresh=True,
        )


def bandwidth_of(batch_share: float) -> float:
    """The factor n_i / n_k - 1 of sigma_i^2 = tr S_i / n_i (n_i / n_k - 1).

    Args:
        batch_share: n_k / n_i, in [0, 1].
    """
    return np.inf if batch_share == 0 else 1 / batch_share - 1


def batch_share_of(bandwidth: float) -> float:
    """The share n_k / n_i that has this bandwidth; the inverse of `bandwidth_of`."""
    return 1 / (1 + bandwidth)


def probe_of(answers: Answers, cohort: Cohort) -> Probe:
    """The answers to the probe, in the order of the cohort."""
    kind = "gradient" if "gradient" in answers else "sketch"
    return Probe(
        answers.host(kind),
        answers.host("sigma2").astype(np.float64),
        cohort.sizes,
    )


def newcomer_rows(
    server: UCFLState, cohort: Cohort, usable: Bool[np.ndarray, " m"]
) -> Float[np.ndarray, "c m"]:
    """Rows of weights for newcomers.

    Args:
        server: with the answers of the seen clients to the probe.
        cohort: the newcomers, which are unseen clients or seen clients whose stream was
            never mixed.
        usable: [m] the seen clients that may have weight.

    Returns:
        Weights [c, m], 0 for clients that are not usable. If no client is usable, all
        weights are 0.

    Raises:
        ValueError: the user gave the rows of the seen clients, and a newcomer has no
            row.
    """
    if not usable.any():
        return np.zeros((len(cohort), len(usable)))
    if server.gradients is not None and server.sigma2 is not None:
        seen = Probe(server.gradients, server.sigma2, server.sizes)
        if cohort.probes is not None:
            newcomers = probe_of(cohort.probes, cohort)
        else:
            # Seen clients answered the probe before training.
            position = cohort.position
            newcomers = Probe(
                server.gradients[position],
                server.sigma2[position],
                server.sizes[position],
            )
        # With the n_k of the seen clients' rows.
        newcomers = newcomers.with_bandwidth(server.bandwidth)
        seen = seen.with_bandwidth(server.bandwidth)
        return newcomer_weights(newcomers, seen, server.kernel, usable)
    require(
        bool(np.isin(cohort.ids, server.ids).all()),
        "with rows of your own ucfl cannot weigh clients that have no row: an unseen"
        " client",
    )
    # The rows that the user gave, renormalised over the usable clients.
    given_rows = server.rows[np.searchsorted(server.ids, cohort.ids)]
    rows = np.where(usable, given_rows, 0.0)
    total = rows.sum(axis=1, keepdims=True)
    return np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)


def nearest_streams(
    server: UCFLState, rows: Float[np.ndarray, "c m"]
) -> Int[np.ndarray, " c"]:
    """The stream whose weights are nearest to each row of weights.

    Streams that were never mixed are still theta^0. They are not used, unless no stream
    was ever mixed.
    """
    differences = rows[:, None] - server.weights[None]  # [c, s, m]
    distances = np.square(differences).sum(-1)
    if server.mixed.any():
        distances[:, ~server.mixed] = np.inf
    return distances.argmin(axis=1)


def stream_diagnostics(server: UCFLState) -> list[Diagnostic]:
    """The weights, and the silhouettes and errors that chose the settings."""
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
        has_batches = server.kernel != "bound"
        chosen = batch_share_of(server.bandwidth) if has_batches else None
        shares, errors = server.tried[~np.isnan(server.tried[:, 0])].T
        diagnostics.append(
            LineDiagnostic(
                name="sigma_batch",
                title="Validation error with each batch of the variances",
                x=shares,
                y=errors,
                x_label="share of the samples",
                y_label="error",
                chosen=chosen,
            )
        )
    return diagnostics
