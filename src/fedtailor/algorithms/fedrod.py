"""FedRoD: a class-balanced global model, and a residual head for each client."""

from typing import Any, ClassVar

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
from fedtailor.algorithms.helpers.own_steps import (
    head_of,
    loop_over_batches,
    mean_over,
    require_plain_sgd,
    sgd_step,
    sgd_step_with_statistics,
)
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    ModelParts,
    Params,
    Population,
    Predictor,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    sums_type,
)


@hyperparameters
class FedRoD(FedAvg):
    """On bridging generic and personalized federated learning.

    Chen and Chao 2022, algorithm 1.

    The generic model has a body z and a head h. It is trained as in FedAvg, but with
    the balanced softmax as the loss: the score of class c is h(z) + gamma log n_ic,
    where n_ic is the number of the client's training samples of that class, and classes
    without samples are left out. Each client also trains a residual head p_i with the
    usual loss, whose gradient does not reach the generic model:

        (z, h) <- (z, h) - eta grad loss( h(z) + gamma log n_i ),    p_i <- p_i - eta grad_p loss( h(z) + p_i(z) )

    Heads are linear, so a client predicts with the generic model whose head is h + p_i.
    p_i starts at 0. A client that never took part keeps p_i = 0, unless
    `newcomer_epochs` asks it to train.

    The authors have released no training code. PFLlib's takes the same two steps on
    each batch, but starts p_i as a copy of the initial head. The paper's other personal
    head, which a hypernetwork makes of the class counts, is not offered.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedrod",
        paper=(
            "Chen and Chao 2022, On Bridging Generic and Personalized Federated"
            " Learning for Image Classification"
        ),
        down="1 model",
        up="1 model",
        client_keeps="its residual head",
        unseen_clients_get="the generic model",
        server_sees="sums",
    )

    sgd: SGD = SGD()
    """Local training, without momentum."""
    gamma: ZeroIsStatic = 1.0
    """Exponent of the class counts in the balanced softmax (the paper: 1); 0 is the
    usual loss.
    """
    head_lr: float | None = None
    """Learning rate of the residual head; None = as `sgd`."""
    newcomer_epochs: int = 0
    """Epochs in which a client that never took part trains its residual head, while the
    generic model is fixed.
    """

    def __post_init__(self) -> None:
        require_plain_sgd("fedrod's coupled steps", self.sgd)
        require(self.gamma >= 0, f"gamma is {self.gamma}; it must be 0 or more")
        require(
            self.head_lr is None or self.head_lr >= 0,
            f"head_lr is {self.head_lr}; it must be 0 or more",
        )
        require(
            self.newcomer_epochs >= 0,
            f"newcomer_epochs is {self.newcomer_epochs}; it must be 0 or more",
        )

    def check(self, population: Population) -> None:
        if population.model is not None:
            _ = population.model.feature_shape  # a model without a head is refused here
            require(
                population.model.classification,
                "fedrod balances classes; it needs a model of classes",
            )

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> Any:
        head = model.part("head" if "head" in model.parts else "everything")
        return {"head": jnp.zeros(head.size, theta.dtype)}

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        theta, head = inbox.only("model"), head_of(local)
        own = head.put(theta, state["head"])
        theta, own = self._train(theta, own, local)
        return {"head": head.take(own)}, {"model": theta}

    def _train(
        self,
        theta: Float[Array, " d"],
        own: Float[Array, " d"],
        local: LocalTrainer,
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Steps of the generic model and, on the same batches, of the residual head.

        Args:
            theta: the generic model.
            own: a model whose head is the residual head p_i; the rest of it does not
                matter.
            local: the client's data and training.

        Returns:
            Both after the steps.
        """
        sgd, prior = self.sgd, self._log_prior(theta, local)
        rate = sgd.rate(local.round)
        own_rate = rate if self.head_lr is None else self.head_lr
        in_head = head_of(local).tree_mask(local.params(theta))

        def step(
            carry: tuple[Params, Params], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Params, Params]:
            def loss(generic: Params, own: Params) -> Float[Array, ""]:
                z = local.features(generic, batch.x)
                scores = local.head_outputs(generic, z)
                # No gradient of the personal loss reaches the generic model, so the
                # gradient of the sum of both losses contains the gradient of each.
                fixed_z = jax.lax.stop_gradient(z)
                fixed_scores = jax.lax.stop_gradient(scores)
                residual = local.head_outputs(own, fixed_z)
                balanced = local.losses(scores + prior, batch.y, batch.weight)
                personal = local.losses(fixed_scores + residual, batch.y, batch.weight)
                return mean_over(balanced + personal, batch.weight)

            local.count_work(gradients=1)
            generic, own = carry
            grad_generic, grad_own = jax.grad(loss, argnums=(0, 1))(generic, own)
            # p_i is the head of a whole model. The other entries of that model have no
            # gradient, but weight decay would change them, so they are restored.
            new_own = sgd_step(own, grad_own, sgd, own_rate, local)
            own = jax.tree.map(
                lambda new, old, inside: new if inside else old, new_own, own, in_head
            )
            generic = sgd_step_with_statistics(
                generic, grad_generic, batch, sgd, rate, local
            )
            return generic, own

        carry = local.params(theta), local.params(own)
        generic, own_params = loop_over_batches(local, carry, step, sgd)
        return local.vector(generic), local.vector(own_params)

    @property
    def sums_show_clients(self) -> str:
        return "" if is_off(self.gamma) else f"{WHY_SUMS_SHOW_CLIENTS}: set gamma = 0"

    def _log_prior(
        self, theta: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, " classes"]:
        """gamma log n_ic, which the balanced softmax adds to the score of class c.

        Returns:
            `ABSENT` where n_ic, the number of training samples of class c, is 0; zeros
            for gamma 0.
        """
        classes = number_of_classes(theta, local)
        # With gamma = 0 the counts are not used, so they are not compiled.
        if is_off(self.gamma):
            return jnp.zeros(classes, sums_type(theta))
        counts = class_counts(classes, self.sgd.batch_size, local)
        log_counts = jnp.log(jnp.maximum(counts, 1))
        return jnp.where(counts > 0, self.gamma * log_counts, ABSENT)

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        # Heads are linear: h(z) + p(z) is the output of one model whose head is h + p.
        theta, head = inbox.only("model"), head_of(local)
        return head.put(theta, head.take(theta) + state["head"])

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> Any:
        theta, head = inbox.only("model"), head_of(local)
        if self.newcomer_epochs == 0:
            return {"head": jnp.zeros(head.size, theta.dtype)}
        # Training p from 0 on a fixed generic model is training h + p from h, with the
        # usual loss.
        one_pass = SGD(batch_size=self.sgd.batch_size, drop_last=self.sgd.drop_last)
        steps = self.newcomer_epochs * local.steps(one_pass)
        trained = local.sgd(theta, self.sgd, steps=steps, train_only=head)
        return {"head": head.take(trained - theta)}
