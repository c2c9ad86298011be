"""FedALA: clients train from a learned entry-wise mix of global and local model."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedtailor._base.choice import require
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.own_steps import why_sums_show_clients
from fedtailor.algorithms.helpers.shared_part import model_parts_of
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    ModelPart,
    ModelParts,
    Population,
    Predictor,
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    sums_type,
)

WINDOW = 10
"""The number of passes whose losses decide when weights have converged (the paper)."""


@hyperparameters
class FedALA(FedAvg):
    """Adaptive local aggregation (Zhang et al. 2023, algorithm 1).

    The server is FedAvg's. A client starts its training from a mix of the global model
    theta and theta_i, the model that it trained last. Each entry of the last layers has
    a weight W_i in [0, 1]; the other layers are those of the global model:

        start = theta_i + (theta - theta_i) * W_i
        W_i <- clip( W_i - eta grad F_i(start) * (theta - theta_i), 0, 1 )     on mini-batches of a share of its data

    In the first round in which the two models differ, W_i is learned until the standard
    deviation of the mean losses of the last 10 passes is below `threshold`. In later
    rounds it is learned in one pass. A client predicts with the `start` for the final
    global model. A client that never took part predicts with the global model.

    A client whose first round comes late still holds the common initial model, so that
    its first mix is one of the trained global layers and untrained ones. In the
    released code its layers follow the global model from the first round on.

    The released code uses the loss of the last mini-batch of each pass instead of the
    mean of the pass, makes at least 11 passes without an upper limit, and also replaces
    the models of clients that do not take part in a round by their `start`. It trains
    at rate 0.005 in batches of 10, without the last partial batch, always in the same
    order.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedala",
        paper=(
            "Zhang et al. 2023, FedALA: Adaptive Local Aggregation for Personalized"
            " Federated Learning"
        ),
        down="1 model",
        up="1 model",
        client_keeps="its model and its weights",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    part: str = "head"
    """The part of the model whose weights are learned: the last layers (released code:
    2, the weight and the bias of the last layer).
    """
    eta: ZeroIsStatic = 1.0
    """Rate of the weights; 0 leaves them at 1, which is FedAvg."""
    share: float = 0.8
    """Share of the training samples that the weights are learned on, in (0, 1]. They
    are consecutive samples of a fixed order, with a random first one in each round (as
    in the released code)."""
    threshold: float = 0.1
    """Standard deviation of the mean losses of the last 10 passes below which the
    weights have converged (released code: 0.1).
    """
    max_passes: TracedInt = 50
    """The maximal number of passes in the first learning of the weights."""

    @property
    def takes_weights(self) -> bool:
        return False  # rows are divided into parts

    def __post_init__(self) -> None:
        require(self.eta >= 0, f"eta is {self.eta}; it must be 0 or more")
        require(0 < self.share <= 1, f"share is {self.share}; it must be in (0, 1]")
        require(
            self.threshold >= 0, f"threshold is {self.threshold}; it must be 0 or more"
        )
        require(
            self.max_passes >= 1,
            f"max_passes is {self.max_passes}; it must be 1 or more",
        )

    @property
    def sums_show_clients(self) -> str:
        # What it sends begins with the model that it sent before.
        return why_sums_show_clients(self.sgd)

    @property
    def work_tells_of_rows(self) -> bool:
        # The first learning ends once the losses hardly differ.
        return not is_off(self.eta)

    def check(self, population: Population) -> None:
        model_parts_of(population, self.about.name).part(self.part)

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> Any:
        weights = jnp.ones(model.part(self.part).size, sums_type(theta))
        return {"model": theta, "weights": weights, "began": jnp.zeros((), bool)}

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        theta = inbox.only("model")
        weights, began = self._learn(state, theta, local)
        start = self._start(state["model"], theta, weights, local)
        trained = local.sgd(start, self.sgd)
        state = {"model": trained, "weights": weights, "began": began}
        return state, {"model": trained}

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        theta = inbox.only("model")
        weights, _ = self._learn(state, theta, local)
        return self._start(state["model"], theta, weights, local)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> Any:
        theta, part = inbox.only("model"), local.part_of_model(self.part)
        return {
            "model": theta,
            "weights": jnp.ones(part.size, sums_type(theta)),
            "began": jnp.zeros((), bool),
        }

    def _start(
        self,
        own: Float[Array, " d"],
        theta: Float[Array, " d"],
        weights: Float[Array, " k"],
        local: LocalTrainer,
    ) -> Float[Array, " d"]:
        """theta_i + (theta - theta_i) * W_i in the part, and theta outside of it.

        Args:
            own: theta_i, the model that the client trained last.
            theta: the global model.
            weights: W_i, one for each entry of the part.
            local: the client.
        """
        part: ModelPart = local.part_of_model(self.part)
        own_part = part.take(own)
        mixed = own_part + (part.take(theta) - own_part) * weights
        return part.put(theta, mixed)

    def _learn(
        self, state: Any, theta: Float[Array, " d"], local: LocalTrainer
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """Learn W_i in one pass or, the first time, until it has converged.

        Returns:
            The new weights, and whether learning has begun in this or an earlier round.
            It does not begin as long as both models are equal.
        """
        part = local.part_of_model(self.part)
        own = state["model"]
        # theta - theta_i is the derivative of `start` with respect to W_i. In a
        # client's first round it is zero, and the weights do not matter.
        difference = part.take(theta) - part.take(own)
        is_different = (difference != 0).any()
        # A constant eta = 0 leaves the learning out of the compiled program.
        if is_off(self.eta):
            return state["weights"], state["began"] | is_different
        sampled = self._sampled(local)
        pass_steps = sampled.steps(SGD(batch_size=self.sgd.batch_size))

        def step(
            carry: tuple[Array, Array], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Array, Array]:
            weights, total = carry
            params = local.params(self._start(own, theta, weights, local))
            sampled.count_work(gradients=1)
            sampled.renew_statistics(params, batch)  # of a model that is thrown away
            loss, g = jax.value_and_grad(sampled.batch_loss)(params, batch)
            # W <- clip(W - eta grad F_i(start) * (theta - theta_i), 0, 1), by the chain
            # rule through `_start`
            g_part = part.take(local.vector(g))
            weights = jnp.clip(weights - self.eta * g_part * difference, 0, 1)
            return weights, total + loss * batch.weight.sum()

        def one_pass(
            k: Int[Array, ""], carry: tuple[Array, Array, Array]
        ) -> tuple[Array, Array, Array]:
            weights, recent_losses, done = carry
            # The loop always has `max_passes` passes. Passes after the last necessary
            # one take no steps.
            steps = jnp.where(done, 0, pass_steps)
            zero = jnp.zeros((), sums_type(theta))
            weights, total = sampled.loop(
                (weights, zero), step, steps, self.sgd.batch_size, purpose="weights"
            )
            # The weights have converged when the last mean losses hardly differ.
            recent_losses = jnp.append(
                recent_losses[1:], total / jnp.maximum(sampled.size, 1)
            )
            converged = (k + 1 >= WINDOW) & (recent_losses.std() < self.threshold)
            # A client that has begun in an earlier round makes one pass only.
            return weights, recent_losses, done | state["began"] | converged

        recent_losses = jnp.zeros(WINDOW, sums_type(theta))
        weights, _, _ = local.fori_loop(
            self.max_passes, one_pass, (state["weights"], recent_losses, ~is_different)
        )
        return weights, state["began"] | is_different

    def _sampled(self, local: LocalTrainer) -> LocalTrainer:
        """The client with the samples on which it learns the weights in this round."""
        count = jnp.maximum(jnp.round(self.share * local.size), 1).astype(jnp.int32)
        first = jax.random.randint(
            local.key("fedala start"), (), 0, local.size - count + 1
        )
        return local.part(first, first + count, "fedala")
