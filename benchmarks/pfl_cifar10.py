"""pfl-research's own benchmark of CIFAR-10, there and here: seconds of a round.

    python benchmarks/pfl_cifar10.py PYTHON CHECKOUT --rounds 150
    taskset -c 0 python benchmarks/pfl_cifar10.py --parts    of what a step's time is made

1,000 clients with 50 images each (IID), of which 50 are drawn in a round, batches of 10,
one pass at a rate of 0.1, equal weights, and its CNN of 1.6 million parameters with
dropout; all as in `image_classification/configs/baseline.yaml` of its repository, whose
network is used.

PYTHON is the interpreter of an environment with pfl and torch, CHECKOUT the repository
apple/pfl-research, which has a process with one thread on each of two cores (one process
alone takes 1.8 times as long). Both take turns of a few rounds; evaluation (the server's
model on all test images, at the end) is not timed. RECORD=1 writes
measured/pfl_cifar10.json or measured/pfl_cifar10_parts.json, from which
docs/speed.md has its tables.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
CLIENTS, IMAGES, COHORT = 1000, 50, 50
BATCH_SIZE, LR, TURN = 10, 0.1, 5
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


class Ours:
    """fedtailor's FedAvg."""

    def __init__(self, data: Path, checkout: str, threads: int) -> None:
        import jax

        import fedtailor as ft
        from fedtailor.data.federation import from_arrays
        from fedtailor.engine.runs import simulate
        from fedtailor.engine.training import Participation

        arrays = np.load(data)
        x, y = arrays["x"], arrays["y"]
        federation = from_arrays(
            x.reshape(-1, *x.shape[2:]),
            y.ravel(),
            np.repeat(np.arange(CLIENTS), IMAGES),
            classes=10,
            test=0,
        )
        sgd = ft.SGD(lr=LR, epochs=1, batch_size=BATCH_SIZE)
        self.training = simulate(
            ft.FedAvg(sgd=sgd, weights="uniform"),
            federation,
            ft.models.cnn(dropout=True),
            participation=Participation(count=COHORT),
        )
        self.test = arrays["x_test"], arrays["y_test"]
        model = self.training.model
        self.outputs = jax.jit(lambda theta, x: model.logits(model.params(theta), x))
        self.parameters = model.size

    def round(self) -> None:
        import jax

        self.training.advance()
        jax.block_until_ready(self.training.server)

    def accuracy(self) -> float:
        theta = self.training.server.model[0]
        x, y = self.test
        correct = 0
        for start in range(0, len(y), 1000):
            outputs = self.outputs(theta, x[start : start + 1000])
            correct += int((outputs.argmax(1) == y[start : start + 1000]).sum())
        return correct / len(y)


class PFL:
    """pfl-research's FedAvg on PyTorch, with its own network."""

    def __init__(self, data: Path, checkout: str, threads: int) -> None:
        import torch

        sys.path.insert(0, str(Path(checkout) / "benchmarks"))
        from model.pytorch import simple_cnn
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByUser
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        arrays = {name: torch.tensor(it) for name, it in np.load(data).items()}
        self.test = arrays["x_test"], arrays["y_test"]
        users = [
            Dataset([x, y], user_id=str(number))
            for number, (x, y) in enumerate(zip(arrays["x"], arrays["y"], strict=True))
        ]
        sampler = get_user_sampler("random", range(CLIENTS))
        federated = FederatedDataset(users.__getitem__, sampler)
        self.network = simple_cnn((32, 32, 3), 10)
        self.parameters = sum(it.numel() for it in self.network.parameters())
        central = torch.optim.SGD(self.network.parameters(), 1.0)
        model = PyTorchModel(self.network, torch.optim.SGD, central)
        backend = SimulatedBackend(
            training_data=federated, val_data=federated, postprocessors=[WeightByUser()]
        )
        algorithm, self.rounds = FederatedAveraging(), 0
        train = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH_SIZE
        )

        def next_round() -> None:
            # It goes on where it stopped. Rounds that the frequency divides would be
            # evaluated on the clients' images.
            self.rounds += 1
            params = NNAlgorithmParams(
                central_num_iterations=self.rounds,
                evaluation_frequency=max(self.rounds, 2),
                train_cohort_size=COHORT,
                val_cohort_size=0,
            )
            evaluation = NNEvalHyperParams(local_batch_size=None)
            algorithm.run(params, backend, model, train, evaluation)

        self.round = next_round

    def accuracy(self) -> float:
        import torch

        x, y = self.test
        self.network.eval()
        with torch.no_grad():
            parts = [self.network(part) for part in x.split(1000)]
        self.network.train()
        return float((torch.cat(parts).argmax(1) == y).float().mean())


