"""Seconds of a round of personalized methods in other libraries, and here.

20 clients with 500 digits of MNIST each, an MLP 784-128-10 (for FedBN with batch
normalisation of its hidden layer), batches of 10, one pass (FedRep one for the head and
one for the body), all clients in every round, nothing evaluated. Each library trains in a process of its own,
with one thread (the faster setting for networks of this size), through the same code
that asks it for its properties. Libraries take turns; a turn is some rounds of each
method, of which the first is not counted. Printed is minimum / median.

python benchmarks/peers/speed.py --library pfllib PYTHON CHECKOUT \
    --library fluke_fl PYTHON - --turns 3

PYTHON is the interpreter of an environment that has the library; "-" stands for no
checkout. RECORD=1 writes measured/peers.json, from which docs/speed.md has its
table.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path
from time import perf_counter

import numpy as np

HERE = Path(__file__).resolve().parent
METHODS = (
    *("FedAvg", "SCAFFOLD", "Ditto", "APFL", "pFedMe", "Per-FedAvg"),
    *("FedRep", "FedBN"),
)
HIDDEN, CLASSES = 128, 10
CLIENTS, BATCH_SIZE, LR, COUPLING = 20, 10, 0.05, 0.5
ROUNDS = 4
ONE_BATCH = {("flbench", "SCAFFOLD")}
"""Which takes one batch where others make a pass: it is given as many as a pass has."""


def measure_peer(library: str, checkout: str, data: Path, rounds: int) -> None:
    """Print the seconds of the rounds of each method as JSON."""
    import torch

    sys.path.insert(0, str(HERE))
    properties = importlib.import_module("properties")
    source = None if checkout == "-" else Path(checkout)
    peer = importlib.import_module(library).Library(source, "")
    # The properties are asked in float64.
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    arrays = np.load(data)
    clients = list(zip(arrays["x"], arrays["y"], strict=True))
    found = {"name": f"{peer.name} {peer.version}".strip()}
    for method in METHODS:
        if method not in peer.methods:
            continue
        torch.manual_seed(0)
        # Some libraries find normalisation layers by "bn" in their names.
        normalization = {"bn": torch.nn.BatchNorm1d(HIDDEN)}
        layers = {
            "hidden": torch.nn.Linear(clients[0][0].shape[1], HIDDEN),
            **(normalization if method == "FedBN" else {}),
            "relu": torch.nn.ReLU(),
            "out": torch.nn.Linear(HIDDEN, CLASSES),
        }
        network = torch.nn.Sequential(OrderedDict(layers))
        ends: list[float] = []
        batches = len(clients[0][1]) // BATCH_SIZE
        task = properties.Task(
            clients,
            np.zeros(1),
            rounds=rounds + 1,
            steps=batches if (library, method) in ONE_BATCH else 1,
            lr=LR,
            coupling=COUPLING,
            batch_size=BATCH_SIZE,
            loss=torch.nn.CrossEntropyLoss(),
            after_round=lambda ends=ends: ends.append(perf_counter()),
        )
        peer.train_network(method, task, network)
        found[method] = np.diff(ends).tolist()
    print(json.dumps(found))


def measure_ours(data: Path, rounds: int) -> None:
    """The same of fedtailor."""
    import jax

    import fedtailor as ft
    from fedtailor import models
    from fedtailor.data.federation import from_arrays
    from fedtailor.engine.runs import simulate

    arrays = np.load(data)
    x, y = arrays["x"], arrays["y"].astype(np.int64)
    names = np.repeat(np.arange(len(x)), x.shape[1])
    federation = from_arrays(
        x.reshape(-1, x.shape[2]), y.ravel(), names, classes=CLASSES, test=0
    )
    sgd = ft.SGD(lr=LR, epochs=1, batch_size=BATCH_SIZE)
    # A step of Per-FedAvg takes two batches.
    halves = ft.SGD(lr=LR, steps=x.shape[1] // BATCH_SIZE // 2, batch_size=BATCH_SIZE)
    algorithms = {
        "FedAvg": ft.FedAvg(sgd=sgd),
        "SCAFFOLD": ft.SCAFFOLD(sgd=sgd),
        "Ditto": ft.Ditto(sgd=sgd, lam=COUPLING),
        "APFL": ft.APFL(sgd=sgd),
        "pFedMe": ft.PFedMe(sgd=sgd, lam=COUPLING),
        "Per-FedAvg": ft.PerFedAvg(sgd=halves, alpha=LR, variant="fo"),
        "FedRep": ft.FedRep(sgd=sgd, head=sgd),
        "FedBN": ft.FedBN(sgd=sgd),
    }
    found: dict = {"name": f"fedtailor {ft.__version__}"}
    for method in METHODS:
        network = normalized_mlp() if method == "FedBN" else models.mlp(HIDDEN)
        training = simulate(algorithms[method], federation, network)
        ends = []
        for _ in range(rounds + 1):
            training.advance()
            jax.block_until_ready(training.server)
            ends.append(perf_counter())
        found[method] = np.diff(ends).tolist()
    print(json.dumps(found))


def normalized_mlp():
    """The MLP with batch normalisation of its hidden layer."""
    from dataclasses import dataclass

    from fedtailor.models.layers import Stack
    from fedtailor.models.normalization import norm_layer
    from fedtailor.models.zoo import MLP

    @dataclass(frozen=True)
    class NormalizedMLP(MLP):
        def network(self, input_shape, outputs, stream):
            layers = super().network(input_shape, outputs, stream).layers
            reshape, hidden, relu, out = layers
            return Stack([reshape, hidden, norm_layer("batch", HIDDEN), relu, out])

    return NormalizedMLP((HIDDEN,))


def digits_of_clients(path: Path) -> str:
    """Write the clients' digits; returns what they are."""
    from digits import digits

    cell = digits("mlp-10", CLIENTS)
    federation = cell.federation
    rows = [federation.client(name).train for name in federation.names]
    x = np.stack([part.x for part in rows]).reshape(CLIENTS, len(rows[0].y), -1)
    np.savez(path, x=x.astype(np.float32), y=np.stack([part.y for part in rows]))
    return federation.name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", nargs=3, action="append", default=[])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of a turn")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        library, checkout, data = options.worker
        if library == "ours":
            measure_ours(Path(data), options.rounds)
        else:
            measure_peer(library, checkout, Path(data), options.rounds)
        return
    compare(options.library, options.turns, options.rounds)


