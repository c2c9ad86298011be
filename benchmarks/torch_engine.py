"""A large PyTorch module with engine="torch" beside a plain PyTorch loop: seconds of a
round of FedAvg of ResNet-18, with its evaluation.

python benchmarks/torch_engine.py             4 clients of 256 images of 32x32 pixels
python benchmarks/torch_engine.py --quick     2 clients of 64
"""

import argparse

import numpy as np
import torch
from measuring import load, machine, ratio, take_turns
from rich.console import Console
from torch import nn
from torch_zoo import vision

import fedtailor as ft
from fedtailor.federation import Federation, Ragged
from fedtailor.runs.run import simulate

BATCH, CLASSES = 32, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="2 clients of 64 images")
    parser.add_argument("--turns", type=int, default=3, help="timed rounds of each")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch's")
    options = parser.parse_args()
    clients, examples = (2, 64) if options.quick else (4, 256)
    torch.set_num_threads(options.threads)
    vision()
    from torchvision.models import resnet18

    federation = images(clients, examples)
    architecture = ft.models.from_torch(
        lambda: resnet18(num_classes=CLASSES), torch.zeros(1, 3, 32, 32), engine="torch"
    )
    model = architecture.bind((32, 32, 3), CLASSES)
    contenders = {}
    for name, momentum, lam in (("FedAvg", 0.0, None), ("FedProx, momentum", 0.9, 0.1)):
        sgd = ft.SGD(lr=0.01, batch_size=BATCH, momentum=momentum)
        algorithm = ft.FedAvg(sgd=sgd) if lam is None else ft.FedProx(sgd=sgd, mu=lam)
        training = simulate(algorithm, federation, model)

        def round_of(training=training) -> None:
            training.advance()
            training.evaluate()

        contenders[name] = round_of
        contenders[f"{name}, plain loop"] = plain(
            resnet18(num_classes=CLASSES), federation, momentum, lam
        )
    console = Console(width=120, highlight=False)
    console.print(machine("jax", "torch"))
    times = take_turns(contenders, options.turns)
    console.print(
        f"{clients} clients of {examples} images, batches of {BATCH},"
        f" {options.threads} threads; minimum / median of {options.turns} turns, ms; load"
        f" {load()}"
    )
    for name, seconds in times.items():
        loop = times[f"{name.removesuffix(', plain loop')}, plain loop"]
        console.print(f"{name:32} {seconds!s:>18}   : loop = {ratio(seconds, loop)}")


def images(clients: int, examples: int) -> Federation:
    """Random images: half as many for tests as for training."""
    rng = np.random.default_rng(0)
    train, test = clients * examples, clients * examples // 2
    x = rng.standard_normal((train + test, 32, 32, 3)).astype(np.float32)
    return Federation(
        x,
        rng.integers(0, CLASSES, len(x)),
        Ragged.cut(np.arange(train), np.full(clients, examples)),
        Ragged.empty(clients),
        Ragged.cut(np.arange(train, len(x)), np.full(clients, examples // 2)),
        tuple(f"client {number}" for number in range(clients)),
        classes=CLASSES,
    )


def plain(
    module: nn.Module, federation: Federation, momentum: float, mu: float | None
) -> object:
    """A round of the same, as one would write it in PyTorch."""
    x = torch.from_numpy(federation.x).permute(0, 3, 1, 2).contiguous()
    y = torch.from_numpy(federation.y)
    start = {name: values.clone() for name, values in module.state_dict().items()}
    count = len(federation.names)

    def call() -> None:
        mean = {
            name: torch.zeros_like(v, dtype=torch.float) for name, v in start.items()
        }
        for client in range(count):
            module.load_state_dict(start)
            anchors = [one.detach().clone() for one in module.parameters()]
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=momentum)
            module.train()
            rows = federation.train[client]
            for first in range(0, len(rows), BATCH):
                batch = rows[first : first + BATCH]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(x[batch]), y[batch])
                if mu is not None:
                    for one, anchor in zip(module.parameters(), anchors, strict=True):
                        loss = loss + mu / 2 * (one - anchor).square().sum()
                loss.backward()
                optimizer.step()
            for name, values in module.state_dict().items():
                mean[name] += values / count
        module.load_state_dict(mean)
        module.eval()
        with torch.no_grad():
            for client in range(count):
                rows = federation.test[client]
                (module(x[rows]).argmax(1) == y[rows]).float().mean()

    return call


if __name__ == "__main__":
    main()
