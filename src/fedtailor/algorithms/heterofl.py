"""HeteroFL: clients train narrower or wider versions of one network."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.helpers.own_steps import head_of
from fedtailor.algorithms.helpers.shared_part import model_parts_of
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
    require,
    server_state,
)


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

    The paper's clients also leave the classes that they do not have out of the loss and of
    the average, normalise by the statistics of batches (networks with normalisation
    layers are refused here), clip gradients at norm 1 (`clip`), and may have another rate
    in each round. A message is charged as the numbers of the client's own network, though
    a simulation hands it those of all.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="heterofl",
        paper=(
            "Diao et al. 2021, HeteroFL: Computation and Communication Efficient Federated"
            " Learning for Heterogeneous Clients"
        ),
        down="1 model, in all widths",
        up="1 model",
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
    clip: float | None = None
    """Norm to which the gradient of each batch is clipped (released code: 1); None = it
    is not.
    """
    even_steps: bool = False
    """Whether the steps of layers with the factor 1 / r_i are multiplied by r_i^2. A step
    then changes what such a layer computes as much as it would without the factor. (Of
    the paper's networks it does: what comes out of batch normalisation does not depend on
    the factor.)
    """
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the average over reporters: equal (the paper), or by training samples
    n_i.
    """

    def __post_init__(self) -> None:
        require(
            self.clip is None or self.clip > 0,
            f"clip is {self.clip}; it must be above 0",
        )
        require(
            self.clip is None or self.sgd.dp_noise is None,
            "private steps clip each example's gradient (dp_norm); leave out clip",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        nested_networks(model_parts_of(population, self.about.name), self.about.name)

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
        )

    def broadcast(self, server: HeteroFLState, cohort: Cohort) -> Downlink:
        streams = {"model": Streams.everyone(server.model, len(cohort))}
        if self.scale and len(server.own) > 1:
            rates = jnp.asarray(server.rates[:, None], server.model.dtype)
            streams["rate"] = Streams.by_index(rates, _networks(server, cohort))
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
        if len(server.own) == 1:
            return server.replace(
                model=mix(server.model, answers["model"], weights[None])
            )
        sent = np.asarray(answers.reporters("model"), np.float64)
        weights = weights[cohort.reporting]
        networks = _networks(server, cohort)[cohort.reporting]
        total, weight = np.zeros(sent.shape[1]), np.zeros(sent.shape[1])
        for index, (own, nested) in enumerate(
            zip(server.own, server.nested, strict=True)
        ):
            is_its = networks == index
            total[nested] += weights[is_its] @ sent[np.ix_(is_its, own)]
            weight[nested] += weights[is_its].sum()
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
        if is_scaled or self.clip is not None:
            factor = 1 / inbox.only("rate")[0] if is_scaled else None
            gradient = _gradient(factor, self.clip, self.even_steps, local)
        return state, {
            "model": local.sgd(inbox.only("model"), self.sgd, gradient=gradient)
        }

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = inbox.only("model")
        if "rate" not in inbox.values:
            return theta
        params = _scaled(local.params(theta), 1 / inbox.only("rate")[0], local)
        return local.vector(params)


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


def _gradient(
    factor: Float[Array, ""] | None,
    clip: float | None,
    even_steps: bool,
    local: LocalTrainer,
) -> StepGradient:
    """The gradient of the loss of a network with the factor of `_scaled`, clipped."""

    def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        if factor is None:
            found = local.batch_gradient(params, batch)
        else:
            found = local.batch_gradient(_scaled(params, factor, local), batch)
            found = _scaled(found, 1 / factor if even_steps else factor, local)
        if clip is None:
            return found
        norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(found)))
        share = jnp.minimum(1, clip / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda leaf: (share * leaf).astype(leaf.dtype), found)

    return gradient
