"""FedTGP: prototypes that the server trains to be far apart."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedtailor._base.choice import require
from fedtailor.algorithms.fedproto import FedProto, FedProtoState
from fedtailor.algorithms.helpers.class_means import (
    batches_of,
    descend,
    means_of_clients,
    require_server_steps,
)
from fedtailor.algorithms.helpers.hypernetwork import Layers, generate, init_layers
from fedtailor.algorithms.helpers.own_steps import mean_over
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    Cohort,
    Downlink,
    Init,
    Population,
    ZeroIsStatic,
    hyperparameters,
    server_rng,
    server_state,
)


@server_state
class FedTGPState(FedProtoState):
    """The prototypes, and the network that generates them."""

    embeddings: Float[Array, "classes size"]
    """What the network makes prototypes of."""
    layers: Layers
    """Its layers."""


@hyperparameters
class FedTGP(FedProto):
    """Trainable global prototypes (Zhang et al. 2024).

    FedProto with prototypes that are trained on the server, not averaged, so that those of
    different classes stay apart. Clients train and send as in FedProto. A perceptron G
    with one hidden layer makes the prototype of class k of a learned vector e_k; all have
    the size of the features. The server trains both on the mean features z_ik of each
    client's classes, by the cross-entropy of distances with a margin:

        p_k = G(e_k),    d_k = |z - p_k|,    loss = -log softmax_k( -(d + margin onehot(k)) )
        margin = min(tau, max_k min_l |c_k - c_l|),    c_k = the mean of z_ik over clients

    After the first round all classes have a prototype, those that no client has among
    them. The server needs the means of each client, not their sums, so that secure
    aggregation does not apply. With lam = 0 clients train alone.

    A client predicts with its own model. (The paper predicts by the nearest prototype.)
    G and the e_k are drawn at first as PyTorch draws them, but with 0 for the last bias.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedtgp",
        paper=(
            "Zhang et al. 2024, FedTGP: Trainable Global Prototypes with"
            " Adaptive-Margin-Enhanced Contrastive Learning for Data and Model"
            " Heterogeneity in Federated Learning"
        ),
        down="a prototype of each class",
        up="sums of features and numbers of examples of each class",
        client_keeps="its model",
        unseen_clients_get="trains alone in as many rounds, towards the prototypes",
        models_received="nothing",
        in_common="the number of features",
    )

    sgd: SGD = SGD(lr=0.01, epochs=1, batch_size=10)
    """Local training (released run: learning rate 0.01, 1 epoch of batch 10)."""
    lam: ZeroIsStatic = 1.0
    """Weight of the distance to the prototypes (released code: 1; its run on CIFAR-10:
    10).
    """
    tau: float = 100.0
    """The largest margin (released run: 100)."""
    server_lr: float = 0.01
    """Rate of the server's steps (released run: that of the clients, 0.01)."""
    server_epochs: int = 100
    """The server's passes over the clients' means in a round (released run: 100)."""
    server_batch: int = 10
    """How many means a step of the server takes (released run: 10)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.tau >= 0, f"tau is {self.tau}; it must be 0 or more")
        require_server_steps(
            self.server_lr,
            server_epochs=self.server_epochs,
            server_batch=self.server_batch,
        )

    def init_server(self, init: Init, population: Population) -> FedTGPState:
        start = super().init_server(init, population)
        classes, size = start.prototypes.shape[0], start.prototypes.shape[1] - 1
        dtype = start.prototypes.dtype
        rng = server_rng(population.seed, "fedtgp", 0)
        embeddings = jnp.asarray(rng.normal(size=(classes, size)), dtype)
        layers = init_layers(rng, [size, size, size], dtype)
        return FedTGPState(
            start.prototypes,
            initial=start.initial,
            rounds=0,
            embeddings=embeddings,
            layers=layers,
        )

    def server(
        self,
        server: FedProtoState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> FedTGPState:
        assert isinstance(server, FedTGPState)
        server = server.replace(rounds=server.rounds + 1)
        classes = len(server.prototypes)
        means, is_seen = means_of_clients(answers, "prototypes", classes)
        if not is_seen.any():
            return server
        # Each pass over the means is in a random order.
        order = np.tile(np.flatnonzero(is_seen), (self.server_epochs, 1))
        order = cohort.rng("fedtgp").permuted(order, axis=1)
        batches = batches_of(order, len(means), self.server_batch)
        embeddings, layers = _trained(
            (server.embeddings, server.layers),
            jnp.asarray(means, server.prototypes.dtype),
            jnp.arange(len(means)) % classes,
            jax.tree.map(jnp.asarray, batches),
            adaptive_margin(means, is_seen, classes, self.tau),
            self.server_lr,
        )
        prototypes = _prototypes(embeddings, layers)
        # A prototype is there.
        known = jnp.ones((classes, 1), prototypes.dtype)
        return server.replace(
            prototypes=jnp.concatenate([prototypes, known], axis=1),
            embeddings=embeddings,
            layers=layers,
        )


def adaptive_margin(
    means: Float[np.ndarray, "rc size"],
    is_seen: Bool[np.ndarray, " rc"],
    classes: int,
    tau: float,
) -> float:
    """The largest distance between a class and the class that is nearest to it, at most
    tau.

    Args:
        means, is_seen: as `means_of_clients`.
        classes: the number of classes.
        tau: the largest margin.

    Returns:
        The margin; tau if there is one class.
    """
    is_seen = is_seen.reshape(-1, classes)
    by_class = means.reshape(*is_seen.shape, -1).sum(axis=0)
    counts = is_seen.sum(axis=0)
    centres = by_class[counts > 0] / counts[counts > 0, None]
    if len(centres) < 2:
        return float(tau)
    distances = np.linalg.norm(centres[:, None] - centres, axis=2)
    np.fill_diagonal(distances, np.inf)
    return min(float(distances.min(axis=1).max()), float(tau))


def _prototypes(
    embeddings: Float[Array, "classes size"], layers: Layers
) -> Float[Array, "classes size"]:
    """G(e_k) of each class."""
    zero = jnp.zeros(embeddings.shape[1], embeddings.dtype)
    return generate(layers, zero, embeddings)


@jax.jit
def _trained(
    params: tuple[Float[Array, "classes size"], Layers],
    z: Float[Array, "n size"],
    y: Int[Array, " n"],
    batches: tuple[Int[Array, "steps b"], Float[Array, "steps b"]],
    margin: Float[Array, ""] | float,
    rate: Float[Array, ""] | float,
) -> tuple[Float[Array, "classes size"], Layers]:
    """The vectors e_k and the layers of G after the server's steps on (z, y).

    Args:
        params: both, before them.
        z, y: features and classes.
        batches: rows of z, and their weights.
        margin: that is added to the distance from the prototype of the own class.
        rate: of the steps.
    """

    def loss(
        params: tuple[Array, Layers], rows: Array, weights: Array
    ) -> Float[Array, ""]:
        apart = z[rows][:, None] - _prototypes(*params)
        squared = jnp.square(apart).sum(axis=2)
        # The root has no derivative at 0, where its gradient is set to 0.
        is_apart = squared > 0
        distance = jnp.where(is_apart, jnp.sqrt(jnp.where(is_apart, squared, 1)), 0)
        is_own = jax.nn.one_hot(y[rows], distance.shape[1], dtype=distance.dtype)
        logs = jax.nn.log_softmax(-(distance + margin * is_own))
        return mean_over(-(logs * is_own).sum(axis=1), weights.astype(z.dtype))

    return descend(params, jax.grad(loss), batches, rate)
