"""Does UCFL's test of whether clients differ at all keep its level, and what does it find?

Clients answer a probe with their gradient, and with the variance and the concentration
of the gradients of disjoint batches. The first table has the gradients of logistic
regression at 0, on made rows of clients of lognormal sizes: under the null all have one
distribution, otherwise each has a slope of its own, normal with some deviation. In the
second one, the real rows of all clients are dealt to clients at random, so that nobody
differs. Printed is in which share of probes the test rejects, at .05 and at the level of
a single probe.
"""

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float
from measuring import machine

from fedtailor.aggregation.differences import effective_rank, overall_p
from fedtailor.aggregation.distances import squared_distances
from fedtailor.algorithms.helpers.warm_up import LEVEL, PROBE_SHARE
from fedtailor.data.datasets import digits, heart_disease

SHARES = {"3": 1 / 3, "10": 0.1, "20": 0.05}
"""The batches of a client, and the share of its rows that each has."""


def p_of(clients: Sequence[Float[np.ndarray, "n d"]], share: float) -> float:
    """The p-value of a probe, from the gradients of each client's rows in random order."""
    answers = []
    for gradients in clients:
        rows = len(gradients)
        size = max(min(int(share * rows + 1e-3), rows // 2), 1)
        count = rows // size
        mean = gradients.mean(axis=0)
        batches = gradients[: count * size].reshape(count, size, -1).mean(axis=1)
        gram = (batches - mean) @ (batches - mean).T
        noise = np.trace(gram) / count / (rows / size - 1)
        concentration = np.square(gram).sum() / np.trace(gram) ** 2
        answers.append((mean, noise, max(count - 1.0, 1.0), concentration))
    means, noise, degrees, concentrations = map(np.array, zip(*answers, strict=True))
    rank = effective_rank(noise, concentrations)
    return overall_p(squared_distances(means), noise, degrees, rank)


def rejected(p: Sequence[float]) -> str:
    """The shares of p-values below .05, and below UCFL's level."""
    found = np.array(p)
    return f"{(found < 0.05).mean():.3f} | {(found < LEVEL).mean():.3f}"


def made(
    rng: np.random.Generator, clients: int, features: int, deviation: float
) -> Iterator[Float[np.ndarray, "n d"]]:
    """Clients of lognormal sizes, with slopes of their own."""
    for rows in np.maximum(rng.lognormal(4, 1, clients).astype(int), 6):
        slope = rng.normal(size=features) * deviation
        x = rng.normal(size=(rows, features))
        y = rng.random(rows) < 1 / (1 + np.exp(-x @ slope))
        yield (0.5 - y)[:, None] * x


def real(name: str, is_trained: bool) -> Float[np.ndarray, "n d"]:
    """The gradients of all rows of a data set, at 0 or after gradient steps on them all."""
    data = digits() if name == "digits" else heart_disease()
    x = np.asarray(data.x, float).reshape(len(data.x), -1)
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9)
    x = np.column_stack([x, np.ones(len(x))])
    targets = np.eye(data.y.max() + 1)[data.y]
    weights = np.zeros((x.shape[1], targets.shape[1]))

    def residuals() -> Float[np.ndarray, "n k"]:
        scores = np.exp(x @ weights - (x @ weights).max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True) - targets

    for _ in range(300 if is_trained else 0):
        weights -= 0.2 * x.T @ residuals() / len(x)
    return (x[:, :, None] * residuals()[:, None]).reshape(len(x), -1)


DEALT = {
    "heart disease, 4 hospitals": ("heart", [172, 199, 30, 85]),
    "heart disease, 20 clients of 15 rows": ("heart", [15] * 20),
    "digits, 12 clients of 100 rows": ("digits", [100] * 12),
    "digits, 40 clients of 30 rows": ("digits", [30] * 40),
}
"""Name -> the rows, and the sizes of the clients that they are dealt to."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    repetitions = parser.parse_args().repetitions
    print(machine(), "\n")
    print(
        "| clients | features | slopes' deviation | batches | p < .05 | p < .05 / 6 |"
    )
    print("|---|---|---|---|---|---|")
    for clients, features in ((12, 1), (12, 10), (40, 10)):
        for deviation in (0.0, 0.3, 0.6):
            for batches, share in SHARES.items():
                rng = np.random.default_rng(0)
                p = [
                    p_of(list(made(rng, clients, features, deviation)), share)
                    for _ in range(repetitions)
                ]
                print(
                    f"| {clients} | {features} | {deviation:g} | {batches} |"
                    f" {rejected(p)} |"
                )
    print("\n| rows dealt at random | model | p < .05 | p < .05 / 6 |")
    print("|---|---|---|---|")
    for label, (name, sizes) in DEALT.items():
        for is_trained in (False, True):
            gradients, rng = real(name, is_trained), np.random.default_rng(0)
            ends = np.cumsum(sizes)
            p = []
            for _ in range(repetitions):
                order = rng.permutation(len(gradients))[: ends[-1]]
                clients = np.split(gradients[order], ends[:-1])
                p.append(p_of(clients, PROBE_SHARE))
            model = "trained" if is_trained else "initial"
            print(f"| {label} | {model} | {rejected(p)} |")


if __name__ == "__main__":
    main()