def work(kind: str, data: Path, checkout: str, threads: int) -> None:
    """Do rounds as the standard input says, and print how long each took."""
    several, first = False, True
    if kind == "pfl":
        import torch
        from pfl.model import pytorch  # noqa: F401 (it joins the other processes)

        several = torch.distributed.is_initialized()
        first = not several or torch.distributed.get_rank() == 0
    contender = (Ours if kind == "ours" else PFL)(data, checkout, threads)
    answer(first, contender.parameters)
    while True:
        command = [sys.stdin.readline().strip() if first else ""]
        if several:
            torch.distributed.broadcast_object_list(command)
        if not command[0]:
            return
        if command[0] == "accuracy":
            answer(first, contender.accuracy())
            continue
        started = perf_counter()
        contender.round()
        answer(first, perf_counter() - started)


def answer(first: bool, number: float) -> None:
    if first:
        print(f"answer {json.dumps(number)}", flush=True)


class Process:
    """A contender in a process of its own."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.parameters = self.read()

    def read(self) -> float:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise SystemExit(f"{self.process.args} has ended")

    def ask(self, what: str) -> float:
        assert self.process.stdin
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.read()


def images(path: Path) -> None:
    """Write the images of all clients, normalised by channel as the benchmark does."""
    from fedtailor.data.datasets import cifar10

    data = cifar10()
    assert data.test is not None
    x = data.x.reshape(-1, 32, 32, 3).astype(np.float32)
    y = data.y.astype(np.int64)
    train, test = ~data.test, data.test
    x = (x - x[train].mean((0, 1, 2))) / x[train].std((0, 1, 2))
    x_train, y_train, count = x[train], y[train], CLIENTS * IMAGES
    order = np.random.default_rng(0).permutation(count)
    np.savez(
        path,
        x=x_train[order].reshape(CLIENTS, IMAGES, 32, 32, 3),
        y=y_train[order].reshape(CLIENTS, IMAGES),
        x_test=x[test],
        y_test=y[test],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", nargs="?")
    parser.add_argument("checkout", nargs="?")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--parts", action="store_true", help="time the parts of a step")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, data, checkout, threads = options.worker
        work(kind, Path(data), checkout, int(threads))
        return
    if options.parts:
        time_parts()
    elif options.python and options.checkout:
        compare(options.python, options.checkout, options.rounds)
    else:
        parser.error("name PYTHON and CHECKOUT, or --parts")


def compare(python: str, checkout: str, rounds: int) -> None:
    """Let all take turns, and print the table."""
    from measuring import Times, machine, show
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "images.npz"
        images(data)

        def process(kind: str, threads: int, *launcher: str) -> Process:
            worker = (__file__, "--worker", kind, str(data), checkout, str(threads))
            interpreter = sys.executable if kind == "ours" else python
            return Process([interpreter, *launcher, *worker])

        contenders = {
            "fedtailor": process("ours", 1),
            "pfl-research, 2 processes": process("pfl", 1, *TORCHRUN),
        }
        for name, contender in contenders.items():
            console.print(f"{name}: {contender.parameters:,} parameters")
        seconds = {name: [] for name in contenders}
        for turn in range(-(-rounds // TURN)):
            names = list(contenders)[:: 1 if turn % 2 == 0 else -1]
            for name in names:
                count = min(TURN, rounds - turn * TURN)
                seconds[name] += [contenders[name].ask("round") for _ in range(count)]
        accuracy = {name: it.ask("accuracy") for name, it in contenders.items()}
        for contender in contenders.values():
            assert contender.process.stdin
            contender.process.stdin.close()
            contender.process.wait()
    table = Table(
        "contender", "a round, s", "times", f"accuracy after {rounds} rounds, %"
    )
    # The first round compiles.
    times = {name: Times(tuple(values[1:])) for name, values in seconds.items()}
    ours = times["fedtailor"]
    for name, it in times.items():
        ratio = f"{it.minimum / ours.minimum:.1f} / {it.median / ours.median:.1f}"
        table.add_row(
            name,
            f"{it.minimum:.2f} / {it.median:.2f}",
            "" if name == "fedtailor" else ratio,
            f"{100 * accuracy[name]:.1f}",
        )
    command = f"python benchmarks/pfl_cifar10.py PYTHON CHECKOUT --rounds {rounds}"
    show(console, table, "pfl_cifar10", "jax", command=command)


def time_parts(turns: int = 31) -> None:
    """Print what a step of a client takes here, and its largest parts by themselves."""
    import jax
    import jax.numpy as jnp
    from jax.nn import log_softmax
    from measuring import machine, show, take_turns
    from rich.console import Console
    from rich.table import Table

    import fedtailor as ft
    from fedtailor.models.convolution import convolve

    model = ft.models.cnn(dropout=True).bind((32, 32, 3), 10)
    key, numbers = jax.random.key(0), np.random.default_rng(0)

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(numbers.normal(size=shape), jnp.float32)

    images, labels = random(BATCH_SIZE, 32, 32, 3), jnp.arange(BATCH_SIZE) % 10

    def step(params: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            outputs = log_softmax(model.logits(params, images, key))
            return -outputs[jnp.arange(BATCH_SIZE), labels].mean()

        gradient = jax.grad(loss)(params)
        return jax.tree.map(lambda theta, g: theta - LR * g, params, gradient)

    def convolution(x: jax.Array, kernel: jax.Array, g: jax.Array) -> Any:
        y, derivative = jax.vjp(convolve, x, kernel)
        return y, derivative(g)

    def dense(w: jax.Array, x: jax.Array, g: jax.Array) -> Any:
        return x @ w, g @ w.T, w - LR * x.T @ g

    pooled, pixels = 64 * 14 * 14, 28 * 28 * BATCH_SIZE
    parts = {
        "a step: gradient and update": (step, model.params(model.init(key))),
        "second convolution, its two derivatives": (
            convolution,
            *(random(32, 30, 30, 10), random(3, 3, 32, 64), random(64, 28, 28, 10)),
        ),
        "of which its three products alone": (
            lambda kernel, columns, g: (kernel.T @ columns, kernel @ g, columns @ g.T),
            *(random(288, 64), random(288, pixels), random(64, pixels)),
        ),
        "first dense layer, its two derivatives, its update": (
            dense,
            *(random(pooled, 128), random(BATCH_SIZE, pooled), random(BATCH_SIZE, 128)),
        ),
        "random numbers of the first dropout": (
            lambda key: jax.random.bernoulli(key, 0.75, (64, 14, 14, BATCH_SIZE)),
            key,
        ),
    }
    calls = {}
    for name, (function, *arguments) in parts.items():
        compiled = jax.jit(function)
        calls[name] = lambda f=compiled, a=arguments: jax.block_until_ready(f(*a))
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table("part", "ms")
    for name, times in take_turns(calls, turns).items():
        table.add_row(name, str(times))
    command = "taskset -c 0 python benchmarks/pfl_cifar10.py --parts"
    show(console, table, "pfl_cifar10_parts", "jax", command=command)


if __name__ == "__main__":
    main()
