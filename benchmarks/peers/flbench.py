"""FL-bench, from a checkout: its servers and clients train, their data and loss are ours."""

import contextlib
import importlib
import io
import itertools
import json
import pickle
import sys
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace

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

MODULES = {
    "FedAvg": ("fedavg", "FedAvgServer"),
    "FedProx": ("fedprox", "FedProxServer"),
    "SCAFFOLD": ("scaffold", "SCAFFOLDServer"),
    "FedDyn": ("feddyn", "FedDynServer"),
    "Ditto": ("ditto", "DittoServer"),
    "APFL": ("apfl", "APFLServer"),
    "pFedMe": ("pfedme", "pFedMeServer"),
    "Per-FedAvg": ("perfedavg", "PerFedAvgServer"),
    "FedRep": ("fedrep", "FedRepServer"),
    "FedBN": ("fedbn", "FedBNServer"),
}
DATASET = "questions"


class Library:
    name = "FL-bench"
    precise = False
    methods = tuple(MODULES)

    def __init__(self, source: Path, commit: str) -> None:
        without_vision_operators()
        # It tells the memory of GPUs, of which none is used.
        sys.modules.setdefault("pynvml", types.ModuleType("pynvml"))
        self.version, self.source = commit, source
        sys.path.insert(0, str(source))

    def server(self, method: str, task: Task, network: torch.nn.Module):
        from omegaconf import OmegaConf

        fedavg = importlib.import_module("src.server.fedavg")
        base = importlib.import_module("src.utils.models").DecoupledModel
        name, cls = MODULES[method]
        server_cls = getattr(importlib.import_module(f"src.server.{name}"), cls)
        arguments = OmegaConf.load(self.source / "config" / "defaults.yaml")
        arguments.method, arguments.dataset.name = name, DATASET
        arguments.model.name = DATASET
        arguments.optimizer.lr = task.lr
        common = arguments.common
        common.join_ratio, common.global_epoch = 1.0, task.rounds
        common.local_epoch, common.batch_size = task.steps, task.batch_size
        if method == "FedRep":
            # Of these passes the last one trains the body, those before it the head.
            common.local_epoch += 1
        common.use_cuda = common.client_side_evaluation = False
        common.save_log = common.save_metrics = common.save_learning_curve_plot = False
        defaults = getattr(server_cls, "get_hyperparams", None)
        settings = vars(defaults([])) if defaults else {}
        changes = {
            "fedprox": {"mu": task.coupling},
            "feddyn": {"alpha": task.coupling, "max_grad_norm": 1e9},
            "ditto": {"lamda": task.coupling, "pers_epoch": task.steps},
            "apfl": {"alpha": task.coupling, "adaptive_alpha": 0},
            "pfedme": {"lamda": task.coupling, "pers_lr": task.lr},
            "perfedavg": {"beta": task.lr},
        }
        arguments[name] = {**settings, **changes.get(name, {})}
        if method == "Per-FedAvg" and task.batch_size == ALL:
            common.batch_size = len(task.clients[0][1]) // 2
        arguments = OmegaConf.create(OmegaConf.to_container(arguments))

        class Model(base):
            def __init__(self, dataset, pretrained) -> None:
                super().__init__()
                self.base, self.classifier = network, torch.nn.Identity()
                if method == "FedRep":
                    self.base, self.classifier = network[:-1], network[-1]

        class Data(torch.utils.data.Dataset):
            def __init__(self, **_) -> None:
                x = np.concatenate([x for x, _ in task.clients])
                y = np.concatenate([y for _, y in task.clients])
                self.x = torch.tensor(x, dtype=torch.float32)
                # Labels stay whole numbers.
                self.y = torch.tensor(y, dtype=None if task.loss else torch.float32)

            def __len__(self) -> int:
                return len(self.y)

            def __getitem__(self, number):
                return self.x[number], self.y[number]

            def train(self) -> None:
                pass

            eval = train

        folder = Path(tempfile.mkdtemp()) / "data" / DATASET
        folder.mkdir(parents=True)
        ends = np.cumsum([0, *(len(y) for _, y in task.clients)])
        numbers = list(range(len(task.clients)))
        split = {"train": numbers, "val": [], "test": [], "total": len(numbers)}
        indices = [
            {"train": list(range(a, b)), "val": [], "test": []}
            for a, b in itertools.pairwise(ends)
        ]
        partition = {"separation": split, "data_indices": indices}
        (folder / "partition.pkl").write_bytes(pickle.dumps(partition))
        (folder / "args.json").write_text(json.dumps({"split": "sample"}))
        fedavg.FLBENCH_ROOT = folder.parents[1]
        output = SimpleNamespace(output_dir=str(folder))
        fedavg.HydraConfig = SimpleNamespace(
            get=lambda: SimpleNamespace(runtime=output)
        )
        fedavg.MODELS[DATASET], fedavg.DATASETS[DATASET] = Model, Data
        server = server_cls(arguments)

        def loss(output, target):
            return 0.5 * ((output.squeeze(-1) - target) ** 2).mean()

        server.trainer.worker.criterion = task.loss or loss
        return server

    def train_network(self, method: str, task: Task, network: torch.nn.Module):
        with contextlib.redirect_stdout(io.StringIO()):
            server = self.server(method, task, network)
            for number in range(task.rounds):
                server.current_epoch = number
                server.selected_clients = list(range(len(task.clients)))
                server.train_one_round()
                task.after_round()
        return server

    def train(self, method: str, task: Task) -> Trained:
        network = torch.nn.Linear(len(task.start), 1, bias=False)
        network.weight.data[:] = torch.tensor(task.start, dtype=torch.float32)
        if method == "pFedMe" and task.coupling == 0:
            raise CannotBeAsked("without lambda pFedMe's server does not move")
        server = self.train_network(method, task, network)

        def vector(parameters) -> np.ndarray:
            values = [one.detach().numpy().ravel() for one in parameters.values()]
            return np.concatenate(values).astype(float)

        shared = vector(server.public_model_params)
        personal = [shared] * len(task.clients)
        if method in ("Ditto", "pFedMe"):
            found = server.clients_personalized_model_params
            personal = [vector(found[i]) for i in range(len(task.clients))]
        if method == "APFL":
            personal = [
                float(server.client_alphas[i]) * vector(own)
                + (1 - float(server.client_alphas[i])) * shared
                for i, own in server.client_local_model_params.items()
            ]
        return Trained(shared, personal)

    def buffers(self) -> Buffers:
        torch.manual_seed(0)
        found, _ = clients()

        def network() -> torch.nn.Module:
            torch.manual_seed(0)
            return torch.nn.Sequential(
                torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
            )

        def statistics(server) -> np.ndarray:
            names = [name for name in server.public_model_params if "mean" in name]
            return server.public_model_params[names[0]].detach().numpy().astype(float)

        task = Task(found, np.zeros(3), rounds=1)
        server = self.train_network("FedAvg", task, network())
        alone = [
            self.train_network("FedAvg", Task([one], np.zeros(3), rounds=1), network())
            for one in found
        ]
        shared = statistics(server)
        received = []
        for number in range(len(found)):
            sent = server.get_client_model_params(number)["regular_model_params"]
            name = next(name for name in sent if "mean" in name)
            received.append(sent[name].detach().numpy().astype(float))
        return Buffers(
            received,
            shared,
            [statistics(one) for one in alone],
            [len(y) for _, y in found],
        )
