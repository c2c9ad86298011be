"""Do verdicts on mean gains agree with other splits of real tables?

`python benchmarks/real_gains.py` compares the ridge model of all rows with each client's
own, on tables whose truth nobody knows: heart disease, Exam, MathAchieve, School and land
mines (`FEDTAILOR_DATA`), whole and with at most 15 rows of a client. It prints the verdict
for these clients by five folds, twice, and in how many of 15 other splits the gain has the
same sign. Where the metric is an area under a curve, targets are then shuffled within
clients, so that nothing is gained or lost, and verdicts are counted.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import polars as pl
from mean_gains import FOLDS, METRICS
from measuring import machine

from fedtailor.data.tables import from_table
from fedtailor.statistics.decision import Splits, resampled_interval, two_way_interval

DATA = Path(os.environ.get("FEDTAILOR_DATA", "shared/data"))
OTHER_SPLITS = 15

Clients = list[tuple[np.ndarray, np.ndarray]]
"""Inputs with a constant [rows, inputs] and targets [rows] of each client."""


def table(
    name: str, most: int | None, drop: tuple[str, ...] = (), **options
) -> Clients:
    """A table as fedtailor reads it; rows of clients with five or more.

    Args:
        name: the file.
        most: the most rows of a client.
        drop: columns to leave out.
        options: of `from_table`.
    """
    frame = pl.read_csv(DATA / name).drop(drop)
    if most is not None:
        place = pl.int_range(pl.len()).shuffle(seed=3).over(options["client"])
        frame = frame.filter(place < most)
    read = from_table(frame, **options)
    clients = []
    for client in read:
        parts = (client.train, client.val, client.test)
        x = np.concatenate([np.asarray(part.x, float) for part in parts])
        y = np.concatenate([np.asarray(part.y, float) for part in parts]).ravel()
        if len(y) >= FOLDS:
            y = y if read.classes is None else 2 * y - 1
            clients.append((np.column_stack([np.ones(len(y)), x]), y))
    return clients


def land_mines() -> Clients:
    from scipy.io import loadmat

    read = loadmat(DATA / "landmine/LandmineData.mat")
    return [
        (np.column_stack([np.ones(len(x)), x]), np.where(y.ravel() > 0, 1.0, -1.0))
        for x, y in zip(read["feature"].ravel(), read["label"].ravel(), strict=True)
    ]


def heart() -> Clients:
    name = "heart-disease/heart_disease_4hospitals.csv"
    return table(name, None, client="hospital", target="num", positive=(">0",))


def exam(most: int | None) -> Clients:
    drop = ("rownames", "student")
    name = "multilevel/Exam.csv.gz"
    return table(name, most, drop, client="school", target="normexam")


def math_achieve(most: int | None) -> Clients:
    name = "multilevel/MathAchieve.csv.gz"
    return table(name, most, ("rownames",), client="School", target="MathAch")


def school(most: int | None) -> Clients:
    options = {"client": "school", "target": "score", "task": "regression"}
    return table("school/school.csv.gz", most, **options)


TABLES = {
    "heart disease": (heart, "ROC AUC"),
    "heart disease, accuracy": (heart, "accuracy"),
    "land mines": (land_mines, "ROC AUC"),
    "Exam": (lambda: exam(None), "RMSE"),
    "Exam, 15 rows a school": (lambda: exam(15), "RMSE"),
    "MathAchieve": (lambda: math_achieve(None), "RMSE"),
    "MathAchieve, 15 rows a school": (lambda: math_achieve(15), "RMSE"),
    "School, 15 rows a school": (lambda: school(15), "RMSE"),
}


def folds_of(clients: Clients, rng: np.random.Generator) -> list[np.ndarray]:
    """The fold of each row; of each class every fold has as many."""
    folds = []
    for _, y in clients:
        strata = y if len(np.unique(y)) == 2 else np.zeros(len(y))
        fold = np.empty(len(y), int)
        order = np.lexsort((rng.random(len(y)), strata))
        fold[order] = (np.arange(len(y)) + rng.integers(FOLDS)) % FOLDS
        folds.append(fold)
    return folds


def trained(clients: Clients, folds: list[np.ndarray], fold: int, metric: str):
    """The gains of all clients by one training."""
    sums = []
    for (x, y), of_row in zip(clients, folds, strict=True):
        kept = of_row != fold
        sums.append((x[kept].T @ x[kept], x[kept].T @ y[kept]))
    penalty = np.eye(len(sums[0][1]))
    penalty[0, 0] = 1e-6
    shared = np.linalg.solve(
        sum(gram for gram, _ in sums) + penalty, sum(moment for _, moment in sums)
    )
    gains = []
    for (x, y), of_row, (gram, moment) in zip(clients, folds, sums, strict=True):
        tested = of_row == fold
        local = np.linalg.solve(gram + penalty, moment)
        by_shared, by_local = (
            METRICS[metric]((x[tested] @ model)[None], y[tested][None])[0]
            for model in (shared, local)
        )
        gains.append(by_shared - by_local)
    return np.array(gains)


def cross_validated(clients: Clients, metric: str, rng: np.random.Generator):
    """Gains [seeds, clients] of five folds, twice."""
    return np.array(
        [
            trained(clients, folds, fold, metric)
            for folds in (folds_of(clients, rng), folds_of(clients, rng))
            for fold in range(FOLDS)
        ]
    )


def measure(name: str, shuffles: int) -> str:
    """The line of a table."""
    read, metric = TABLES[name]
    clients, rng = read(), np.random.default_rng(0)
    splits = Splits(1 / FOLDS, FOLDS)
    gains = cross_validated(clients, metric, rng)
    these, others = resampled_interval(gains, splits), two_way_interval(gains)
    elsewhere = np.array(
        [
            np.nanmean(trained(clients, folds_of(clients, rng), 0, metric))
            for _ in range(OTHER_SPLITS)
        ]
    )
    agree = int((np.sign(elsewhere) == np.sign(these.estimate)).sum())
    counted = "-"
    if metric == "ROC AUC":
        found = 0
        for shuffle in range(shuffles):
            rng = np.random.default_rng([5, shuffle])
            shuffled = [(x, rng.permutation(y)) for x, y in clients]
            gains = cross_validated(shuffled, metric, rng)
            found += resampled_interval(gains, splits).verdict != "cannot tell"
        counted = f"{found} of {shuffles}"
    rows = sum(len(y) for _, y in clients)
    return (
        f"| {name.removesuffix(', accuracy')}, {metric} | {len(clients)}, {rows:,} | {these.estimate:+.4f}"
        f" ({these.low:+.4f} to {these.high:+.4f}) | {these.verdict} |"
        f" {others.low:+.4f} to {others.high:+.4f} | {elsewhere.mean():+.4f},"
        f" {agree} of {OTHER_SPLITS} | {counted} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    parser.add_argument("--shuffles", type=int, default=100)
    options = parser.parse_args()
    print(machine())
    print(
        "| table | clients, rows | gain of these clients (95 %) | verdict | clients like"
        " these | other splits | shuffled: verdicts |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in options.tables:
        print(measure(name, options.shuffles), flush=True)


if __name__ == "__main__":
    main()
