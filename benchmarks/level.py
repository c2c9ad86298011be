"""Do the tests of `diagnose` keep their level, and what do they find?

Draws clients, takes the gradients of linear models at their initial values as the probe
does (the mean gradient, and the variance of disjoint batches), and counts in how many
repetitions any pair of clients is told apart at .05 over all pairs (Holm), the share of
pairs that are, and in how many the test of all together rejects. Under the null all
clients have one distribution; the power is that against two groups.
"""

import argparse
from collections.abc import Callable

import numpy as np
from measuring import machine

from fedtailor.lab.experiments.diagnose import BATCH_SHARE
from fedtailor.statistics.decision import holm
from fedtailor.statistics.diagnosis import (
    batch_sizes,
    gradient_traces,
    homogeneity,
    input_differences,
    label_differences,
)

Rows = Callable[[np.random.Generator, int, int], np.ndarray]
"""(random numbers, rows, group) -> the gradients of single rows [rows, d]."""


def logistic(features: int, correlation: float, effect: float) -> Rows:
    """Logistic regression at 0, whose groups have opposed slopes."""

    def draw(rng: np.random.Generator, rows: int, group: int) -> np.ndarray:
        common = rng.normal(size=(rows, 1))
        own = rng.normal(size=(rows, features))
        x = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        slope = np.full(features, 1.0 / np.sqrt(features))
        slope[0] += effect * (group - 0.5)
        y = x @ slope + rng.logistic(size=rows) > 0
        inputs = np.column_stack([x, np.ones(rows)])
        return (0.5 - y)[:, None] * inputs

    return draw


def network(effect: float) -> Rows:
    """Gradients in 500 directions, the variance of the k-th in proportion to 1 / k."""

    def draw(rng: np.random.Generator, rows: int, group: int) -> np.ndarray:
        scale = 1 / np.sqrt(np.arange(1, 501))
        noise = rng.normal(size=(rows, 500)) * scale
        noise[:, 3] += effect * group
        return noise

    return draw


def rank_one(effect: float) -> Rows:
    """Gradients in one direction."""

    def draw(rng: np.random.Generator, rows: int, group: int) -> np.ndarray:
        return rng.normal(effect * group, 1.0, (rows, 1))

    return draw


GRADIENTS: dict[str, tuple[Callable[[float], Rows], float, int, int]] = {
    "one direction": (rank_one, 1.0, 8, 60),
    "one direction, 30 clients": (rank_one, 1.0, 30, 60),
    "logistic regression, 1 feature": (lambda e: logistic(1, 0.0, e), 3.0, 20, 60),
    "logistic regression, correlation .9": (
        lambda e: logistic(8, 0.9, e),
        3.0,
        20,
        60,
    ),
    "logistic regression, uncorrelated": (lambda e: logistic(8, 0.0, e), 3.0, 20, 60),
    "logistic regression, uncorrelated, more rows": (
        lambda e: logistic(8, 0.0, e),
        3.0,
        20,
        300,
    ),
    "500 directions": (network, 1.0, 20, 60),
}
"""Name -> rows by effect, the effect between two groups, clients, rows of each."""


def gradients(
    rows: Rows, clients: int, size: int, groups: int, rng: np.random.Generator, share
) -> tuple[bool, float, bool]:
    """Whether any pair is told apart, the share of unlike pairs, and the overall test."""
    sizes = np.full(clients, size)
    batch = (
        int(batch_sizes(sizes, BATCH_SHARE)[0]) if share is None else int(share * size)
    )
    means, sigma2, concentrations = [], [], []
    for client in range(clients):
        values = rows(rng, size, client % groups)
        mean = values.mean(axis=0)
        count = size // batch
        batches = values[: count * batch].reshape(count, batch, -1).mean(axis=1)
        means.append(mean)
        sigma2.append(np.square(batches - mean).sum(axis=1).mean())
        deviations = batches - batches.mean(axis=0)
        gram = deviations @ deviations.T
        concentrations.append(np.square(gram).sum() / np.trace(gram) ** 2)
    traces = gradient_traces(np.array(sigma2), np.full(clients, batch), sizes)
    degrees = None if share is not None else sizes // batch - 1
    found = homogeneity(
        np.array(means), traces, sizes, degrees, np.array(concentrations)
    )
    unlike = np.not_equal.outer(
        np.arange(clients) % groups, np.arange(clients) % groups
    )
    rejected = found.p_holm < 0.05
    return (
        bool(rejected.any()),
        float(rejected[unlike].mean()) if unlike.any() else 0.0,
        found.overall_p < 0.05,
    )


