"""Seconds of a round of federated averaging, beside a plain PyTorch loop on the same
data.

python benchmarks/rounds.py                    all cells
python benchmarks/rounds.py mlp-10 lenet-32    some
python benchmarks/rounds.py --quick            a fifth of the clients, three turns
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from cells import CELLS, Cell, add_cells_argument
from measuring import Times, cores, load, machine, ratio, show, take_turns
from numpy.typing import NDArray
from ours import rounds_of
from pytorch_loop import Loop, Processes, to_torch
from rich.console import Console
from rich.table import Table

from fedtailor.algorithms import FedAvg
from fedtailor.engine.client.pool import ClientAddress
from fedtailor.engine.client.shuffle import shuffled
from fedtailor.engine.client.trainer import DeviceTrainer
from fedtailor.engine.runs import simulate
from fedtailor.engine.training import Training
from fedtailor.protocol import SGD, client_keys

LR = 0.05
CAREFUL_LR = 0.01
"""Learning rate for the comparison of results: small steps, so that rounding errors do
not grow along the way.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_cells_argument(parser)
    parser.add_argument(
        "--turns", type=int, help="timed rounds of each contender (default 7, quick 3)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the clients, three turns"
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="leave out the loop with several threads: on a busy machine they stall",
    )
    options = parser.parse_args()
    cells = [CELLS[name] for name in options.cells]
    if options.quick:
        cells = [cell.smaller() for cell in cells]
    turns = options.turns or (3 if options.quick else 7)

    console = Console(width=150, highlight=False)
    console.print(machine("jax", "torch"))
    console.print(
        f"minimum / median of {turns} turns; ratios to fedtailor, the same way; loop ="
        " plain PyTorch"
    )
    table = Table("cell", "fedtailor, ms", "loop, 1 thread, ms")
    for heading in (f"loop, {cores()} threads, ms", f"loop, {cores()} processes, ms"):
        table.add_column(heading)
    for heading in (
        "loop : ours",
        "goal",
        "processes : ours",
        "goal",
        "difference",
        "load",
    ):
        table.add_column(heading, justify="right")
    for cell in cells:
        difference = disagreement(cell)
        times = measure(cell, turns, with_threads=not options.busy)
        ours, processes = times["fedtailor"], times["processes"]
        best = min(
            (times[name] for name in ("1 thread", "threads") if name in times),
            key=lambda times: times.median,
        )
        table.add_row(
            cell.name,
            *(
                str(times.get(name, ""))
                for name in ("fedtailor", "1 thread", "threads", "processes")
            ),
            ratio(best, ours),
            str(cell.goal),
            ratio(processes, ours),
            str(cell.goal_processes or ""),
            f"{difference:.0e}",
            load(),
        )
        console.print(
            f"{cell.name}: {ratio(best, ours)} (one process), {ratio(processes, ours)}"
            f" ({cores()} processes)"
        )
    show(console, table, "rounds", "jax")


def measure(cell: Cell, turns: int, with_threads: bool) -> dict[str, Times]:
    """Times of fedtailor, of the loop with one thread and with one for each core, and
    of the loop in processes.
    """
    training = start(cell)
    theta = to_torch(cell, np.asarray(training.server.model[0]))
    loop, processes = (
        Loop(cell, range(len(cell.sizes)), LR),
        Processes(cell, LR, cores()),
    )

    def threads(count: int) -> Callable[[], object]:
        def call() -> object:
            torch.set_num_threads(count)
            return loop.round(theta)

        return call

    contenders: dict[str, Callable[[], object]] = {
        "fedtailor": rounds_of(training),
        "1 thread": threads(1),
        "processes": lambda: processes.round(theta),
    }
    if with_threads:
        contenders["threads"] = threads(cores())
    try:
        return take_turns(contenders, turns)
    finally:
        processes.close()


def start(cell: Cell, lr: float = LR) -> Training:
    return simulate(
        FedAvg(SGD(lr=lr, batch_size=cell.batch_size)), cell.federation, cell.model
    )


def disagreement(cell: Cell, device: str = "cpu") -> float:
    """How far the loop's model is from ours after one round from one start over the
    same batches, by the way moved.

    Args:
        cell: what is trained.
        device: where the loop trains.

    Raises:
        SystemExit: they do not agree.
    """
    training = start(cell, CAREFUL_LR)
    before = to_torch(cell, np.asarray(training.server.model[0]))
    training.advance()
    ours = to_torch(cell, np.asarray(training.server.model[0]))
    orders = batch_orders(cell, training)
    loop = Loop(cell, range(len(cell.sizes)), CAREFUL_LR, device)
    theirs = loop.round(before.to(device), orders.__getitem__).cpu()
    difference = float((ours - theirs).norm() / (theirs - before).norm())
    if not difference < cell.tolerance:
        raise SystemExit(
            f"{cell.name}: the two models differ by {difference:.1e} of the way that"
            " training moved them"
        )
    return difference


def batch_orders(cell: Cell, training: Training) -> list[NDArray[np.int64]]:
    """The order in which each client visits its samples in the first round."""
    executor, longest = training.executor, np.arange(max(cell.sizes), dtype=np.int32)

    @jax.jit
    def order(address: ClientAddress) -> jax.Array:
        local = DeviceTrainer(cell.model, executor.devices.pool, address, jnp.int32(0))
        words = jax.random.bits(local.key("batches"), (2,), jnp.uint32)
        return shuffled(
            jnp.minimum(longest, local.size - 1), local.size, words, jnp.int32(0)
        )

    keys = client_keys(training.seed, 0, cell.federation.ids)
    addresses = map(
        ClientAddress, executor.devices.start[0], executor.split_sizes, keys, keys
    )
    return [
        np.asarray(order(it))[:size].astype(np.int64)
        for it, size in zip(addresses, cell.sizes, strict=True)
    ]


if __name__ == "__main__":
    main()
