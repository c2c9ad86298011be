"""Per-FedAvg: a global model that is good after a gradient step on a client's data."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, ScalarLike

from fedtailor._base.choice import require
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Params,
    Predictor,
    TracedInt,
    hyperparameters,
)


@hyperparameters
class PerFedAvg(FedAvg):
    """Personalized federated learning by meta-learning.

    Fallah et al. 2020, algorithm 1.

    The global model minimises mean_i F_i( w - alpha grad F_i(w) ), the loss after one
    gradient step of rate alpha. A local step uses three batches D, D', D'', which are
    disjoint if the client has three batches:

        w~ = w - alpha g(w; D),    g' = g(w~; D'),    w <- w - beta ( g' - alpha H(w; D'') g' )

    `hf` computes the product with the Hessian exactly, `hf-difference` by a difference
    of gradients (the paper's HF), and `fo` drops that term. D' are the batches that
    FedAvg would use. Every client, including those that never took part, predicts with
    w - alpha grad F_i(w), where the gradient is over all its training samples.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="per-fedavg",
        paper=(
            "Fallah et al. 2020, Personalized Federated Learning with Theoretical"
            " Guarantees: A MAML Approach"
        ),
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model after gradient steps on its own data",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.001, steps=10, batch_size=40)
    """Local steps of the meta-objective: `lr` is beta (Fallah et al.: rate 0.001, 4 or
    10 steps, batch 40).
    """
    alpha: float = 0.01
    """Rate of the personal step, also at the end (Fallah et al.: 0.01 on MNIST, 0.001
    on CIFAR-10); alpha times the curvature must stay below 1."""
    variant: Literal["hf", "hf-difference", "fo"] = "hf"
    """Second-order term: exact, by differences, or dropped."""
    delta: float = 1e-3
    """The distance from w at which `hf-difference` computes gradients. Gradients of
    ReLU networks are discontinuous, and a jump between the two points is multiplied by
    1/delta. Such networks need about 0.1, or the exact product."""
    relative: bool = True
    """Whether delta is a distance, or (in the paper) a multiple of g'.
    """
    adapt_steps: TracedInt = 1
    """Gradient steps of rate alpha towards the personal model (the paper: 1)."""
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the average over reporters (the paper: equal)."""

    def __post_init__(self) -> None:
        require(self.alpha >= 0, f"alpha is {self.alpha}; it must be 0 or more")
        require(self.delta > 0, f"delta is {self.delta}; it must be above 0")
        require(
            self.adapt_steps >= 0,
            f"adapt_steps is {self.adapt_steps}; it must be 0 or more",
        )

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        sgd = self.sgd
        # The number of batches in a permutation of the data, and in an epoch. They
        # differ if the last partial batch is dropped.
        per_permutation = local.steps(SGD(batch_size=sgd.batch_size))
        whole_batches = jnp.maximum(local.size // sgd.batch_size, 1)
        per_epoch = whole_batches if sgd.drop_last else per_permutation

        def later_batch(step: Int[Array, ""], offset: int) -> Batch:
            """The batch `offset` places after the batch of this step, in its epoch."""
            epoch = step // per_epoch
            position = (step - epoch * per_epoch + offset) % per_epoch
            number = epoch * per_permutation + position
            return local.draw("batches", number, sgd.batch_size)

        def meta(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
            # D' is the batch of the step. D and D'' are the next two in its epoch.
            inner = local.batch_gradient(params, later_batch(step, 1))
            adapted = _add_scaled(-self.alpha, inner, params)  # w~
            g = local.batch_gradient(adapted, batch)  # g'
            if self.variant == "fo":
                return g
            # (I - alpha H) g': the chain rule through the inner step
            hessian_product = self._hessian_product(
                local, params, later_batch(step, 2), g
            )
            return _add_scaled(-self.alpha, hessian_product, g)

        return state, {"model": local.sgd(inbox.only("model"), sgd, gradient=meta)}

    def _hessian_product(
        self, local: LocalTrainer, params: Params, batch: Batch, g: Params
    ) -> Params:
        """The Hessian of a batch's mean loss times a vector.

        Args:
            params: w, where the Hessian is taken (not at w~).
            batch: D''.
            g: the vector, g' of the meta-gradient.

        Returns:
            H(w; D'') g', as a pytree: exact, or by a central difference.
        """

        def gradient(w: Params) -> Params:
            return local.batch_gradient(w, batch)

        if self.variant == "hf":
            # Forward over reverse differentiation costs about two gradients.
            local.count_work(gradients=1)
            _, product = jax.jvp(gradient, (params,), (g,))
            return product
        delta = self.delta
        if self.relative:
            norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(g)))
            delta = delta / jnp.where(norm > 0, norm, 1)
        # ( g(w + delta g') - g(w - delta g') ) / (2 delta), the paper's approximation
        above = gradient(_add_scaled(delta, g, params))
        below = gradient(_add_scaled(-delta, g, params))
        return jax.tree.map(lambda up, down: (up - down) / (2 * delta), above, below)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        def step(k: Array, w: Float[Array, " d"]) -> Float[Array, " d"]:
            return w - self.alpha * local.gradient(w)

        return local.fori_loop(self.adapt_steps, step, inbox.only("model"))


def _add_scaled(a: ScalarLike, x: Params, y: Params) -> Params:
    """a x + y, leaf by leaf."""
    return jax.tree.map(lambda x, y: a * x + y, x, y)