LABELS = {
    "2 classes, 20 rows": (2, 20, 0.5),
    "2 classes of which one rare, 40 rows": (2, 40, 0.05),
    "10 classes, 20 rows": (10, 20, None),
    "10 classes, 60 rows": (10, 60, None),
    "50 classes, 60 rows": (50, 60, None),
    "50 classes, most rare, 300 rows": (50, 300, "zipf"),
}


def labels(
    classes: int, size: int, share, groups: int, rng: np.random.Generator, clients: int
) -> tuple[bool, float]:
    """Whether any pair is told apart by labels, and the share of unlike pairs."""
    if share == "zipf":
        probability = 1 / np.arange(1, classes + 1)
    elif share is None:
        probability = np.ones(classes)
    else:
        probability = np.array([1 - share, share])
    probability = probability / probability.sum()
    counts = []
    for client in range(clients):
        weights = probability.copy()
        if client % groups:
            weights[: classes // 2] *= 0.15
        counts.append(rng.multinomial(size, weights / weights.sum()))
    p = label_differences(np.array(counts)).p
    upper = np.triu_indices(clients, 1)
    rejected = holm(p[upper]) < 0.05
    unlike = (
        (upper[0] + upper[1]) % 2 == 1 if groups > 1 else np.zeros(len(rejected), bool)
    )
    return bool(rejected.any()), float(rejected[unlike].mean()) if unlike.any() else 0.0


def inputs(shape: str, groups: int, rng: np.random.Generator, clients: int):
    """Whether any pair is told apart by inputs, and the share of unlike pairs."""
    means, squares = [], []
    for client in range(clients):
        x = (
            rng.normal(size=(40, 5))
            if shape == "normal"
            else rng.exponential(size=(40, 5))
        )
        x = x + (client % groups) * np.eye(5)[0]
        means.append(x.mean(axis=0))
        squares.append(np.square(x).mean(axis=0))
    p = input_differences(np.array(means), np.array(squares), np.full(clients, 40)).p
    upper = np.triu_indices(clients, 1)
    rejected = holm(p[upper]) < 0.05
    unlike = (
        (upper[0] + upper[1]) % 2 == 1 if groups > 1 else np.zeros(len(rejected), bool)
    )
    return bool(rejected.any()), float(rejected[unlike].mean()) if unlike.any() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument(
        "--share", type=float, help="batches of this share, variances taken as known"
    )
    options = parser.parse_args()
    count = options.repetitions
    print(f"{machine()}; {count} repetitions")
    print(
        "| by | clients | any pair, null | all, null | unlike pairs found | all, power |"
    )
    print("|---|---|---|---|---|---|")
    for name, (rows, effect, clients, size) in GRADIENTS.items():
        cells = []
        for groups, strength in ((1, 0.0), (2, effect)):
            found = [
                gradients(
                    rows(strength),
                    clients,
                    size,
                    groups,
                    np.random.default_rng([groups, r]),
                    options.share,
                )
                for r in range(count)
            ]
            cells.append(np.mean(found, axis=0))
        null, power = cells
        print(
            f"| gradients: {name}, {size} rows | {clients} | {null[0]:.3f} |"
            f" {null[2]:.3f} | {power[1]:.2f} | {power[2]:.2f} |",
            flush=True,
        )
    for name, (classes, size, share) in LABELS.items():
        null, power = (
            np.mean(
                [
                    labels(
                        classes,
                        size,
                        share,
                        groups,
                        np.random.default_rng([groups, r]),
                        20,
                    )
                    for r in range(count)
                ],
                axis=0,
            )
            for groups in (1, 2)
        )
        print(
            f"| labels: {name} | 20 | {null[0]:.3f} | - | {power[1]:.2f} | - |",
            flush=True,
        )
    for shape in ("normal", "exponential"):
        null, power = (
            np.mean(
                [
                    inputs(shape, groups, np.random.default_rng([groups, r]), 20)
                    for r in range(count)
                ],
                axis=0,
            )
            for groups in (1, 2)
        )
        print(
            f"| inputs: {shape}, 40 rows | 20 | {null[0]:.3f} | - | {power[1]:.2f} | - |",
            flush=True,
        )


if __name__ == "__main__":
    main()
