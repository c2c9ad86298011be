"""Memory and seconds of a round for ten clients of large networks: all parameters trained,
or frozen with low-rank adapters.

The network is a perceptron with 24 hidden layers and ReLU, about as many as a transformer
of its size has matrices; examples are random. Each cell runs in a process of its own. Its
memory is the largest resident memory of a run with the network, less that of the same run
with a narrow network before: what the compiler needs for 24 layers is not part of it.
Frozen networks come from a safetensors file ("random" ones are drawn). "one copy" is the
memory of the network's numbers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
from measuring import peak_memory, show
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

INPUTS, CLASSES, CLIENTS, LAYERS = 512, 1000, 10, 24
WIDTHS = {"1": 178, "11": 660, "25": 1010, "100": 2050}
"""Millions of parameters -> the width of the hidden layers."""
KINDS = ("full", "lora 3", "lora 3, random")
MIB = 2**20


def measure(millions: str, kind: str, rounds: int, file: Path) -> dict[str, float]:
    """One cell, in this process."""
    import fedtailor as ft
    from fedtailor.data.federation import from_arrays

    rng = np.random.default_rng(0)
    rows = 20 * CLIENTS
    federation = from_arrays(
        rng.normal(size=(rows, INPUTS)).astype(np.float32),
        rng.integers(CLASSES, size=rows),
        np.arange(rows) % CLIENTS,
        test=0.2,
        classes=CLASSES,
    )

    def run(width: int, start: Path | None, rounds: int) -> ft.Run:
        network = ft.models.mlp((width,) * LAYERS)
        if kind != "full":
            network = ft.models.lora(network, rank=3, start=start)
        sgd = ft.SGD(lr=0.01, steps=2, batch_size=8)
        method = ft.Ditto(sgd=sgd)
        return ft.run(method, federation, network, rounds, evaluate_every=rounds)

    run(32, None, 1)
    before = peak_memory()
    started = perf_counter()
    done = run(WIDTHS[millions], file if kind == "lora 3" else None, rounds)
    peak = peak_memory()
    frozen = 0 if done.model.frozen is None else done.model.frozen.size
    return {
        "parameters": frozen or done.model.size,
        "trained": done.model.size,
        "bytes_up": done.summary().bytes_up / rounds / CLIENTS,
        "memory": peak - before,
        "seconds": float(np.median(done.training.round_seconds)),
        "all": perf_counter() - started,
    }


def write_network(millions: str, file: Path) -> None:
    """A safetensors file with the arrays of the network."""
    rng = np.random.default_rng(0)
    widths = [INPUTS, *[WIDTHS[millions]] * LAYERS, CLASSES]
    arrays = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        scale = np.float32(np.sqrt(2 / inputs))
        weight = rng.normal(size=(inputs, outputs)).astype(np.float32) * scale
        # Every other layer is a ReLU, and the first one makes vectors of inputs.
        name = f"layers.{2 * layer + 1}"
        arrays[f"{name}.weight"] = weight
        arrays[f"{name}.bias"] = np.zeros(outputs, np.float32)
    save_file(arrays, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", nargs="*", choices=WIDTHS, default=[*WIDTHS][1:])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        millions, kind, file = options.cell
        print(json.dumps(measure(millions, kind, options.rounds, Path(file))))
        return
    table = Table("network", "trained", "one copy, MiB", "memory, MiB", "up, MiB")
    table.add_column("s a round")
    table.add_column("s in all")
    for millions in options.millions:
        for kind in options.kinds:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "base.safetensors"
                write_network(millions, file)
                cell = [sys.executable, __file__, "--cell", millions, kind, str(file)]
                child = subprocess.run(
                    [*cell, "--rounds", str(options.rounds)],
                    capture_output=True,
                    text=True,
                    check=False,
                    # Programs that were kept would hide what compiling takes.
                    env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
                )
            name = f"{millions} M, {kind}"
            if child.returncode:
                reason = (child.stderr.strip().splitlines() or ["killed"])[-1]
                short = reason.removeprefix("ValueError: ").partition(" (")[0]
                table.add_row(name, "", "", f"refused: {short}", "", "", "")
                print(f"{name}: {reason}", flush=True)
                continue
            found = json.loads(child.stdout.splitlines()[-1])
            cells = (
                f"{found['trained']:,.0f}",
                f"{4 * found['parameters'] / MIB:.0f}",
                f"{found['memory'] / MIB:.0f}",
                f"{found['bytes_up'] / MIB:.2f}",
                f"{found['seconds']:.2f}",
                f"{found['all']:.0f}",
            )
            table.add_row(name, *cells)
            print(name, *cells, flush=True)
    show(Console(width=100), table, "frozen-memory", "jax")


if __name__ == "__main__":
    main()
