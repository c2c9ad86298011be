"""FedAS: the shared body is aligned with the client's last one, and weighed by how much
a client still learns.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.aggregation import reporter_weights
from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.class_means import (
    class_sums,
    number_of_classes,
    require_classes,
)
from fedtailor.algorithms.helpers.own_steps import mean_over, pass_over_samples
from fedtailor.algorithms.helpers.shared_part import (
    SharedPart,
    entry_of_part,
    model_parts_of,
)
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    Batch,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    ModelParts,
    Params,
    Population,
    Predictor,
    StepGradient,
    hyperparameters,
    sums_type,
)


@hyperparameters
class FedAS(FedPer):
    """Bridging inconsistency in personalized federated learning (Yang et al. 2024).

    As FedPer, with two additions. Before it trains, a client pulls the features of the
    received body b to the mean features C_k of its classes under the body b_i that it
    trained last, so that its head still fits; and the server weighs the clients' bodies
    by the trace of their Fisher information, which is small for a client that took part
    rarely or has learned all it can:

        b' = SGD(b; sum_k mean_{x of class k} |b(x) - C_k|^2 / size),    (b_i, h_i) <- SGD(b', h_i; D_i)
        t_i = mean_x |grad log p(y | x; b_i, h_i)|^2,    b <- sum_i t_i b_i / sum_S t_j

    The sum over classes k is over those in a batch. A client predicts with the model
    that it trained last. A client that never took part trains the received body under
    the initial head for a round.

    Instead of t_i the released code (and PFLlib) adds up the squared norms of the
    gradients of whole batches, in evaluation mode (`fisher="batches"`), so that clients
    with more batches count more. It aligns the server's body itself, in place: each
    client receives a body that has been aligned with all clients before it.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedas",
        paper=(
            "Yang et al. 2024, FedAS: Bridging Inconsistency in Personalized Federated"
            " Learning"
        ),
        down="1 body",
        up="1 body, and the trace of its Fisher information",
        client_keeps="its model",
        unseen_clients_get="trains the shared body and a head for a round",
        models_received="a part",
        server_sees="sums, numbers",
    )

    align: SGD = SGD(lr=0.01, batch_size=16)
    """Training that aligns the received body (released code: an epoch in batches of 16,
    rate 0.01); 0 steps = the body stays as received.
    """
    fisher: Literal["examples", "batches", "off"] = "examples"
    """What weighs a client: the mean squared norm of the gradients of single examples
    (the trace of the paper), or the sum of those of batches, as in the released code;
    "off" = `weights`, which also count where all traces are 0.
    """

    @property
    def takes_weights(self) -> bool:
        return False  # Fisher information is added up over rows

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        super().check(population)
        model = model_parts_of(population, self.about.name)
        _ = model.feature_shape  # a model without a head is refused here
        require_classes(model, "fedas aligns the mean features of classes")

    def server(
        self, server: SharedPart, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> SharedPart:
        if not cohort.reporting.any():
            return server
        if "model" not in answers or self.fisher == "off":
            return super().server(server, downlink, answers, cohort)
        traces = answers.host("fisher").astype(np.float64)
        traces = np.where(cohort.reporting, traces, 0)
        weights = reporter_weights(cohort, self.weights)
        if traces.any():
            weights = traces / traces.sum()
        return server.update_part(
            self.optimizer, answers["model"], weights[None], cohort.is_statistic
        )

    def serve(self, server: SharedPart, cohort: Cohort) -> Downlink:
        # A client that took part predicts with the model that it has.
        return Downlink() if cohort.seen else super().serve(server, cohort)

    # on the client
    # ----------------------------------------------------------------------------------

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        return {"model": theta}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        last, body = state["model"], self._own(local).complement
        received = body.put(last, inbox.only("model"))
        gradient = self._alignment(last, local)
        aligned = local.sgd(received, self.align, gradient=gradient, train_only=body)
        theta = local.sgd(aligned, self.sgd)
        update = entry_of_part("model", body.take(theta))
        if self.fisher != "off":
            update["fisher"] = self._trace(theta, local)
        return {"model": theta}, update

    def _alignment(self, last: Float[Array, " d"], local: LocalTrainer) -> StepGradient:
        """The gradient of sum_k mean_{x of class k} |z - C_k|^2 / size on a batch.

        Args:
            last: the client's last model, whose mean features are C.
            local: the client.
        """
        classes = number_of_classes(last, local)
        sums = class_sums(last, classes, self.align.batch_size, local)
        means = sums[:, :-1] / jnp.where(sums[:, -1:] > 0, sums[:, -1:], 1)

        def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
            local.count_work(gradients=1)
            is_class = jax.nn.one_hot(batch.y, classes) * batch.weight[:, None]
            share = is_class / jnp.maximum(is_class.sum(axis=0), 1)

            def loss(params: Params) -> Float[Array, ""]:
                z = local.features(params, batch.x)
                apart = jnp.square(z.reshape(len(z), -1) - means[batch.y]).mean(axis=1)
                return (share.sum(axis=1) * apart).sum()

            return jax.grad(loss)(params)

        return gradient

    def _trace(
        self, theta: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, ""]:
        """t_i: mean squared gradients of examples, or a sum of those of batches."""
        params = local.params(theta)

        def add(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
            local.count_work(gradients=1)

            def loss(params: Params) -> Float[Array, ""]:
                scores = local.logits(params, batch.x, training=False)
                return mean_over(
                    local.losses(scores, batch.y, batch.weight), batch.weight
                )

            gradient = local.vector(jax.grad(loss)(params))
            return total + jnp.square(gradient).sum().astype(total.dtype)

        zero = jnp.zeros((), sums_type(theta))
        if self.fisher == "batches":
            return pass_over_samples(local, zero, add, self.sgd.batch_size)
        return pass_over_samples(local, zero, add, 1) / jnp.maximum(local.size, 1)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        body = self._own(local).complement
        theta = body.put(inbox.only("initial"), inbox.only("model"))
        return {"model": local.sgd(theta, self.sgd)}
