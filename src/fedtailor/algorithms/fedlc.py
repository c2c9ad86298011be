"""FedLC: FedAvg whose clients' losses keep a margin for classes they have little of."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.class_means import (
    ABSENT,
    WHY_SUMS_SHOW_CLIENTS,
    class_counts,
    number_of_classes,
)
from fedtailor.algorithms.helpers.own_steps import mean_over
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Params,
    Population,
    StepGradient,
    ZeroIsStatic,
    hyperparameters,
    is_off,
)


@hyperparameters
class FedLC(FedAvg):
    """Federated learning with label skew by logits calibration (Zhang et al. 2022).

    As FedAvg, but a client trains with scores from which a margin is subtracted, the
    larger the fewer examples n_ic of class c it has:

        loss(f, y) = -log( exp(s_y) / sum_c exp(s_c) ),    s_c = f_c - tau n_ic^(-1/4)

    Classes that a client does not have are left out of the sum, so that it does not
    unlearn them. It predicts with the scores f. With tau = 0 and all classes at every
    client this is FedAvg.

    As the paper prints it, the sum leaves out the class y itself (`others`). Such a loss
    has no lower bound: of two classes it is linear in the scores. Public
    implementations sum over all classes, which is the default here. Of these, FL-bench
    counts a class that is not there as 1e-8 examples; PFLlib takes the counts of all
    clients together, so that its margins are the same for all.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedlc",
        paper=(
            "Zhang et al. 2022, Federated Learning with Label Distribution Skew via"
            " Logits Calibration"
        ),
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD()
    """Local training."""
    tau: ZeroIsStatic = 1.0
    """The size of the margins (PFLlib and FL-bench: 1)."""
    denominator: Literal["all", "others"] = "all"
    """Whether the sum is over all classes that the client has, or over those besides y,
    as in the paper's formula.
    """

    def __post_init__(self) -> None:
        require(self.tau >= 0, f"tau is {self.tau}; it must be 0 or more")

    def check(self, population: Population) -> None:
        if population.model is not None:
            require(
                population.model.classification,
                "fedlc counts the examples of each class, and this model has no classes;"
                " choose another method",
            )

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        gradient = self._gradient(self._margins(theta, local), local)
        return state, {"model": local.sgd(theta, self.sgd, gradient=gradient)}

    @property
    def sums_show_clients(self) -> str:
        return WHY_SUMS_SHOW_CLIENTS

    def _margins(
        self, theta: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, " classes"]:
        """What is added to the scores: -tau n_ic^(-1/4), `ABSENT` where n_ic is 0."""
        classes = number_of_classes(theta, local)
        counts = class_counts(classes, self.sgd.batch_size, local)
        margins = jnp.zeros_like(counts)
        if not is_off(self.tau):
            margins = -self.tau * jnp.maximum(counts, 1) ** -0.25
        return jnp.where(counts > 0, margins, ABSENT)

    def _gradient(
        self, margins: Float[Array, " classes"], local: LocalTrainer
    ) -> StepGradient:
        """The gradient of the calibrated loss on a batch."""

        def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
            local.count_work(gradients=1)

            def loss(params: Params) -> Float[Array, ""]:
                scores = local.logits(params, batch.x) + margins
                if self.denominator == "all":
                    losses = local.losses(scores, batch.y, batch.weight)
                    return mean_over(losses, batch.weight)
                is_own = jax.nn.one_hot(batch.y, len(margins), dtype=bool)
                own = (scores * is_own).sum(axis=1)
                others = jnp.where(is_own, ABSENT, scores)
                # A client with a single class has nothing to tell it from.
                has_others = ((margins > ABSENT) & ~is_own).any(axis=1)
                losses = jax.nn.logsumexp(others, axis=1) - own
                return mean_over(jnp.where(has_others, losses, 0), batch.weight)

            return jax.grad(loss)(params)

        return gradient
