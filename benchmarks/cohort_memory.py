"""Memory of a round beside the number of clients in it: a perceptron of 1.09 million
parameters (4.2 MiB), 16 examples for each client, one step of batch 8.

    python benchmarks/cohort_memory.py                   this checkout
    python benchmarks/cohort_memory.py --checkout OLD    another one

Each cell runs in a process of its own. "peak" is the largest resident memory of the process,
with Python, JAX, the compiler and the data of all clients; "copies" is what it has more than
before the first round, in copies of the model. Every run has the data of all clients,
however many of them take part in a round.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from checkouts import HERE
from measuring import peak_memory, show
from rich.console import Console
from rich.table import Table

CELLS = (
    ("fedavg", 50),
    ("fedavg", 200),
    ("fedavg", 800),
    ("ditto", 25),
    ("ditto", 50),
)
INPUTS, HIDDEN, CLASSES, EXAMPLES = 256, (920, 920), 10, 16
MIB = 2**20


def measure(method: str, clients: int, rounds: int) -> dict[str, float]:
    """One cell, in this process."""
    import jax
    import numpy as np

    import fedtailor as ft
    from fedtailor.data.federation import from_arrays
    from fedtailor.engine.runs import simulate

    # Ditto keeps a model for each client of the federation.
    of_all = 800 if method == "fedavg" else clients
    rng = np.random.default_rng(0)
    rows = EXAMPLES * of_all
    federation = from_arrays(
        rng.normal(size=(rows, INPUTS)).astype(np.float32),
        rng.integers(CLASSES, size=rows),
        np.arange(rows) % of_all,
        test=0.2,
        classes=CLASSES,
    )
    sgd = ft.SGD(lr=0.01, steps=1, batch_size=8)
    training = simulate(
        ft.FedAvg(sgd) if method == "fedavg" else ft.Ditto(sgd),
        federation,
        ft.models.mlp(HIDDEN),
        participation=ft.Participation(fraction=clients / of_all),
    )
    jax.block_until_ready(training.server)
    before = peak_memory()
    for _ in range(rounds):
        training.advance()
        jax.block_until_ready(training.server)
    after = peak_memory()
    size = 4 * training.model.size
    return {"peak": after, "copies": (after - before) / size, "size": size}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkout", type=Path, default=HERE)
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        method, clients = options.cell
        print(json.dumps(measure(method, int(clients), options.rounds)))
        return
    table = Table("method", "clients in a round", "peak, MiB", "copies of the model")
    for method, clients in CELLS:
        child = subprocess.run(
            [
                sys.executable,
                __file__,
                *("--cell", method, str(clients)),
                *("--rounds", str(options.rounds)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    str(options.checkout / folder) for folder in ("src", "benchmarks")
                ),
            },
        )
        found = json.loads(child.stdout.splitlines()[-1])
        table.add_row(
            method,
            str(clients),
            f"{found['peak'] / MIB:,.0f}",
            f"{found['copies']:.0f}",
        )
        print(method, clients, found, flush=True)
    show(Console(width=100), table, "cohort-memory", "jax")


if __name__ == "__main__":
    main()
