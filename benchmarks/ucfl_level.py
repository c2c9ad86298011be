"""Does UCFL's test of whether clients differ at all keep its level, and what does it find?

Clients of lognormal sizes answer a probe with the gradient of logistic regression at 0,
and with the variance and the concentration of those of disjoint batches. Under the null all have one
distribution; otherwise each has a slope of its own, normal with some deviation. Printed is
in which share of probes the test rejects, at .05 and at the level of a single probe.
"""

import argparse

import numpy as np
from jaxtyping import Float
from measuring import machine

from fedtailor.aggregation.differences import effective_rank, overall_p
from fedtailor.aggregation.distances import squared_distances
from fedtailor.algorithms.helpers.warm_up import LEVEL

SHARES = {"3": 1 / 3, "10": 0.1, "20": 0.05}
"""The batches of a client, and the share of its rows that each has."""


def answer(
    rng: np.random.Generator, rows: int, share: float, slope: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " d"], float, float, float]:
    """One client's gradient, tr S / n, the degrees of freedom that this is known by, and
    the concentration of its batches' gradients.
    """
    x = rng.normal(size=(rows, len(slope)))
    y = rng.random(rows) < 1 / (1 + np.exp(-x @ slope))
    gradients = (0.5 - y)[:, None] * x
    size = max(min(int(share * rows + 1e-3), rows // 2), 1)
    count = rows // size
    batches = gradients[: count * size].reshape(count, size, -1).mean(axis=1)
    mean = gradients.mean(axis=0)
    spread = float(np.square(batches - mean).sum()) / count
    deviations = batches - batches.mean(axis=0)
    scatter = deviations.T @ deviations
    concentration = np.square(scatter).sum() / np.trace(scatter) ** 2
    return mean, spread / (rows / size - 1), max(count - 1.0, 1.0), concentration


def rejected(
    clients: int, features: int, deviation: float, share: float, repetitions: int
) -> tuple[float, float]:
    """The shares of probes whose p is below .05, and below UCFL's level."""
    rng, p = np.random.default_rng(0), []
    for _ in range(repetitions):
        sizes = np.maximum(rng.lognormal(4, 1, clients).astype(int), 6)
        slopes = rng.normal(size=(clients, features)) * deviation
        drawn = [
            answer(rng, rows, share, slope)
            for rows, slope in zip(sizes, slopes, strict=True)
        ]
        gradients, noise, degrees, concentrations = map(
            np.array, zip(*drawn, strict=True)
        )
        rank = effective_rank(noise, concentrations)
        p.append(overall_p(squared_distances(gradients), noise, degrees, rank))
    found = np.array(p)
    return float((found < 0.05).mean()), float((found < LEVEL).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    repetitions = parser.parse_args().repetitions
    print(machine(), "\n")
    print(
        "| clients | features | slopes' deviation | batches | p < .05 | p < .05 / 6 |"
    )
    print("|---|---|---|---|---|---|")
    for clients, features in ((12, 1), (12, 10), (40, 10)):
        for deviation in (0.0, 0.3, 0.6):
            for batches, share in SHARES.items():
                found = rejected(clients, features, deviation, share, repetitions)
                cells = " | ".join(f"{one:.3f}" for one in found)
                print(
                    f"| {clients} | {features} | {deviation:g} | {batches} | {cells} |"
                )


if __name__ == "__main__":
    main()
