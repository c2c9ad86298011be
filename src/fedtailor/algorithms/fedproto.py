"""FedProto: what travels is the mean feature of each class, and no model."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import reporter_weights, weighted_sums
from fedtailor.algorithms.helpers.class_means import (
    class_sums,
    gradient_with_pull,
    least_share,
    require_classes,
    require_no_private_steps,
)
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.algorithms.helpers.shared_part import model_parts_of
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    ServerState,
    Streams,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    server_state,
    sums_type,
)


@server_state
class FedProtoState(ServerState):
    """The prototypes, and what a newcomer needs to train for as long as the others."""

    prototypes: Float[Array, "classes _"]
    """The mean features of each class, and 1 if any client has sent some, else 0."""
    initial: Float[Array, " d"]
    """The model that all clients started from."""
    rounds: int
    """Rounds done since then."""


@hyperparameters
class FedProto(PersonalModelAlgorithm):
    """Federated prototype learning (Tan et al. 2022, algorithm 1).

    Each client has a model of its own. Its features z (the inputs of its last layer) are
    pulled to the prototype C_y of the example's class y, the mean feature of this class
    over all clients:

        F_i(w) + lam mean_x |z - C_y|^2 / size,    C_k <- sum_i sum_{x in D_ik} z / sum_i n_ik

    where size is the number of features, as in the released code. Examples of classes of
    which there is no prototype yet are not pulled. After a round's steps a client sends
    the sums of its features by class and its numbers of examples, both divided by n_i, so
    that the server needs weighted sums over clients only. The features are those of
    evaluation.

    A client predicts with its own model. (The paper also predicts by the nearest
    prototype.) With lam = 0 clients train alone. A newcomer trains as in `Local`, towards
    the final prototypes.

    The released code averages the clients' mean features of a class with equal weights;
    equation 6 of the paper weighs them by examples, as here.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedproto",
        paper="Tan et al. 2022, FedProto: Federated Prototype Learning across Heterogeneous Clients",
        down="the mean features of each class",
        up="sums of features and numbers of examples of each class",
        client_keeps="its model",
        unseen_clients_get="trains alone in as many rounds, towards the prototypes",
        models_received="nothing",
        server_sees="sums",
        in_common="the number of features",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.5, epochs=1, batch_size=8)
    """Local training (the paper: learning rate 0.01, momentum 0.5, batch 8)."""
    lam: ZeroIsStatic = 1.0
    """Weight of the distance to the prototypes (the paper: 1 on MNIST and FEMNIST, 0.1 on
    CIFAR-10).
    """

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam is {self.lam}; it must be 0 or more")
        require_no_private_steps(self.about.name, "sums of features", self.sgd)

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def sends_class_counts(self) -> bool:
        return True

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        _ = model.feature_shape  # a model without a head is refused here
        require_classes(model, f"{self.about.name}'s prototypes are means of classes")

    def init_server(self, init: Init, population: Population) -> FedProtoState:
        model = model_parts_of(population, self.about.name)
        theta = init(0)
        size = int(np.prod(model.feature_shape))
        prototypes = jnp.zeros((model.outputs, size + 1), sums_type(theta))
        return FedProtoState(prototypes, initial=theta, rounds=0)

    def broadcast(self, server: FedProtoState, cohort: Cohort) -> Downlink:
        prototypes = Streams.everyone(server.prototypes[None], len(cohort))
        return Downlink({"prototypes": prototypes})

    def server(
        self,
        server: FedProtoState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> FedProtoState:
        rounds = server.rounds + 1
        if not cohort.reporting.any():
            return server.replace(rounds=rounds)
        weights = reporter_weights(cohort, "samples")[None]
        sums = weighted_sums(answers["prototypes"], weights)
        sums = sums.reshape(server.prototypes.shape)
        features, counts = sums[:, :-1], sums[:, -1:]
        # A class that no reporter has keeps its prototype.
        is_seen = counts > least_share(answers["prototypes"])
        means = features / jnp.where(is_seen, counts, 1)
        new = jnp.concatenate([means, jnp.ones_like(counts)], axis=1)
        prototypes = jnp.where(is_seen, new, server.prototypes)
        return server.replace(
            prototypes=prototypes.astype(server.prototypes.dtype), rounds=rounds
        )

    def serve(self, server: FedProtoState, cohort: Cohort) -> Downlink:
        if cohort.seen:
            return Downlink()
        # A newcomer can compute theta^0 from the run's seed (`already_held`).
        start = Streams.everyone(server.initial, len(cohort), already_held=True)
        prototypes = Streams.everyone(server.prototypes[None], len(cohort))
        return Downlink(
            {"model": start, "prototypes": prototypes},
            scalars={"rounds": server.rounds},
        )

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        prototypes = inbox.only("prototypes")
        w = self._train(state["model"], prototypes, local)
        sums = class_sums(w, len(prototypes), self.sgd.batch_size, local)
        return {"model": w}, {"prototypes": sums.reshape(-1)}

    def _train(
        self,
        w: Float[Array, " d"],
        prototypes: Float[Array, "classes _"],
        local: LocalTrainer,
    ) -> Float[Array, " d"]:
        """A round's steps."""
        gradient = None  # None: `local.sgd` uses the gradient of the usual loss
        # A constant lam = 0 leaves the distance out of the compiled program.
        if not is_off(self.lam):
            gradient = gradient_with_pull(prototypes, self.lam, local)
        return local.sgd(w, self.sgd, gradient=gradient)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        rounds = inbox.scalars["rounds"]
        first = local.round - rounds
        prototypes = inbox.only("prototypes")

        # Each round has its own learning rate, batches and optimiser state.
        def train(k: Array, w: Float[Array, " d"]) -> Float[Array, " d"]:
            return self._train(w, prototypes, local.in_round(first + k))

        return {"model": local.fori_loop(rounds, train, inbox.only("model"))}
