"""PFLlib, from a checkout: its servers and clients train, their data and loss are ours."""

import ast
import contextlib
import io
import sys
import types
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from properties import ALL, Buffers, CannotBeAsked, Task, Trained, clients

SERVERS = {
    "FedAvg": ("serveravg", "FedAvg"),
    "FedProx": ("serverprox", "FedProx"),
    "SCAFFOLD": ("serverscaffold", "SCAFFOLD"),
    "FedDyn": ("serverdyn", "FedDyn"),
    "Ditto": ("serverditto", "Ditto"),
    "APFL": ("serverapfl", "APFL"),
    "pFedMe": ("serverpFedMe", "pFedMe"),
    "Per-FedAvg": ("serverperavg", "PerAvg"),
    "FedAMP": ("serveramp", "FedAMP"),
    "FedRep": ("serverrep", "FedRep"),
    "FedBN": ("serverbn", "FedBN"),
}
COUPLING = {
    "FedProx": "mu",
    "Ditto": "mu",
    "pFedMe": "lamda",
    "FedDyn": "alpha",
    "APFL": "alpha",
    "FedAMP": "lamda",
}


class _Parts(torch.nn.Module):
    """A network whose last layer is its head."""

    def __init__(self, network: torch.nn.Sequential) -> None:
        super().__init__()
        self.base, self.head = network[:-1], network[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.base(x))


class _Rounds(list):
    """The seconds of each round, which a server appends when the round has ended."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def append(self, seconds: float) -> None:
        super().append(seconds)
        self.task.after_round()


class Library:
    name = "PFLlib"
    precise = True
    methods = tuple(SERVERS)

    def __init__(self, source: Path, version: str) -> None:
        self.version = version
        self.source = source / "system"
        sys.path.insert(0, str(self.source))
        # A dependency of an attack that is not run here.
        sys.modules.setdefault("utils.dlg", types.ModuleType("utils.dlg"))
        sys.modules["utils.dlg"].DLG = None
        torch.set_default_dtype(torch.float64)

    def arguments(self, **changes) -> Namespace:
        """The defaults of PFLlib's command line, with changes."""
        tree = ast.parse((self.source / "main.py").read_text())
        found = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == (
                "add_argument"
            ):
                name = ast.literal_eval(node.args[-1]).lstrip("-")
                for keyword in node.keywords:
                    if keyword.arg == "default":
                        found[name] = ast.literal_eval(keyword.value)
        return Namespace(**{**found, **changes})

    def server(self, method: str, task: Task, model: torch.nn.Module):
        import importlib

        import flcore.clients.clientbase as clientbase
        import flcore.servers.serverbase as serverbase

        data = [
            [(torch.tensor(x), torch.tensor(y)) for x, y in zip(*client, strict=True)]
            for client in task.clients
        ]

        def read(dataset, number, is_train=True, few_shot=0):
            return data[number]

        clientbase.read_client_data = serverbase.read_client_data = read
        module, name = SERVERS[method]
        changes = {
            "device": "cpu",
            "model": model,
            "num_clients": len(data),
            "local_epochs": task.steps,
            "plocal_epochs": task.steps,
            "local_learning_rate": task.lr,
            "p_learning_rate": task.lr,
            "global_rounds": task.rounds - 1,
            "eval_gap": 10**9,
            "beta": 1.0,
            "algorithm": method,
        }
        if method in COUPLING:
            changes[COUPLING[method]] = task.coupling
        module = importlib.import_module(f"flcore.servers.{module}")
        server = getattr(module, name)(self.arguments(**changes), 0)

        def loss(output, target):
            return 0.5 * ((output.squeeze(-1) - target) ** 2).mean()

        server.Budget = _Rounds(task)
        for client in server.clients:
            client.loss = task.loss or loss
            client.batch_size = task.batch_size
            if task.batch_size == ALL:
                # Per-FedAvg takes two batches for a step.
                halves = 2 if method == "Per-FedAvg" else 1
                client.batch_size = client.train_samples // halves
            if method == "APFL":
                # The property sets the mixture's weight, which the method learns.
                client.alpha_update = lambda: None
        server.evaluate = server.evaluate_personalized = lambda *_: None
        server.evaluate_one_step = lambda *_: None
        server.save_results = server.save_global_model = lambda: None
        server.rs_test_acc = server.rs_test_acc_per = [0.0]
        return server

    def train_network(self, method: str, task: Task, model: torch.nn.Module):
        """Train a network; gives the server."""
        if method == "FedRep":
            model = _Parts(model)
        with contextlib.redirect_stdout(io.StringIO()):
            server = self.server(method, task, model)
            # The mean time over rounds but the first, after training.
            with contextlib.suppress(ZeroDivisionError):
                server.train()
        return server

    def train(self, method: str, task: Task) -> Trained:
        model = torch.nn.Linear(len(task.start), 1, bias=False)
        model.weight.data[:] = torch.tensor(task.start)
        if method == "pFedMe" and task.coupling == 0:
            raise CannotBeAsked("without lambda pFedMe's server does not move")
        server = self.train_network(method, task, model)

        def vector(parameters) -> np.ndarray:
            return np.concatenate(
                [one.detach().numpy().ravel() for one in parameters]
            ).copy()

        personal = []
        for client in server.clients:
            if method in ("Ditto", "APFL"):
                parameters = client.model_per.parameters()
            elif method == "pFedMe":
                parameters = client.personalized_params
            elif method == "FedAMP":
                parameters = client.model.parameters()
            else:
                parameters = server.global_model.parameters()
            personal.append(vector(parameters))
        return Trained(vector(server.global_model.parameters()), personal)

    def buffers(self) -> Buffers:
        torch.manual_seed(0)
        found, _ = clients()
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
        )
        trained = []
        with contextlib.redirect_stdout(io.StringIO()):
            server = self.server("FedAvg", Task(found, np.zeros(3), rounds=1), model)
            with contextlib.suppress(ZeroDivisionError):
                server.train()
            for client in server.clients:
                trained.append(client.model[1].running_mean.numpy().copy())
            server.send_models()
        received = [c.model[1].running_mean.numpy().copy() for c in server.clients]
        return Buffers(
            received,
            server.global_model[1].running_mean.numpy().copy(),
            trained,
            [len(y) for _, y in found],
        )
