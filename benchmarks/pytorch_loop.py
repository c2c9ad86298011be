"""The yardstick: federated averaging as a plain, well-written PyTorch loop, in one
process or in several.
"""

import math
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch_networks
from cells import Cell
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch_networks import cnn_5x5, dense, lenet5

from fedtailor.models.cnn_5x5 import CNN5x5
from fedtailor.models.resnet18 import ResNet18

Order = Callable[[int], NDArray[np.int64]]
"""The order in which a client visits its samples."""


class Loop:
    """Some clients of a cell. Samples are rows of one tensor; there is no loader."""

    def __init__(
        self, cell: Cell, clients: range, lr: float, device: str = "cpu"
    ) -> None:
        federation = cell.federation
        x = torch.from_numpy(federation.x).to(device)
        y = torch.from_numpy(federation.y).to(device)
        if len(cell.input_shape) == 3:
            x = x.permute(0, 3, 1, 2).contiguous()
        rows = [
            torch.from_numpy(federation.train[client].astype(np.int64))
            for client in clients
        ]
        self.data = [(x[row], y[row]) for row in rows]
        self.share = [len(row) / len(federation.train.rows) for row in rows]
        self.clients, self.batch_size = clients, cell.batch_size
        self.model = network(cell).to(device)
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def round(self, theta: torch.Tensor, order: Order | None = None) -> torch.Tensor:
        """The clients' part of the average after one epoch each from theta [d]."""
        average = torch.zeros_like(theta)
        for client, share, (x, y) in zip(
            self.clients, self.share, self.data, strict=True
        ):
            with torch.no_grad():
                vector_to_parameters(
                    theta.clone(), self.model.parameters()
                )  # they become views of the copy
            rows = (
                torch.randperm(len(y), device=y.device)
                if order is None
                else torch.from_numpy(order(client)).to(y.device)
            )
            for start in range(0, len(rows), self.batch_size):
                batch = rows[start : start + self.batch_size]
                self.optimizer.zero_grad()
                self.loss(self.model(x[batch]), y[batch]).backward()
                self.optimizer.step()
            with torch.no_grad():
                average += share * parameters_to_vector(self.model.parameters())
        return average


class Processes:
    """The same loop in several processes of one thread each, between which the clients
    are divided.
    """

    def __init__(self, cell: Cell, lr: float, count: int) -> None:
        """Start them. Neighbours go to different processes, so that all have about
        equal work.
        """
        context = get_context("spawn")
        self.pipes: list[Connection] = []
        self.workers: list[Any] = []
        for place in range(count):
            here, there = context.Pipe()
            clients = range(place, len(cell.sizes), count)
            worker = context.Process(
                target=_serve, args=(cell, clients, lr, there), daemon=True
            )
            worker.start()
            self.pipes.append(here)
            self.workers.append(worker)

    def round(self, theta: torch.Tensor) -> torch.Tensor:
        for pipe in self.pipes:
            pipe.send(theta.numpy())
        return torch.from_numpy(sum(pipe.recv() for pipe in self.pipes))

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for worker in self.workers:
            worker.join()


def _serve(cell: Cell, clients: range, lr: float, pipe: Connection) -> None:
    torch.set_num_threads(1)
    loop = Loop(cell, clients, lr)
    while (theta := pipe.recv()) is not None:
        pipe.send(loop.round(torch.from_numpy(theta)).numpy())


def network(cell: Cell) -> nn.Module:
    """The cell's model in PyTorch's own layers and layouts."""
    architecture, shape = cell.architecture, cell.input_shape
    if isinstance(architecture, CNN5x5):
        return cnn_5x5(shape[-1], shape[0], cell.classes)
    if isinstance(architecture, ResNet18):
        return torch_networks.ResNet18(cell.classes)
    pool = getattr(architecture, "pool", "")
    if not pool:
        widths = (math.prod(shape), *getattr(architecture, "hidden", ()), cell.classes)
        return nn.Sequential(nn.Flatten(), *dense(widths))
    layer = nn.AvgPool2d if pool == "average" else nn.MaxPool2d
    return lenet5(shape[-1], shape[0], cell.classes, layer)


def to_torch(cell: Cell, theta: NDArray[np.float32]) -> torch.Tensor:
    """This library's parameters theta [d] as PyTorch orders them, without the running
    statistics, which training does not read.
    """
    found = jax.tree.leaves_with_path(cell.model.params(jnp.asarray(theta)))
    leaves = [
        leaf for path, leaf in found if "running_" not in jax.tree_util.keystr(path)
    ]
    vectors = []
    for leaf, like in zip(leaves, network(cell).parameters(), strict=True):
        vectors.append(_torch_layout(np.asarray(leaf), tuple(like.shape)).reshape(-1))
    return torch.cat(vectors)


def _torch_layout(leaf: NDArray[np.float32], shape: tuple[int, ...]) -> torch.Tensor:
    """A matrix kept as [inputs, outputs], or a kernel [k, k, inputs, outputs], in
    PyTorch's shape.
    """
    if leaf.shape != shape:
        leaf = leaf.T if leaf.ndim == 2 else leaf.transpose(3, 2, 0, 1)
    return torch.from_numpy(leaf.copy())
