"""pfl-research, from its package: its algorithms train, their data and loss are ours."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from properties import Buffers, Task, Trained, clients


class Scored(torch.nn.Module):
    """A network with the two functions that pfl asks of a module."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((self.network(x).squeeze(-1) - y) ** 2).mean()

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Library:
    name = "pfl-research"
    precise = False
    methods = ("FedAvg", "FedProx", "SCAFFOLD")

    def __init__(self, source: Path | None, commit: str) -> None:
        self.version = version("pfl")

    def run(self, method: str, task: Task, network: torch.nn.Module) -> None:
        module = Scored(network)
        model = PyTorchModel(
            module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
        )
        users = [
            Dataset([_float32(x), _float32(y)], user_id=str(number))
            for number, (x, y) in enumerate(task.clients)
        ]
        sampler = get_user_sampler("minimize_reuse", list(range(len(users))))
        data = FederatedDataset(users.__getitem__, sampler)
        common = {
            "central_num_iterations": task.rounds,
            "evaluation_frequency": task.rounds,
            "train_cohort_size": len(users),
            "val_cohort_size": len(users),
        }
        if method == "FedProx":
            algorithm = FedProx()
            settings = FedProxParams(mu=task.coupling, **common)
        elif method == "SCAFFOLD":
            algorithm = SCAFFOLD()
            settings = SCAFFOLDParams(
                population=len(users),
                use_gradient_as_control_variate=False,
                user_state_storage=InMemoryUserStateStorage(),
                **common,
            )
        else:
            algorithm, settings = FederatedAveraging(), NNAlgorithmParams(**common)
        # Clients count by their samples, as in FedAvg's paper.
        weighting = WeightByDatapoints()
        backend = SimulatedBackend(
            training_data=data, val_data=data, postprocessors=[weighting]
        )
        steps = NNTrainHyperParams(
            local_num_epochs=task.steps,
            local_learning_rate=task.lr,
            local_batch_size=None,
        )
        evaluation = NNEvalHyperParams(local_batch_size=None)
        algorithm.run(settings, backend, model, steps, evaluation)

    def train(self, method: str, task: Task) -> Trained:
        network = torch.nn.Linear(len(task.start), 1, bias=False)
        network.weight.data[:] = _float32(task.start)
        self.run(method, task, network)
        w = network.weight.detach().numpy().ravel().astype(float)
        return Trained(w, [w] * len(task.clients))

    def buffers(self) -> Buffers:
        found, _ = clients()

        def statistics(of: list) -> np.ndarray:
            torch.manual_seed(0)
            network = torch.nn.Sequential(
                torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
            )
            self.run("FedAvg", Task(of, np.zeros(3), rounds=1), network)
            return network[1].running_mean.detach().numpy().astype(float)

        server = statistics(found)
        # One model is trained for all clients, one after another: what is there after
        # the round is what each receives.
        return Buffers(
            [server] * len(found),
            server,
            [statistics([one]) for one in found],
            [len(y) for _, y in found],
        )


def _float32(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)
