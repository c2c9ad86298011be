"""Do clients with narrow networks gain from clients with wide ones? HeteroFL beside FedAvg.

Half of the 20 clients of a digits' scenario have a narrow perceptron and half a wide one. The
same rates are tried for each method, and chosen by the narrow clients' validation accuracy on
the first seed.

python benchmarks/widths.py
python benchmarks/widths.py --wide 128 --scenario digits-label-shift
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
from measuring import machine
from rich.console import Console
from rich.table import Table

import fedtailor as ft
from fedtailor.data.federation import Federation
from fedtailor.engine.runs import Run
from fedtailor.lab import scenarios
from fedtailor.models import Architecture
from fedtailor.protocol import SGD, Algorithm, Diverged

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
CLIPPED = SGD(clip=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", default="digits-rotated")
    parser.add_argument("--narrow", type=int, default=64)
    parser.add_argument("--wide", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    narrow, wide = ft.models.mlp(options.narrow), ft.models.mlp(options.wide)
    table = Table(
        title=f"{options.scenario}: mlp({options.narrow}), mlp({options.wide})"
    )
    for column in (
        "method",
        "networks",
        "rate",
        "narrow clients",
        "wide clients",
        "MB up",
    ):
        table.add_column(column)
    for label, networks, method in methods():
        chosen, scores, megabytes = measured(
            label, method, networks, narrow, wide, options
        )
        table.add_row(label, networks, chosen, *scores, megabytes)
    console = Console(width=120)
    console.print(table)
    console.print(
        f"Accuracy: mean and standard deviation over {options.seeds} seeds of the mean over"
        f" clients, after {options.rounds} rounds. {machine()}"
    )


def methods() -> list[tuple[str, str, Algorithm]]:
    """Label, who has which network, and the method."""
    return [
        ("Local", "both", ft.Local()),
        ("HeteroFL, factor", "both", ft.HeteroFL()),
        ("HeteroFL, factor and clip 1", "both", ft.HeteroFL(sgd=CLIPPED)),
        ("HeteroFL, factor, clip 1, mask", "both", ft.HeteroFL(sgd=CLIPPED, mask=True)),
        ("HeteroFL, factor, even steps", "both", ft.HeteroFL(even_steps=True)),
        ("HeteroFL, neither", "both", ft.HeteroFL(scale=False)),
        ("HeteroFL, clip 1", "both", ft.HeteroFL(sgd=CLIPPED, scale=False)),
        ("FedAvg", "all narrow", ft.FedAvg(weights="uniform")),
        ("FedAvg", "narrow clients alone", ft.FedAvg(weights="uniform")),
        ("FedAvg", "all wide", ft.FedAvg(weights="uniform")),
    ]


def measured(
    label: str,
    method: Any,
    networks: str,
    narrow: Architecture,
    wide: Architecture,
    options: argparse.Namespace,
) -> tuple[str, list[str], str]:
    """The chosen rate, the accuracies of narrow and wide clients, and the megabytes that all
    clients send.
    """
    federations = [
        scenarios.find(options.scenario).sized(val=0.2).build(seed)
        for seed in range(options.seeds)
    ]

    def run(rate: float, seed: int) -> Run:
        federation: Federation = federations[seed]
        names = federation.names[::2]  # every other client has a narrow network
        model = ft.models.by_client(dict.fromkeys(names, narrow), default=wide)
        if networks == "all narrow":
            model = narrow
        if networks == "all wide":
            model = wide
        if networks == "narrow clients alone":
            model, federation = narrow, federation.only(names)
        clip = method.sgd.clip
        sgd = SGD(lr=rate, momentum=0.9, epochs=5, batch_size=16, clip=clip)
        return ft.run(
            replace(method, sgd=sgd),
            federation,
            model,
            options.rounds,
            seed=seed,
            evaluate_every=options.rounds,
        )

    alone = networks == "narrow clients alone"

    def narrow_ones(run: Run, split: str) -> np.ndarray:
        values = run.metrics.values("accuracy", split)
        return values if alone else values[::2]

    tried: dict[float, Run] = {}
    for rate in RATES:
        try:
            tried[rate] = run(rate, 0)
        except Diverged:
            print(f"{label}, {networks}: rate {rate} diverged", flush=True)
    best = max(tried, key=lambda rate: np.nanmean(narrow_ones(tried[rate], "val")))
    runs = [tried[best], *(run(best, seed) for seed in range(1, options.seeds))]
    kinds = [[np.nanmean(narrow_ones(it, "test")) for it in runs]]
    if not alone:
        kinds.append([np.nanmean(it.metrics.values("accuracy")[1::2]) for it in runs])
    scores = [f"{np.mean(it):.3f} ± {np.std(it, ddof=1):.3f}" for it in kinds]
    megabytes = runs[0].ledger.totals().bytes_up / 1e6
    print(label, networks, best, *scores, f"{megabytes:.1f} MB", flush=True)
    return f"{best:g}", scores + [""] * alone, f"{megabytes:.1f}"


if __name__ == "__main__":
    main()
