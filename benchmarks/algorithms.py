"""What each method costs beside FedAvg: its time, its gradients and forward passes, and
the overhead left over.

    python benchmarks/algorithms.py                all methods
    python benchmarks/algorithms.py ditto scaffold some

The overhead is the time of a round beyond that of FedAvg scaled to the method's own
gradients and forward passes (a forward pass counts a third of a gradient), as the
ledger has them.
"""

import argparse
import inspect
from dataclasses import fields, replace

import numpy as np
from cells import CLASSES, DIGIT
from measuring import machine, show, take_turns
from ours import rounds_of
from rich.console import Console
from rich.table import Table

import fedtailor.algorithms  # noqa: F401 (fills the registry)
from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.runs import simulate
from fedtailor.engine.training import Training
from fedtailor.models import mlp
from fedtailor.protocol import SGD, Algorithm

CLIENTS, SAMPLES, GROUPS = 20, 500, 4
LOCAL = SGD(lr=0.01, epochs=1, batch_size=10)
FORWARD = 1 / 3
"""Cost of a forward pass in gradients: a gradient is a forward pass and two products of
its size.
"""


def main() -> None:
    methods = available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "methods", nargs="*", help=f"of {', '.join(methods)}; default: all"
    )
    parser.add_argument(
        "--turns", type=int, default=7, help="timed rounds of each method"
    )
    options = parser.parse_args()
    unknown = [name for name in options.methods if name not in methods]
    if unknown:
        parser.error(
            f"there is no method {unknown[0]!r}; choose from {', '.join(methods)}"
        )
    federation = digits_like()
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table(
        "method", "round, ms", "time / FedAvg's", "work / FedAvg's", "overhead, ms"
    )
    model = mlp(128).bind(DIGIT, CLASSES)
    for name in options.methods or methods:
        base = simulate(methods["fedavg"], federation, model)
        # Some methods need more than this setting has: adapters, a public set.
        try:
            other = simulate(methods[name], federation, model)
        except ValueError as error:
            console.print(f"{name} is left out: {error}", style="dim")
            continue
        times = take_turns(
            {"fedavg": rounds_of(base), name + " ": rounds_of(other)}, options.turns
        )
        reference, time = (value.median for value in times.values())
        relative = work(other) / work(base)
        table.add_row(
            name,
            f"{1e3 * time:.1f}",
            f"{time / reference:.2f}",
            f"{relative:.2f}",
            f"{1e3 * (time - relative * reference):.1f}",
        )
        console.print(
            f"{name}: {time / reference:.2f} times the seconds, {relative:.2f} times"
            " the work"
        )
    show(console, table, "algorithms", "jax")


def available() -> dict[str, Algorithm]:
    """All methods that need no arguments, with one and the same local training where
    they have one.
    """
    found = {}
    for name, kind in sorted(Algorithm.registry.items()):
        if all(
            p.default is not p.empty
            for p in inspect.signature(kind).parameters.values()
        ):
            method = kind()
            has_sgd = any(field.name == "sgd" for field in fields(method))  # type: ignore[arg-type]
            found[name] = replace(method, sgd=LOCAL) if has_sgd else method  # type: ignore[type-var]
    return found


def digits_like() -> Federation:
    """Clients in groups, each with training and validation samples."""
    rng = np.random.default_rng(0)
    x = 0.3 * rng.standard_normal((CLIENTS * SAMPLES, *DIGIT), np.float32)
    y = rng.integers(0, CLASSES, len(x))
    rows = np.arange(len(x)).reshape(CLIENTS, SAMPLES)
    train, val = Ragged.of(list(rows[:, 50:])), Ragged.of(list(rows[:, :50]))
    names = tuple(f"client {index}" for index in range(CLIENTS))
    groups = np.arange(CLIENTS) % GROUPS
    return Federation(
        x, y, train, val, Ragged.empty(CLIENTS), names, groups=groups, classes=CLASSES
    )


def work(training: Training) -> float:
    """Gradients a round, forward passes included; the rounds, not the probe before
    them.
    """
    entries = [
        entry
        for entry in training.ledger.entries
        if entry.phase == "round" and entry.direction == "compute"
    ]
    return (
        sum(entry.gradients + FORWARD * entry.forwards for entry in entries)
        / training.round
    )


if __name__ == "__main__":
    main()
