"""FedGH: a shared head, which the server trains on the clients' mean features."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.algorithms.helpers.class_means import (
    batches_of,
    class_sums,
    means_of_clients,
    number_of_classes,
    require_classes,
    require_no_private_steps,
    require_server_steps,
    train_head,
)
from fedtailor.algorithms.helpers.shared_part import (
    entry_of_part,
    join_parts,
    model_parts_of,
)
from fedtailor.models.dense_head import dense_head_of
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    ModelPart,
    ModelParts,
    Population,
    Predictor,
    ServerState,
    Streams,
    hyperparameters,
    server_state,
)


@server_state
class FedGHState(ServerState):
    """The shared head, and where its weights are."""

    head: Float[Array, " d_head"]
    """The head that all clients train under."""
    initial: Float[Array, " d"]
    """theta^0, whose body clients start from."""
    weight: Int[np.ndarray, "features classes"]
    """Which numbers of the head are its weights."""
    bias: Int[np.ndarray, " _"]
    """Which numbers of the head are its bias, if it has one."""


@hyperparameters
class FedGH(Algorithm):
    """Federated global prediction header (Yi et al. 2023, algorithm 1).

    Each client has a body b_i of its own below a shared head h. It trains both, keeps the
    body, and sends the mean features of each of its classes, of which the server makes
    examples for the head:

        (b_i, _) <- SGD(b_i, h; D_i),    z_ik = mean of b_i(x) over D_ik
        h <- h - server_lr grad loss( h(z_ik), k ),    for one client i and class k after another

    Features are those of evaluation, and the loss is the cross-entropy. A client predicts
    with its own body under the shared head. A client that never took part trains a body
    under that head, from the common initial model, for as many steps as a round has.
    Clients may have different networks below the head (`models.by_client`). The server
    needs the means of each client, not their sums, so that secure aggregation does not
    apply.

    The released code makes the server's step with the optimizer of the clients' network,
    so that its head stays as it was drawn; it predicts with the head that the client has
    trained, and clips gradients at norm 50. HtFLlib trains the head on batches in a random
    order. Here the order is that of clients and classes.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedgh",
        paper=(
            "Yi et al. 2023, FedGH: Heterogeneous Federated Learning with Generalized"
            " Global Header"
        ),
        down="1 head",
        up="sums of features and numbers of examples of each class",
        client_keeps="its body",
        unseen_clients_get="trains a body under the shared head",
        models_received="a part",
        in_common="the number of features",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.9, weight_decay=1e-3, epochs=10, batch_size=64)
    """Local training (released code: learning rate 0.01, momentum 0.9, weight decay 0.001,
    10 epochs of batch 64).
    """
    server_lr: float = 0.01
    """Rate of the server's steps (released code: 0.01); 0 = the head stays as it is."""
    server_epochs: int = 1
    """The server's passes over the means in a round (the paper: 1)."""
    server_batch: int = 1
    """How many means a step of the server takes (the paper: 1)."""

    def __post_init__(self) -> None:
        require_server_steps(
            self.server_lr,
            server_epochs=self.server_epochs,
            server_batch=self.server_batch,
        )
        require_no_private_steps("fedgh", "mean features", self.sgd)

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def sends_class_counts(self) -> bool:
        return True

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        _ = model.feature_shape  # a model without a head is refused here
        require_classes(
            model, "fedgh's server trains a head on mean features of classes"
        )
        dense_head_of(model, self.about.name)

    def init_server(self, init: Init, population: Population) -> FedGHState:
        model = model_parts_of(population, self.about.name)
        head = dense_head_of(model, self.about.name)
        theta = init(0)
        shared = model.part(own_part(model.parts)).complement
        return FedGHState(shared.take(theta), theta, head.weight, head.bias)

    def _head(self, server: FedGHState, clients: int) -> Streams:
        return Streams.everyone(server.head[None], clients)

    def broadcast(self, server: FedGHState, cohort: Cohort) -> Downlink:
        return Downlink({"model": self._head(server, len(cohort))})

    def server(
        self,
        server: FedGHState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> FedGHState:
        classes = server.weight.shape[1]
        means, is_seen = means_of_clients(answers, "features", classes)
        if not is_seen.any():
            return server
        order = np.tile(np.flatnonzero(is_seen), (self.server_epochs, 1))
        batches = batches_of(order, len(means), self.server_batch)
        head = train_head(
            server.head,
            jnp.asarray(server.weight),
            jnp.asarray(server.bias),
            jnp.asarray(means),
            jnp.arange(len(means)) % classes,
            jax.tree.map(jnp.asarray, batches),
            self.server_lr,
        )
        return server.replace(head=head)

    def serve(self, server: FedGHState, cohort: Cohort) -> Downlink:
        streams = {"model": self._head(server, len(cohort))}
        # Unseen clients start from the initial body, which they can compute from the
        # run's seed.
        if not cohort.seen:
            streams["initial"] = Streams.everyone(
                server.initial, len(cohort), already_held=True
            )
        return Downlink(streams)

    # on the client
    # ----------------------------------------------------------------------------------

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        return entry_of_part("own", model.part(own_part(model.parts)).take(theta))

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        own = self._own(local)
        theta = local.sgd(join_parts(own, state, inbox.only("model")), self.sgd)
        classes = number_of_classes(theta, local)
        sums = class_sums(theta, classes, self.sgd.batch_size, local)
        return entry_of_part("own", own.take(theta)), {"features": sums.reshape(-1)}

    def _own(self, local: LocalTrainer) -> ModelPart:
        """The body, which stays on the client."""
        return local.part_of_model(own_part(local.parts_of_model))

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return join_parts(self._own(local), state, inbox.only("model"))

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        own = self._own(local)
        theta = own.complement.put(inbox.only("initial"), inbox.only("model"))
        if own.size:
            theta = local.sgd(theta, self.sgd, train_only=own)
        return entry_of_part("own", own.take(theta))


def own_part(parts: tuple[str, ...]) -> str:
    """The name of the part that stays on the client: all but the head. A model without a
    body is all head.
    """
    return "not head" if "head" in parts else "nothing"
