"""How much of the machine a round uses: its FLOP/s over those of a large matrix product
on the same devices.

    python benchmarks/hardware.py                  all cells
    python benchmarks/hardware.py mlp-10 lenet-32  some

Counted are the products of forward pass and gradient: not activations, losses, updates
of the weights or gathers, and not the gradient by the data.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import torch
from cells import CELLS, Cell, add_cells_argument
from jax.sharding import NamedSharding, PartitionSpec
from measuring import load, machine, show, take_turns
from ours import rounds_of
from pytorch_loop import network
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.algorithms import FedAvg
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs import simulate
from fedtailor.protocol import SGD

SIDE = 1024
REPEATS = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_cells_argument(parser)
    parser.add_argument(
        "--turns", type=int, default=7, help="timed rounds of each cell"
    )
    options = parser.parse_args()
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table(
        "cell", "round, ms", "GFLOP/s", "matrix product, GFLOP/s", "share", "load"
    )
    for name in options.cells:
        cell = CELLS[name]
        training = simulate(
            FedAvg(SGD(batch_size=cell.batch_size)), cell.federation, cell.model
        )
        mesh = Settings().mesh()
        side = jax.device_put(
            jnp.ones((mesh.size, SIDE, SIDE), jnp.float32),
            NamedSharding(mesh, PartitionSpec(*mesh.axis_names)),
        )
        times = take_turns(
            {
                "round": rounds_of(training),
                "product": lambda side=side: _product(side).block_until_ready(),
            },
            options.turns,
        )
        rate = gradient_flops(cell) * sum(cell.sizes) / times["round"].median / 1e9
        limit = mesh.size * REPEATS * 2 * SIDE**3 / times["product"].median / 1e9
        table.add_row(
            name,
            str(times["round"]),
            f"{rate:.1f}",
            f"{limit:.1f}",
            f"{rate / limit:.0%}",
            load(),
        )
    show(console, table, "hardware", "jax")


@jax.jit
def _product(x: jax.Array) -> jax.Array:
    """On every device, `REPEATS` products one after another."""
    step = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    for _ in range(REPEATS):
        x = step(x, x) / SIDE
    return x


def gradient_flops(cell: Cell) -> int:
    """Floating-point operations of the products in one example's gradient, as PyTorch
    counts those of the same network.
    """
    examples = 2  # of one, batch normalisation has no variance
    height, *others = cell.input_shape
    shape = (others[-1], height, height) if others else (height,)
    loss = torch.nn.CrossEntropyLoss()
    with FlopCounterMode(display=False) as counter:
        outputs = network(cell)(torch.zeros(examples, *shape))
        loss(outputs, torch.zeros(examples, dtype=torch.long)).backward()
    return counter.get_total_flops() // examples


if __name__ == "__main__":
    main()
