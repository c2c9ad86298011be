"""fluke, from its package: its servers and clients train, their data and loss are ours."""

import importlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from properties import (
    ALL,
    Buffers,
    CannotBeAsked,
    Task,
    Trained,
    clients,
    without_vision_operators,
)

CLASSES = {
    "FedAvg": ("fedavg", "FedAVG", {}),
    "FedProx": ("fedprox", "FedProx", {"mu": "coupling"}),
    "SCAFFOLD": ("scaffold", "SCAFFOLD", {}),
    "FedDyn": ("feddyn", "FedDyn", {"alpha": "coupling"}),
    "Ditto": ("ditto", "Ditto", {"lam": "coupling", "tau": "steps"}),
    "APFL": ("apfl", "APFL", {"lam": "coupling"}),
    "pFedMe": ("pfedme", "PFedMe", {}),
    "Per-FedAvg": ("per_fedavg", "PerFedAVG", {"beta": "lr"}),
    "FedAMP": ("fedamp", "FedAMP", {"lam": "coupling"}),
    "FedRep": ("fedrep", "FedRep", {"tau": "steps"}),
    "FedBN": ("fedbn", "FedBN", {}),
}


class Loss(torch.nn.Module):
    """Half the mean of squares."""

    def forward(self, output, target):
        return 0.5 * ((output.squeeze(-1) - target) ** 2).mean()


class Split:
    """The clients' data as fluke's splitters give them."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def assign(self, count: int, batch_size: int):
        from fluke.data import FastDataLoader

        loaders = [
            FastDataLoader(
                torch.tensor(x),
                torch.tensor(y),
                num_labels=2,
                batch_size=batch_size,
                shuffle=False,
            )
            for x, y in self.task.clients
        ]
        return (loaders, [None] * count), None


class Library:
    name = "fluke"
    precise = True
    methods: Sequence[str] = tuple(CLASSES)

    def __init__(self, source: Path | None, commit: str) -> None:
        without_vision_operators()
        self.version = version("fluke-fl")
        torch.set_default_dtype(torch.float64)

    def algorithm(self, method: str, task: Task, model: torch.nn.Module):
        from fluke import DDict

        module, name, settings = CLASSES[method]
        cls = getattr(importlib.import_module(f"fluke.algorithms.{module}"), name)
        batch = task.batch_size
        if method == "Per-FedAvg" and batch == ALL:
            batch = len(task.clients[0][1]) // 2
        client = {
            "batch_size": batch,
            "local_epochs": task.steps,
            "loss": (lambda: task.loss) if task.loss else Loss,
            "optimizer": {"name": "SGD", "lr": task.lr},
            "scheduler": {"name": "StepLR", "step_size": 10**6, "gamma": 1},
            **{key: getattr(task, value) for key, value in settings.items()},
        }
        server: dict = {"weighted": True}
        if method == "FedRep":
            from fluke.nets import EncoderHeadNet

            # The server has the body only.
            client["model"] = EncoderHeadNet(model[:-1], model[-1])
            model = model[:-1]
        if method in ("Ditto", "APFL", "FedAMP"):
            client["model"] = model
        if method == "APFL":
            server["tau"] = 1
        if method == "pFedMe":
            client["optimizer"] |= {"lamda": task.coupling}
            client["k"] = 5
        if method in ("Ditto", "FedDyn", "SCAFFOLD"):
            server["weighted"] = False
        if method == "FedDyn":
            server["alpha"] = task.coupling
        if method == "Per-FedAvg":
            client["mode"] = "FO"
        hyper = DDict(client=DDict(client), server=DDict(server), model=model)
        return cls(len(task.clients), Split(task), hyper)

    def train_network(self, method: str, task: Task, model: torch.nn.Module):
        algorithm = self.algorithm(method, task, model)
        for number in range(task.rounds):
            # What `run` does in a round, without its progress bars and evaluations.
            if number == 0:
                algorithm._round_zero()
            eligible = list(algorithm.clients)
            algorithm.server.broadcast_model(eligible)
            for client in eligible:
                client.local_update(number + 1)
            sent = algorithm.server.receive_client_models(eligible, state_dict=False)
            algorithm.server.aggregate(eligible, sent)
            algorithm.rounds += 1
            task.after_round()
        return algorithm

    def train(self, method: str, task: Task) -> Trained:
        model = torch.nn.Linear(len(task.start), 1, bias=False)
        model.weight.data[:] = torch.tensor(task.start)
        if method == "pFedMe" and task.coupling == 0:
            raise CannotBeAsked("without lambda pFedMe's server does not move")
        algorithm = self.train_network(method, task, model)

        def vector(model: torch.nn.Module) -> np.ndarray:
            return model.weight.detach().numpy().ravel().copy()

        shared = vector(algorithm.server.model)
        personal = [shared] * len(task.clients)
        if method in ("Ditto", "APFL", "FedAMP"):
            personal = [vector(one.personalized_model) for one in algorithm.clients]
        if method == "pFedMe":
            personal = [vector(one.model) for one in algorithm.clients]
        return Trained(shared, personal)

    def buffers(self) -> Buffers:
        found, _ = clients()

        def network() -> torch.nn.Module:
            torch.manual_seed(0)
            return torch.nn.Sequential(
                torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
            )

        algorithm = self.train_network(
            "FedAvg", Task(found, np.zeros(3), rounds=1), network()
        )
        trained = [
            one.model[1].running_mean.detach().numpy().copy()
            for one in algorithm.clients
        ]
        algorithm.server.broadcast_model(algorithm.clients)
        received = []
        for one in algorithm.clients:
            one.receive_model()
            received.append(one.model[1].running_mean.detach().numpy().copy())
        server = algorithm.server.model[1].running_mean.detach().numpy().copy()
        return Buffers(received, server, trained, [len(y) for _, y in found])
