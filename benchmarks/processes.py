"""Memory and seconds of a round of processes that train one federation together
(`jax.distributed`, gloo over loopback): each holds everything, or its own clients only.

python benchmarks/processes.py

The examples are random numbers in a file, from which each process reads what it holds.
Aggregation is canonical; the benchmark stops if the evaluations differ by a bit. What a
process needs beside data and states (Python, JAX, compiled programs, the messages of a
round) is measured with few clients that have few examples, and taken off.
RECORD=1 writes measured/processes.json, from which docs/experiments.md has its table.
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

INPUTS, CLASSES, HIDDEN = 784, 10, 100
CLIENTS, EXAMPLES = 400, 160
COHORT = 40
FEW_CLIENTS, FEW_EXAMPLES = 44, 10
WAYS = {
    "one process": (1, "whole"),
    "4 processes, each with everything": (4, "whole"),
    "2 processes, each with its share": (2, "share"),
    "4 processes, each with its share": (4, "share"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        address, processes, number, kind, data = options.worker
        work(address, int(processes), int(number), kind, Path(data), options.rounds)
        return
    compare(options.clients, options.rounds)


def compare(clients: int, rounds: int) -> None:
    """Train in every way, and print the table."""
    from measuring import machine, show
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table(
        "processes",
        "examples, MB",
        "states, MB",
        "peak of a process, MB",
        f"with {FEW_CLIENTS} clients of {FEW_EXAMPLES}, MB",
        "beyond that, MB",
        "seconds of a round",
        title=f"{clients} clients of {EXAMPLES} examples, Ditto, {COHORT} a round",
    )
    bits = set()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"many": (clients, EXAMPLES), "few": (FEW_CLIENTS, FEW_EXAMPLES)}
        for name, (count, examples) in sizes.items():
            call = f"make({count}, {examples}, {f'{folder}/{name}'!r})"
            command = [sys.executable, "-c", f"from processes import make; {call}"]
            subprocess.run(command, check=True, cwd=Path(__file__).parent)
        for way, (processes, kind) in WAYS.items():
            few, many = (
                in_processes(processes, kind, Path(folder) / name, rounds)
                for name in ("few", "many")
            )
            bits |= {one["bits"] for one in many}
            beyond = [b["peak"] - a["peak"] for a, b in zip(few, many, strict=True)]
            table.add_row(
                way,
                *(
                    _range([one[name] for one in many])
                    for name in ("examples", "states")
                ),
                *(_range([one["peak"] for one in all_]) for all_ in (many, few)),
                _range(beyond),
                f"{max(one['seconds'] for one in many):.2f}",
            )
    show(console, table, "processes", "jax")
    if len(bits) > 1:
        raise SystemExit("the evaluations differ")


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def make(clients: int, examples: int, path: str) -> None:
    """Write a federation of random examples."""
    from fedtailor.data.federation import Federation, Ragged, save

    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * examples, INPUTS)).astype(np.float32)
    weights = rng.normal(size=(INPUTS, CLASSES)).astype(np.float32)
    rows = np.arange(len(x)).reshape(clients, examples)
    train = examples * 9 // 10
    federation = Federation(
        x=x,
        y=(x @ weights).argmax(axis=1),
        train=Ragged.of([*rows[:, :train]]),
        val=Ragged.empty(clients),
        test=Ragged.of([*rows[:, train:]]),
        names=tuple(f"client-{number:05d}" for number in range(clients)),
        classes=CLASSES,
        name="random",
    )
    save(federation, path)


def in_processes(processes: int, kind: str, data: Path, rounds: int) -> list[dict]:
    """What each process says about its memory and time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--rounds", str(rounds), "--worker"),
                *(address, str(processes), str(number), kind, str(data)),
            ],
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    lines = [one.communicate()[0].splitlines() for one in started]
    if any(one.returncode for one in started):
        raise SystemExit(f"a process of {processes} ({kind}) failed")
    return [json.loads(line[-1]) for line in lines]


def work(
    address: str, processes: int, number: int, kind: str, data: Path, rounds: int
) -> None:
    """Train in one process, and print its memory in MB."""
    import jax

    if processes > 1:
        jax.distributed.initialize(address, processes, number)
    from measuring import peak_memory

    import fedtailor as ft
    from fedtailor.data.federation import load, load_shard
    from fedtailor.engine.executors import Settings

    federation = load(data) if kind == "whole" else load_shard(data)
    run = ft.run(
        ft.Ditto(sgd=ft.SGD(lr=0.05, batch_size=10)),
        federation,
        ft.models.mlp(HIDDEN),
        rounds,
        participation=COHORT,
        evaluate_every=rounds,
        settings=Settings(canonical=True),
        directory=data.with_name(f"{data.name}-{kind}-{processes}"),
        checkpoint_every=rounds // 2,
    )
    frame = run.frame().write_csv().encode()
    states = jax.tree.leaves(run.executor.states.rows)
    found = {
        "peak": peak_memory() / 1e6,
        "examples": run.executor.federation.x.nbytes / 1e6,
        "states": sum(np.asarray(leaf).nbytes for leaf in states) / 1e6,
        "seconds": float(np.median(run.training.round_seconds[1:])),
        "bits": hashlib.sha256(frame).hexdigest(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
