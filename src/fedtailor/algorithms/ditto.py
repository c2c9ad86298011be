"""Ditto: FedAvg, and beside it a personal model near the global one."""

from typing import ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedprox import require_stable
from fedtailor.algorithms.helpers.averaging import AveragedModels
from fedtailor.protocol import (
    SGD,
    About,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    IntScalar,
    LocalTrainer,
    Predictor,
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    require,
)


@hyperparameters
class Ditto(FedAvg):
    """Fair and robust federated learning through personalization (Li et al. 2021).

    The global model w is FedAvg's, whatever the personal models do. A client that takes
    part also steps its own v_i, which it keeps, towards the model w that it received
    (not the one that it trained from it):

        v_i <- v_i - eta ( g_i(v_i) + lam (v_i - w) )

    lam = 0 is training alone; a large lam is the global model. A client that never took
    part starts from v = w.

    With `lams`, a client takes the steps of a round with `lam` and with each of them,
    and keeps the v of least loss on its validation samples, the first one on ties
    (released code, `dynamic_lam`, which chooses after every single step). One without
    validation samples uses `lam`, and so does one that never took part.
    """

    about: ClassVar[About] = About(
        name="ditto",
        paper=(
            "Li et al. 2021, Ditto: Fair and Robust Federated Learning Through"
            " Personalization"
        ),
        down="1 model",
        up="1 model",
        keeps="its personal model",
        unseen="proximal steps from the global model",
        sees="sums",
    )

    sgd: SGD = SGD(lr=0.05, steps=2, batch_size=16)
    """Local training of the global model (released code: learning rate 0.05, 2
    mini-batches of 16 a round).
    """
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the average over reporters (the paper's algorithms 1 and 2: equal)."""
    lam: ZeroIsStatic = 1.0
    """Pull of the personal model towards the global one (released code: 1, or the best
    of {0.1, 1, 2}).
    """
    lams: tuple[float, ...] = ()
    """Other pulls to choose from on validation samples (released code: 0.1 and 2 beside
    1); none = `lam` for everybody."""
    personal_sgd: SGD | None = None
    """Training of the personal model; None = as `sgd`, on the same batches."""
    newcomer_steps: TracedInt = 40
    """Steps of a client that never took part, from the global model (as the released
    code's fine-tuning baseline).
    """

    def __post_init__(self) -> None:
        for lam in (self.lam, *self.lams):
            require_stable("lam", lam, self.personal_sgd or self.sgd)
        require(
            self.newcomer_steps >= 0,
            f"newcomer_steps is {self.newcomer_steps}; it must be 0 or more",
        )

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"model": theta}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        w = inbox["model"][0]
        # v is pulled towards w as received, not as trained below, so the two trainings
        # may run in either order.
        v = self._best_of_pulls(state["model"], w, local)
        return {"model": v}, {"model": local.sgd(w, self.sgd)}

    def _personal_steps(
        self,
        v: Float[Array, " d"],
        w: Float[Array, " d"],
        local: LocalTrainer,
        steps: IntScalar | None = None,
    ) -> Float[Array, " d"]:
        """v after the local steps that pull it towards w."""
        proximal = None if is_off(self.lam) else (self.lam, w)
        return local.sgd(
            v, self.personal_sgd or self.sgd, proximal=proximal, steps=steps
        )

    def _best_of_pulls(
        self, v: Float[Array, " d"], w: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, " d"]:
        """v after the local steps of the best pull on the validation samples.

        Returns:
            The v of least validation loss; that of `lam` where there is no other pull,
            or no validation sample.
        """
        if not self.lams:
            return self._personal_steps(v, w, local)
        sgd = self.personal_sgd or self.sgd
        pulls = jnp.asarray((self.lam, *self.lams), v.dtype)
        models = local.map(lambda lam: local.sgd(v, sgd, proximal=(lam, w)), pulls)
        losses = local.map(lambda model: local.loss(model, "val"), models)
        # Without samples all losses are 0, and the first pull is chosen.
        return models[jnp.argmin(losses)]

    def serve(self, server: AveragedModels, cohort: Cohort) -> Downlink:
        return Downlink() if cohort.seen else self.broadcast(server, cohort)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        w = inbox["model"][0]
        return {"model": self._personal_steps(w, w, local, self.newcomer_steps)}
