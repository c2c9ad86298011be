"""Ditto: FedAvg, and a personal model near the global one for each client."""

from typing import ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.algorithms.helpers.automatic_pull import AutomaticPull, require_pull
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.algorithms.helpers.proximal import proximal_term
from fedtailor.protocol import (
    SGD,
    About,
    ClientState,
    ClientUpdate,
    Inbox,
    IntScalar,
    LocalTrainer,
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    sums_type,
)


@hyperparameters
class Ditto(PersonalModelAlgorithm, AutomaticPull):
    """Fair and robust federated learning through personalization (Li et al. 2021).

    The global model w is trained as in FedAvg; the personal models have no influence on
    it. Each client also has a personal model v_i, which never leaves it. In every round
    in which it takes part it also trains v_i, with a proximal term around the received
    w (not around the model that it trained from w):

        v_i <- v_i - eta ( g_i(v_i) + lam (v_i - w) )

    With lam = 0 clients train alone; for large lam, v_i is the global model. A newcomer,
    which is a client that never took part, starts from v_i = w.

    With `lams`, a client takes the steps of a round once for `lam` and once for each of
    `lams`, and continues with the v_i of lowest loss on its validation samples, the
    first one on ties. (The released code, `dynamic_lam`, chooses after every single
    step.) Clients without validation samples and newcomers use `lam`.

    With a linear model and squared loss, lam = "auto" is for each client the weight with
    which v_i is the best linear unbiased predictor of a mixed model, given w (see
    `helpers/automatic_pull.py`).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="ditto",
        paper=(
            "Li et al. 2021, Ditto: Fair and Robust Federated Learning Through"
            " Personalization"
        ),
        down="1 model",
        up="1 model; with lam auto once, sums of products of inputs",
        client_keeps="its personal model",
        unseen_clients_get="proximal steps from the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.05, steps=2, batch_size=16)
    """Local training of the global model (released code: learning rate 0.05, 2
    mini-batches of 16 a round).
    """
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the average over reporters (the paper's algorithms 1 and 2: equal)."""
    lam: ZeroIsStatic | Literal["auto"] = 1.0
    """Weight of the proximal term around the global model (released code: 1, or the
    best of {0.1, 1, 2}); "auto" = 2 sigma^2 / (n_i tau^2) for each client, of linear
    models, with variances from one exchange before training.
    """
    lams: tuple[float, ...] = ()
    """Other values of `lam` that each client may choose by its validation samples
    (released code: 0.1 and 2 as well as 1); empty = all clients use `lam`."""
    personal_sgd: SGD | None = None
    """Training of the personal model; None = as `sgd`, on the same batches."""
    newcomer_steps: TracedInt = 40
    """A newcomer's steps from the global model (as in the released code's fine-tuning
    baseline).
    """

    def __post_init__(self) -> None:
        for lam in (self.lam, *self.lams):
            require_pull("lam", lam, self.personal_sgd or self.sgd)
        require(
            self.lam != "auto" or not self.lams,
            'lam "auto" is one value for each client; leave lams empty',
        )
        require(
            self.newcomer_steps >= 0,
            f"newcomer_steps is {self.newcomer_steps}; it must be 0 or more",
        )

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        w = inbox.only("model")  # [d], the one model that the server sends
        # The proximal term is around the received w, so the personal and the global
        # training are independent of each other.
        sgd = self.personal_sgd or self.sgd
        lam = self.pull(inbox, local, sgd)
        v = self._train_personal(state["model"], w, local, lam)
        return {"model": v}, {"model": local.sgd(w, self.sgd)}

    def _train_personal(
        self,
        v: Float[Array, " d"],
        w: Float[Array, " d"],
        local: LocalTrainer,
        lam: float | Float[Array, ""],
    ) -> Float[Array, " d"]:
        """The personal model after a round.

        Returns:
            v after the steps with `lam` or, if there are `lams`, with the value of
            lowest validation loss.
        """
        if not self.lams:
            return self._personal_steps(v, w, local, lam)
        candidates = jnp.asarray((self.lam, *self.lams), sums_type(v))
        models = local.map(
            lambda lam: self._personal_steps(v, w, local, lam), candidates
        )
        losses = local.map(lambda model: local.loss(model, "val"), models)
        # Without validation samples all losses are 0, and argmin chooses `lam`, which
        # comes first.
        return models[jnp.argmin(losses)]

    def _personal_steps(
        self,
        v: Float[Array, " d"],
        w: Float[Array, " d"],
        local: LocalTrainer,
        lam: float | Float[Array, ""],
        steps: IntScalar | None = None,
    ) -> Float[Array, " d"]:
        """v after local steps with the proximal term lam/2 |v - w|^2."""
        sgd = self.personal_sgd or self.sgd
        return local.sgd(v, sgd, proximal=proximal_term(lam, w), steps=steps)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        # A newcomer's personal model starts from the global model.
        w = inbox.only("model")
        lam = self.pull(inbox, local, self.personal_sgd or self.sgd)
        v = self._personal_steps(w, w, local, lam, steps=self.newcomer_steps)
        return {"model": v}
