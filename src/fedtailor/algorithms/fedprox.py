"""FedProx: FedAvg whose clients stay near the model they received."""

from typing import ClassVar

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.proximal import proximal_term, require_stable
from fedtailor.protocol import (
    SGD,
    About,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    ZeroIsStatic,
    hyperparameters,
)


@hyperparameters
class FedProx(FedAvg):
    """Federated optimization with a proximal term (Li et al. 2020).

    As FedAvg, but each client minimises, by SGD from theta,

        F_i(w) + mu/2 |w - theta|^2

    around the model theta that it received. With mu = 0, or a single local step, this
    is FedAvg. The paper samples clients in proportion to n_i and weights them equally;
    its released code samples uniformly and weights by n_i, which is the default here.
    For the paper's choice set `weights="uniform"` and
    `Participation(sampling="samples")`, or `--weights uniform --sampling samples` on
    the command line.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedprox",
        paper="Li et al. 2020, Federated Optimization in Heterogeneous Networks",
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01, epochs=20, batch_size=10)
    """Local training (Li et al.: learning rate 0.01, 20 epochs, batch 10)."""
    mu: ZeroIsStatic = 0.1
    """Weight of the proximal term (Li et al. tune it in {0.001, 0.01, 0.1, 0.5, 1})."""

    def __post_init__(self) -> None:
        require_stable("mu", self.mu, self.sgd)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        # `local.sgd` adds the gradient of mu/2 |w - theta|^2 to that of F_i.
        proximal = proximal_term(self.mu, theta)
        return state, {"model": local.sgd(theta, self.sgd, proximal=proximal)}
