"""A converted PyTorch module: seconds of a round, beside the same network of the zoo and a
plain PyTorch loop.

python benchmarks/pytorch_module.py            LeNet-5, 20 clients of 500 digits, batches of 10
python benchmarks/pytorch_module.py --quick    four clients, three turns

All start from one model and, for the comparison of results, see the same batches.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from cells import CELLS, Cell
from measuring import cores, load, machine, ratio, take_turns
from ours import rounds_of
from pytorch_loop import Loop, network, to_torch
from rich.console import Console
from rounds import CAREFUL_LR, LR, batch_orders, start
from torch.nn.utils import vector_to_parameters

from fedtailor.models import Architecture, from_torch, state_dict

TOLERANCE = 1e-4
"""Largest difference of two models after a round, relative to how far the round moved
them.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--turns", type=int, help="timed rounds of each contender (default 7, quick 3)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="four clients, three turns"
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="leave out the loop with several threads: on a busy machine they stall",
    )
    options = parser.parse_args()
    zoo = CELLS["lenet-10"]
    zoo = zoo.smaller() if options.quick else zoo
    turns = options.turns or (3 if options.quick else 7)

    console = Console(width=150, highlight=False)
    console.print(machine("jax", "torch"))
    initial = to_torch(zoo, np.asarray(start(zoo).server.model[0]))
    converted = replace(zoo, architecture=module_from(zoo, initial))
    for cell in (zoo, converted):
        console.print(
            f"{_name(cell)}: differs from the loop by"
            f" {disagreement(cell, zoo, initial):.0e} after a round"
        )

    loop = Loop(zoo, range(len(zoo.sizes)), LR)

    def threads(count: int) -> Callable[[], object]:
        def call() -> object:
            torch.set_num_threads(count)
            return loop.round(initial)

        return call

    contenders = {
        "zoo": rounds_of(start(zoo)),
        "converted": rounds_of(start(converted)),
        "loop, 1 thread": threads(1),
    }
    if not options.busy:
        contenders[f"loop, {cores()} threads"] = threads(cores())
    times = take_turns(contenders, turns)
    console.print(
        f"minimum / median of {turns} turns, ms; ratios the same way; load {load()}"
    )
    for name, seconds in times.items():
        console.print(
            f"{name:26} {seconds!s:>18}   : converted ="
            f" {ratio(seconds, times['converted'])}"
        )
    console.print(
        f"converted : zoo = {ratio(times['converted'], times['zoo'])} (goal: at most"
        " 1.5)"
    )


def module_from(cell: Cell, theta: torch.Tensor) -> Architecture:
    """The cell's network as a PyTorch module with parameters theta."""
    module = network(cell)
    vector_to_parameters(theta.clone(), module.parameters())
    height, width, channels = cell.input_shape
    return from_torch(module, torch.zeros(1, channels, height, width), pretrained=True)


def disagreement(cell: Cell, zoo: Cell, before: torch.Tensor) -> float:
    """How far the loop's model is from ours after one round from one start over the
    same batches, by the way moved.

    Raises:
        SystemExit: they do not agree.
    """
    training = start(cell, CAREFUL_LR)
    orders = batch_orders(cell, training)
    training.advance()
    ours = _vector(cell, np.asarray(training.server.model[0]))
    theirs = Loop(zoo, range(len(cell.sizes)), CAREFUL_LR).round(
        before, orders.__getitem__
    )
    difference = float((ours - theirs).norm() / (theirs - before).norm())
    if not difference < TOLERANCE:
        raise SystemExit(
            f"{_name(cell)}: differs by {difference:.1e} of the way that training moved"
            " the model"
        )
    return difference


def _vector(cell: Cell, theta: np.ndarray) -> torch.Tensor:
    """Parameters in PyTorch's order."""
    if _name(cell) == "zoo":
        return to_torch(cell, theta)
    return torch.cat(
        [
            torch.from_numpy(np.array(values)).reshape(-1)
            for values in state_dict(cell.model, theta).values()
        ]
    )


def _name(cell: Cell) -> str:
    is_zoo = cell.architecture == CELLS["lenet-10"].architecture
    return "zoo" if is_zoo else "converted"


if __name__ == "__main__":
    main()
