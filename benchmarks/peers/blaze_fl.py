"""BlazeFL, from a checkout: its FedAvg trains, its data and loss are ours."""

import importlib
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from properties import Buffers, Task, Trained, clients


class Selector:
    """Gives one network, whatever the name."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.network = network

    def select_model(self, model_name: str) -> torch.nn.Module:
        return deepcopy(self.network)


class Data:
    """The clients' data, each in one batch."""

    def __init__(self, task: Task) -> None:
        self.tensors = [(torch.tensor(x), torch.tensor(y)) for x, y in task.clients]
        self.batch_size = task.batch_size

    def get_dataset(self, type_, cid):
        return torch.utils.data.TensorDataset(*self.tensors[cid])

    def set_dataset(self, type_, cid, dataset) -> None:
        pass

    def get_dataloader(self, type_, cid, batch_size, generator=None):
        return torch.utils.data.DataLoader(
            self.get_dataset(type_, cid), self.batch_size, shuffle=True
        )


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * ((output.squeeze(-1) - target) ** 2).mean()


class Library:
    name = "BlazeFL"
    precise = True
    methods = ("FedAvg",)

    def __init__(self, source: Path, commit: str) -> None:
        sys.path.insert(0, str(source / "src"))
        self.fedavg = importlib.import_module("blazefl.contrib.fedavg")
        self.version = commit
        torch.set_default_dtype(torch.float64)

    def train_network(self, method: str, task: Task, network: torch.nn.Module):
        selector, data, count = Selector(network), Data(task), len(task.clients)
        of_server = (selector, "", data, task.rounds, count, 1.0, "cpu", 1000)
        of_trainer = (selector, "", data, "cpu", count)
        steps = (task.steps, task.batch_size, task.lr)
        if hasattr(self.fedavg, "FedAvgBaseServerHandler"):
            server = self.fedavg.FedAvgBaseServerHandler(*of_server, 0)
            trainer = self.fedavg.FedAvgBaseClientTrainer(*of_trainer, *steps, 0)
        else:
            # Before it had seeds (June 2025).
            server = self.fedavg.FedAvgServerHandler(*of_server)
            trainer = self.fedavg.FedAvgSerialClientTrainer(*of_trainer, *steps)
        trainer.criterion = task.loss or loss
        while not server.if_stop():
            sampled = server.sample_clients()
            trainer.local_process(server.downlink_package(), sampled)
            for package in trainer.uplink_package():
                server.load(package)
            task.after_round()
        return server, trainer

    def train(self, method: str, task: Task) -> Trained:
        network = torch.nn.Linear(len(task.start), 1, bias=False)
        network.weight.data[:] = torch.tensor(task.start)
        server, _ = self.train_network("FedAvg", task, network)
        w = server.model.weight.detach().numpy().ravel().copy()
        return Trained(w, [w] * len(task.clients))

    def buffers(self) -> Buffers:
        found, _ = clients()

        def trained(of: list):
            torch.manual_seed(0)
            network = torch.nn.Sequential(
                torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
            )
            task = Task(of, np.zeros(3), rounds=1)
            return self.train_network("FedAvg", task, network)

        def statistics(module: torch.nn.Module) -> np.ndarray:
            return module[1].running_mean.detach().numpy().copy()

        server, trainer = trained(found)
        # What a client trains with after it has received the next model.
        self.fedavg.deserialize_model(
            trainer.model, server.downlink_package().model_parameters
        )
        return Buffers(
            [statistics(trainer.model)] * len(found),
            statistics(server.model),
            [statistics(trained([one])[1].model) for one in found],
            [len(y) for _, y in found],
        )
