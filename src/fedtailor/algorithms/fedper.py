"""FedPer: a shared body, and a personal head for each client."""

from typing import ClassVar, Literal

from jaxtyping import Array, Float

from fedtailor.aggregation import ServerOptimizer, reporter_weights
from fedtailor.algorithms.helpers.shared_part import (
    SharedPart,
    entry_of_part,
    join_parts,
    model_parts_of,
)
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
    hyperparameters,
)


@hyperparameters
class FedPer(Algorithm):
    """Federated learning with personalization layers.

    Arivazhagan et al. 2019, algorithms 1 and 2.

    The model is theta = (b, h_i), where the body b is shared by all clients, and the
    head h_i never leaves client i. A client trains both jointly and sends the body,
    which the server averages:

        (b_i, h_i) <- SGD(b, h_i; D_i),    b <- sum_i q_i b_i,    q_i = n_i / sum_S n_j

    A client that never took part trains only a head, on the received body, for as many
    steps as a round has. This is also the base class of methods in which another part
    of the model stays on the client (FedRep, LG-FedAvg, FedBN).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedper",
        paper="Arivazhagan et al. 2019, Federated Learning with Personalization Layers",
        down="1 body",
        up="1 body",
        client_keeps="its head",
        unseen_clients_get="trains a head on the shared body",
        models_received="a part",
        server_sees="sums",
    )

    sgd: SGD = SGD()
    """Local training of body and head."""
    part: str = "head"
    """The part of the model that stays on the client: "head", "norm", "last2", a
    pattern on parameter paths, ...
    """
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the average over reporters: by training samples n_i, or equal."""
    optimizer: ServerOptimizer = ServerOptimizer()
    """The server's step towards the average of the shared part; the default takes it
    whole.
    """

    def own_part(self, parts: tuple[str, ...]) -> str:
        """The name of the part that stays on the client.

        Args:
            parts: the names of the model's parts.
        """
        return self.part

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        model.part(self.own_part(model.parts))

    def init_server(self, init: Init, population: Population) -> SharedPart:
        model = model_parts_of(population, self.about.name)
        own = model.part(self.own_part(model.parts))
        return SharedPart.begin(init, own.complement, self.optimizer)

    def broadcast(self, server: SharedPart, cohort: Cohort) -> Downlink:
        return Downlink({"model": server.part_stream(len(cohort))})

    @property
    def server_only_averages(self) -> bool:
        return True

    def server(
        self, server: SharedPart, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> SharedPart:
        if "model" not in answers:
            return server  # the whole model stays on the clients
        # b <- sum_i q_i b_i, with one row of weights [1, c] for the one body
        weights = reporter_weights(cohort, self.weights)[None]
        return server.update_part(
            self.optimizer, answers["model"], weights, cohort.is_statistic
        )

    def serve(self, server: SharedPart, cohort: Cohort) -> Downlink:
        streams = {"model": server.part_stream(len(cohort))}
        # Seen clients have their own part. Unseen clients start from the initial one.
        if not cohort.seen:
            streams["initial"] = server.initial_stream(len(cohort))
        return Downlink(streams)

    # on the client
    # ----------------------------------------------------------------------------------

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        return entry_of_part("own", model.part(self.own_part(model.parts)).take(theta))

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # (b_i, h_i) <- SGD(b, h_i; D_i), from the received body and the client's own
        # head.
        own = self._own(local)
        theta = self._train(join_parts(own, state, inbox.only("model")), own, local)
        return entry_of_part("own", own.take(theta)), entry_of_part(
            "model", own.complement.take(theta)
        )

    def _own(self, local: LocalTrainer) -> ModelPart:
        """The part of the model that stays on the client; the rest is averaged."""
        return local.part_of_model(self.own_part(local.parts_of_model))

    def _train(
        self, theta: Float[Array, " d"], own: ModelPart, local: LocalTrainer
    ) -> Float[Array, " d"]:
        """A round's training of the whole model."""
        return local.sgd(theta, self.sgd)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return join_parts(self._own(local), state, inbox.only("model"))

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        # The client's own part is that of the initial model, and the rest is the
        # received shared part.
        own = self._own(local)
        theta = own.complement.put(inbox.only("initial"), inbox.only("model"))
        return entry_of_part("own", own.take(self._train_newcomer(theta, own, local)))

    def _train_newcomer(
        self, theta: Float[Array, " d"], own: ModelPart, local: LocalTrainer
    ) -> Float[Array, " d"]:
        """The model of a client that never took part.

        Args:
            theta: the shared part as received, with the initial own part.
            own: the part that stays on the client.
            local: the client's data and training.
        """
        return local.sgd(theta, self.sgd, train_only=own) if own.size else theta
