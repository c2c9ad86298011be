"""User-centric federated learning as in its papers (Mestoukirdi et al. 2021/2022).

`UCFL` in `ucfl` adds when to ask clients, and how to choose the batches of the variances.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import (
    Kernel,
    Probe,
    mix,
    restrict_to_reporters,
    user_centric_weights,
)
from fedtailor.aggregation.clusters import choose_streams, k_means
from fedtailor.algorithms.helpers.batch_gradients import batch_size, batch_variance
from fedtailor.algorithms.helpers.last_uploads import LastUploads
from fedtailor.algorithms.helpers.pairs import check_pairs
from fedtailor.algorithms.helpers.user_centric import (
    BeforeProbe,
    UCFLState,
    nearest_streams,
    newcomer_rows,
    probe_of,
    stream_diagnostics,
)
from fedtailor.protocol import (
    SGD,
    Algorithm,
    Answers,
    ClientRows,
    ClientState,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Sees,
    ServerState,
    Streams,
    hyperparameters,
    sums_type,
)


@hyperparameters
class PaperUCFL(Algorithm):
    """User-centric federated learning (Mestoukirdi et al. 2021/2022).

    1. Before training every client sends its gradient g_i at the common initial model,
       and the variance sigma_i^2 of its gradients over disjoint batches (eq. 10).
    2. The server turns them into rows of weights (eq. 9):
       w_ij ~ n_j exp( -|g_i - g_j|^2 / (2 sigma_i^2) ).
    3. Clients whose rows are similar share a stream. Its weights W_s are the centroid of
       their rows (k-means, eq. 11), and the silhouette says how many streams there should
       be (algorithm 2).
    4. In each round every client trains the model of its stream, and the streams are
       mixed (eq. 8): theta_s = sum_j W_sj SGD(theta_s(j); D_j).

    What the papers leave open - unseen clients, and rounds in which only some clients
    report - is said where it is decided.
    """

    sgd: SGD = SGD(lr=0.1, momentum=0.9, epochs=1, batch_size=32)
    """Local training (Mestoukirdi et al., section V: learning rate 0.1, momentum 0.9,
    one epoch).
    """
    streams: int | Literal["auto"] | None = None
    """Downlink streams: a number, "auto" (best silhouette), or None (one for each
    client).
    """
    kernel: Kernel = "eq9"
    """`eq9` divides distances by sigma_i^2 (the long paper), `eq6` by sigma_i sigma_j
    (the short paper); `bound` minimises a bound instead, and has no n_k."""
    sigma_batch: int | float | Literal["auto"] = 1 / 3
    """Samples n_k of a batch in the variance sigma_i^2: a number, or a share of the
    client's samples (the papers use 100 and n_i/3), never more than half of them, so
    that there are two batches; "auto" chooses it on validation data."""
    trade_off: Callable[[int, float], float] | None = None
    """c(k, s_k): the value of k streams whose silhouette is s_k, for "auto" (algorithm
    2); default s_k itself.
    """
    rows: Float[np.ndarray, "m m"] | None = None
    """Weights to use instead of those from the probe: row i holds the weights of all
    clients for client i. Rows and columns are sorted by client id.
    """

    def __post_init__(self) -> None:
        require(
            not isinstance(self.streams, int) or self.streams >= 1,
            f"streams is {self.streams}; it must be 1 or more",
        )
        batch = self.sigma_batch
        if isinstance(batch, str):
            valid = batch == "auto"
        else:
            valid = batch >= 1 if isinstance(batch, int) else 0 < batch <= 0.5
        require(
            valid,
            f"sigma_batch is {batch!r}; it must be a number of samples, a share in (0,"
            " 0.5] or 'auto'",
        )

    @property
    def takes_weights(self) -> bool:
        return False  # the noise of gradients is measured on batches of rows

    def check(self, population: Population) -> None:
        check_pairs(population, self.about.name)
        clients = len(population)
        if isinstance(self.streams, int):
            require(
                self.streams <= clients,
                f"{self.streams} streams for {clients} clients; ask for 1 to {clients}",
            )
        if self.rows is not None:
            is_square = np.shape(self.rows) == (clients, clients)
            fits = is_square and np.allclose(np.sum(self.rows, axis=1), 1)
            require(
                fits,
                f"rows must be a [{clients}, {clients}] matrix whose rows sum to 1",
            )

    @property
    def probes(self) -> bool:
        return self.rows is None

    @property
    def server_sees(self) -> Sees:
        return "sums" if isinstance(self.streams, int) else "models"

    @property
    def sent_to_each(self) -> frozenset[str]:
        return frozenset({"model"})

    @property
    def sums_per_round(self) -> int:
        return self.streams if isinstance(self.streams, int) else 1

    # before training
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> BeforeProbe:
        server = BeforeProbe(init(0), population.ids, population.sizes)
        if self.rows is None:
            return server
        return self._with_streams(server, np.asarray(self.rows, np.float64))

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        theta, n = inbox.only("model"), local.size
        assert not isinstance(self.sigma_batch, str)
        n_k = batch_size(self.sigma_batch, n)
        gradient = local.gradient(theta)
        sigma2 = batch_variance(local, theta, gradient, n_k)
        samples = n.astype(sums_type(theta))
        return {"gradient": gradient, "sigma2": sigma2, "samples": samples}

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        # The server weighs clients by their numbers of samples, which they have told.
        return {
            "sigma2": (0, math.inf),
            "samples": (size, size),
        }

    def aggregate_probe(
        self, server: BeforeProbe, answers: Answers, cohort: Cohort
    ) -> ServerState:
        # eq. 9
        probe = probe_of(answers, cohort)
        rows = user_centric_weights(probe, self.kernel)
        return self._with_streams(server, rows, probe)

    def _with_streams(
        self,
        server: BeforeProbe,
        rows: Float[np.ndarray, "m m"],
        probe: Probe | None = None,
    ) -> UCFLState:
        """The streams before their first round, when all models are `server.initial`.

        Args:
            server: the server before the probe.
            rows: w_ij.
            probe: the probe that the rows were computed from; None if the user gave
                the rows.
        """
        clients = len(rows)
        silhouettes: dict[int, float] = {}
        streams = clients if self.streams is None else self.streams
        # Algorithm 2: the number of streams with the best silhouette
        if streams == "auto":
            streams, silhouettes = choose_streams(rows, self.trade_off)
        # eq. 11: the clients of a cluster share a stream, whose weights are the mean of
        # their rows
        if streams == clients:
            labels, weights = np.arange(clients), rows
        else:
            labels, weights = k_means(rows, int(streams))
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
            silhouettes=np.array(list(silhouettes.items()), np.float64).reshape(-1, 2),
            kernel=self.kernel,
            bandwidth=1.0,
            fresh=True,
        )

    # rounds
    # ----------------------------------------------------------------------------------

    def broadcast(self, server: UCFLState, cohort: Cohort) -> Downlink:
        stream = server.stream[cohort.position]
        # In the first round clients still hold theta^0 from the probe.
        already_held = self.probes and server.fresh
        return Downlink({"model": Streams.by_index(server.model, stream, already_held)})

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        return state, {"model": local.sgd(inbox["model"][0], self.sgd)}

    def server(
        self, server: UCFLState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> ServerState:
        return self._mix_streams(server, answers["model"], cohort)

    def _mix_streams(
        self, server: UCFLState, models: ClientRows, cohort: Cohort
    ) -> UCFLState:
        """The server after a round in which the cohort sent these models [c, d]."""
        # eq. 8: theta_s = sum_j W_sj theta_j, over the clients that report
        weights = restrict_to_reporters(server.weights, server.sizes, cohort)
        # With a stream for each client, an unseen client receives its own mix of the
        # models that clients sent last.
        uploads = None
        if server.one_for_each:
            before = server.uploads or LastUploads.none_yet(server.model)
            uploads = before.after(models, cohort)
        return server.replace(
            model=mix(server.model, models, weights),
            mixed=server.mixed | weights.any(axis=1),
            fresh=False,
            uploads=uploads,
        )

    # after training
    # ----------------------------------------------------------------------------------

    def serve(self, server: UCFLState, cohort: Cohort) -> Downlink:
        # Seen clients have a stream. Unseen ones are assigned a stream or a mix.
        if not cohort.seen:
            return Downlink({"model": self._streams_for_newcomers(server, cohort)})
        models, stream = server.model, server.stream[cohort.position]
        is_mixed = server.mixed[stream]
        if not is_mixed.all() and not server.fresh:
            # When clients are sampled, some streams may still be theta^0. Their clients
            # are served as newcomers, whose streams are appended to the server's.
            unmixed = replace(
                cohort,
                rows=cohort.rows[~is_mixed],
                reporting=cohort.reporting[~is_mixed],
            )
            added = self._streams_for_newcomers(server, unmixed)
            # Each of these clients receives one stream: recipients are [clients, 1].
            stream[~is_mixed] = len(models) + added.recipients[:, 0]
            models = jnp.concatenate([models, added.values])
        return Downlink({"model": Streams.by_index(models, stream)})

    def _streams_for_newcomers(self, server: UCFLState, cohort: Cohort) -> Streams:
        """Models for clients that have no stream, or one that was never mixed.

        Returns:
            If each seen client has a stream of its own: one mix for each newcomer.
            Otherwise the server's streams, of which each newcomer receives the one
            whose weights are nearest to the newcomer's row of weights.
        """
        if server.one_for_each:
            models, is_trained = self._models_for_newcomers(server)
            rows = newcomer_rows(server, cohort, is_trained)
            # If nothing was trained yet, a newcomer has a row of zeros, with which
            # `mix` returns theta^0.
            start = jnp.repeat(server.initial[None], len(rows), axis=0)
            return Streams.one_each(mix(start, models, rows))
        all_clients = np.ones(len(server.rows), bool)
        rows = newcomer_rows(server, cohort, all_clients)
        return Streams.by_index(server.model, nearest_streams(server, rows))

    def _models_for_newcomers(
        self, server: UCFLState
    ) -> tuple[ClientRows, Bool[np.ndarray, " m"]]:
        """The models of the seen clients that are mixed for a newcomer.

        Returns:
            One model for each client [m, d], and which of them were ever trained [m].
        """
        uploads = server.uploads or LastUploads.none_yet(server.model)
        return ClientRows(uploads.models, uploads.row), uploads.sent

    # reports
    # ----------------------------------------------------------------------------------

    def diagnostics(self, server: UCFLState) -> Sequence[Diagnostic]:
        return stream_diagnostics(server)
