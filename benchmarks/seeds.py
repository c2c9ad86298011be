"""Three seeds of federated averaging as one cohort, beside the same three one after another.

    python benchmarks/seeds.py

Ten of a cell's clients take part in each of 20 rounds. Both ways end with the same models, to the bit on a CPU.
"""

import argparse
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from cells import CELLS
from measuring import load, machine, ratio, take_turns
from rich.console import Console
from rich.table import Table

from fedtailor.algorithms import FedAvg
from fedtailor.executors.lockstep import Seat, together
from fedtailor.protocol import SGD
from fedtailor.runs import simulate
from fedtailor.training import Participation

SEEDS, ROUNDS, COHORT = (0, 1, 2), 20, 10
NAMES = ("logistic-10", "mlp-10", "power-law-mlp-10")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="timed turns of each way")
    turns = parser.parse_args().turns
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table("cell", "in turn, ms a round", "at once, ms a round", "in turn : at once", "load")
    for name in NAMES:
        tasks = [seed_of(name, seed) for seed in SEEDS]
        ways = {
            "in turn": lambda tasks=tasks: [task(None) for task in tasks],
            "at once": lambda tasks=tasks: together(tasks, threading.Event()),
        }
        for one, other in zip(*(way() for way in ways.values()), strict=True):
            np.testing.assert_array_equal(one.server["model"], other.server["model"])
        times = take_turns(ways, turns)
        each = [str(time.per(ROUNDS * len(SEEDS))) for time in times.values()]
        table.add_row(name, *each, ratio(times["in turn"], times["at once"]), load())
    console.print(table)


def seed_of(name: str, seed: int) -> Callable[[Seat | None], Training]:
    """A task: one seed's run, on clients of its own."""
    cell = CELLS[name]
    cell = replace(cell, sizes=tuple(np.random.default_rng(seed).permutation(cell.sizes).tolist()))
    federation, method = cell.federation, FedAvg(SGD(lr=0.05, batch_size=cell.batch_size))

    def task(seat: Seat | None) -> Training:
        training = simulate(
            method, federation, cell.model, seed=seed, participation=Participation(count=COHORT), seat=seat
        )
        for _ in range(ROUNDS):
            training.advance()
        return training

    return task


if __name__ == "__main__":
    main()
