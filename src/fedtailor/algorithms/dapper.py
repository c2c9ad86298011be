"""DAPPER: fine-tuning on a mixture of the client's data and examples of all clients."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from fedtailor.aggregation import ServerOptimizer, reporter_weights
from fedtailor.algorithms.helpers.best_round import (
    BestRound,
    chosen,
    present,
    validation_loss,
)
from fedtailor.algorithms.helpers.moments import (
    WithMoments,
    loss_by_moments,
    models_of,
    sums_of_moments,
)
from fedtailor.algorithms.helpers.selection import closest, require_cover
from fedtailor.algorithms.helpers.sent_examples import (
    batch_positions,
    example_streams,
    received_batch,
)
from fedtailor.algorithms.hypcluster import (
    HypCluster,
    HypClusterState,
    cluster_diagnostics,
    train_closest,
)
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    Batch,
    ClientState,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Params,
    Population,
    Predictor,
    Streams,
    TracedInt,
    draw_bits,
    hyperparameters,
    require,
)

Sampler = Callable[[np.random.Generator, int], tuple[NDArray[Any], NDArray[Any]]]
"""(generator, n) -> n examples x [n, ...], y [n, ...], as the federation stores them.
"""


_LINEAR = (
    "source='moments' needs a linear model with squared error, such as"
    " models.logistic() with loss squared_error"
)
_ROUNDING = 1e-3
"""Relative deviation from a linear model's squared error that single precision may
cause.
"""


DAPPERState = HypClusterState | BestRound | WithMoments
"""The common models, perhaps with a memory of the best round, or with second moments
beside them.
"""


@hyperparameters
class DAPPER(Algorithm):
    """Data interpolation (Mansour et al. 2020, section 4, figure 2).

    First the clients train a common model h_c by FedAvgM, or, with `clusters`, the
    models of HypCluster, of which each client takes the one that fits its data best.
    When training is over, each client k is sent a sample C' of r m_k examples of all
    clients (or of those in its cluster) and, for every lambda of a cover of [0, 1],
    minimises from h_c

        lambda F_k(h) + (1 - lambda) F_C'(h)   (eq. 7)

    in steps on a batch of its own and a batch r times as large of C'. It keeps the
    model with the lowest loss on samples held out from training: its validation split
    or, where it has none, `held_out` of its training data. A client that never took
    part has only training data to give, and holds out from these.

    `coin` is the pseudocode: r times as many steps, each on a batch of the client with
    probability lambda, else on one of C' (with batches of one sample and one epoch: r
    m_k steps). `select="train"`, also of the pseudocode, chooses by the loss on the
    data that it trained on, which nearly always is the largest lambda.

    Where C' must not be other clients' data (section 4.2), `source` takes it from
    public `proxy` data, or, for models without inputs (densities), from h_c itself:
    clients draw from it and no example travels. For a linear model and squared error,
    `moments` is enough (section 4.2, sufficient statistics): once, before training,
    clients send the means of u u' and u y' over their samples, u = (x, 1), of which the
    server sends out the mean over all samples. From these F_C' and its gradient follow
    for C' = all clients' training data, without any example and without chance:

        F_C'(h) = tr(H' M_uu H) - 2 tr(H' M_uy) + constant    for h(x) = H' u
    """

    about: ClassVar[About] = About(
        name="dapper",
        paper=(
            "Mansour et al. 2020, Three Approaches for Personalization with"
            " Applications to Federated Learning"
        ),
        down="1 model, or all of q; once, after training, r m_k examples",
        up="1 model, and its number if there are several",
        keeps="nothing",
        unseen="its model and r m_k examples, on which it adapts as others do",
        sees="data",
        validation="the share lambda; else held-out training samples",
    )

    sgd: SGD = SGD(lr=0.01, epochs=2, batch_size=20)
    """Local training of the common models (Mansour et al., appendix F.2: rate 0.01, 2
    epochs, batch 20).
    """
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of a common model's average over reporters: by training samples n_i, or
    equal.
    """
    optimizer: ServerOptimizer = ServerOptimizer("momentum", lr=1.0, momentum=0.9)
    """The server's step of the common models (Mansour et al., appendix F.2: rate 1,
    momentum 0.9).
    """
    clusters: int = 1
    """Number of models q to start from: 1 is FedAvgM, more is HypCluster."""
    start: Literal["random", "farthest"] = "random"
    """Where several models come from (see `HypCluster`)."""
    warm: TracedInt = 0
    """Rounds of plain averaging for each `random` model, one model after another (see
    `HypCluster`).
    """
    cover: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """The lambdas to choose from, ascending (the paper: a cover of [0, 1])."""
    r: int = 5
    """Examples of C' for each of the client's own (Mansour et al., appendix F.2: 5)."""
    tune: SGD = SGD(lr=0.01, batch_size=10)
    """The final training (Mansour et al., appendix F.2: rate 0.01; one pass over both
    data sets).
    """
    coin: bool = False
    """Toss a coin for the data set of each step, or else weigh both data sets in each.
    """
    select: Literal["held-out", "train"] = "held-out"
    """What chooses lambda: the loss on held-out samples (the paper's text), or on all
    of the training data.
    """
    held_out: float = 0.2
    """Share of the training data held out to choose lambda, for clients without a
    validation split.
    """
    source: Literal["clients", "proxy", "model", "moments"] = "clients"
    """Where C' comes from: the seen clients' training data, `proxy`, samples of the
    model itself, or the second moments of all training data (linear models with squared
    error)."""
    best: bool = False
    """Start from the common model of the round of least validation loss ("the best
    baseline model" of Mansour et al., section 6; see `FineTune`), or else from the last
    one."""
    proxy: Sampler | None = None
    """Public data, or a generator trained on some, for `source="proxy"`; for arrays see
    `sampler`.
    """

    def __post_init__(self) -> None:
        self._training()  # which checks what it shares with HypCluster
        require_cover(self.cover)
        require(self.r >= 1, f"r is {self.r}; it must be 1 or more")
        require(
            self.select in ("held-out", "train"),
            f"select is {self.select!r}; it must be 'held-out' or 'train'",
        )
        require(
            0 < self.held_out < 1,
            f"held_out is {self.held_out}; it must be above 0 and below 1",
        )
        sources = ("clients", "proxy", "model", "moments")
        require(
            self.source in sources,
            f"source is {self.source!r}; it must be one of {', '.join(sources)}",
        )
        require(
            (self.source == "proxy") == (self.proxy is not None),
            "source='proxy' and proxy=... need each other",
        )
        require(
            self.source != "moments" or not self.coin,
            "source='moments' gives no batches to toss a coin for; leave coin out",
        )
        require(
            not self.best or self.clusters == 1,
            "best is of a single common model; leave it or clusters out",
        )

    @property
    def probes(self) -> bool:
        return self.source == "moments"

    def check(self, population: Population) -> None:
        self._training().check(population)
        require(
            self.source != "clients" or population.examples is not None,
            "dapper's server needs examples of the clients and has none; give public"
            " ones with source='proxy'",
        )
        require(
            self.source != "moments"
            or population.model is None
            or not population.model.classification,
            _LINEAR,
        )

    # training: the common models
    # ----------------------------------------------------------------------------------

    def _training(self) -> HypCluster:
        """What trains the common models; of a single one it is FedAvgM.

        Phase 1 of the method is another method as it stands: all its hyper-parameters
        have the same names there.
        """
        return HypCluster(
            sgd=self.sgd,
            weights=self.weights,
            optimizer=self.optimizer,
            clusters=self.clusters,
            start=self.start,
            warm=self.warm,
        )

    def init_server(self, init: Init, population: Population) -> DAPPERState:
        begun = self._training().init_server(init, population)
        begun = BestRound(begun, begun, None) if self.best else begun
        return WithMoments(begun, None) if self.source == "moments" else begun

    def broadcast(self, server: DAPPERState, cohort: Cohort) -> Downlink:
        return self._training().broadcast(present(models_of(server)), cohort)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        sent = train_closest(
            inbox,
            local,
            self.clusters,
            lambda theta: {"model": local.sgd(theta, self.sgd)},
        )
        return state, (
            {**sent, **validation_loss(inbox["model"][0], local)} if self.best else sent
        )

    def server(
        self, server: DAPPERState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> DAPPERState:
        models = models_of(server)
        moved = self._training().server(present(models), downlink, answers, cohort)
        moved = models.after(moved, answers, cohort) if self.best else moved
        return server.replace(models=moved) if self.source == "moments" else moved

    def global_model(self, server: DAPPERState) -> Float[Array, " d"]:
        return self._training().global_model(chosen(models_of(server)))

    def diagnostics(self, server: DAPPERState) -> Sequence[Diagnostic]:
        return cluster_diagnostics(present(models_of(server)))

    # before training: second moments
    # ---------------------------------------------------------------------------------

    def probe_downlink(self, server: WithMoments, cohort: Cohort) -> Downlink:
        # theta^0 is common knowledge (the seed)
        start = present(server.models).model[0]
        return Downlink(
            {"model": Streams.everyone(start, len(cohort), already_held=True)}
        )

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        sums = sums_of_moments(inbox["model"][0], local, self.tune.batch_size)
        return {"moments": sums[0] / jnp.maximum(local.size, 1), "deviation": sums[1]}

    def aggregate_probe(
        self, server: WithMoments, answers: Answers, cohort: Cohort
    ) -> WithMoments:
        means, deviation = (
            answers.host("moments"),
            answers.host("deviation")[cohort.reporting],
        )
        require(not len(deviation) or float(deviation.max()) < _ROUNDING, _LINEAR)
        # The mean over all clients' samples is the mean of the clients' means, weighted
        # by n_k.
        share = reporter_weights(cohort, "samples")
        moments = (share[:, None, None] * means).sum(axis=0)
        return server.replace(moments=moments.astype(means.dtype))

    # after training: examples C' for every client
    # -------------------------------------------------------------------

    def serve(self, server: DAPPERState, cohort: Cohort) -> Downlink:
        models = self._training().serve(chosen(models_of(server)), cohort)
        if self.source == "model":
            return models
        if self.source == "moments":
            assert isinstance(server, WithMoments)
            to_everyone = np.zeros((len(cohort), 1), np.int32)
            moments = Streams(jnp.asarray(server.moments)[None], to_everyone)
            return Downlink({**models.streams, "moments": moments})
        common = chosen(models_of(server))
        counts = self.r * cohort.sizes
        # C' of a client is a function of the run's seed and its id: the same whoever
        # else is served, and whenever.
        bits = draw_bits(cohort.seed, "dapper", 0, cohort.ids)
        clusters = (
            common.cluster[cohort.position] if cohort.seen else np.full(len(cohort), -1)
        )
        samples = []
        for of_client, cluster, count in zip(bits, clusters, counts, strict=True):
            samples.append(self._draw(common, cohort, of_client, cluster, count))
        return Downlink({**models.streams, **example_streams(samples, counts)})

    def _draw(
        self,
        server: HypClusterState,
        cohort: Cohort,
        bits: np.uint64,
        cluster: int,
        count: int,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """C' for one client; of all clients where its cluster is not known (-1) from a
        round that it took part in.
        """
        rng = np.random.default_rng(bits)
        if self.proxy is not None:
            return self.proxy(rng, count)
        assert cohort.examples is not None
        # figure 2 with clusters: C' is drawn from the data of the cluster's clients
        # only
        members = np.flatnonzero(server.cluster == cluster) if cluster >= 0 else None
        return cohort.examples(rng, count, members)

    # after training: the client's choice of lambda
    # ------------------------------------------------------------------

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        return {"model": self._personalize(inbox, local, use_val=False)}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        # only a client that never took part has a state: its model, chosen without its
        # validation split
        return (
            state["model"] if state else self._personalize(inbox, local, use_val=True)
        )

    def _personalize(
        self, inbox: Inbox, local: LocalTrainer, use_val: bool
    ) -> Float[Array, " d"]:
        """The client's part of figure 2: minimise eq. 7 for every lambda of the cover,
        and keep the best model.

        Args:
            use_val: choose lambda on the validation split where there is one; newcomers
                give training data only.

        Returns:
            The personal model.
        """
        nearest, *_ = closest(inbox["model"], inbox.received["model"], local)
        # h_c: the only common model, or with clusters the one that fits the client's
        # data best.
        start = inbox["model"][nearest]
        # Nothing is held out where there is nothing to choose, or where training data
        # choose (the pseudocode).
        if len(self.cover) == 1 or self.select == "train":
            fit_on, loss = local, local.loss
        else:
            fit_on, loss = self._hold_out(local, use_val)
        cover = jnp.asarray(self.cover, start.dtype)
        models = local.map(lambda lam: self._fit(start, lam, inbox, fit_on), cover)
        if len(self.cover) == 1:
            return models[0]
        return models[jnp.argmin(local.map(loss, models))]

    def _hold_out(
        self, local: LocalTrainer, use_val: bool
    ) -> tuple[LocalTrainer, Callable[[Array], Array]]:
        """What the client trains on, and what it chooses lambda by.

        Args:
            use_val: choose by the validation split where there is one, else by some of
                the training data.

        Returns:
            The client with the samples to train on, and the loss of a model on samples
            that are not among them.
        """
        n = local.size
        has_val = local.count("val") > 0 if use_val else jnp.bool_(False)
        # One sample at least is left to train on.
        wanted = jnp.ceil(self.held_out * n).astype(jnp.int32)
        taken = jnp.minimum(wanted, jnp.maximum(n - 1, 0))
        cut = jnp.where(has_val, n, n - taken)
        rest = local.part(cut, n, "dapper")

        def loss(h: Float[Array, " d"]) -> Float[Array, ""]:
            if not use_val:
                return rest.loss(h)
            return jnp.where(has_val, local.loss(h, "val"), rest.loss(h))

        return local.part(0, cut, "dapper"), loss

    def _fit(
        self, start: Float[Array, " d"], lam: Array, inbox: Inbox, local: LocalTrainer
    ) -> Float[Array, " d"]:
        """The minimisation of eq. 7, lambda F_k(h) + (1 - lambda) F_C'(h), by SGD from
        `start`.

        Args:
            start: h_c.
            lam: lambda, traced.
            inbox: what `serve` sent: C', or the moments.
            local: the client with the samples that it fits on.

        Returns:
            h_lambda.
        """
        batch_size = self.tune.batch_size

        def weighted(params: Params, batch: Batch, step: Array) -> Params:
            others = self._batch_of_others(
                start, inbox, local, step, self.r * len(batch.y)
            )
            local.count_work(gradients=self.r)
            # One batch for both data sets: weights lambda / b and (1 - lambda) / (r b),
            # which sum to 1, make its weighted mean loss eq. 7.
            both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), batch, others)
            weight = jnp.concatenate(
                [lam * _mean(batch.weight), (1 - lam) * _mean(others.weight)]
            )
            return local.batch_gradient(params, Batch(both.x, both.y, weight))

        def tossed(params: Params, batch: Batch, step: Array) -> Params:
            # The pseudocode's coin: own batch with probability lambda. Both are drawn,
            # as a traced choice has to. A client has r samples of others for each of
            # its own, so that their batch may have more than its own has.
            size = min(batch_size, self.r * len(batch.y))
            others = self._batch_of_others(start, inbox, local, step, size)
            is_own = jax.random.bernoulli(
                jax.random.fold_in(local.key("coin"), step), lam
            )
            chosen_batch = jax.tree.map(
                lambda a, b: jnp.where(is_own, a, b), _padded(batch, size), others
            )
            return local.batch_gradient(params, chosen_batch)

        def from_moments(params: Params, batch: Batch, step: Array) -> Params:
            def loss_of_others(params: Params) -> Float[Array, ""]:
                return loss_by_moments(
                    params, inbox["moments"][0], local, batch.x.shape[1:]
                )

            own = local.batch_gradient(params, batch)
            # grad F_C' exactly, from M_uu and M_uy: no example, no chance.
            others = jax.grad(loss_of_others)(params)
            return jax.tree.map(lambda a, b: lam * a + (1 - lam) * b, own, others)

        if self.source == "moments":
            gradient = from_moments
        elif self.coin:
            gradient = tossed
        else:
            gradient = weighted
        # With the coin a step sees one batch of either data set: r times as many steps
        # visit as many examples.
        steps = local.steps(self.tune) * (self.r if self.coin else 1)
        return local.sgd(start, self.tune, gradient=gradient, steps=steps)

    def _batch_of_others(
        self,
        start: Float[Array, " d"],
        inbox: Inbox,
        local: LocalTrainer,
        step: Array,
        size: int,
    ) -> Batch:
        """The batch of C' for a step.

        Args:
            start: h_c, which generates the examples of `source="model"`.
            size: examples in the batch.

        Returns:
            Received examples, or generated ones; padding has weight 0.
        """
        if self.source != "model":
            return received_batch(inbox, local, step, size, start.dtype)
        positions, weight = batch_positions(
            self.r * local.size, step, size, start.dtype
        )
        x = local.draw("shape", 0, 1).x
        require(
            x.size == 0,
            "source='model' draws from the model and needs a density, a model without"
            " inputs",
        )
        x = jnp.zeros((size, *x.shape[1:]), x.dtype)
        # by position: an example is the same one each time that its turn comes
        keys = jax.vmap(jax.random.fold_in, (None, 0))(
            local.key("generated"), positions
        )
        y = jax.vmap(jax.random.categorical)(keys, local.logits(local.params(start), x))
        return Batch(x, y, weight)


def sampler(x: ArrayLike, y: ArrayLike) -> Sampler:
    """Draws from public examples x [n, ...], y [n, ...], with replacement, for
    `DAPPER(source="proxy", proxy=...)`.
    """
    x, y = np.asarray(x), np.asarray(y)
    require(
        len(x) == len(y) > 0,
        f"{len(x)} inputs and {len(y)} targets; both must be of the same length, at"
        " least 1",
    )

    def draw(rng: np.random.Generator, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        rows = rng.integers(len(x), size=count)
        return x[rows], y[rows]

    return draw


def _padded(batch: Batch, size: int) -> Batch:
    """The batch with so many places: those behind its samples have weight 0."""
    missing = size - len(batch.y)
    if not missing:
        return batch
    return jax.tree.map(
        lambda leaf: jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)), batch
    )


def _mean(weight: Float[Array, " b"]) -> Float[Array, " b"]:
    """Weights of a mean over the samples of a batch."""
    return weight / jnp.maximum(weight.sum(), 1)
