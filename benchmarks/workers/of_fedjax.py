"""A worker of `frameworks.py`: FedJAX, `fedjax.algorithms.fed_avg`, one compiled call
for each step.

With several devices, clients are spread over them by its pmap backend. It evaluates the
averaged model on the test samples of all clients, as its examples do. Version 0.0.17
needs jax < 0.6, for `jax.tree_map`.
"""

import sys
from collections.abc import Callable
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from worker import Pipe, Task, serve, task


class FedJAX:
    def __init__(self, task: Task) -> None:
        self.task = task
        if jax.local_device_count() > 1:
            jax.config.update(
                "jax_pmap_no_rank_reduction", False
            )  # that backend counts on one axis less
            fedjax.set_for_each_client_backend("pmap")
        self.model = fedjax.create_model_from_haiku(
            hk.transform(lambda batch: _network(image=task.x.ndim == 5)(batch["x"])),
            {"x": task.x[0, :1], "y": task.y[0, :1]},
            lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(
                batch["y"], outputs
            ),
            {
                "loss": fedjax.metrics.CrossEntropyLoss(),
                "accuracy": fedjax.metrics.Accuracy(),
            },
        )
        self.init = _from_torch(task.theta, self.model.init(jax.random.PRNGKey(0)))
        self.algorithm = self._fed_avg(task.lr, shuffle=True)
        self.state = self.algorithm.init(self.init)
        self.sampler = _everyone(lambda client: (task.x[client], task.y[client]), task)
        self.test = _data(
            lambda client: (task.x_test[client], task.y_test[client]), task
        )

    def check(self) -> np.ndarray:
        algorithm = self._fed_avg(self.task.careful_lr, shuffle=False)
        clients = _everyone(self.task.ordered, self.task).sample()
        state, _ = algorithm.apply(algorithm.init(self.init), clients)
        return _to_torch(state.params)

    def round(self, evaluate: bool) -> None:
        self.state, _ = self.algorithm.apply(self.state, self.sampler.sample())
        if evaluate:
            batches = fedjax.padded_batch_federated_data(self.test, batch_size=256)
            jax.device_get(
                fedjax.evaluate_model(self.model, self.state.params, batches)
            )
        jax.block_until_ready(self.state.params)

    def _fed_avg(self, lr: float, shuffle: bool) -> fedjax.FederatedAlgorithm:
        return fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(self.model),
            fedjax.optimizers.sgd(lr),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(
                self.task.batch_size, skip_shuffle=not shuffle
            ),
        )


Samples = Callable[[int], tuple[np.ndarray, np.ndarray]]


def _data(samples: Samples, task: Task) -> fedjax.InMemoryFederatedData:
    clients = {
        client: dict(zip("xy", samples(client), strict=True)) for client in task.clients
    }
    return fedjax.InMemoryFederatedData(clients)


def _everyone(samples: Samples, task: Task) -> fedjax.client_samplers.ClientSampler:
    return fedjax.client_samplers.UniformGetClientSampler(
        _data(samples, task), len(task.clients), seed=0
    )


def _network(image: bool) -> hk.Sequential:
    dense = [hk.Flatten(), *_dense((120, 84, 10) if image else (128, 10))]
    if not image:
        return hk.Sequential(dense)
    # flattened as PyTorch does, channels first
    return hk.Sequential(
        [*_conv(6), *_conv(16), lambda x: x.transpose(0, 3, 1, 2), *dense]
    )


def _dense(widths: tuple[int, ...]) -> list[Any]:
    return [layer for width in widths for layer in (hk.Linear(width), jax.nn.relu)][:-1]


def _conv(channels: int) -> list[Any]:
    return [
        hk.Conv2D(channels, 5, padding="VALID"),
        jax.nn.relu,
        hk.AvgPool(2, 2, "VALID", channel_axis=-1),
    ]


def _from_torch(theta: np.ndarray, like: Any) -> Any:
    """PyTorch's parameters in Haiku's layout: [inputs, outputs] and [k, k, inputs,
    outputs].
    """
    params, start = {}, 0
    for module, arrays in like.items():
        params[module] = {}
        for name in ("w", "b"):
            shape = arrays[name].shape
            leaf = theta[start : start + arrays[name].size]
            start += len(leaf)
            if len(shape) == 4:
                leaf = leaf.reshape(shape[3], shape[2], *shape[:2]).transpose(
                    2, 3, 1, 0
                )
            params[module][name] = jnp.asarray(
                leaf.reshape(shape[::-1]).T if len(shape) == 2 else leaf
            )
    return params


def _to_torch(params: Any) -> np.ndarray:
    leaves = [
        np.asarray(arrays[name]) for arrays in params.values() for name in ("w", "b")
    ]
    return np.concatenate(
        [
            (leaf.transpose(3, 2, 0, 1) if leaf.ndim == 4 else leaf.T).ravel()
            for leaf in leaves
        ]
    )


if __name__ == "__main__":
    pipe, folder = Pipe(), sys.argv[1]
    serve(FedJAX(task(folder)), folder, pipe, pipe)
