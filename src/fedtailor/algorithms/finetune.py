"""FineTune: FedAvg, then a little training on each client's own data."""

from typing import Any, ClassVar

from jaxtyping import Array, Float

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.best_round import (
    BestRound,
    serving_state,
    training_state,
    validation_loss,
)
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
    Predictor,
    hyperparameters,
)


@hyperparameters
class FineTune(FedAvg):
    """Fine-tuning of the global model (baseline of Mansour et al. 2020, section 6).

        v_i = SGD(theta^T; D_i)

    after FedAvg. Nothing is sent in the second phase; clients that never took part
    fine-tune in the same way.

    With `best`, theta is not the last model but the model of the best round (the "best
    baseline model" of Mansour et al., section 6): the one with the least mean loss on
    the reporters' validation samples, of all models that clients received in rounds.
    Clients then also send this loss and the number of these samples.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="finetune",
        paper=(
            "Mansour et al. 2020, Three Approaches for Personalization with"
            " Applications to Federated Learning"
        ),
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model, fine-tuned on its own data",
        server_sees="sums",
    )

    tune: SGD = SGD(lr=0.005, batch_size=10)
    """The final local training (Mansour et al.: one epoch, batch 10, learning rate
    0.005).
    """

    best: bool = False
    """Whether to fine-tune the model of the round of least validation loss, or the last
    model."""

    def init_server(self, init: Init, population: Population) -> Any:
        server = super().init_server(init, population)
        return BestRound(server, server, None) if self.best else server

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        return super().broadcast(training_state(server), cohort)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        state, update = super().client(state, inbox, local)
        if not self.best:
            return state, update
        # All reporters evaluate the same received model, so the means of their losses
        # can be compared between rounds.
        return state, {**update, **validation_loss(inbox.only("model"), local)}

    @property
    def server_only_averages(self) -> bool:
        # To find the best round, the server also uses the clients' scores.
        return not self.best

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> Any:
        new = super().server(training_state(server), downlink, answers, cohort)
        return server.after(new, answers, cohort) if self.best else new

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        return super().broadcast(serving_state(server), cohort)

    def global_model(self, server: Any) -> Float[Array, " d"]:
        return super().global_model(serving_state(server))

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        # v_i = SGD(theta^T; D_i), whether or not the client ever took part
        return local.sgd(inbox.only("model"), self.tune)
