"""LG-FedAvg: local representations under a shared head."""

from typing import ClassVar

from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.shared_part import model_parts_of
from fedtailor.models.dense_head import require_equal_heads
from fedtailor.protocol import About, InCommon, Population, hyperparameters


@hyperparameters
class LGFedAvg(FedPer):
    """Think locally, act globally.

    Liang et al. 2020, algorithm 1 without the auxiliary losses.

    FedPer with the parts exchanged: each client keeps the representation b_i that it
    trains, and the head is averaged:

        (b_i, h_i) <- SGD(b_i, h; D_i),    h <- sum_i q_i h_i

    The server has no representation, so a client that never took part trains one below
    the received head, from the common initial model, for as many steps as a round has.
    Clients may have different networks below the head (`models.by_client`).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="lg-fedavg",
        paper=(
            "Liang et al. 2020, Think Locally, Act Globally: Federated Learning with"
            " Local and Global Representations"
        ),
        down="1 head",
        up="1 head",
        client_keeps="its body",
        unseen_clients_get="trains a body under the shared head",
        models_received="a part",
        server_sees="sums",
        in_common="the number of features",
    )

    part: str = "head"
    """The part of the model that is averaged (the paper: the last layers). The rest
    stays on the client.
    """

    @property
    def in_common(self) -> InCommon:
        # The head of every network with as many features is one vector of one size; other
        # parts are not.
        return self.about.in_common if self.part == "head" else "the network"

    def check(self, population: Population) -> None:
        super().check(population)
        if self.part == "head":
            model = model_parts_of(population, self.about.name)
            require_equal_heads(model, self.about.name)

    def own_part(self, parts: tuple[str, ...]) -> str:
        # The client sends the part that stays on the client in FedPer.
        return f"not {self.part}"
