"""What the server's clustering costs beside a round of as many clients: weights, number
of streams, k-means of models.

python benchmarks/server.py
"""

import argparse
from collections.abc import Callable

import numpy as np
from cells import CLASSES, DIGIT
from measuring import Times, load, machine, show, take_turns
from ours import bytes_of, rounds_of
from rich.console import Console
from rich.table import Table

from fedtailor.aggregation import Probe, user_centric_weights
from fedtailor.aggregation.clusters import (
    choose_streams,
    k_means,
    k_means_of_models,
    silhouette,
)
from fedtailor.algorithms import FedAvg
from fedtailor.engine.runs import simulate
from fedtailor.models import mlp
from fedtailor.protocol import SGD

CLIENTS, SAMPLES, GROUPS = (20, 100, 1000), 500, 8
MODEL = mlp(128).bind(DIGIT, CLASSES)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7, help="timed calls of each kind")
    options = parser.parse_args()
    console = Console(width=120, highlight=False)
    console.print(machine("jax", "numpy"))
    table = Table(title="ms, minimum / median")
    for clients in CLIENTS:
        times = take_turns(contenders(clients), options.turns)
        if not table.columns:
            for heading in ("clients", *times, "load"):
                table.add_column(heading)
        table.add_row(str(clients), *map(str, times.values()), load())
        console.print(f"{clients} clients: {summary(times)}")
    show(console, table, "server", "jax")


def contenders(clients: int) -> dict[str, Callable[[], object]]:
    """A round of FedAvg, and what servers compute from gradients or models that lie in
    overlapping groups.
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((GROUPS, MODEL.size), np.float32)
    models = centres[rng.integers(GROUPS, size=clients)] + 2 * rng.standard_normal(
        (clients, MODEL.size), np.float32
    )
    spread = (
        10.0 * MODEL.size
    )  # of single samples, such that a client's weights reach beyond its group
    probe = Probe(models, np.full(clients, spread), np.full(clients, SAMPLES))
    rows = user_centric_weights(probe)
    labels = k_means(rows, GROUPS)[0]
    training = simulate(
        FedAvg(SGD(lr=0.01, epochs=1, batch_size=10)), bytes_of(clients, SAMPLES), MODEL
    )
    return {
        "round of FedAvg": rounds_of(training),
        "weights (eq. 9)": lambda: user_centric_weights(probe),
        "number of streams": lambda: choose_streams(rows),
        f"{GROUPS} streams": lambda: k_means(rows, GROUPS),
        "one silhouette": lambda: silhouette(rows, labels),
        f"{GROUPS} groups of models": lambda: k_means_of_models(models, GROUPS),
    }


def summary(times: dict[str, Times]) -> str:
    base = times["round of FedAvg"].median
    return (
        ", ".join(f"{name} {time.median / base:.2f}" for name, time in times.items())
        + " (to the round)"
    )


if __name__ == "__main__":
    main()
