"""What a round costs beside training: rounds so tiny that nearly all of their time is the host's.

    python benchmarks/overhead.py                    this checkout
    python benchmarks/overhead.py OLD NEW            two checkouts, whose processes take turns

20 clients with 10 samples of 4 numbers each, logistic regression, two steps. "Round" is the time until the server's new
state is there; "host" is what the thread that asks for it computes meanwhile (Python and JAX's dispatch), which other
programs on the machine slow down less. Milliseconds, minimum / median of all rounds.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from measuring import Times, load, machine
from rich.console import Console
from rich.table import Table

METHODS = ("fedavg", "ditto", "ucfl")
ROUNDS_A_TURN = 50

WORKER = """
import json, sys, time
import jax
import numpy as np
import fedtailor as ft
from fedtailor.federation import Federation, Ragged

CLIENTS, SAMPLES, FEATURES, CLASSES = 20, 10, 4, 3
rng = np.random.default_rng(0)
x = rng.standard_normal((CLIENTS * SAMPLES, FEATURES), np.float32)
y = rng.integers(0, CLASSES, len(x))
train, empty = Ragged.cut(np.arange(len(x)), np.full(CLIENTS, SAMPLES)), Ragged.empty(CLIENTS)
names = tuple(f"client {number}" for number in range(CLIENTS))
federation = Federation(x, y, train, empty, empty, names, classes=CLASSES)
model = ft.models.logistic().bind((FEATURES,), CLASSES)
sgd = ft.SGD(lr=0.05, batch_size=5)
methods = {"fedavg": (ft.FedAvg(sgd), 1.0), "ditto": (ft.Ditto(sgd), 0.3), "ucfl": (ft.UCFL(sgd, streams=2), 1.0)}

def start(method, share):
    if ft.__version__ == "0.1.0":
        from fedtailor.engine.training import Training as simulate
    else:
        from fedtailor.runs import simulate
    return simulate(method, federation, model, participation=ft.Participation(fraction=share))

trainings = {}
for line in sys.stdin:
    name, rounds = line.split()
    if name not in trainings:
        trainings[name] = start(*methods[name])
    training = trainings[name]
    seconds = []
    for _ in range(int(rounds)):
        started, host = time.perf_counter(), time.thread_time()
        training.advance()
        jax.block_until_ready(training.server)
        seconds.append((time.perf_counter() - started, time.thread_time() - host))
    print(json.dumps(seconds), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkouts", nargs="*", type=Path, default=[here], help="of the repository; default: this one")
    parser.add_argument("--turns", type=int, default=7, help=f"of {ROUNDS_A_TURN} rounds each")
    options = parser.parse_args()
    workers = {checkout: start(checkout) for checkout in options.checkouts}
    table = Table("method", "checkout", "round, ms", "host, ms", "load")
    for method in METHODS:
        seconds: dict[Path, list[tuple[float, float]]] = {checkout: [] for checkout in workers}
        for worker in workers.values():
            rounds_of(worker, method)  # compiles
        for turn in range(options.turns):
            for checkout in list(workers)[:: 1 if turn % 2 == 0 else -1]:
                seconds[checkout] += rounds_of(workers[checkout], method)
        for checkout, rounds in seconds.items():
            whole, host = (Times(values) for values in zip(*rounds, strict=True))
            table.add_row(method, str(checkout), in_ms(whole), in_ms(host), load())
    for worker in workers.values():
        worker.communicate()
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    console.print(table)


def start(checkout: Path) -> subprocess.Popen[str]:
    """A process that trains with a checkout's code when it is asked to."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def rounds_of(worker: subprocess.Popen[str], method: str) -> list[tuple[float, float]]:
    """The seconds of a turn's rounds: of each until its result is there, and of the host's computation."""
    assert worker.stdin is not None and worker.stdout is not None
    print(method, ROUNDS_A_TURN, file=worker.stdin, flush=True)
    return [(whole, host) for whole, host in json.loads(worker.stdout.readline())]


def in_ms(times: Times) -> str:
    return f"{1e3 * times.minimum:.2f} / {1e3 * times.median:.2f}"


if __name__ == "__main__":
    main()
