"""How often do intervals of the mean gain err, and how wide are they?

Trains least-squares models of 5 inputs on clients of known truths: `local` on a client's
own rows, `shared` on all rows, with what else models vary by from seed to seed (`luck`,
alike for all clients or not). Rows are drawn anew in each repetition and divided as
`compare` divides a table: into five folds, twice, once, or into three random splits. What
is estimated is the mean of all repetitions. For each cell it prints how often an interval
lies above it and below it (.025 each is meant), and its mean width in units of that of an
oracle, who knows the deviation of the estimate.

Beside the interval of the library stand those of two others, both on the same values:
"rows only" takes models as given (Bayle et al. 2020), "corrected" is the corrected
resampled t test (Nadeau and Bengio 2003) of the mean over clients. In cells of new
clients the truths are drawn in each repetition, too, and the interval is the one for
clients like these. Nested cross-validation (Bates et al. 2024) trains every fold's rows
in folds again, twenty times as often in all, and is not a rival here.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from measuring import machine
from scipy import special

from fedtailor.statistics.decision import (
    Splits,
    resampled_interval,
    two_way_interval,
)
from fedtailor.statistics.decision.intervals import MIN_SEEDS

INPUTS = 5
FOLDS = 5


@dataclass(frozen=True)
class Population:
    """Clients, and what models vary by.

    Attributes:
        sizes: (number of clients, rows of each) of each kind of client.
        spread: deviation of the clients' slopes around the common ones.
        luck: deviation of the shared model's slopes from seed to seed.
        common: share of that variance which all clients have in common.
        anew: whether each repetition draws other clients.
    """

    sizes: tuple[tuple[int, int], ...]
    spread: float = 0.5
    luck: float = 0.0
    common: float = 0.0
    anew: bool = False

    @property
    def clients(self) -> int:
        return sum(count for count, _ in self.sizes)


POPULATIONS = {
    "5 clients of 5 rows": Population(((5, 5),)),
    "20 clients of 5 rows": Population(((20, 5),)),
    "5 clients of 20 rows": Population(((5, 20),)),
    "20 clients of 20 rows": Population(((20, 20),)),
    "100 clients of 10 rows": Population(((100, 10),)),
    "5 clients of 500 rows": Population(((5, 500),)),
    "500 clients of 20 rows": Population(((500, 20),)),
    "18 clients of 5 to 400 rows": Population(((5, 5), (5, 20), (5, 100), (3, 400))),
    "20 clients of 50 rows, training noise": Population(((20, 50),), 0.3, 0.3),
    "20 clients of 50 rows, training noise, half of it common": Population(
        ((20, 50),), 0.3, 0.3, 0.5
    ),
    "20 clients of 50 rows, training noise in common": Population(
        ((20, 50),), 0.3, 0.3, 1.0
    ),
    "10 new clients of 50 rows": Population(((10, 50),), anew=True),
    "60 new clients of 20 rows, training noise in common": Population(
        ((60, 20),), 0.5, 0.2, 1.0, anew=True
    ),
}
DESIGNS = {"5 folds twice": (FOLDS, 2), "5 folds": (FOLDS, 1), "3 splits": (None, 3)}
"""Name -> folds (None: random splits, a fifth for testing), and repetitions."""

Rows = list[tuple[np.ndarray, np.ndarray]]
"""Inputs [clients, rows, inputs] and targets [clients, rows] of each kind of client."""


def area(answers: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The area under each client's ROC curve; NaN with rows of one class."""
    positive = targets > 0
    pairs = positive[:, :, None] & ~positive[:, None, :]
    above = answers[:, :, None] - answers[:, None, :]
    right = ((above > 0) + 0.5 * (above == 0)) * pairs
    count = pairs.sum(axis=(1, 2))
    return np.divide(
        right.sum(axis=(1, 2)), count, out=np.full(len(count), np.nan), where=count > 0
    )


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "RMSE": lambda answers, targets: (
        -np.sqrt(np.square(answers - targets).mean(axis=1))
    ),
    "accuracy": lambda answers, targets: ((answers > 0) == (targets > 0)).mean(axis=1),
    "ROC AUC": area,
}


