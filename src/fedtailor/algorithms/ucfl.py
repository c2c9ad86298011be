"""UCFL: user-centric aggregation, with as many downlink streams as one can afford."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedtailor.aggregation import (
    Kernel,
    Probe,
    mix,
    newcomer_weights,
    restrict_to_reporters,
    user_centric_weights,
)
from fedtailor.aggregation.clusters import choose_streams, k_means
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientRows,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Streams,
    hyperparameters,
    require,
)


@hyperparameters
class UCFL(Algorithm):
    """User-centric federated learning (Mestoukirdi et al. 2021/2022).

    Before training every client answers a probe at the common theta^0 with its full gradient g_i and the variance of
    its gradients over disjoint batches (eq. 10); the server turns them into rows of weights (eq. 9)

        w_ij ~ n_j exp( -|g_i - g_j|^2 / (2 sigma_i^2) )

    Then, in each round, every client trains its own stream's model and the streams are mixed (eq. 8)

        theta_s = sum_j W_sj SGD(theta_s(j); D_j)

    With one stream a client (`streams=None`) W holds those rows; with fewer, the centroids of their clusters, found by
    k-means (eq. 11), their number by the silhouette (algorithm 2).

    When only some clients report (the paper assumes all do), rows are renormalised over the reporters, and a stream
    whose row has almost no mass on them stays as it is. A client that arrives later answers the probe too: it is sent
    the stream whose centroid is nearest to its row, or, with a stream for each client, its own mix of the last models.
    """

    about: ClassVar[About] = About(
        name="ucfl",
        paper="Mestoukirdi et al. 2021, User-Centric Federated Learning",
        down="1 model of its stream (theta^0 once, in the probe)",
        up="1 model (1 gradient and 2 scalars once, in the probe)",
        keeps="nothing",
        unseen="answers the probe; the nearest stream, or its own mix of the last models",
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

    def init_server(self, init: Init, population: Population) -> Any:
        server = {"initial": init(0), "sizes": population.sizes}
        return server if self.rows is None else self._open(server, np.asarray(self.rows, np.float64))

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        theta, n = inbox["model"][0], local.size
        rounding = 1e-3  # a third of 9 samples is 3 of them, whatever 1/3 is in single precision
        batch = self.sigma_batch if isinstance(self.sigma_batch, int) else jnp.int32(self.sigma_batch * n + rounding)
        batch = jnp.maximum(jnp.minimum(batch, n // 2), 1)
        batches = jnp.maximum(n // batch, 1)
        gradient = local.gradient(theta)

        def add(k: Any, total: Any) -> Any:
            part = local.gradient(theta, k * batch, (k + 1) * batch, purpose="sigma")
            return total + jnp.sum(jnp.square(part - gradient))

        total = local.fori_loop(batches, add, jnp.zeros((), theta.dtype))
        return {"gradient": gradient, "sigma2": total / batches, "samples": n.astype(theta.dtype)}

    def aggregate_probe(self, server: Any, answers: Answers, cohort: Cohort) -> Any:
        probe = _probe_of(answers, cohort)
        server = {**server, "gradients": probe.gradients, "sigma2": probe.sigma2}
        return self._open(server, user_centric_weights(probe, self.kernel))

    def _open(self, server: Any, rows: Float[np.ndarray, "m m"]) -> Any:
        """Streams for rows of weights: W [s, m], each client's stream [m], and the models, all theta^0."""
        clients, silhouettes = len(rows), {}
        streams = clients if self.streams is None else self.streams
        if streams == "auto":
            streams, silhouettes = choose_streams(rows, self.trade_off)
        own = streams == clients
        labels, weights = (np.arange(clients), rows) if own else k_means(rows, int(streams))
        model = jnp.repeat(server["initial"][None], len(weights), axis=0)
        return {
            **server,
            "rows": rows,
            "weights": weights,
            "stream": labels,
            "model": model,
            "silhouettes": np.array([[k, s] for k, s in silhouettes.items()]).reshape(-1, 2),
            "fresh": True,
            **({"last": model, "place": np.arange(clients)} if own else {}),  # for newcomers: last uploads, and whose
        }

    # rounds ---------------------------------------------------------------------------------------------------------

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        stream = server["stream"][cohort.position].astype(np.int32)
        return Downlink(
            {"model": Streams(server["model"], stream[:, None], already_held=self.probes and server["fresh"])}
        )

    def client(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, ClientUpdate]:
        return state, {"model": local.sgd(inbox["model"][0], self.sgd)}

    def server(self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort) -> Any:
        weights = restrict_to_reporters(server["weights"], server["sizes"], cohort)
        new = {"model": mix(server["model"], answers["model"], weights), "fresh": False}
        return {**server, **new, **(_uploads(server, answers["model"], cohort) if "last" in server else {})}

    # newcomers --------------------------------------------------------------------------------------------------------

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        if cohort.seen:
            return self.broadcast({**server, "fresh": False}, cohort)
        require(
            cohort.probes is not None,
            "with rows of your own ucfl cannot weigh clients that have no row: an unseen client",
        )
        assert cohort.probes is not None
        seen = Probe(server["gradients"], server["sigma2"], server["sizes"])
        rows = newcomer_weights(_probe_of(cohort.probes, cohort), seen, self.kernel)
        if "last" in server:
            zeros = jnp.zeros_like(server["model"], shape=(len(rows), server["model"].shape[1]))
            own = mix(zeros, ClientRows(server["last"], server["place"]), rows)
            return Downlink({"model": Streams(own, np.arange(len(rows), dtype=np.int32)[:, None])})
        distances = np.square(rows[:, None] - server["weights"][None]).sum(-1)
        return Downlink({"model": Streams(server["model"], distances.argmin(axis=1).astype(np.int32)[:, None])})


def _probe_of(answers: Answers, cohort: Cohort) -> Probe:
    """The answers to the probe, in the order of the cohort."""
    return Probe(answers.host("gradient"), answers.host("sigma2").astype(np.float64), cohort.sizes)


def _uploads(server: Any, models: ClientRows, cohort: Cohort) -> dict[str, Any]:
    """The last upload of every client, and its row: copied only if some clients are absent."""
    if cohort.reporting.all() and len(cohort) == len(server["place"]):
        return {"last": models.values, "place": models.row}
    rows = server["place"][cohort.reporters]
    return {"last": server["last"].at[rows].set(models.take(cohort.reporting)), "place": server["place"]}