def compare(libraries: list[list[str]], turns: int, rounds: int) -> None:
    """Let all libraries take turns, and print the table."""
    sys.path.insert(0, str(HERE.parent))
    from measuring import Times, machine, show
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120, highlight=False)
    contenders = [["ours", sys.executable, "-"], *libraries]
    names: dict[str, str] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "digits.npz"
        console.print(f"{digits_of_clients(data)}; {machine('jax')}")
        for turn in range(turns):
            for library, python, checkout in contenders[:: 1 if turn % 2 == 0 else -1]:
                command = [python, __file__, "--rounds", str(rounds)]
                command += ["--worker", library, checkout, str(data)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    last = done.stderr.strip().splitlines()[-1:]
                    raise SystemExit(f"{library}: {' '.join(last)}")
                found = json.loads(done.stdout.splitlines()[-1])
                names[library] = found.pop("name")
                for method, values in found.items():
                    seconds.setdefault((library, method), []).extend(values)
    table = Table("method", *[names[library] for library, *_ in contenders])
    for method in METHODS:
        ours = Times(tuple(seconds["ours", method]))
        cells = [f"{ours} ms"]
        for library, *_ in libraries:
            if (library, method) not in seconds:
                cells.append("")
                continue
            theirs = Times(tuple(seconds[library, method]))
            times = theirs.minimum / ours.minimum, theirs.median / ours.median
            cells.append(f"{theirs} ms; {times[0]:.1f} / {times[1]:.1f} times")
        table.add_row(method, *cells)
    names_only = " ".join(f"--library {name} PYTHON CHECKOUT" for name, *_ in libraries)
    command = f"python benchmarks/peers/speed.py {names_only} --turns {turns} --rounds {rounds}"
    show(console, table, "peers", "jax", command=command)


if __name__ == "__main__":
    main()
