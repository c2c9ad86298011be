"""Three seeds of federated averaging as one cohort, beside the same three one after
another.

    python benchmarks/seeds.py

Ten of a cell's clients take part in each of 20 rounds. Both ways end with the same
models, to the bit on a CPU.
"""

import argparse
import threading
from dataclasses import replace

import numpy as np
from cells import CELLS, Cell
from measuring import load, machine, ratio, show, take_turns
from rich.console import Console
from rich.table import Table

from fedtailor.algorithms import FedAvg
from fedtailor.engine.executors import DeviceExecutor, LockstepGroup, Settings
from fedtailor.engine.training import Participation, Training
from fedtailor.protocol import SGD, Exchanges, drive

SEEDS, ROUNDS, COHORT = (0, 1, 2), 20, 10
NAMES = ("logistic-10", "mlp-10", "power-law-mlp-10")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7, help="timed turns of each way")
    turns = parser.parse_args().turns
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table(
        "cell",
        "in turn, ms a round",
        "at once, ms a round",
        "in turn : at once",
        "load",
    )
    for name in NAMES:
        cells = [shuffled(CELLS[name], seed) for seed in SEEDS]
        ways = {
            "in turn": lambda cells=cells: in_turn(cells),
            "at once": lambda cells=cells: at_once(cells),
        }
        for one, other in zip(*(way() for way in ways.values()), strict=True):
            np.testing.assert_array_equal(one.server.model, other.server.model)
        times = take_turns(ways, turns)
        each = [str(time.per(ROUNDS * len(SEEDS))) for time in times.values()]
        table.add_row(name, *each, ratio(times["in turn"], times["at once"]), load())
    show(console, table, "seeds", "jax")


def shuffled(cell: Cell, seed: int) -> Cell:
    """A seed's clients: the cell's sizes in another order."""
    return replace(
        cell, sizes=tuple(np.random.default_rng(seed).permutation(cell.sizes).tolist())
    )


def in_turn(cells: list[Cell]) -> list[Training]:
    """One seed after another."""
    executors = [DeviceExecutor(cell.federation, cell.model) for cell in cells]
    return [
        drive(rounds(cell, seed, executor), executor)
        for cell, seed, executor in zip(cells, SEEDS, executors, strict=True)
    ]


def at_once(cells: list[Cell]) -> list[Training]:
    """All seeds in lock-step."""
    federations, models = (
        [cell.federation for cell in cells],
        [cell.model for cell in cells],
    )
    group = LockstepGroup(federations, models, Settings(), [None] * len(cells))
    members = zip(cells, SEEDS, group.executors, strict=True)
    return group.drive([rounds(*member) for member in members], threading.Event())


def rounds(cell: Cell, seed: int, executor: DeviceExecutor) -> Exchanges[Training]:
    """One seed's run."""
    method = FedAvg(SGD(lr=0.05, batch_size=cell.batch_size))
    training = Training(
        method,
        executor,
        cell.model,
        seed=seed,
        participation=Participation(count=COHORT),
    )
    for _ in range(ROUNDS):
        yield from training.next_round()
    return training


if __name__ == "__main__":
    main()
