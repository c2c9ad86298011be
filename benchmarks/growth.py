"""Seconds and memory of a round as the population grows under a cohort of one size, and
as the cohort grows.

python benchmarks/growth.py
"""

import argparse
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from cells import CLASSES, DIGIT
from measuring import load, machine, peak_memory, take_turns
from ours import bytes_of, rounds_of
from rich.console import Console
from rich.table import Table

from fedtailor.algorithms import Ditto, FedAvg
from fedtailor.engine.runs import simulate
from fedtailor.engine.training import Participation
from fedtailor.models import mlp
from fedtailor.protocol import SGD, Algorithm

SAMPLES, COHORT = 50, 20
POPULATIONS = (20, 100, 1000, 3400)
COHORTS = (10, 100, 300, 1000)
LOCAL = SGD(lr=0.01, epochs=2, batch_size=10)
METHODS: dict[str, Algorithm] = {"fedavg": FedAvg(LOCAL), "ditto": Ditto(sgd=LOCAL)}
"""One whose clients keep nothing, and one whose clients each keep a model."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--turns", type=int, default=7, help="timed rounds of each size"
    )
    parser.add_argument(
        "--memory-of", nargs=2, metavar=("method", "clients"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.memory_of:
        print(memory_of(options.memory_of[0], int(options.memory_of[1])))
        return
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    for method in METHODS:
        console.print(populations(method, options.turns))
    console.print(cohorts(options.turns))


def populations(method: str, turns: int) -> Table:
    times = take_turns(
        {str(size): cohorts_of(method, size, COHORT) for size in POPULATIONS}, turns
    )
    base = times[str(POPULATIONS[0])]
    table = Table(
        "clients",
        f"round with {COHORT}, ms",
        "to the smallest",
        "peak memory, MiB",
        "load",
        title=method,
    )
    for size in map(str, POPULATIONS):
        command = [sys.executable, __file__, "--memory-of", method, size]
        peak = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.strip()
        table.add_row(
            size,
            str(times[size]),
            f"{times[size].median / base.median:.2f}",
            peak,
            load(),
        )
    return table


def cohorts(turns: int) -> Table:
    times = take_turns(
        {str(size): cohorts_of("fedavg", COHORTS[-1], size) for size in COHORTS}, turns
    )
    table = Table(
        "cohort",
        "round, ms",
        "ms a client",
        "load",
        title=f"fedavg, {COHORTS[-1]} clients",
    )
    for size in COHORTS:
        table.add_row(
            str(size),
            str(times[str(size)]),
            f"{1e3 * times[str(size)].median / size:.3f}",
            load(),
        )
    return table


def cohorts_of(method: str, clients: int, cohort: int) -> Callable[[], object]:
    model = mlp(64).bind(DIGIT, CLASSES)
    return rounds_of(
        simulate(
            METHODS[method],
            bytes_of(clients, SAMPLES),
            model,
            participation=Participation(count=cohort),
        )
    )


def memory_of(method: str, clients: int) -> str:
    """MiB resident at most after three rounds, and how much of that the examples
    are.
    """
    call = cohorts_of(method, clients, COHORT)
    for _ in range(3):
        call()
    return f"{peak_memory() / 2**20:.0f} (examples {clients * SAMPLES * np.prod(DIGIT) / 2**20:.0f})"


if __name__ == "__main__":
    main()
