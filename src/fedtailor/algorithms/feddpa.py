"""FedDPA: a global adapter, and in addition a local one for each client."""

from typing import ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.shared_part import (
    SharedPart,
    entry_of_part,
    join_parts,
    model_parts_of,
)
from fedtailor.models.low_rank import scale_of_equal_adapters
from fedtailor.protocol import (
    SGD,
    About,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    ModelPart,
    ModelParts,
    Population,
    Predictor,
    Streams,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    server_state,
)


@server_state
class DualAdapters(SharedPart):
    """The global adapter, if local ones are trained after the rounds."""

    scale: float
    """alpha / r, the factor of the global adapter."""


@hyperparameters
class FedDPA(FedPer):
    """Dual-personalizing adapters (Yang et al. 2024): FedDPA-T and FedDPA-F.

    Each weight W of a trained network has two low-rank adapters: a global one, trained
    as in FedAvg, and a local one, which never leaves its client i. For this, a model is
    `lora(network, rank=r, local_rank=q)`. In a round a client trains first the local
    adapter l_i = (A_i, B_i) together with the received global one g = (A, B), then the
    global one alone (FedDPA-T):

        l_i <- SGD(l_i; W + (1 - share) B A + B_i A_i),    g_i <- SGD(g; W + B A),    g <- sum_i q_i g_i

    It predicts with W + (1 - share) B A + B_i A_i. The scale of the local adapter is a
    part of B_i. The paper's share differs from one input to the next at prediction (by
    its similarity to training examples); here it is one number, as in the released code
    during training.

    With `schedule="after"`, rounds train the global adapter only. After them a client
    fine-tunes a copy of it, and predicts with both (FedDPA-F):

        l_i = SGD(g; W + B A),    W + (1 - share) B A + share B_i A_i

    So share 0 is FedAvg, and the nearer share is to 1, the nearer is this to FineTune.
    Both adapters need the same rank. A client keeps nothing between rounds, and a
    client that never took part does the same. The released code has FedDPA-T only.

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
        unseen_clients_get="trains a local adapter in addition to the global one",
        models_received="a part",
        server_sees="sums",
    )

    part: str = "local"
    """The part of the model that stays on the client: the local adapters."""
    share: ZeroIsStatic = 0.5
    """The global adapters count 1 - share next to a client's own; in [0, 1) (released
    code: 0.5).
    """
    schedule: Literal["rounds", "after"] = "rounds"
    """When clients train local adapters: in the "rounds", before the global one
    (FedDPA-T), or once "after" them, from the global one (FedDPA-F).
    """
    tune: SGD = SGD(epochs=5)
    """Training of the local adapter after the rounds, with `schedule="after"`."""

    def __post_init__(self) -> None:
        require(
            0 <= self.share < 1,
            f"share is {self.share}; it must be 0 or more, and below 1 (with 1, clients"
            " train alone: local)",
        )

    def check(self, population: Population) -> None:
        require(
            self.part != "local"
            or "local" in model_parts_of(population, "feddpa").parts,
            "feddpa trains two adapters of each weight, and this model has no second one;"
            " give lora(..., local_rank=8), or --model NAME:lora=8,local_rank=8",
        )
        super().check(population)
        assert population.model is not None
        if not is_off(self.share):
            population.model.part("lora_b")
        if self._is_after:
            require(
                self.part == "local"
                and scale_of_equal_adapters(population.model) is not None,
                "with schedule 'after', a local adapter starts from the global one, and"
                " needs its rank; give lora(..., rank=8, local_rank=8), without freeze_a",
            )

    @property
    def _is_after(self) -> bool:
        return self.schedule == "after"

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> SharedPart:
        server = super().init_server(init, population)
        if not self._is_after:
            return server
        scale = scale_of_equal_adapters(model_parts_of(population, self.about.name))
        assert scale is not None
        return DualAdapters(
            server.model, server.optimizer, server.initial, server.runs, scale
        )

    def serve(self, server: SharedPart, cohort: Cohort) -> Downlink:
        if not isinstance(server, DualAdapters):
            return super().serve(server, cohort)
        # Clients know the model, and so the scale.
        scale = jnp.full(1, server.scale, server.model.dtype)
        streams = Streams.everyone(scale, len(cohort), already_held=True)
        return Downlink({"model": server.part_stream(len(cohort)), "scale": streams})

    # on the client
    # ----------------------------------------------------------------------------------

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        return () if self._is_after else super().init_state(theta, model)

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        return () if self._is_after else super().init_unseen(inbox, local)

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        own, shared = self._own(local), inbox.only("model")
        if not self._is_after:
            both = self._beside(join_parts(own, state, shared), local)
            trained = local.sgd(both, self.sgd, train_only=own)
            state = entry_of_part("own", own.take(trained))
        alone = self._alone(shared, local)
        alone = local.sgd(alone, self.sgd, train_only=own.complement)
        return state, entry_of_part("model", own.complement.take(alone))

    def _alone(
        self, shared: Float[Array, " d_shared"], local: LocalTrainer
    ) -> Float[Array, " d"]:
        """The model without the client's own part, which is zero."""
        own = self._own(local)
        zeros = jnp.zeros(own.size + len(shared), shared.dtype)
        return own.complement.put(zeros, shared)

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
        if self._is_after:
            return self._after(inbox.only("model"), inbox.only("scale")[0], local)
        theta = join_parts(self._own(local), state, inbox.only("model"))
        return self._beside(theta, local)

    def _after(
        self,
        shared: Float[Array, " d_shared"],
        scale: Float[Array, ""],
        local: LocalTrainer,
    ) -> Predictor:
        """The model with the global adapter and its fine-tuned copy."""
        theta = self._alone(shared, local)
        adapter = local.part_of_model("adapter")
        tuned = local.sgd(theta, self.tune, train_only=adapter)
        a, b = (local.part_of_model(f"lora_{factor}").take(tuned) for factor in "ab")
        # The second adapter of a network is not multiplied by alpha / r.
        theta = local.part_of_model("re:local_a$").put(theta, a)
        theta = local.part_of_model("re:local_b$").put(theta, self.share * scale * b)
        return self._beside(theta, local)

    def _train_newcomer(
        self, theta: Float[Array, " d"], own: ModelPart, local: LocalTrainer
    ) -> Float[Array, " d"]:
        if not own.size:
            return theta
        return local.sgd(self._beside(theta, local), self.sgd, train_only=own)
