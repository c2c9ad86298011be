"""FedBN: the normalisation layers stay on the client."""

from typing import ClassVar

from jaxtyping import Array, Float, Int

from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.own_steps import loop_over_batches
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    LocalTrainer,
    ModelPart,
    Params,
    hyperparameters,
)


@hyperparameters
class FedBN(FedPer):
    """Federated learning on non-IID features via local batch normalization.

    Li et al. 2021, algorithm 1.

    Scales, offsets and running statistics of all normalisation layers stay on the
    client; everything else is FedAvg's:

        w_i <- SGD(w, norm_i; D_i),    w <- sum_i q_i w_i  outside normalisation layers

    The layers are found by their type, not by their name. A model without any is
    trained by FedAvg. A client that never took part keeps the initial scales and
    offsets and takes running statistics from one pass over its data.

    The released code finds the layers by "bn" in their names, and gives all clients
    equal weights (`weights="uniform"`); rate, epochs, batches and what stays on the
    client are the same.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedbn",
        paper=(
            "Li et al. 2021, FedBN: Federated Learning on Non-IID Features via Local"
            " Batch Normalization"
        ),
        down="1 model without normalisation layers",
        up="1 model without normalisation layers",
        client_keeps="its normalisation layers",
        unseen_clients_get="the shared model, with running statistics from its own data",
        models_received="a part",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01, epochs=1, batch_size=32)
    """Local training (released code)."""
    part: str = "norm"
    """The part of the model that stays on the client."""

    def own_part(self, parts: tuple[str, ...]) -> str:
        # In a model without normalisation layers nothing stays on the client.
        return "nothing" if self.part == "norm" and "norm" not in parts else self.part

    def _train_newcomer(
        self, theta: Float[Array, " d"], own: ModelPart, local: LocalTrainer
    ) -> Float[Array, " d"]:
        if own.size == 0:
            return theta

        # One pass over the client's data in training mode updates the running
        # statistics. No parameter is trained.
        def update(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
            local.count_work(forwards=1)
            return local.renew_statistics(params, batch)

        one_pass = SGD(batch_size=self.sgd.batch_size)
        return local.vector(
            loop_over_batches(local, local.params(theta), update, one_pass)
        )
