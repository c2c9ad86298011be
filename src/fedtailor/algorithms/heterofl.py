"""HeteroFL: clients train narrower or wider versions of one network."""

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.helpers.own_steps import head_of, pass_over_samples
from fedtailor.algorithms.helpers.shared_part import model_parts_of
from fedtailor.models.dense_head import outputs_of_numbers
from fedtailor.models.nested import nested_networks
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    Batch,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Params,
    Population,
    Predictor,
    ServerState,
    StepGradient,
    Streams,
    hyperparameters,
    server_state,
)

CLASSES, CLASS_OF = "classes", "class_of"
"""Kinds of message: which classes a client has, and `HeteroFLState.class_of`."""


@server_state
class HeteroFLState(ServerState):
    """The widest model, and which of its numbers each client's network has."""

    model: Float[Array, "1 d"]
    """The numbers of all networks. Those of the narrower ones are those of the widest."""
    own: tuple[NDArray[np.int64], ...]
    """For each network, where its numbers are in the model."""
    nested: tuple[NDArray[np.int64], ...]
    """For each network, where the same numbers are in the widest one."""
    rates: Float[np.ndarray, " networks"]
    """The share of the widest network's features that each has."""
    ids: NDArray[np.uint64]
    """The clients whose network has been named."""
    network_of: Int[np.ndarray, " named"]
    """The network of each of them."""
    default: int
    """The network of all others."""
    class_of: Int[np.ndarray, "masked d"]
    """For each network, the class whose score each number of its head makes; -1 for all
    other numbers. Without `mask` there is no row.
    """


