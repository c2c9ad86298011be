"""FedBABU: clients train a shared body, and fine-tune the model after training."""

from typing import Any, ClassVar

from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.shared_part import SharedPart, model_parts_of
from fedtailor.protocol import (
    SGD,
    About,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    ModelParts,
    Population,
    Predictor,
    hyperparameters,
)


@hyperparameters
class FedBABU(FedPer):
    """Federated averaging with body aggregation and body update.

    Oh et al. 2022, algorithm 1.

    The head keeps its random initial value h^0, which is the same for all clients; only
    the body below it is trained, as in FedAvg:

        b_i = SGD(b; h^0, D_i),    b <- sum_i q_i b_i

    A client predicts with this model after fine-tuning it on its own data. The
    fine-tuned model is not sent to the server. Clients that never took part do the
    same.

    The released code weights reporters equally. It trains at rate 0.1 in the first half
    of the rounds, 0.01 in the third quarter and 0.001 in the last, with momentum 0.9 in
    batches of 50 for 1, 4 or 10 epochs. The defaults here are those of the library.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedbabu",
        paper=(
            "Oh et al. 2022, FedBABU: Towards Enhanced Representation for Federated"
            " Image Classification"
        ),
        down="1 body",
        up="1 body",
        client_keeps="nothing",
        unseen_clients_get="the shared model, fine-tuned on its own data",
        models_received="a part",
        server_sees="sums",
    )

    part: str = "head"
    """The part of the model that is neither trained nor sent: "head", "last2", a
    pattern on parameter paths, ...
    """
    tune: SGD = SGD(epochs=5)
    """The final training on a client's own data (the paper: 5 epochs; the released
    notebook: rate 0.001, momentum 0.9, batch 50, from the round that is best on test
    data)."""
    tune_part: str = "everything"
    """The part that fine-tuning trains: "everything" (the paper's choice), or "head".
    """

    def check(self, population: Population) -> None:
        super().check(population)
        model = model_parts_of(population, self.about.name)
        require(
            model.part(self.part).complement.size > 0,
            f"part {self.part!r} leaves fedbabu nothing to train",
        )
        model.part(self.tune_part)

    def broadcast(self, server: SharedPart, cohort: Cohort) -> Downlink:
        # Clients combine the received body with the head h^0. They can compute h^0 from
        # the seed, so the ledger does not count it.
        clients = len(cohort)
        body = server.part_stream(clients)
        initial = server.initial_stream(clients)
        return Downlink({"model": body, "initial": initial})

    def serve(self, server: SharedPart, cohort: Cohort) -> Downlink:
        return self.broadcast(server, cohort)

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> Any:
        return ()

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> Any:
        return ()

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        # b_i = SGD(b; h^0, D_i): the loss of the whole model, of which only the body is
        # trained.
        body = self._own(local).complement
        theta = local.sgd(self._received(inbox, local), self.sgd, train_only=body)
        return state, {"model": body.take(theta)}

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        part = local.part_of_model(self.tune_part)
        return local.sgd(self._received(inbox, local), self.tune, train_only=part)

    def _received(self, inbox: Inbox, local: LocalTrainer) -> Float[Array, " d"]:
        """The model with the received body and the initial head h^0."""
        body = self._own(local).complement
        return body.put(inbox.only("initial"), inbox.only("model"))