def fit(gram: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Ridge regression with penalty 1."""
    return np.linalg.solve(gram + np.eye(INPUTS), moments[..., None])[..., 0]


def draw(
    population: Population, truths: np.ndarray, metric: str, rng: np.random.Generator
) -> Rows:
    """The rows of all clients; targets are numbers or signs."""
    rows, start = [], 0
    for count, size in population.sizes:
        x = rng.normal(size=(count, size, INPUTS))
        y = np.einsum("cri,ci->cr", x, truths[start : start + count])
        y = y + rng.normal(size=y.shape)
        rows.append((x, y if metric == "RMSE" else np.where(y > 0, 1.0, -1.0)))
        start += count
    return rows


def trained(
    population: Population,
    rows: Rows,
    tests: list[np.ndarray],
    metric: str,
    rng: np.random.Generator,
) -> np.ndarray:
    """The gains of all clients by one training, on the rows of `tests`."""
    grams, moments = [], []
    for (x, y), is_test in zip(rows, tests, strict=True):
        kept = x * ~is_test[..., None]
        grams.append(np.einsum("cri,crj->cij", kept, x))
        moments.append(np.einsum("cri,cr->ci", kept, y))
    shared = fit(
        sum(gram.sum(axis=0) for gram in grams),
        sum(moment.sum(axis=0) for moment in moments),
    )
    shift = np.sqrt(population.common) * rng.normal(size=INPUTS)
    gains = []
    for (x, y), is_test, gram, moment in zip(rows, tests, grams, moments, strict=True):
        own = np.sqrt(1 - population.common) * rng.normal(size=(len(x), INPUTS))
        models = shared + population.luck * (shift + own) / np.sqrt(INPUTS)
        count = int(is_test[0].sum())
        chosen = np.argsort(~is_test, axis=1, kind="stable")[:, :count]
        tested = np.take_along_axis(x, chosen[..., None], axis=1)
        targets = np.take_along_axis(y, chosen, axis=1)
        by_shared, by_local = (
            METRICS[metric](np.einsum("cri,ci->cr", tested, model), targets)
            for model in (models, fit(gram, moment))
        )
        gains.append(by_shared - by_local)
    return np.concatenate(gains)


def gains_of(
    population: Population,
    truths: np.ndarray,
    metric: str,
    design: tuple[int | None, int],
    rng: np.random.Generator,
) -> np.ndarray:
    """The gains [seeds, clients] of one drawing of rows."""
    folds, repetitions = design
    rows = draw(population, truths, metric, rng)
    gains = []
    for _ in range(repetitions):
        # Of each row its place in a random order of its client's rows.
        places = [rng.random(y.shape).argsort(axis=1).argsort(axis=1) for _, y in rows]
        if folds is None:
            tests = [place < max(place.shape[1] // 5, 1) for place in places]
            gains.append(trained(population, rows, tests, metric, rng))
            continue
        for fold in range(folds):
            tests = [place * folds // place.shape[1] == fold for place in places]
            gains.append(trained(population, rows, tests, metric, rng))
    return np.array(gains)


def rivals(gains: np.ndarray, splits: Splits) -> tuple[float, float]:
    """The half-widths of "rows only" and of "corrected"."""
    seeds, test = len(gains), splits.test
    by_seed = gains - np.nanmean(gains, axis=0)
    total = float(np.square(np.nanmean(by_seed, axis=1)).sum()) / (seeds - 1)
    corrected = special.stdtrit(seeds - 1, 0.975)
    corrected *= np.sqrt(total * (1 / seeds + test / (1 - test)))
    counts = (~np.isnan(gains)).sum(axis=0)
    several = counts > 1
    variances = np.nansum(np.square(by_seed[:, several]), axis=0)
    variances = variances / (counts[several] - 1)
    overlap = splits.overlap(seeds)
    factor = 1 / seeds + overlap / (1 - overlap)
    rows_only = 1.96 * np.sqrt(variances.mean() / len(variances) * factor)
    return float(rows_only), float(corrected)


def measure(
    population: Population,
    metric: str,
    design: tuple[int | None, int],
    repetitions: int,
) -> list[tuple[float, float, float]]:
    """Of the library's interval and both rivals how often they lie above and below the
    truth, and their width.
    """
    folds, _ = design
    splits = Splits(1 / FOLDS, folds)
    common = np.random.default_rng(7).normal(size=INPUTS)
    common *= 1.2 / np.linalg.norm(common)
    estimates, widths = [], []
    for repetition in range(repetitions):
        rng = np.random.default_rng([1, repetition])
        of_truths = rng if population.anew else np.random.default_rng(8)
        deviations = of_truths.normal(size=(population.clients, INPUTS))
        truths = common + population.spread * deviations / np.sqrt(INPUTS)
        gains = gains_of(population, truths, metric, design, rng)
        if population.anew or len(gains) < MIN_SEEDS:
            found = two_way_interval(gains)
        else:
            found = resampled_interval(gains, splits)
        estimates.append(found.estimate)
        widths.append((found.high - found.estimate, *rivals(gains, splits)))
    values = np.array(estimates)
    truth, oracle = values.mean(), 1.96 * values.std(ddof=1)
    return [
        (
            float((values - width > truth).mean()),
            float((values + width < truth).mean()),
            float(width.mean() / oracle),
        )
        for width in np.array(widths).T
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--metrics", nargs="+", default=list(METRICS))
    parser.add_argument("--designs", nargs="+", default=list(DESIGNS))
    parser.add_argument("--populations", nargs="+", default=list(POPULATIONS))
    options = parser.parse_args()
    print(f"{machine()}; {options.repetitions} repetitions")
    print("| clients | metric | seeds | above, below | width | rows only | corrected |")
    print("|---|---|---|---|---|---|---|")
    for design in options.designs:
        for metric in options.metrics:
            for name in options.populations:
                population = POPULATIONS[name]
                fewest = min(size for _, size in population.sizes)
                if metric == "ROC AUC" and fewest < 20:
                    continue  # folds of one row have no area
                cells = measure(
                    population, metric, DESIGNS[design], options.repetitions
                )
                (above, below, width), *others = cells
                texts = [f"{a:.3f}, {b:.3f}, {w:.2f}" for a, b, w in others]
                print(
                    f"| {name} | {metric} | {design} | {above:.3f}, {below:.3f} |"
                    f" {width:.2f} | {' | '.join(texts)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
