"""How often do intervals of clients' gains cover the truth, and how often do they find
it?

Trains least-squares models on clients whose truths are known, so that the expected gain
of each client is known as well: `local` on a client's own rows, `shared` on all rows. In
each repetition every client's rows are drawn anew and split into training and test rows,
for each seed anew (as `compare` does with a table) or once for all seeds. A model also
differs from seed to seed without its data (`luck`), as networks do, by the same for all
clients (`common`) or not.

For each cell it prints the coverage of 95 % intervals, the share of lines with a right
verdict (power), with a wrong one, the median width, and the share of tables in which
Holm's correction leaves a wrong verdict.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from measuring import machine

from fedtailor.statistics.decision import client_gains
from fedtailor.statistics.decision.intervals import MIN_SEEDS

INPUTS = 5


@dataclass(frozen=True)
class Population:
    """What the repetitions of a cell have in common.

    Attributes:
        rows: [clients] rows of each client.
        metric: accuracy, loss, rmse, roc_auc or r2.
        spread: deviation of the clients' slopes around the common ones.
        seeds: number of seeds.
        anew: whether each seed splits the rows anew.
        luck: deviation of a model's slopes from seed to seed.
        common: share of that variance which all clients' shared models have in common.
        alike: whether `shared` is `local` with another luck: no gain at all.
        noise: deviation of the target around the truth.
        test: share of the rows for testing.
    """

    rows: tuple[int, ...]
    metric: str = "accuracy"
    spread: float = 0.0
    seeds: int = 3
    anew: bool = True
    luck: float = 0.0
    common: float = 0.0
    alike: bool = False
    noise: float = 1.0
    test: float = 0.25


CELLS = {
    "50 rows, same truth": Population((50,) * 8),
    "50 rows, near a tie": Population((50,) * 8, spread=0.55),
    "150 rows, near a tie": Population((150,) * 8, spread=0.3),
    "40 to 400 rows, near a tie": Population(
        (40, 60, 80, 120, 160, 200, 300, 400), spread=0.35
    ),
    "150 rows, training noise": Population((150,) * 8, spread=0.3, luck=0.3),
    "150 rows, training noise in common": Population(
        (150,) * 8, spread=0.3, luck=0.3, common=0.5
    ),
    "150 rows, one split, training noise": Population(
        (150,) * 8, spread=0.3, luck=0.3, anew=False
    ),
    "150 rows, one split, training noise in common": Population(
        (150,) * 8, spread=0.3, luck=0.3, common=0.5, anew=False
    ),
    "150 rows, one split, one seed": Population(
        (150,) * 8, spread=0.3, anew=False, seeds=1
    ),
    "40 rows, one split, one seed": Population(
        (40,) * 8, spread=0.55, anew=False, seeds=1
    ),
    "50 rows, nothing but training noise": Population((50,) * 50, luck=0.3, alike=True),
    "50 rows, one split, nothing but training noise": Population(
        (50,) * 50, luck=0.3, alike=True, anew=False
    ),
    "50 rows, nothing but training noise, in common": Population(
        (50,) * 50, luck=0.3, alike=True, common=0.5
    ),
}


def metric_of(
    population: Population, model: np.ndarray, truth: np.ndarray, bias: float = 0.0
) -> float:
    """The expected metric of a linear model on rows of a client with a linear truth."""
    noise = population.noise
    if population.metric in ("rmse", "loss", "r2"):
        squares = float(np.square(model - truth).sum()) + noise**2
        if population.metric == "rmse":
            return float(np.sqrt(squares))
        if population.metric == "r2":
            return 1 - squares / (float(truth @ truth) + noise**2)
        return squares
    # The correlation of the model's answer and the latent target.
    size = float(np.linalg.norm(model)) * float(np.sqrt(truth @ truth + noise**2))
    correlation = float(model @ truth) / size
    if population.metric == "accuracy":
        return 1 - float(np.arccos(correlation)) / np.pi
    # Two rows, one of each class: the difference of their answers is right.
    draws = _normal_pairs()
    latent = draws[0]
    answer = correlation * latent + np.sqrt(1 - correlation**2) * draws[1]
    positive = answer[latent > 0]
    order = np.searchsorted(np.sort(answer[latent <= 0]), positive)
    return float(order.mean() / (latent <= 0).sum())


_PAIRS: list[np.ndarray] = []


def _normal_pairs() -> np.ndarray:
    if not _PAIRS:
        _PAIRS.append(np.random.default_rng(1).normal(size=(2, 20_000)))
    return _PAIRS[0]


def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Ridge regression with penalty 1."""
    return np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)


