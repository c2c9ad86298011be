"""DAPPER: fine-tuning on a mixture of the client's data and examples of all clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import ServerOptimizer, reporter_weights
from fedtailor.algorithms.helpers.best_round import (
    BestRound,
    serving_state,
    training_state,
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
    sums_type,
)

Sampler = Callable[[np.random.Generator, int], tuple[NDArray[Any], NDArray[Any]]]
"""(generator, n) -> examples x [n, ...] and y [n, ...], as the federation has them."""

_NOT_LINEAR = (
    "source='moments' needs a linear model with squared error, such as"
    " models.logistic() with loss squared_error"
)
_ROUNDING = 1e-3
"""The largest relative difference between a model's loss and the squared error for
which the model counts as linear."""


DAPPERState = HypClusterState | BestRound | WithMoments
"""The common models, as they are, with those of the best round, or with moments."""


@hyperparameters
class DAPPER(Algorithm):
    """Data interpolation (Mansour et al. 2020, section 4, figure 2).

    In the first phase the clients train a common model h_c by FedAvgM or, with
    `clusters`, the models of HypCluster, of which each client uses the one that fits
    its data best. After training, each client k receives a sample C' of r m_k examples
    of all clients (or of the clients in its cluster). For every lambda of a finite set
    in [0, 1] (`cover`) it starts from h_c and minimises

        lambda F_k(h) + (1 - lambda) F_C'(h)   (eq. 7)

    Each step uses a batch of the client's data and a batch of C' that is r times as
    large. The client chooses the model with the lowest loss on samples that it did not
    train on: its validation split or, without one, the fraction `held_out` of its
    training data. A client that never took part always holds out training data.

    `coin` follows the paper's pseudocode: there are r times as many steps, each on a
    batch of the client's data with probability lambda, and otherwise on a batch of C'.
    `select="train"`, also in the pseudocode, chooses by the loss on the data that the
    client trained on, which nearly always gives the largest lambda.

    If C' must not contain other clients' data (section 4.2), `source="proxy"` takes
    public data. With `source="model"`, for models without inputs (densities), clients
    draw C' from h_c, and no example is sent. For a linear model with squared error
    `source="moments"` is enough (section 4.2, sufficient statistics). Before training,
    clients send the means of u u' and u y' over their samples, where u = (x, 1). After
    training, the server sends the mean of these over all samples. From this a client
    computes F_C' and its gradient exactly, where C' are the training data of all
    clients:

        F_C'(h) = tr(H' M_uu H) - 2 tr(H' M_uy) + constant    for h(x) = H' u
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="dapper",
        paper=(
            "Mansour et al. 2020, Three Approaches for Personalization with"
            " Applications to Federated Learning"
        ),
        down="1 model, or all of q; once, after training, r m_k examples",
        up="1 model, and its number if there are several",
        client_keeps="nothing",
        unseen_clients_get="its model and r m_k examples, on which it adapts as others do",
        server_sees="data",
        validation="the share lambda; else held-out training samples",
    )

    modes = HypCluster.modes

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
    """Rounds in which all clients train the same `random` model (see `HypCluster`).
    """
    cover: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """The values of lambda to choose from, ascending (the paper: a cover of [0, 1])."""
    r: int = 5
    """Examples of C' for each of the client's own (Mansour et al., appendix F.2: 5)."""
    tune: SGD = SGD(lr=0.01, batch_size=10)
    """The final training (Mansour et al., appendix F.2: rate 0.01; one pass over both
    data sets).
    """
    coin: bool = False
    """Whether each step uses one data set at random, or a weighted mean of both."""
    select: Literal["held-out", "train"] = "held-out"
    """What lambda is chosen by: the loss on held-out samples (the paper's text), or on
    all training data.
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
    """Whether to start from the common model of the round of least validation loss
    ("the best baseline model" of Mansour et al., section 6; see `FineTune`), or from
    the last one."""
    proxy: Sampler | None = None
    """Public data, or a generator trained on some, for `source="proxy"`; for arrays see
    `sampler`.
    """

    @property
    def takes_weights(self) -> bool:
        return False  # rows are divided into parts

    def __post_init__(self) -> None:
        self._training()  # checks the settings of HypCluster
        require_cover(self.cover)
        require(self.r >= 1, f"r is {self.r}; it must be 1 or more")
        require(
            0 < self.held_out < 1,
            f"held_out is {self.held_out}; it must be above 0 and below 1",
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

    @property
    def probe_tells_columns(self) -> bool:
        return self.probes

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
            _NOT_LINEAR,
        )

    # phase 1, training: the common models
    # ----------------------------------------------------------------------------------

    def _training(self) -> HypCluster:
        """The method that trains the common models; with one model it is FedAvgM."""
        return HypCluster(
            sgd=self.sgd,
            weights=self.weights,
            optimizer=self.optimizer,
            clusters=self.clusters,
            start=self.start,
            warm=self.warm,
        )

    def init_server(self, init: Init, population: Population) -> DAPPERState:
        server = self._training().init_server(init, population)
        if self.best:
            server = BestRound(server, server, None)
        return WithMoments(server, None) if self.source == "moments" else server

    def broadcast(self, server: DAPPERState, cohort: Cohort) -> Downlink:
        return self._training().broadcast(training_state(models_of(server)), cohort)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        def train(theta: Float[Array, " d"]) -> ClientUpdate:
            return {"model": local.sgd(theta, self.sgd)}

        update = train_closest(inbox, local, train)
        if self.best:
            update = {**update, **validation_loss(inbox.only("model"), local)}
        return state, update

    def server(
        self, server: DAPPERState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> DAPPERState:
        # `best` and `moments` wrap the state of the common models, of which HypCluster
        # computes the next one.
        models = models_of(server)
        new = self._training().server(training_state(models), downlink, answers, cohort)
        if self.best:
            new = models.after(new, answers, cohort)
        return server.replace(models=new) if self.source == "moments" else new

    def global_model(self, server: DAPPERState) -> Float[Array, " d"]:
        return self._training().global_model(serving_state(models_of(server)))

    def diagnostics(self, server: DAPPERState) -> Sequence[Diagnostic]:
        return cluster_diagnostics(training_state(models_of(server)))

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        return self._training().ranges(size)

    # before training: second moments, for source="moments"
    # ----------------------------------------------------------------------------------

    def probe_downlink(self, server: WithMoments, cohort: Cohort) -> Downlink:
        # Clients can compute the initial model from the seed, so the ledger does not
        # count it.
        initial = training_state(server.models).model[0]
        model = Streams.everyone(initial, len(cohort), already_held=True)
        return Downlink({"model": model})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        theta = inbox.only("model")
        sums, deviation = sums_of_moments(theta, local, self.tune.batch_size)
        means = sums / jnp.maximum(local.size, 1)
        return {"moments": means, "deviation": deviation}

    def aggregate_probe(
        self, server: WithMoments, answers: Answers, cohort: Cohort
    ) -> WithMoments:
        # `host` gives what each client sent as a NumPy array [c, ...].
        deviation = answers.host("deviation")[cohort.reporting]
        require(bool((deviation < _ROUNDING).all()), _NOT_LINEAR)
        # The mean over all samples is the mean of the clients' means [c, ...], weighted
        # by n_k.
        means = answers.host("moments")
        share = reporter_weights(cohort, "samples")
        moments = (share[:, None, None] * means).sum(axis=0)
        return server.replace(moments=moments.astype(means.dtype))

    # phase 2, on the server: models, and examples C' or moments, for every client
    # ----------------------------------------------------------------------------------

    def serve(self, server: DAPPERState, cohort: Cohort) -> Downlink:
        common = serving_state(models_of(server))
        models = self._training().serve(common, cohort).streams
        if self.source == "model":
            return Downlink(models)
        if self.source == "moments":
            assert isinstance(server, WithMoments)
            moments = jnp.asarray(server.moments)[None]  # one stream [1, ...]
            return Downlink(
                {**models, "moments": Streams.everyone(moments, len(cohort))}
            )
        # C' depends only on the run's seed and the client's id, so it does not change
        # with the cohort or the round.
        bits = draw_bits(cohort.seed, "dapper", 0, cohort.ids)
        clusters = np.full(len(cohort), -1)
        if cohort.seen:
            clusters = common.cluster[cohort.position]
        counts = self.r * cohort.sizes
        samples = []
        for seed, cluster, count in zip(bits, clusters, counts, strict=True):
            # C' is drawn from the data of the client's cluster (figure 2), or of all
            # clients if the cluster is not known (-1).
            members = None
            if cluster >= 0:
                members = np.flatnonzero(common.cluster == cluster)
            rng = np.random.default_rng(seed)
            samples.append(self._sample(rng, count, members, cohort))
        return Downlink({**models, **example_streams(samples, counts)})

    def _sample(
        self,
        rng: np.random.Generator,
        count: int,
        members: NDArray[np.int64] | None,
        cohort: Cohort,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """C' for one client.

        Args:
            rng: draws the examples.
            count: r m_k, the number of examples.
            members: the clients whose data are drawn from; None = all.
            cohort: gives access to the clients' data.

        Returns:
            x [count, ...] and y [count, ...].
        """
        if self.proxy is not None:
            return self.proxy(rng, count)
        assert cohort.examples is not None
        return cohort.examples(rng, count, members)

    # phase 2, on the client: the choice of lambda
    # ----------------------------------------------------------------------------------

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        return {"model": self._personalize(inbox, local, use_val=False)}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        # Only unseen clients have a state: the model of `init_unseen`.
        if state:
            return state["model"]
        return self._personalize(inbox, local, use_val=True)

    def _personalize(
        self, inbox: Inbox, local: LocalTrainer, use_val: bool
    ) -> Float[Array, " d"]:
        """The personal model: the best minimiser of eq. 7 over the lambdas (figure 2).

        Args:
            inbox: what `serve` sent.
            local: the client's data and training.
            use_val: whether to choose lambda on the validation split if there is one,
                or always on training data.
        """
        # h_c: with several common models, the one that fits the client's data best
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        start = inbox["model"][choice]
        # Nothing is held out if there is only one lambda, or if lambda is chosen by the
        # loss on the training data (the pseudocode).
        has_choice = len(self.cover) > 1
        if has_choice and self.select == "held-out":
            fit_on, loss = self._hold_out(local, use_val)
        else:
            fit_on, loss = local, local.loss
        cover = jnp.asarray(self.cover, sums_type(start))
        models = local.map(lambda lam: self._fit(start, lam, inbox, fit_on), cover)
        if not has_choice:
            return models[0]
        return models[jnp.argmin(local.map(loss, models))]

    def _hold_out(
        self, local: LocalTrainer, use_val: bool
    ) -> tuple[LocalTrainer, Callable[[Array], Array]]:
        """Divide the client's data into samples to fit on and samples to choose by.

        Args:
            local: the client's data and training.
            use_val: whether to choose by the validation split if there is one, or
                always by part of the training data.

        Returns:
            The client with the samples to fit on, and a function that computes the loss
            of a model on the other samples.
        """
        n = local.size
        has_val = local.count("val") > 0 if use_val else jnp.bool_(False)
        # At least one sample remains to fit on.
        count = jnp.ceil(self.held_out * n).astype(jnp.int32)
        count = jnp.minimum(count, jnp.maximum(n - 1, 0))
        first = jnp.where(has_val, n, n - count)
        held_out = local.part(first, n, "dapper")

        def loss(h: Float[Array, " d"]) -> Float[Array, ""]:
            if not use_val:
                return held_out.loss(h)
            return jnp.where(has_val, local.loss(h, "val"), held_out.loss(h))

        return local.part(0, first, "dapper"), loss

    def _fit(
        self, start: Float[Array, " d"], lam: Array, inbox: Inbox, local: LocalTrainer
    ) -> Float[Array, " d"]:
        """Minimise lambda F_k(h) + (1 - lambda) F_C'(h) (eq. 7) by SGD.

        Args:
            start: h_c, from which the steps start.
            lam: lambda, traced.
            inbox: what `serve` sent: C' or the moments.
            local: the client with the samples to fit on.

        Returns:
            h_lambda.
        """

        def weighted_gradient(params: Params, batch: Batch, step: Array) -> Params:
            """The gradient on b examples of the client and r b examples of C'."""
            size = self.r * len(batch.y)
            sample = self._sample_batch(start, inbox, local, step, size)
            local.count_work(gradients=self.r)
            # The weighted mean loss of the joint batch is eq. 7: the weights lambda / b
            # and (1 - lambda) / (r b) sum to 1.
            joint = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), batch, sample)
            own_weight = lam * _mean_weights(batch.weight)
            sample_weight = (1 - lam) * _mean_weights(sample.weight)
            weight = jnp.concatenate([own_weight, sample_weight])
            return local.batch_gradient(params, Batch(joint.x, joint.y, weight))

        def coin_gradient(params: Params, batch: Batch, step: Array) -> Params:
            """The gradient on the client's batch with probability lambda, or on C'."""
            # The choice is traced, so both batches are computed. A client may have
            # fewer examples than a batch, and more examples in C'.
            size = min(self.tune.batch_size, self.r * len(batch.y))
            sample = self._sample_batch(start, inbox, local, step, size)
            key = jax.random.fold_in(local.key("coin"), step)
            is_own = jax.random.bernoulli(key, lam)
            selected = jax.tree.map(
                lambda a, b: jnp.where(is_own, a, b), _pad(batch, size), sample
            )
            return local.batch_gradient(params, selected)

        def moments_gradient(params: Params, batch: Batch, step: Array) -> Params:
            """The gradient on the client's batch, and the exact gradient of F_C'."""
            input_shape = batch.x.shape[1:]

            def sample_loss(params: Params) -> Float[Array, ""]:
                return loss_by_moments(
                    params, inbox.only("moments"), local, input_shape
                )

            own = local.batch_gradient(params, batch)
            sample = jax.grad(sample_loss)(params)
            return jax.tree.map(lambda a, b: lam * a + (1 - lam) * b, own, sample)

        steps = local.steps(self.tune)
        if self.source == "moments":
            gradient = moments_gradient
        elif self.coin:
            # A step uses a batch of only one of the two data sets, so r times as many
            # steps are needed to use all examples.
            gradient = coin_gradient
            steps = steps * self.r
        else:
            gradient = weighted_gradient
        return local.sgd(start, self.tune, gradient=gradient, steps=steps)

    def _sample_batch(
        self,
        start: Float[Array, " d"],
        inbox: Inbox,
        local: LocalTrainer,
        step: Array,
        size: int,
    ) -> Batch:
        """The batch of C' for a step.

        Args:
            start: h_c, which generates the examples if `source` is "model".
            inbox: the examples, for other sources.
            local: the client.
            step: the number of the step.
            size: the number of examples in the batch.

        Returns:
            Received or generated examples; padding has weight 0.
        """
        if self.source != "model":
            return received_batch(inbox, local, step, size, sums_type(start))
        positions, weight = batch_positions(
            self.r * local.size, step, size, sums_type(start)
        )
        x = local.draw("shape", 0, 1).x
        require(
            x.size == 0,
            "source='model' draws from the model and needs a density, a model without"
            " inputs",
        )
        x = jnp.zeros((size, *x.shape[1:]), x.dtype)
        # The key of an example depends on its position in C', so every pass over C'
        # generates the same examples.
        key = local.key("generated")
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, positions)
        y = jax.vmap(jax.random.categorical)(keys, local.logits(local.params(start), x))
        return Batch(x, y, weight)


def sampler(x: ArrayLike, y: ArrayLike) -> Sampler:
    """A function that draws examples with replacement, for `DAPPER(proxy=...)`.

    Args:
        x, y: the examples [n, ...] and [n, ...].
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


def _pad(batch: Batch, size: int) -> Batch:
    """Pad a batch to `size` rows; padding has weight 0."""
    missing = size - len(batch.y)
    if not missing:
        return batch

    def pad(leaf: Array) -> Array:
        other_axes = [(0, 0)] * (leaf.ndim - 1)
        return jnp.pad(leaf, [(0, missing), *other_axes])

    return jax.tree.map(pad, batch)


def _mean_weights(weight: Float[Array, " b"]) -> Float[Array, " b"]:
    """Weights of the mean over the samples of a batch; padding has weight 0."""
    return weight / jnp.maximum(weight.sum(), 1)
