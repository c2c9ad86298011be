"""A worker of `frameworks.py`: Flower's simulation on Ray, `FedAvg` with one actor for
each core.

Flower leaves local training to its user; this one is the plain PyTorch loop. A round
that evaluates scores the averaged model at every client on its test samples, as
`FedAvg` does unless told otherwise.
"""

import sys

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from measuring import cores
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from worker import Pipe, Task, network, serve, task, torch_data

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    work, model, client = _received(message, context)
    x, y = torch_data(work.x[client], work.y[client])
    rows = (
        torch.from_numpy(work.order[client])
        if config["check"]
        else torch.randperm(len(y))
    )
    optimizer = torch.optim.SGD(
        model.parameters(), lr=work.careful_lr if config["check"] else work.lr
    )
    for start in range(0, len(rows), work.batch_size):
        batch = rows[start : start + work.batch_size]
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(content), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    work, model, client = _received(message, context)
    x, y = torch_data(work.x_test[client], work.y_test[client])
    with torch.no_grad():
        outputs = model(x)
        loss, accuracy = (
            cross_entropy(outputs, y).item(),
            (outputs.argmax(1) == y).double().mean().item(),
        )
    metrics = MetricRecord({"num-examples": len(y), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _received(message: Message, context: Context) -> tuple[Task, torch.nn.Module, int]:
    torch.set_num_threads(1)  # an actor has one core
    folder = str(message.content["config"]["folder"])
    model = network(folder)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return task(folder), model, int(context.node_config["partition-id"])


class Flower:
    def __init__(self, grid: Grid, folder: str) -> None:
        self.grid, self.folder = grid, folder
        self.initial = self.arrays = ArrayRecord(network(folder).state_dict())

    def check(self) -> np.ndarray:
        arrays = self._round(self.initial, evaluate=False, check=True)
        return parameters_to_vector(arrays.to_torch_state_dict().values()).numpy()

    def round(self, evaluate: bool) -> None:
        self.arrays = self._round(self.arrays, evaluate, check=False)

    def _round(self, arrays: ArrayRecord, evaluate: bool, check: bool) -> ArrayRecord:
        strategy = FedAvg(fraction_evaluate=1.0 if evaluate else 0.0)
        config = {"folder": self.folder, "check": check}
        configs = {
            "train_config": ConfigRecord(config),
            "evaluate_config": ConfigRecord(config),
        }
        return strategy.start(self.grid, arrays, num_rounds=1, **configs).arrays


def main() -> None:
    pipe, folder = Pipe(), sys.argv[1]
    clients, server_app = len(task(folder).clients), ServerApp()

    @server_app.main()
    def serve_rounds(grid: Grid, context: Context) -> None:
        serve(Flower(grid, folder), folder, pipe, pipe)

    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": cores()},
    }
    run_simulation(
        server_app, client_app, num_supernodes=clients, backend_config=resources
    )


if __name__ == "__main__":
    # by its name, so that actors import this file: functions of __main__ would travel
    # with every message
    import of_flower

    of_flower.main()