def tables(
    population: Population, repetitions: int, seed: int
) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """Draws data, trains and tests.

    Yields:
        For each repetition the table of test rows, and the true gain of each client
        [clients], of the trained models: its mean over repetitions is the truth.
    """
    truth_rng = np.random.default_rng([7, len(population.rows)])
    common = truth_rng.normal(size=INPUTS)
    common *= 1.2 / np.linalg.norm(common)
    deviations = truth_rng.normal(size=(len(population.rows), INPUTS))
    truths = common + population.spread * deviations / np.sqrt(INPUTS)
    classes = population.metric in ("accuracy", "roc_auc")
    higher = population.metric in ("accuracy", "roc_auc", "r2")
    for repetition in range(repetitions):
        rng = np.random.default_rng([seed, repetition])
        data = []
        for rows, truth in zip(population.rows, truths, strict=True):
            x = rng.normal(size=(rows, INPUTS))
            y = x @ truth + population.noise * rng.normal(size=rows)
            data.append((x, np.where(y > 0, 1.0, -1.0) if classes else y))
        parts = []
        gains = np.zeros((population.seeds, len(truths)))
        orders = [rng.permutation(rows) for rows in population.rows]
        for s in range(population.seeds):
            if population.anew and s:
                orders = [rng.permutation(rows) for rows in population.rows]
            test = [
                order[: max(int(population.test * len(order)), 2)] for order in orders
            ]
            train = [
                order[len(held) :] for order, held in zip(orders, test, strict=True)
            ]
            local = [fit(x[t], y[t]) for (x, y), t in zip(data, train, strict=True)]
            pooled_x = np.concatenate(
                [x[t] for (x, _), t in zip(data, train, strict=True)]
            )
            pooled_y = np.concatenate(
                [y[t] for (_, y), t in zip(data, train, strict=True)]
            )
            pooled = fit(pooled_x, pooled_y)
            shift = np.sqrt(population.common) * rng.normal(size=INPUTS)
            for i, (x, y) in enumerate(data):
                own = np.sqrt(1 - population.common) * rng.normal(size=INPUTS)
                luck = population.luck * (shift + own) / np.sqrt(INPUTS)
                other = population.luck * rng.normal(size=INPUTS) / np.sqrt(INPUTS)
                models = {
                    "local": local[i] + (other if population.alike else 0),
                    "shared": (local[i] if population.alike else pooled) + luck,
                }
                values = {}
                for name, model in models.items():
                    parts.append(_rows(name, s, i, test[i], x, y, model, classes))
                    values[name] = metric_of(population, model, truths[i])
                difference = values["shared"] - values["local"]
                gains[s, i] = difference if higher else -difference
        columns = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        yield pl.DataFrame(columns), gains.mean(axis=0)


def _rows(name, seed, client, test, x, y, model, classes) -> dict[str, np.ndarray]:
    answer = x[test] @ model
    columns = {
        "method": np.full(len(test), name),
        "seed": np.full(len(test), seed),
        "client": np.full(len(test), str(client)),
        "row": test,
    }
    if classes:
        return columns | {
            "correct": (answer > 0) == (y[test] > 0),
            "prediction": (answer > 0).astype(int),
            "log_odds": np.abs(answer),
        }
    squared = np.square(answer - y[test])
    return columns | {"squared_error": squared, "loss": squared, "target": y[test]}


def measure(
    population: Population, repetitions: int, seed: int = 0
) -> dict[str, float]:
    """Coverage, power, errors and width in one cell."""
    found, trained = [], []
    for table, gains in tables(population, repetitions, seed):
        found.append(client_gains(table, metric=population.metric))
        trained.append(gains)
    truths = np.array(trained)
    # One seed speaks of the models at hand; several speak of other seeds as well.
    if population.seeds >= MIN_SEEDS:
        truths[:] = truths.mean(axis=0)
    if population.alike and population.seeds >= MIN_SEEDS:
        truths[:] = 0.0
    covered = np.full(truths.shape, np.nan)
    right, wrong, families = 0, 0, 0
    widths, lines = [], 0
    for repetition, result in enumerate(found):
        clients = result["client"].cast(pl.Int64).to_numpy()
        truth = truths[repetition, clients]
        low, high = result["low"].to_numpy(), result["high"].to_numpy()
        covered[repetition, clients] = (low <= truth) & (truth <= high)
        says = np.where(low > 0, 1, np.where(high < 0, -1, 0))
        is_wrong = (says != 0) & (says != np.sign(truth))
        right += int(((says != 0) & ~is_wrong).sum())
        wrong += int(is_wrong.sum())
        lines += len(result)
        widths.append(high - low)
        families += bool(((result["p_holm"].to_numpy() < 0.05) & is_wrong).any())
    return {
        "coverage": float(np.nanmean(covered)),
        "least of a client": float(np.nanmean(covered, axis=0).min()),
        "right": right / lines,
        "wrong": wrong / lines,
        "width": float(np.median(np.concatenate(widths))),
        "Holm wrong": families / repetitions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--metric", nargs="+", default=["accuracy"])
    parser.add_argument("--cells", nargs="+", default=list(CELLS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{machine()}; {options.repetitions} repetitions")
    print(
        "| cell | metric | coverage | least of a client | right | wrong | width |"
        " Holm wrong |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for metric in options.metric:
        for name in options.cells:
            cell = replace(CELLS[name], metric=metric)
            got = measure(cell, options.repetitions, options.seed)
            numbers = " | ".join(f"{value:.3f}" for value in got.values())
            print(f"| {name} | {metric} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