@hyperparameters
class HeteroFL(Algorithm):
    """HeteroFL (Diao et al. 2021): nested widths.

    Clients have networks of one kind and different widths (`models.by_client`), such as
    mlp(64) and mlp(32). A client of rate r, the share of the widest layers' units that
    its layers have, trains the upper left of each array of the widest model W. The server
    averages each number over the reporters whose networks have it:

        w_i = SGD(W[:r_i, :r_i]; D_i),    W_jk <- sum_i q_i w_ijk / sum_i q_i,    over the i that have (j, k)

    A number that no reporter has stays. All layers but the head are followed by the factor
    1 / r_i (the paper's scaler). If all clients have one network this is FedAvg, to the
    bit. Each client, and each newcomer, predicts with its part of the model, and with this
    factor, as in its training. (The released code predicts with the widest model, whose
    factor is 1, at all clients.) A number that a single client has is that client's, so
    that secure aggregation does not apply.

    With `mask`, as in the paper, the scores of classes that a client does not have are 0, in
    its training and its predictions, and its weights of these scores are left out of the
    average. Clients then send which classes they have. The paper's clients also normalise by
    the statistics of batches (networks with normalisation layers are refused here), clip
    gradients at norm 1 (`clip` of `SGD`), and may have another rate in each round. A message
    is charged as the numbers of the client's own network, though a simulation hands it those
    of all.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="heterofl",
        paper=(
            "Diao et al. 2021, HeteroFL: Computation and Communication Efficient Federated"
            " Learning for Heterogeneous Clients"
        ),
        down="1 model, in all widths",
        up="1 model; with mask, which classes there are",
        client_keeps="nothing",
        unseen_clients_get="the global model in their width",
        in_common="nested widths",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.9, weight_decay=5e-4, epochs=5, batch_size=10)
    """Local training (released code, on MNIST: learning rate 0.01, momentum 0.9, weight
    decay 0.0005, 5 epochs of batch 10).
    """
    scale: bool = True
    """Whether layers are followed by the factor 1 / r_i."""
    even_steps: bool = False
    """Whether the steps of layers with the factor 1 / r_i are multiplied by r_i^2. A step
    then changes what such a layer computes as much as it would without the factor. (Of
    the paper's networks it does: what comes out of batch normalisation does not depend on
    the factor.)
    """
    mask: bool = False
    """Whether classes that a client does not have are left out (released code: yes)."""
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the average over reporters: equal (the paper), or by training samples
    n_i.
    """

    def __post_init__(self) -> None:
        require(
            not self.mask or self.sgd.dp_noise is None,
            "with mask clients send which classes they have, which private steps do not"
            " cover; leave out mask",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        nested_networks(model, self.about.name)
        if self.mask:
            require(
                model.classification,
                "mask is of classes, and this model has none; leave out mask",
            )
            outputs_of_numbers(model, self.about.name)

    def init_server(self, init: Init, population: Population) -> HeteroFLState:
        model = model_parts_of(population, self.about.name)
        networks = nested_networks(model, self.about.name)
        theta = np.asarray(init(0))
        return HeteroFLState(
            _in_all_widths(theta, networks.own, networks.nested),
            networks.own,
            networks.nested,
            networks.rates,
            networks.ids,
            networks.network_of,
            networks.default,
            outputs_of_numbers(model, self.about.name)
            if self.mask
            else np.zeros((0, len(theta)), np.int32),
        )

    def broadcast(self, server: HeteroFLState, cohort: Cohort) -> Downlink:
        streams = {"model": Streams.everyone(server.model, len(cohort))}
        if self.scale and len(server.own) > 1:
            rates = jnp.asarray(server.rates[:, None], server.model.dtype)
            streams["rate"] = Streams.by_index(rates, _networks(server, cohort))
        if self.mask:
            # A client knows where the head of its own network is.
            streams[CLASS_OF] = Streams.by_index(
                jnp.asarray(server.class_of),
                _networks(server, cohort),
                already_held=True,
            )
        return Downlink(streams)

    def server(
        self,
        server: HeteroFLState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> HeteroFLState:
        if not cohort.reporting.any():
            return server
        weights = reporter_weights(cohort, self.weights)
        if len(server.own) == 1 and not self.mask:
            return server.replace(
                model=mix(server.model, answers["model"], weights[None])
            )
        sent = np.asarray(answers.reporters("model"), np.float64)
        weights = weights[cohort.reporting]
        networks = _networks(server, cohort)[cohort.reporting]
        total, weight = np.zeros(sent.shape[1]), np.zeros(sent.shape[1])
        # [reporters, d] the weight of each number.
        each = np.repeat(weights[:, None], sent.shape[1], axis=1)
        if self.mask:
            each = each * _held(
                server.class_of[networks], answers.reporters(CLASSES), np
            )
        for index, (own, nested) in enumerate(
            zip(server.own, server.nested, strict=True)
        ):
            is_its = networks == index
            rows = np.ix_(is_its, own)
            total[nested] += (each[rows] * sent[rows]).sum(axis=0)
            weight[nested] += each[rows].sum(axis=0)
        theta = np.array(server.model[0])
        is_held = weight > 0
        theta[is_held] = total[is_held] / weight[is_held]
        return server.replace(model=_in_all_widths(theta, server.own, server.nested))

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        gradient = None  # None: `local.sgd` uses the gradient of the usual loss
        is_scaled = "rate" in inbox.values
        update, held = {}, None
        if self.mask:
            update[CLASSES] = _classes(inbox.only("model"), self.sgd.batch_size, local)
            held = _held(inbox.only(CLASS_OF), update[CLASSES], jnp)
        if is_scaled or self.mask:
            factor = 1 / inbox.only("rate")[0] if is_scaled else None
            gradient = self._gradient(factor, held, local)
        model = local.sgd(inbox.only("model"), self.sgd, gradient=gradient)
        return state, {"model": model, **update}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = inbox.only("model")
        if self.mask:
            classes = _classes(theta, self.sgd.batch_size, local)
            theta = theta * _held(inbox.only(CLASS_OF), classes, jnp)
        if "rate" not in inbox.values:
            return theta
        params = _scaled(local.params(theta), 1 / inbox.only("rate")[0], local)
        return local.vector(params)

    def _gradient(
        self,
        factor: Float[Array, ""] | None,
        held: Float[Array, " d"] | None,
        local: LocalTrainer,
    ) -> StepGradient:
        """The gradient of the loss of a network with the factor of `_scaled` and without
        the scores of some classes.

        Args:
            factor: of all layers but the head; None = 1.
            held: 0 for the numbers that make scores of classes that the client does not
                have, else 1; None = it has all classes.
            local: the client.
        """

        def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
            has = None if held is None else local.params(held)

            def masked(params: Params) -> Params:
                # Scores whose weights are 0 are 0.
                if has is None:
                    return params
                return jax.tree.map(lambda w, it: it.astype(w.dtype) * w, params, has)

            if factor is None:
                return masked(local.batch_gradient(masked(params), batch))
            scaled = _scaled(masked(params), factor, local)
            back = 1 / factor if self.even_steps else factor
            return masked(_scaled(local.batch_gradient(scaled, batch), back, local))

        return gradient


def _networks(server: HeteroFLState, cohort: Cohort) -> NDArray[np.int64]:
    """[c] the index of the network of each client of a cohort."""
    named = dict(zip(server.ids.tolist(), server.network_of.tolist(), strict=True))
    return np.array([named.get(it, server.default) for it in cohort.ids.tolist()], int)


def _in_all_widths(
    theta: Float[np.ndarray, " d"],
    own: tuple[NDArray[np.int64], ...],
    nested: tuple[NDArray[np.int64], ...],
) -> Float[Array, "1 d"]:
    """A model with the numbers of the widest network in all others."""
    theta = np.array(theta)
    for narrow, wide in zip(own, nested, strict=True):
        theta[narrow] = theta[wide]
    return jnp.asarray(theta)[None]


def _scaled(params: Params, factor: Float[Array, ""], local: LocalTrainer) -> Params:
    """The network whose layers, but for the head, are followed by a factor.

    A layer z W + b times a factor is the layer of W and b times the factor.
    """
    is_head = head_of(local).tree_mask(params)
    return jax.tree.map(
        lambda w, is_last: w if is_last else factor * w, params, is_head
    )


def _classes(
    theta: Float[Array, " d"], batch_size: int, local: LocalTrainer
) -> Float[Array, " classes"]:
    """1 for each class of which the client has training samples, else 0."""
    example = local.draw("classes", 0, 1)
    scores = jax.eval_shape(local.logits, local.params(theta), example.x)
    numbers = jnp.arange(scores.shape[-1])

    def add(seen: Array, batch: Batch, step: Int[Array, ""]) -> Array:
        is_class = (batch.y[:, None] == numbers) * batch.weight[:, None]
        return jnp.maximum(seen, is_class.max(axis=0).astype(seen.dtype))

    start = jnp.zeros(scores.shape[-1], theta.dtype)
    return pass_over_samples(local, start, add, batch_size)


def _held(class_of: Any, classes: Any, numpy: Any) -> Any:
    """Which numbers a client has of its network's head, and all others.

    Args:
        class_of: [..., d] the class of each number; -1 for those outside of the head.
        classes: [..., classes] 1 for those of the client, else 0.
        numpy: NumPy, or JAX's.

    Returns:
        [..., d] 0 for the numbers that make scores of other classes, else 1.
    """
    of_class = numpy.take_along_axis(classes, numpy.maximum(class_of, 0), axis=-1)
    return numpy.where(class_of >= 0, of_class, 1).astype(classes.dtype)
