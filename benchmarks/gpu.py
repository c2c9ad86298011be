"""Seconds of a round of federated averaging on a GPU, beside a plain PyTorch loop on the
same GPU and fedtailor on all cores of the same machine.

python benchmarks/gpu.py              all cells
python benchmarks/gpu.py mlp-10       some
python benchmarks/gpu.py --tf32       products of matrices in TF32, in both programs

All numbers are float32, and so are products unless --tf32 is given. A cell is timed after a
check that both programs train the same model on the same batches (with products in float32).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import torch
from cells import CELLS, DIGIT, Cell, add_cells_argument
from measuring import Times, load, machine, ratio, show, take_turns
from ours import rounds_of
from pytorch_loop import Loop, to_torch
from rich.console import Console
from rich.table import Table
from rounds import LR, disagreement, start

from fedtailor.models import lenet5

MANY = Cell("lenet-64, 100 clients", lenet5(), DIGIT, (900,) * 100, 64, goal=0)
KNOWN = {
    name: CELLS[name]
    for name in ("logistic-10", "mlp-10", "lenet-10", "lenet-100", "cifar-cnn-32")
} | {MANY.name: MANY}
"""Cells of the benchmark on CPUs, and one with more clients and larger batches."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_cells_argument(parser, KNOWN)
    parser.add_argument("--turns", type=int, default=5, help="timed rounds of each")
    parser.add_argument("--tf32", action="store_true", help="products in TF32")
    parser.add_argument("--on-cpu", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cells = [KNOWN[name] for name in options.cells]
    if options.on_cpu:
        # The child process of `_on_cpu`, which reads this line.
        print(json.dumps([_ours(cell, options.turns).seconds for cell in cells]))
        return
    if jax.default_backend() != "gpu" or not torch.cuda.is_available():
        parser.error("JAX or PyTorch finds no GPU here")
    jax.config.update(
        "jax_default_matmul_precision", "tensorfloat32" if options.tf32 else "float32"
    )
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32

    console = Console(width=150, highlight=False)
    console.print(machine("jax", "torch"))
    console.print(
        f"{jax.devices()[0].device_kind}; minimum / median of {options.turns} turns;"
        " ratios to fedtailor on the GPU, the same way"
    )
    table = Table("cell", "fedtailor, ms", "loop, ms", "fedtailor on all cores, ms")
    table.add_column("loop : ours")
    table.add_column("cores : GPU")
    table.add_column("load")
    table.add_column("difference")
    for cell, on_cpu in zip(cells, _on_cpu(cells, options.turns), strict=True):
        # Products in TF32 differ by more than the check allows.
        difference = "" if options.tf32 else f"{disagreement(cell, 'cuda'):.0e}"
        times = _measure(cell, options.turns)
        ours, loop = times["fedtailor"], times["loop"]
        ratios = ratio(loop, ours), ratio(on_cpu, ours)
        table.add_row(
            cell.name, str(ours), str(loop), str(on_cpu), *ratios, load(), difference
        )
        console.print(f"{cell.name}: {ratios[0]} beside the loop, {ratios[1]} cores")
    show(console, table, "gpu-tf32" if options.tf32 else "gpu", "jax", "torch")


def _measure(cell: Cell, turns: int) -> dict[str, Times]:
    """Times of fedtailor and of the loop, both on the GPU."""
    training = start(cell)
    loop = Loop(cell, range(len(cell.sizes)), LR, "cuda")
    theta = to_torch(cell, np.asarray(training.server.model[0])).cuda()

    def round_of_loop() -> None:
        loop.round(theta)
        torch.cuda.synchronize()

    return take_turns({"fedtailor": rounds_of(training), "loop": round_of_loop}, turns)


def _on_cpu(cells: list[Cell], turns: int) -> list[Times]:
    """Times of fedtailor on the machine's cores, in a process of its own."""
    command = [sys.executable, str(Path(__file__)), *(cell.name for cell in cells)]
    found = subprocess.run(
        [*command, "--turns", str(turns), "--on-cpu"],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [Times(tuple(seconds)) for seconds in json.loads(found.stdout)]


def _ours(cell: Cell, turns: int) -> Times:
    times = take_turns({"fedtailor": rounds_of(start(cell))}, turns)
    return times["fedtailor"]


if __name__ == "__main__":
    main()
