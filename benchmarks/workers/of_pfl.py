"""A worker of `frameworks.py`: pfl-research, `FederatedAveraging` over PyTorch, in one
process or under torchrun.

A round that evaluates scores each client's training samples before and after its
training, which is what the algorithm does, and then the averaged model on the test
samples of all clients, its validation cohort.
"""

import sys
from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from worker import Pipe, Task, network, serve, task, torch_data

Samples = Callable[[int], tuple[np.ndarray, np.ndarray]]


class Scored(nn.Module):
    """The network with the two functions that pfl asks of a module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        outputs = self.network(x)
        loss, correct = (
            cross_entropy(outputs, y, reduction="sum"),
            (outputs.argmax(1) == y).sum(),
        )
        return {
            "loss": Weighted(loss.item(), len(y)),
            "accuracy": Weighted(correct.item(), len(y)),
        }


class Simulation:
    """One training: `FederatedAveraging.run` goes on where it stopped, so it is called
    for each round.
    """

    def __init__(self, folder: str, samples: Samples, lr: float) -> None:
        work, module = task(folder), Scored(deepcopy(network(folder)))
        self.model = PyTorchModel(
            module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
        )
        self.algorithm, self.cohort = FederatedAveraging(), len(work.clients)
        self.backend = SimulatedBackend(
            training_data=_data(samples, work),
            val_data=_data(
                lambda client: (work.x_test[client], work.y_test[client]), work
            ),
        )
        self.train = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=lr, local_batch_size=work.batch_size
        )
        self.rounds = 0

    def round(self, evaluate: bool) -> None:
        # evaluated are the rounds that the frequency divides: all, or (but for round 0)
        # not this one
        self.rounds += 1
        params = NNAlgorithmParams(
            central_num_iterations=self.rounds,
            evaluation_frequency=1 if evaluate else self.rounds,
            train_cohort_size=self.cohort,
            val_cohort_size=self.cohort,
        )
        self.algorithm.run(
            params,
            self.backend,
            self.model,
            self.train,
            NNEvalHyperParams(local_batch_size=None),
        )


class PFL:
    def __init__(self, folder: str) -> None:
        self.folder, work = folder, task(folder)
        self.round = Simulation(
            folder, lambda client: (work.x[client], work.y[client]), work.lr
        ).round

    def check(self) -> np.ndarray:
        work = task(self.folder)
        simulation = Simulation(self.folder, work.ordered, work.careful_lr)
        simulation.round(evaluate=False)
        return (
            parameters_to_vector(simulation.model.pytorch_model.parameters())
            .detach()
            .numpy()
        )


def _data(samples: Samples, task: Task) -> FederatedDataset:
    users = [
        Dataset(torch_data(*samples(client)), user_id=str(client))
        for client in task.clients
    ]
    return FederatedDataset(
        users.__getitem__, get_user_sampler("minimize_reuse", task.clients)
    )


def _broadcast(pipe: Pipe | None) -> Iterator[str]:
    """What the first of several processes reads, for all of them."""
    commands = iter(pipe) if pipe else None
    while True:
        command = [next(commands, "") if commands else ""]
        torch.distributed.broadcast_object_list(command)
        if not command[0]:
            return
        yield command[0]


if __name__ == "__main__":
    several = torch.distributed.is_initialized()  # pfl has joined the group by now
    pipe = Pipe() if not several or torch.distributed.get_rank() == 0 else None
    serve(PFL(sys.argv[1]), sys.argv[1], _broadcast(pipe) if several else pipe, pipe)
