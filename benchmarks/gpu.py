"""Seconds, memory and first round of federated averaging on a GPU, beside a plain PyTorch
loop on the same GPU and fedtailor on all cores of the same machine.

python benchmarks/gpu.py                      all cells, at most 8 minutes
python benchmarks/gpu.py                      once more: what is left
python benchmarks/gpu.py mlp-10 --tf32        some; products of matrices in TF32
python benchmarks/gpu.py --on cpu --quick --out tiny.json    tries the script without a GPU

A cell is timed after a check that both programs train the same model on the same batches
(in float32). Every measurement is a process of its own, which keeps no compiled programs,
and its result is written into a file at once. A call ends when its minutes are over, and
the next one goes on with what the file lacks. Remove the file to measure again.

Numbers are float32, and so are products unless --tf32 is given, but for the column of
bfloat16. Memory is the most that a process had on the GPU at one time (with --on cpu: at
all), data and compiling included.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import torch
from cells import CELLS, DIGIT, Cell, add_cells_argument
from measuring import (
    Results,
    Times,
    load,
    machine,
    peak_memory,
    ratio,
    show,
    take_turns,
)
from ours import rounds_of
from pytorch_loop import Loop, to_torch
from rich.console import Console
from rich.table import Table
from rounds import LR, disagreement, start

from fedtailor.models import lenet5

MANY = Cell("lenet-64, 100 clients", lenet5(), DIGIT, (900,) * 100, 64, goal=0)
LARGE = replace(CELLS["resnet18-20"], name="resnet18, 20 clients", sizes=(100,) * 20)
KNOWN = {cell.name: cell for cell in (MANY, LARGE)} | {
    name: CELLS[name]
    for name in ("mlp-10", "lenet-10", "cifar-cnn-32", "lenet-100", "logistic-10")
}
"""What the network does most for comes first: more clients and larger batches, a large
network, and cells of the benchmark on CPUs.
"""
PARTS = ("ours", "bfloat16", "loop", "difference", "cores")
"""What a process measures."""
SECONDS_OF_ONE = 240.0
"""The longest measurement; the next call tries again one that takes longer."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_cells_argument(parser, KNOWN)
    parser.add_argument("--turns", type=int, default=5, help="timed rounds of each")
    parser.add_argument("--minutes", type=float, default=8, help="of one call")
    parser.add_argument("--out", type=Path, default=Path("gpu-results.json"))
    parser.add_argument("--tf32", action="store_true", help="products in TF32")
    parser.add_argument("--on", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--quick", action="store_true", help="two clients of two batches, one turn"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cells = [_sized(KNOWN[name], options.quick) for name in options.cells]
    if options.part:
        # The child process of `_measured`, which reads this line.
        print(json.dumps(_part(options.part, cells[0], options)))
        return
    if options.on == "gpu" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here")
    console = Console(width=180, highlight=False)
    console.print(machine("jax", "torch"))
    results, ends = Results(options.out), time.monotonic() + 60 * options.minutes
    for cell in cells:
        for part in PARTS:
            name = f"{cell.name}: {part}"
            if options.tf32 and part == "difference":
                continue  # they differ by more than the check allows
            left = ends - time.monotonic()
            if name not in results.found and left <= 0:
                console.print(f"the time is over before {name}; the same call goes on")
                _show(console, cells, results, options)
                return
            measure = partial(_measured, cell, part, min(SECONDS_OF_ONE, left))
            try:
                console.print(f"{name}: {results.of(name, measure)}")
            except RuntimeError as error:
                console.print(f"{name}: {error}")
    _show(console, cells, results, options)


def _sized(cell: Cell, quick: bool) -> Cell:
    """A cell; or two clients of it with two batches each."""
    if not quick:
        return cell
    return replace(cell, sizes=(2 * cell.batch_size,) * 2)


def _measured(cell: Cell, part: str, seconds: float) -> dict[str, Any]:
    """What a new process reports.

    Raises:
        RuntimeError: it fails, or takes longer than some seconds.
    """
    # The options of this process, with one cell in place of its cells.
    own = [argument for argument in sys.argv[1:] if argument not in KNOWN]
    on_cpu = {"JAX_PLATFORMS": "cpu"} if part == "cores" else {}
    settings = {
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # Memory is taken when it is needed, so that the most of it tells something.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **on_cpu,
    }
    command = [sys.executable, __file__, cell.name, *own, "--part", part]
    try:
        done = subprocess.run(
            command,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {seconds:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else "no message")
    return json.loads(done.stdout.splitlines()[-1])


def _part(part: str, cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement of one cell, in this process.

    Raises:
        SystemExit: JAX finds no GPU, or the programs train different models.
    """
    on_gpu = options.on == "gpu" and part != "cores"
    if on_gpu and jax.default_backend() != "gpu":
        raise SystemExit("JAX finds no GPU here")
    precision = "tensorfloat32" if options.tf32 else "float32"
    jax.config.update("jax_default_matmul_precision", precision)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    turns, device = 1 if options.quick else options.turns, "cuda" if on_gpu else "cpu"
    if part == "difference":
        return {"difference": disagreement(cell, device)}
    if part == "loop":
        return _loop(cell, turns, device)
    if part == "bfloat16":
        half = cell.architecture.in_precision("bfloat16")
        cell = replace(cell, architecture=half)
    return _ours(cell, turns, on_gpu)


def _ours(cell: Cell, turns: int, on_gpu: bool) -> dict[str, Any]:
    begun = perf_counter()
    call = rounds_of(start(cell))
    call()
    first = perf_counter() - begun
    times = take_turns({"rounds": call}, turns)["rounds"]
    peak = peak_memory()
    if on_gpu:
        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    device = jax.devices()[0].device_kind
    return {"seconds": times.seconds, "first": first, "MiB": peak >> 20, "on": device}


def _loop(cell: Cell, turns: int, device: str) -> dict[str, Any]:
    theta = to_torch(cell, np.asarray(cell.model.init(jax.random.key(0)))).to(device)
    begun = perf_counter()
    loop = Loop(cell, range(len(cell.sizes)), LR, device)

    def call() -> None:
        loop.round(theta)
        if device == "cuda":
            torch.cuda.synchronize()

    call()
    first = perf_counter() - begun
    times = take_turns({"rounds": call}, turns)["rounds"]
    peak = peak_memory()
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return {"seconds": times.seconds, "first": first, "MiB": peak >> 20}


def _show(
    console: Console, cells: list[Cell], results: Results, options: argparse.Namespace
) -> None:
    """The table of what there is."""
    table = Table("cell", "fedtailor, ms", "bfloat16, ms", "loop, ms", "cores, ms")
    for heading in ("loop : ours", "cores : GPU", "float32 : bfloat16"):
        table.add_column(heading)
    for heading in ("first round, s", "loop's", "memory, MiB", "bfloat16", "loop's"):
        table.add_column(heading)
    table.add_column("difference")
    for cell in cells:
        found = {part: results.found.get(f"{cell.name}: {part}", {}) for part in PARTS}
        times = {
            part: Times(tuple(one["seconds"]))
            for part, one in found.items()
            if "seconds" in one
        }

        def compared(slow: str, fast: str, times: dict[str, Times] = times) -> str:
            both = slow in times and fast in times
            return ratio(times[slow], times[fast]) if both else ""

        def number(part: str, key: str, form: str, found: Any = found) -> str:
            return format(found[part][key], form) if key in found[part] else ""

        table.add_row(
            cell.name,
            *(
                str(times.get(part, ""))
                for part in ("ours", "bfloat16", "loop", "cores")
            ),
            compared("loop", "ours"),
            compared("cores", "ours"),
            compared("ours", "bfloat16"),
            number("ours", "first", ".1f"),
            number("loop", "first", ".1f"),
            *(number(part, "MiB", "") for part in ("ours", "bfloat16", "loop")),
            number("difference", "difference", ".0e"),
        )
    console.print(f"minimum / median, ratios the same way; load {load()}")
    show(console, table, "gpu-tf32" if options.tf32 else "gpu", "jax", "torch")


if __name__ == "__main__":
    main()
