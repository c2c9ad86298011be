"""Does UCFL find the batch n_k of its variances by itself?

n_k decides between FedAvg (small) and training alone (large). On scikit-learn's digits,
and on cuts of the three data sets of Mestoukirdi et al. (EMNIST and CIFAR-10 are
needed; leave them out with --only), a perceptron is trained with FedAvg, Local, and
UCFL with a stream for each client, a probe at the initial model, and

    n_k = 1 % ... 50 %     of a client's samples, given
    bound                  `kernel="bound"`: no n_k at all
    auto                   `sigma_batch="auto"`: five n_k from FedAvg to Local, and "bound", compete for ten to thirty
                           rounds, and validation data choose

The table holds the mean test accuracy over clients, in %, and the deviation over seeds.
The best n_k is the one with the best mean test accuracy, which nobody can know;
differences are paired over seeds. Runs that the file of results holds are not repeated.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from measuring import machine

import fedtailor as ft
from fedtailor.algorithms import UCFL, FedAvg, Local
from fedtailor.data.federation import Federation
from fedtailor.lab.scenarios.digits import (
    LOCAL,
    digits_label_shift,
    digits_permuted,
    digits_rotated,
)
from fedtailor.lab.scenarios.user_centric import (
    cifar_permuted,
    emnist_label_shift,
    emnist_rotated,
)
from fedtailor.models import Architecture, mlp
from fedtailor.protocol import SGD, Algorithm

SHARES = (0.01, 0.03, 0.1, 1 / 3, 0.5)
EMNIST = SGD(lr=0.02, momentum=0.9, epochs=1, batch_size=16)
CIFAR = SGD(lr=0.005, momentum=0.9, epochs=1, batch_size=16)


@dataclass(frozen=True)
class Cut:
    """A scenario at a size that runs in seconds."""

    build: Callable[[int], Federation]
    sgd: SGD
    rounds: int
    model: Architecture = mlp(128)  # noqa: RUF009 (frozen)


PARTS: dict[str, Any] = {"clients": 8, "test": 0.4, "val": 0.15}
CUTS = {
    "digits, label shift": Cut(
        lambda seed: digits_label_shift(seed, **PARTS), LOCAL, 25, mlp(32)
    ),
    "digits, rotated": Cut(
        lambda seed: digits_rotated(seed, **PARTS), LOCAL, 25, mlp(32)
    ),
    "digits, relabelled": Cut(
        lambda seed: digits_permuted(seed, **PARTS), LOCAL, 25, mlp(32)
    ),
    "EMNIST, label shift": Cut(
        lambda seed: emnist_label_shift(seed, val=0.1), EMNIST, 40
    ),
    "EMNIST, rotated": Cut(
        lambda seed: emnist_rotated(seed, clients=12, points=8_000, val=0.1), EMNIST, 40
    ),
    "CIFAR-10, relabelled": Cut(
        lambda seed: cifar_permuted(seed, clients=8, points=8_000, test=500, val=0.1),
        CIFAR,
        25,
    ),
}
"""8 clients with about 100 training images; 20 with 350 characters, 12 with 467, and 8
with 900 images.
"""


def method(name: str, cut: Cut) -> Algorithm:
    """The method of a row."""
    if name in ("FedAvg", "Local"):
        return (FedAvg if name == "FedAvg" else Local)(sgd=cut.sgd)
    if name == "auto":
        return UCFL(sgd=cut.sgd, warm=0, sigma_batch="auto")
    if name == "bound":
        return UCFL(sgd=cut.sgd, warm=0, kernel="bound")
    return UCFL(sgd=cut.sgd, warm=0, sigma_batch=float(name))


GIVEN = tuple(map(str, SHARES))
ROWS = ("FedAvg", "Local", *GIVEN, "bound", "auto")


def measure(name: str, cut: Cut, federation: Federation, seed: int) -> dict[str, Any]:
    """One training: accuracies after the last round, the mean own weight, what
    travelled, what "auto" chose.
    """
    run = ft.run(
        method(name, cut),
        federation,
        cut.model,
        cut.rounds,
        seed=seed,
        evaluate_every=cut.rounds,
    )
    totals, server = run.ledger.totals(), run.training.server
    server = getattr(server, "leader", server)  # of a trial that has not ended
    found: dict[str, Any] = {
        "val": 100 * float(run.metrics.values(split="val").mean()),
        "test": 100 * float(run.metrics.values(split="test").mean()),
        "models_up": totals.models_up,
        "models_down": totals.models_down,
        "gradients": totals.gradients,
    }
    if hasattr(server, "rows"):
        found["own"] = float(np.diagonal(server.rows).mean())
    if name == "auto":
        found["chosen"] = (
            "bound" if server.kernel == "bound" else f"{1 / (1 + server.bandwidth):.0%}"
        )
        found["tried"] = server.tried.tolist()
    return found


def spread(values: np.ndarray) -> str:
    return (
        f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
        if len(values) > 1
        else f"{values.mean():.1f}"
    )


def table(results: dict[str, Any], seeds: list[int]) -> str:
    """Markdown: a line for each scenario of which all runs are there."""
    names = [f"{float(name):.0%}" if name in GIVEN else name for name in ROWS]
    columns = [
        "scenario",
        *names,
        "chosen by auto",
        "auto less best n_k",
        "auto less better of FedAvg and Local",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for scenario in CUTS:
        keys = {name: [f"{scenario}|{seed}|{name}" for seed in seeds] for name in ROWS}
        if not all(key in results for found in keys.values() for key in found):
            continue
        test = {
            name: np.array([results[key]["test"] for key in found])
            for name, found in keys.items()
        }
        best, end = (
            max(among, key=lambda name: test[name].mean())
            for among in (GIVEN, ROWS[:2])
        )
        cells = [scenario, *(spread(test[name]) for name in ROWS)]
        cells += [", ".join(results[key]["chosen"] for key in keys["auto"])]
        cells += [spread(test["auto"] - test[other]) for other in (best, end)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--out", type=Path, default=Path("ucfl_batches.json"), help="results so far"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--only", nargs="+", choices=list(CUTS), default=list(CUTS))
    given = parser.parse_args()
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    results = kept.get("results", {})
    for scenario in given.only:
        for seed in given.seeds:
            cut, federation = CUTS[scenario], None
            for name in given.rows:
                key = f"{scenario}|{seed}|{name}"
                if key in results:
                    continue
                federation = cut.build(seed) if federation is None else federation
                started = perf_counter()
                results[key] = measure(name, cut, federation, seed)
                given.out.write_text(
                    json.dumps(
                        {"machine": machine("jax", "numpy"), "results": results},
                        indent=1,
                    )
                )
                print(
                    f"{scenario}, seed {seed}, {name}:"
                    f" {perf_counter() - started:.1f} s",
                    flush=True,
                )
    print(machine("jax", "numpy"))
    print(table(results, given.seeds))


if __name__ == "__main__":
    main()
