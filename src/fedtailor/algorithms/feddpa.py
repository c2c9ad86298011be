"""FedDPA: a global adapter, and beside it a local one for each client."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.shared_part import entry_of_part, join_parts
from fedtailor.protocol import (
    About,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    ModelPart,
    Population,
    Predictor,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    require,
)


@hyperparameters
class FedDPA(FedPer):
    """Dual-personalizing adapters (Yang et al. 2024), in the iterative form FedDPA-T.

    Each weight W of a trained network has two low-rank adapters: a global one, trained
    as in FedAvg, and a local one, which never leaves its client i. For this, a model is
    `lora(network, rank=r, local_rank=q)`. In a round a client trains first the local
    adapter l_i = (A_i, B_i) beside the received global one g = (A, B), then the global
    one alone:

        l_i <- SGD(l_i; W + (1 - share) B A + B_i A_i),    g_i <- SGD(g; W + B A),    g <- sum_i q_i g_i

    It predicts with W + (1 - share) B A + B_i A_i. The scale of the local adapter is a
    part of B_i. The paper's share differs from one input to the next at prediction (by
    its similarity to training examples); here it is one number, as in the released code
    during training.

    With any other part in the place of the local adapter, this part is zero while the
    rest is trained for all.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="feddpa",
        paper=(
            "Yang et al. 2024, Dual-Personalizing Adapter for Federated Foundation Models"
        ),
        down="1 global adapter",
        up="1 global adapter",
        client_keeps="its local adapter",
        unseen_clients_get="trains a local adapter beside the global one",
        models_received="a part",
        server_sees="sums",
    )

    part: str = "local"
    """The part of the model that stays on the client: the local adapters."""
    share: ZeroIsStatic = 0.5
    """The global adapters count 1 - share beside the local ones, in [0, 1) (released
    code: 0.5).
    """

    def __post_init__(self) -> None:
        require(
            0 <= self.share < 1,
            f"share is {self.share}; it must be 0 or more, and below 1 (with 1, clients"
            " train alone: local)",
        )

    def check(self, population: Population) -> None:
        super().check(population)
        assert population.model is not None
        if not is_off(self.share):
            population.model.part("lora_b")

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        own, shared = self._own(local), inbox.only("model")
        both = self._beside(join_parts(own, state, shared), local)
        trained = local.sgd(both, self.sgd, train_only=own)
        alone = own.put(both, jnp.zeros(own.size, both.dtype))
        alone = own.complement.put(alone, shared)
        alone = local.sgd(alone, self.sgd, train_only=own.complement)
        return entry_of_part("own", own.take(trained)), entry_of_part(
            "model", own.complement.take(alone)
        )

    def _beside(
        self, theta: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, " d"]:
        """The model in which the global adapters count 1 - share."""
        if is_off(self.share):
            return theta
        b = local.part_of_model("lora_b")
        return b.put(theta, (1 - self.share) * b.take(theta))

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = join_parts(self._own(local), state, inbox.only("model"))
        return self._beside(theta, local)

    def _train_newcomer(
        self, theta: Float[Array, " d"], own: ModelPart, local: LocalTrainer
    ) -> Float[Array, " d"]:
        if not own.size:
            return theta
        return local.sgd(self._beside(theta, local), self.sgd, train_only=own)
