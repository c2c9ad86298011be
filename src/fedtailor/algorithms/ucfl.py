"""UCFL: user-centric aggregation, with as many downlink streams as one can afford."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt64

from fedtailor.aggregation import (
    Kernel,
    Probe,
    mix,
    newcomer_weights,
    restrict_to_reporters,
    user_centric_weights,
)
from fedtailor.aggregation.clusters import choose_streams, k_means
from fedtailor.algorithms.helpers.last_uploads import LastUploads
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientRows,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LineDiagnostic,
    LocalTrainer,
    MatrixDiagnostic,
    Population,
    ServerState,
    Streams,
    hyperparameters,
    require,
    server_state,
)


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
    """sigma_i^2, likewise."""
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

    @property
    def one_for_each(self) -> bool:
        """Whether each client has a stream of its own."""
        return len(self.weights) == len(self.rows)


@hyperparameters
class UCFL(Algorithm):
    """User-centric federated learning (Mestoukirdi et al. 2021/2022).

    Before training every client answers a probe at the common theta^0 with its full gradient g_i and the variance of
    its gradients over disjoint batches (eq. 10); the server turns them into rows of weights (eq. 9)

        w_ij ~ n_j exp( -|g_i - g_j|^2 / (2 sigma_i^2) )

    Then, in each round, every client trains its own stream's model and the streams are mixed (eq. 8)

        theta_s = sum_j W_sj SGD(theta_s(j); D_j)

    With one stream a client (`streams=None`) W holds those rows; with fewer, the centroids of their clusters, found by
    k-means (eq. 11), their number by the silhouette (algorithm 2). "auto" compares 2 to m-1 streams and takes one where
    no silhouette is positive; so two clients always share one.

    When only some clients report (the paper assumes all do), rows are renormalised over the reporters, and a stream
    whose row has almost no mass on them stays as it is. A client that arrives later answers the probe too: it is sent
    the stream whose centroid is nearest to its row, or, with a stream for each client, its own mix of the models that
    clients sent last. Its row weighs only clients that have ever sent one, and only streams that have ever been mixed
    are compared: the others are still theta^0. Clients whose own stream is, are served in the same way.
    """

    about: ClassVar[About] = About(
        name="ucfl",
        paper="Mestoukirdi et al. 2021, User-Centric Federated Learning",
        down="1 model of its stream (theta^0 once, in the probe)",
        up="1 model (1 gradient and 2 scalars once, in the probe)",
        keeps="nothing",
        unseen="answers the probe; the nearest stream, or its own mix of the last models",
        travels="one of several",
    )

    sgd: SGD = SGD(lr=0.1, momentum=0.9, epochs=1, batch_size=32)
    """Local training (Mestoukirdi et al., section V: learning rate 0.1, momentum 0.9, one epoch)."""
    streams: int | Literal["auto"] | None = None
    """Downlink streams: a number, "auto" (best silhouette), or None (one for each client)."""
    kernel: Kernel = "eq9"
    """`eq9` divides distances by sigma_i^2 (the long paper), `eq6` by sigma_i sigma_j (the short paper)."""
    sigma_batch: int | float = 1 / 3
    """Samples n_k of a batch in the variance sigma_i^2: a number, or a share of the client's samples (the papers use
    100 and n_i/3). Never more than half of the samples, so that there are two batches."""
    trade_off: Callable[[int, float], float] | None = None
    """c(k, s_k): the value of k streams whose silhouette is s_k, for "auto" (algorithm 2); default s_k itself."""
    rows: Float[np.ndarray, "m m"] | None = None
    """Weights of your own instead of the probe's: row i weighs the clients for client i, both sorted by client id."""

    def __post_init__(self) -> None:
        require(self.streams in (None, "auto") or isinstance(self.streams, int),
                f"streams is {self.streams!r}; it must be a number, 'auto' or None (one for each client)")  # fmt: skip
        require(
            not isinstance(self.streams, int) or self.streams >= 1, f"streams is {self.streams}; it must be 1 or more"
        )
        require(self.kernel in ("eq9", "eq6"), f"kernel is {self.kernel!r}; it must be 'eq9' or 'eq6'")
        valid = self.sigma_batch >= 1 if isinstance(self.sigma_batch, int) else 0 < self.sigma_batch <= 0.5
        require(valid, f"sigma_batch is {self.sigma_batch}; it must be a number of samples or a share in (0, 0.5]")

    def check(self, population: Population) -> None:
        clients = len(population)
        if isinstance(self.streams, int):
            require(self.streams <= clients, f"{self.streams} streams for {clients} clients; ask for 1 to {clients}")
        if self.rows is not None:
            fits = np.shape(self.rows) == (clients, clients) and np.allclose(np.sum(self.rows, axis=1), 1)
            require(fits, f"rows must be a [{clients}, {clients}] matrix whose rows sum to 1")

    @property
    def probes(self) -> bool:
        return self.rows is None

    # before training ------------------------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> BeforeProbe:
        server = BeforeProbe(init(0), population.ids, population.sizes)
        return server if self.rows is None else self._with_streams(server, np.asarray(self.rows, np.float64))

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        theta, n = inbox["model"][0], local.size
        rounding = 1e-3  # a third of 9 samples is 3 of them, whatever 1/3 is in single precision
        batch = self.sigma_batch if isinstance(self.sigma_batch, int) else jnp.int32(self.sigma_batch * n + rounding)
        batch = jnp.maximum(jnp.minimum(batch, n // 2), 1)
        batches = jnp.maximum(n // batch, 1)
        gradient = local.gradient(theta)

        def add(k: Any, total: Any) -> Any:
            # batches of a random partition: the order of the data may go by label, say
            part = local.gradient(theta, k * batch, (k + 1) * batch, purpose="sigma")
            return total + jnp.sum(jnp.square(part - gradient))

        total = local.fori_loop(batches, add, jnp.zeros((), theta.dtype))
        return {"gradient": gradient, "sigma2": total / batches, "samples": n.astype(theta.dtype)}

    def aggregate_probe(self, server: BeforeProbe, answers: Answers, cohort: Cohort) -> UCFLState:
        probe = _probe_of(answers, cohort)
        return self._with_streams(server, user_centric_weights(probe, self.kernel), probe)

    def _with_streams(
        self, server: BeforeProbe, rows: Float[np.ndarray, "m m"], probe: Probe | None = None
    ) -> UCFLState:
        """The server with the streams that rows of weights ask for; all their models are theta^0."""
        clients, silhouettes = len(rows), {}
        streams = clients if self.streams is None else self.streams
        if streams == "auto":
            streams, silhouettes = choose_streams(rows, self.trade_off)
        labels, weights = (np.arange(clients), rows) if streams == clients else k_means(rows, int(streams))
        return UCFLState(
            initial=server.initial,
            ids=server.ids,
            sizes=server.sizes,
            gradients=None if probe is None else np.asarray(probe.gradients),
            sigma2=None if probe is None else np.asarray(probe.sigma2),
            rows=rows,
            weights=weights,
            stream=labels,
            model=jnp.repeat(server.initial[None], len(weights), axis=0),
            mixed=np.zeros(len(weights), bool),
            silhouettes=np.array([[k, s] for k, s in silhouettes.items()], np.float64).reshape(-1, 2),
            fresh=True,
        )

    # rounds ---------------------------------------------------------------------------------------------------------

    def broadcast(self, server: UCFLState, cohort: Cohort) -> Downlink:
        stream = server.stream[cohort.position].astype(np.int32)
        return Downlink({"model": Streams(server.model, stream[:, None], already_held=self.probes and server.fresh)})

    def client(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, ClientUpdate]:
        return state, {"model": local.sgd(inbox["model"][0], self.sgd)}

    def server(self, server: UCFLState, downlink: Downlink, answers: Answers, cohort: Cohort) -> UCFLState:
        weights = restrict_to_reporters(server.weights, server.sizes, cohort)
        uploads = None
        if server.one_for_each:
            uploads = (server.uploads or LastUploads.none_yet(server.model)).after(answers["model"], cohort)
        return server.replace(
            model=mix(server.model, answers["model"], weights),
            mixed=server.mixed | weights.any(axis=1),
            fresh=False,
            uploads=uploads,
        )

    # after training -------------------------------------------------------------------------------------------------

    def serve(self, server: UCFLState, cohort: Cohort) -> Downlink:
        if not cohort.seen:
            return Downlink({"model": self._late(server, cohort)})
        stream = server.stream[cohort.position].astype(np.int32)
        started = server.mixed[stream]
        if started.all() or server.fresh:
            return Downlink({"model": Streams(server.model, stream[:, None])})
        # under sampling some streams are still theta^0: their clients are served as if they arrived now
        waiting = replace(cohort, rows=cohort.rows[~started], reporting=cohort.reporting[~started])
        late = self._late(server, waiting)
        stream[~started] = len(server.model) + late.recipients[:, 0]
        return Downlink({"model": Streams(jnp.concatenate([server.model, late.values]), stream[:, None])})

    def _late(self, server: UCFLState, cohort: Cohort) -> Streams:
        """Models for clients that have no stream of their own that was ever mixed."""
        if server.one_for_each:
            models, usable = self._mixed_for_newcomers(server)
            rows = self._late_rows(server, cohort, usable)
            start = jnp.repeat(server.initial[None], len(rows), axis=0)  # stays where there is nothing to mix yet
            return Streams(mix(start, models, rows), np.arange(len(rows), dtype=np.int32)[:, None])
        rows = self._late_rows(server, cohort, np.ones(len(server.rows), bool))
        distances = np.square(rows[:, None] - server.weights[None]).sum(-1)
        if server.mixed.any():
            distances[:, ~server.mixed] = np.inf
        return Streams(server.model, distances.argmin(axis=1).astype(np.int32)[:, None])

    def _mixed_for_newcomers(self, server: UCFLState) -> tuple[ClientRows, Bool[np.ndarray, " m"]]:
        """One model for each client [m, d] that a newcomer's own is mixed of, and which of them were ever trained."""
        if server.uploads is None:
            return ClientRows(server.model, np.arange(len(server.rows))), np.zeros(len(server.rows), bool)
        return ClientRows(server.uploads.models, server.uploads.row), server.uploads.sent

    def _late_rows(self, server: UCFLState, cohort: Cohort, usable: Bool[np.ndarray, " m"]) -> Float[np.ndarray, "c m"]:
        """Weights of the usable clients for each client of the cohort; zero where no client is.

        Raises:
            ValueError: an unseen client, and the rows are the user's own, so that there is none for it.
        """
        if not usable.any():
            return np.zeros((len(cohort), len(usable)))
        if server.gradients is not None and server.sigma2 is not None:
            seen = Probe(server.gradients, server.sigma2, server.sizes)
            if cohort.probes is None:
                own = cohort.position
                late = Probe(server.gradients[own], server.sigma2[own], server.sizes[own])
            else:
                late = _probe_of(cohort.probes, cohort)
            return newcomer_weights(late, seen, self.kernel, usable)
        require(
            bool(np.isin(cohort.ids, server.ids).all()),
            "with rows of your own ucfl cannot weigh clients that have no row: an unseen client",
        )
        rows = np.where(usable, server.rows[np.searchsorted(server.ids, cohort.ids)], 0.0)
        mass = rows.sum(axis=1, keepdims=True)
        return np.divide(rows, mass, out=np.zeros_like(rows), where=mass > 0)

    # reports ----------------------------------------------------------------------------------------------------------

    def diagnostics(self, server: UCFLState) -> Sequence[Diagnostic]:
        weights = MatrixDiagnostic("collaboration", "Weights of all clients for each client", server.rows)
        if not len(server.silhouettes):
            return [weights]
        streams, silhouettes = server.silhouettes.T
        compared = LineDiagnostic(
            "silhouette",
            "Silhouette of each number of streams",
            streams,
            silhouettes,
            "streams",
            "silhouette",
            chosen=float(len(server.weights)),
        )
        return [weights, compared]


def _probe_of(answers: Answers, cohort: Cohort) -> Probe:
    """The answers to the probe, in the order of the cohort."""
    return Probe(answers.host("gradient"), answers.host("sigma2").astype(np.float64), cohort.sizes)
