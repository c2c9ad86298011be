"""What a round costs beside training: rounds so tiny that nearly all of their time is
the host's.

    python benchmarks/overhead.py                    this checkout
    python benchmarks/overhead.py OLD NEW            two checkouts, whose processes take turns

20 clients with 10 samples of 4 numbers each, logistic regression, two steps. "Round" is
the time until the server's new state is there; "host" is what the thread that asks for
it computes meanwhile (Python and JAX's dispatch), which other programs on the machine
slow down less. Milliseconds, minimum / median of all rounds.
"""

import argparse
from pathlib import Path

from checkouts import HERE, Checkout, in_turns
from measuring import Times, load, machine, show
from rich.console import Console
from rich.table import Table

METHODS = ("fedavg", "ditto", "ucfl")
ROUNDS_A_TURN = 50

WORKER = """
import json, sys, time
import jax
import numpy as np
from fedtailor.data.federation import Federation, Ragged

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkouts",
        nargs="*",
        type=Path,
        default=[HERE],
        help="of the repository; default: this one",
    )
    parser.add_argument(
        "--turns", type=int, default=7, help=f"of {ROUNDS_A_TURN} rounds each"
    )
    options = parser.parse_args()
    checkouts = {root: Checkout(root, WORKER) for root in options.checkouts}
    table = Table("method", "checkout", "round, ms", "host, ms", "load")
    for method in METHODS:
        for root, turns in in_turns(
            checkouts, f"{method} {ROUNDS_A_TURN}", options.turns
        ).items():
            rounds = [seconds for turn in turns for seconds in turn]
            whole, host = (Times(values) for values in zip(*rounds, strict=True))
            table.add_row(method, str(root), in_ms(whole), in_ms(host), load())
    for checkout in checkouts.values():
        checkout.close()
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    show(console, table, "overhead", "jax")


def in_ms(times: Times) -> str:
    return f"{1e3 * times.minimum:.2f} / {1e3 * times.median:.2f}"


if __name__ == "__main__":
    main()
