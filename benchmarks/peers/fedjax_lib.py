"""FedJAX, from its package: its algorithms train, their data and loss are ours."""

from importlib.metadata import version
from pathlib import Path

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg, fed_prox
from properties import Buffers, CannotBeAsked, Task, Trained


class Whole(fedjax.ClientDataset):
    """A client's data, of which every batch is all."""

    def __init__(self, x, y, steps: int) -> None:
        super().__init__({"x": x, "y": y})
        self.steps = steps

    def shuffle_repeat_batch(self, *_, **__):
        return [self.all_examples()] * self.steps


class Library:
    name = "FedJAX"
    precise = True
    methods = ("FedAvg", "FedProx")

    def __init__(self, source: Path | None, commit: str) -> None:
        jax.config.update("jax_enable_x64", True)
        self.version = version("fedjax")

    def train(self, method: str, task: Task) -> Trained:
        def losses(params, batch, rng):
            return 0.5 * jnp.square(batch["x"] @ params["w"] - batch["y"])

        def mean(params, batch, rng):
            return jnp.mean(losses(params, batch, rng))

        client = fedjax.optimizers.sgd(task.lr)
        server = fedjax.optimizers.sgd(1.0)
        batches = fedjax.ShuffleRepeatBatchHParams(batch_size=1000)
        if method == "FedProx":
            algorithm = fed_prox.fed_prox(
                losses, client, server, batches, task.coupling
            )
        else:
            gradient = jax.grad(mean)
            algorithm = fed_avg.federated_averaging(gradient, client, server, batches)
        state = algorithm.init({"w": jnp.asarray(task.start)})
        clients = [
            (number, Whole(x, y, task.steps), jax.random.PRNGKey(number))
            for number, (x, y) in enumerate(task.clients)
        ]
        for _ in range(task.rounds):
            state, _ = algorithm.apply(state, clients)
        w = np.asarray(state.params["w"])
        return Trained(w, [w] * len(clients))

    def buffers(self) -> Buffers:
        raise CannotBeAsked("its models have parameters and no running statistics")
