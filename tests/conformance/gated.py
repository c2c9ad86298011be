"""Gated: a gate of the client's own mixes the features of its model and of the global one."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientUpdate,
    CombinedPredictor,
    Inbox,
    LocalTrainer,
    PredictingModel,
    Predictor,
    hyperparameters,
    predictor,
)


@predictor
class Gate(CombinedPredictor):
    """The global model and the client's own, [2, d], and the gate between them.

    z = s z(x; own) + (1 - s) z(x; global),  s = sigmoid(weight z(x; global) + bias)
    """

    models: Array
    gate: dict[str, Array]

    def outputs(
        self, model: PredictingModel | LocalTrainer
    ) -> Callable[[Array], Array]:
        shared, own = model.params(self.models[0]), model.params(self.models[1])

        def gated(x: Array) -> Array:
            general = model.features(shared, x)
            share = jax.nn.sigmoid(self.gate["weight"] * general + self.gate["bias"])
            z = share * model.features(own, x) + (1 - share) * general
            return model.head_outputs(own, z)

        return gated


@hyperparameters
class Gated(FedAvg):
    """FedAvg, beside a model of the client's own and a gate that mixes their features."""

    about: ClassVar[About] = About(
        name="gated",
        paper="an example, see docs/write-an-algorithm.md",
        down="1 model",
        up="1 model",
        client_keeps="a model and a gate",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    own: SGD = SGD(lr=0.05, batch_size=8, steps=3)
    """Training of the client's own model and of its gate."""

    def init_client(self, theta: Array) -> Any:
        zero = jnp.zeros((), theta.dtype)
        return {"own": theta, "gate": {"weight": zero, "bias": zero}}

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        _, update = super().client((), inbox, local)
        own = local.sgd(state["own"], self.own)
        models = jnp.stack([inbox.only("model"), own])

        def step(gate: Any, batch: Batch, index: Array) -> Any:
            def loss(gate: Any) -> Array:
                outputs = Gate(models, gate).outputs(local)(batch.x)
                losses = local.losses(outputs, batch.y, batch.weight)
                return losses @ batch.weight / batch.weight.sum()

            local.count_work(gradients=2)
            slopes = jax.grad(loss)(gate)
            return jax.tree.map(
                lambda old, slope: old - self.own.lr * slope, gate, slopes
            )

        steps = local.steps(self.own)
        gate = local.loop(
            state["gate"], step, steps, self.own.batch_size, purpose="gate"
        )
        return {"own": own, "gate": gate}, update

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        return Gate(jnp.stack([inbox.only("model"), state["own"]]), state["gate"])
