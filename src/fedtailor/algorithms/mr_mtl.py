"""MR-MTL: every client keeps a personal model near the mean of all."""

from typing import Any, ClassVar, Literal

from fedtailor.algorithms.helpers.automatic_pull import AutomaticPull, require_pull
from fedtailor.algorithms.helpers.own_steps import why_sums_show_clients
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.algorithms.helpers.proximal import proximal_term
from fedtailor.protocol import (
    SGD,
    About,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    ZeroIsStatic,
    hyperparameters,
)


@hyperparameters
class MRMTL(PersonalModelAlgorithm, AutomaticPull):
    """Mean-regularized multi-task learning.

    Liu et al. 2022, section 5; the objective is Evgeniou and Pontil's, 2004.

    Each client trains its own model v_i with a proximal term around the mean of all
    clients' models, and the server averages these models:

        v_i <- SGD(v_i; F_i(v) + lam/2 |v - vbar|^2),    vbar <- mean_S v_i

    lam = 0 is training alone; for a large lam all models are the mean. With the
    proximal problem solved on F_i = |v - z_i|^2 / 2 the models end at v_i = (z_i + lam
    zbar) / (1 + lam). Unlike in Ditto no global model is trained in addition to the
    personal ones, so a client trains and sends only one model in a round. A client that
    never took part starts from v = vbar and trains for one round.

    In the released code all clients take part, the mean is weighted by training samples
    by default, linear models start at zero, and private steps clip the sum of both
    gradients. Here the gradient of the proximal term, which does not depend on data, is
    added to the private gradient after clipping.

    With a linear model, squared loss and lam = "auto" the method is a mixed model: the
    mean ends at its generalised least squares estimate and the clients at its best
    linear unbiased predictors (see `helpers/automatic_pull.py`).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="mr-mtl",
        paper=(
            "Liu et al. 2022, On Privacy and Personalization in Cross-Silo Federated"
            " Learning"
        ),
        down="1 model, the mean of all clients'",
        up="1 model; with lam auto once, sums of products of inputs",
        client_keeps="its personal model",
        unseen_clients_get="a round of training from the mean, towards it",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01)
    """Local training (released code: rate 0.01, an epoch a round)."""
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the mean over reporters: equal (the paper), or by training samples n_i
    (the released code).
    """
    lam: ZeroIsStatic | Literal["auto"] = 1.0
    """Weight of the proximal term around the mean (released code: 1 on School, else a
    grid of 0.1 to 3); "auto" = 2 sigma^2 / (n_i tau^2) for each client, of linear
    models, with variances from one exchange before training.
    """

    @property
    def sums_show_clients(self) -> str:
        # The pull moves a client's model by its number of steps, round after round.
        return why_sums_show_clients(self.sgd)

    def __post_init__(self) -> None:
        require_pull("lam", self.lam, self.sgd)

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        # Training continues from the client's own v_i. The mean vbar is only the anchor
        # of the proximal term.
        lam = self.pull(inbox, local, self.sgd)
        proximal = proximal_term(lam, inbox.only("model"))
        v = local.sgd(state["model"], self.sgd, proximal=proximal)
        return {"model": v}, {"model": v}

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> Any:
        # A round of training from v = vbar. The message to the server is not sent.
        start = self.init_client(inbox.only("model"))
        state, _ = self.client(start, inbox, local)
        return state
