"""FedProx: FedAvg whose clients stay near the model they received."""

from typing import ClassVar

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.protocol import (
    SGD,
    About,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    require,
)


@hyperparameters
class FedProx(FedAvg):
    """Federated optimization with a proximal term (Li et al. 2020).

    As FedAvg, but each client minimises, by SGD from theta,

        F_i(w) + mu/2 |w - theta|^2

    around the model theta that it received. With mu = 0, or a single local step, this
    is FedAvg. The paper samples clients in proportion to n_i and averages equally, its
    released code samples uniformly and weighs by n_i (the default here). The paper's
    are `weights="uniform"` and `Participation(sampling="samples")`, on the command line
    `--weights uniform --sampling samples`.
    """

    # What tables of methods say of this one; `About` explains the words.
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
        # `local.sgd` adds the gradient of mu/2 |w - theta|^2. With mu = 0 the term is
        # not even compiled: FedAvg's steps.
        proximal = None if is_off(self.mu) else (self.mu, theta)
        return state, {"model": local.sgd(theta, self.sgd, proximal=proximal)}


def require_stable(name: str, pull: float, sgd: SGD) -> None:
    """Require 0 <= pull and lr * pull < 2, for a proximal term pull/2 |w - anchor|^2.

    Args:
        name: the hyper-parameter that the message names.
        pull: the weight of the term.
        sgd: the training that it is added to; only plain SGD has the upper bound.

    Raises:
        ValueError: the weight is negative, or SGD with it diverges.
    """
    require(pull >= 0, f"{name} is {pull}; it must be 0 or more")
    # A plain step multiplies the distance to the anchor by 1 - lr * pull, which must
    # stay above -1.
    require(
        sgd.optimizer is not None or sgd.lr * pull < 2,
        f"the learning rate {sgd.lr} times {name} {pull} is {sgd.lr * pull:g}; from 2"
        " on the iterates diverge: lower one of them",
    )
