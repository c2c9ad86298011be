"""Which learning rates train low-rank adapters, by the width of the network and the rank?

Federated averaging of adapters on rotated digits, with the scenario's momentum, epochs and
batches, at rates that double. The frozen network is random, or was trained on five of the
20 clients, and its adapters are trained on the others. A rate is stable if no seed diverges
and no seed's validation accuracy is a tenth below the best of all rates. "all" in place of
a rank trains the whole network.

python benchmarks/adapter_rates.py
python benchmarks/adapter_rates.py --widths 64 --ranks 4 --rounds 40
"""

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from measuring import machine, show
from rich.console import Console
from rich.table import Table

import fedtailor as ft
from fedtailor.data.federation import Federation
from fedtailor.lab.scenarios.digits import LOCAL
from fedtailor.models import Architecture
from fedtailor.protocol import Diverged

RATES = tuple(0.05 * 2.0**step for step in range(-5, 2))
BASES = ("random", "trained")
OTHERS = 5
"""Clients that only the frozen network is trained on."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--bases", nargs="+", choices=BASES, default=[*BASES])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    table = Table("base", "width", "rank", "best rate", "largest stable", "at best, %")
    table.add_column("at .05, %")
    for base in options.bases:
        for width in options.widths:
            for rank in [*options.ranks, None] if base == "random" else options.ranks:
                scores = measured(base, width, rank, options.rounds, options.seeds)
                cells = summary(scores)
                label = "all" if rank is None else str(rank)
                table.add_row(base, str(width), label, *cells)
                curve = " ".join(f"{100 * it:.1f}" for it in scores.min(axis=1))
                print(base, width, label, *cells, "|", curve, flush=True)
    console = Console(width=100)
    show(console, table, "adapter-rates", "jax")
    console.print(f"{options.rounds} rounds, {options.seeds} seeds. {machine('jax')}")


def measured(
    base: str, width: int, rank: int | None, rounds: int, seeds: int
) -> np.ndarray:
    """Mean validation accuracies [rates, seeds] over clients; NaN where a run diverged."""
    scores = np.full((len(RATES), seeds), np.nan)
    for seed in range(seeds):
        whole = ft.scenarios.digits_rotated(seed=seed, val=0.2)
        federation = whole.only(whole.names[OTHERS:])
        network: Architecture = ft.models.mlp(width)
        if rank is not None:
            with TemporaryDirectory() as folder:
                is_random = base == "random"
                start = None if is_random else trained(whole, width, seed, folder)
                network = ft.models.lora(network, rank, start=start, seed=seed)
        for index, rate in enumerate(RATES):
            method = ft.FedAvg(sgd=replace(LOCAL, lr=rate))
            try:
                run = ft.run(
                    method,
                    federation,
                    network,
                    rounds,
                    seed=seed,
                    evaluate_every=rounds,
                )
            except Diverged:
                continue
            scores[index, seed] = np.nanmean(run.metrics.values("accuracy", "val"))
    return scores


def trained(whole: Federation, width: int, seed: int, folder: str) -> Path:
    """The file of a network that was trained on the other clients."""
    others = whole.only(whole.names[:OTHERS])
    method = ft.FedAvg(sgd=LOCAL)
    run = ft.run(method, others, ft.models.mlp(width), 10, seed=seed, evaluate_every=10)
    own = run.personal(others.names[0])
    return ft.models.save_start(
        own.model, own.theta, Path(folder) / f"{width}-{seed}.safetensors"
    )


def summary(scores: np.ndarray) -> tuple[str, ...]:
    """The best rate, the largest stable one, and accuracies at the best and at .05."""
    # A diverged run scores nothing.
    mean, worst = np.nan_to_num(scores).mean(axis=1), np.nan_to_num(scores).min(axis=1)
    best = int(mean.argmax())
    stable = np.flatnonzero(worst > mean[best] - 0.1)
    default = mean[RATES.index(0.05)]
    return (
        f"{RATES[best]:.4f}",
        f"{RATES[stable[-1]]:.4f}",
        f"{100 * mean[best]:.1f}",
        f"{100 * default:.1f}",
    )


if __name__ == "__main__":
    main()
