"""Memory and seconds of a round for ten clients of large networks: all parameters trained,
or frozen with low-rank adapters.

Each cell runs in a process of its own, whose largest resident memory is measured, less
that of the same process before it makes the model. The network is a perceptron of about
the asked size with ReLU; the examples are random. "one copy" is the memory of the
network's numbers.
"""

import argparse
import json
import resource
import subprocess
import sys
from time import perf_counter

import numpy as np
from measuring import machine

INPUTS, CLASSES, CLIENTS = 512, 1000, 10
WIDTHS = {"1": 420, "11": 2000, "25": 3150, "100": 6650}
"""Millions of parameters -> the width of three hidden layers."""
KINDS = ("full", "frozen body", "lora 8")


def measure(millions: str, kind: str, rounds: int) -> dict[str, float]:
    """One cell, in this process."""
    import fedtailor as ft
    from fedtailor.federation import from_arrays

    rng = np.random.default_rng(0)
    rows = 20 * CLIENTS
    federation = from_arrays(
        rng.normal(size=(rows, INPUTS)).astype(np.float32),
        rng.integers(CLASSES, size=rows),
        np.arange(rows) % CLIENTS,
        test=0.2,
        classes=CLASSES,
    )
    network = ft.models.mlp((WIDTHS[millions],) * 3)
    whole = network.bind(federation.input_shape, CLASSES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = {
        "full": lambda: network,
        "frozen body": lambda: ft.models.frozen(network, "not head"),
        "lora 8": lambda: ft.models.lora(network, rank=8),
    }[kind]()
    started = perf_counter()
    done = ft.run(
        ft.Ditto(sgd=ft.SGD(lr=0.01, steps=2, batch_size=8)),
        federation,
        model,
        rounds,
        evaluate_every=rounds,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    frozen = 0 if done.model.frozen is None else done.model.frozen.size
    return {
        "parameters": whole.size,
        "frozen": frozen,
        "trained": done.model.size,
        "bytes_up": done.summary().bytes_up / rounds / CLIENTS,
        "memory": (peak - before) * 1024,
        "seconds": float(np.median(done.training.round_seconds)),
        "first": perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", nargs="*", choices=WIDTHS, default=[*WIDTHS][1:])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(measure(*options.cell, options.rounds)))
        return
    print(machine("fedtailor", "jax"))
    print("| network | trained | one copy MiB | memory MiB | up MiB | s a round |")
    for millions in options.millions:
        for kind in options.kinds:
            cell = [sys.executable, __file__, "--cell", millions, kind]
            child = subprocess.run(
                [*cell, "--rounds", str(options.rounds)],
                capture_output=True,
                text=True,
            )
            name = f"{millions} M, {kind}"
            if child.returncode:
                reason = (child.stderr.strip().splitlines() or ["killed"])[-1]
                print(f"| {name} | {reason} |")
                continue
            found = json.loads(child.stdout.splitlines()[-1])
            mib = 2**20
            print(
                f"| {name} | {found['trained']:,.0f}"
                f" | {4 * found['parameters'] / mib:.0f} | {found['memory'] / mib:.0f}"
                f" | {found['bytes_up'] / mib:.2f} | {found['seconds']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
