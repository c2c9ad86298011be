"""How far `local` and `fedavg` end from the optima of their linear models on tables.

    python benchmarks/optimum.py heart.csv --client hospital --target num --positive ">0"

trains both with the defaults of `fedtailor compare TABLE`, and fits scikit-learn's ridge
(alpha 1) or logistic regression (C 1) on the same rows of the same splits: for every
client alone, and for all rows together. For each seed and method it prints

* the metric and its gap, in percent of scikit-learn's value. "inputs" are those that the
  models see (of a regression: decorrelated), "columns" the standardised columns as they
  are, with `--keep-correlated`;
* the gap of the training objective, which is what training makes small: loss of all
  training rows and penalty, as a share of the least one (of local, the sum over clients);
* of classes, how many test rows are predicted in another way than by scikit-learn.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from fedtailor.cli.commands.compare import OwnTableOptions
from fedtailor.cli.options import parse
from fedtailor.cli.table_experiment import (
    changed_options,
    prepare_table_experiment,
    ridge_of,
)
from fedtailor.data.tables import Table, from_table
from fedtailor.deployment import open_run
from fedtailor.engine.executors import Settings
from fedtailor.engine.storage.run_files import read_summary
from fedtailor.lab.experiments.compare import Comparison

Weights = NDArray[np.float64]
"""[inputs + 1, outputs], the biases last: outputs are x @ weights."""


@dataclass(frozen=True)
class Problem:
    """The rows of some clients, and the objective that their models make small.

    Attributes:
        x: [n, inputs + 1] training inputs, with a column of ones.
        y: [n] classes, or targets.
        classes: number of classes, or None.
        penalty: in the unit of `SGD.ridge`, of all these clients together.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    classes: int | None
    penalty: float

    def objective(self, weights: Weights) -> float:
        """The sum of the losses, and penalty / 2 times the sum of squared weights."""
        outputs = self.x @ weights
        if self.classes is None:
            loss = np.square(outputs[:, 0] - self.y).sum()
        else:
            chosen = outputs[np.arange(len(self.y)), self.y.astype(int)]
            loss = (np.logaddexp.reduce(outputs, axis=1) - chosen).sum()
        return float(loss + self.penalty / 2 * np.square(weights[:-1]).sum())

    def optimum(self, default: float) -> Weights:
        """scikit-learn's model.

        Args:
            default: the penalty that stands for alpha or C of 1.
        """
        strength = self.penalty / default
        inputs = self.x[:, :-1]
        weights = np.zeros((self.x.shape[1], self.classes or 1))
        if self.classes is None:
            model = Ridge(alpha=strength).fit(inputs, self.y)
            weights[:-1, 0], weights[-1, 0] = model.coef_, model.intercept_
            return weights
        known = np.unique(self.y).astype(int)
        if len(known) == 1:
            weights[-1, known[0]] = (
                np.inf
            )  # the loss goes to 0, and no weight is needed
            return weights
        model = LogisticRegression(C=1 / strength, tol=1e-8, max_iter=100_000)
        model.fit(inputs, self.y.astype(int))
        both = np.column_stack([model.coef_, model.intercept_]).T
        # Two classes have one vector, the difference of their weights.
        weights[:, known] = (
            np.hstack([-both / 2, both / 2]) if len(known) == 2 else both
        )
        absent = [number for number in range(self.classes) if number not in known]
        weights[-1, absent] = -np.inf
        return weights


def problem_of(table: Table, clients: Sequence[int], penalty: float) -> Problem:
    """The training rows of some clients."""
    rows = np.concatenate([table.train[client] for client in clients])
    return Problem(
        with_ones(table.x[rows]), table.y[rows].astype(float), table.classes, penalty
    )


def with_ones(x: NDArray) -> NDArray[np.float64]:
    return np.column_stack([x, np.ones(len(x))]).astype(np.float64)


def predictions(table: Table, models: Sequence[Weights]) -> list[NDArray]:
    """The predictions for each client's test rows."""
    found = []
    for client, weights in enumerate(models):
        outputs = with_ones(table.x[table.test[client]]) @ np.nan_to_num(weights)
        found.append(outputs[:, 0] if table.classes is None else outputs.argmax(axis=1))
    return found


def mean_score(table: Table, predicted: Sequence[NDArray]) -> float:
    """The mean over clients of the accuracy in %, or of the RMSE in the target's unit."""
    scores = []
    for client, values in enumerate(predicted):
        y = table.y[table.test[client]]
        if not len(y):
            continue
        if table.classes is None:
            error = np.sqrt(np.mean((values - y) ** 2))
            assert table.preprocessing is not None
            scores.append(table.preprocessing.target_scale * error)
        else:
            scores.append(100 * np.mean(values == y))
    return float(np.mean(scores))


def found_weights(directory: Path, table: Table) -> list[Weights]:
    """The weights of each client's personal model in a run."""
    run, inputs = open_run(directory), table.x.shape[1]
    # A linear model is known from its outputs for 0 and for the unit vectors.
    points = np.vstack([np.eye(inputs), np.zeros(inputs)])
    models = []
    for name in table.names:
        outputs = np.asarray(run.personal(name).outputs(points), np.float64)
        outputs = outputs.reshape(inputs + 1, -1)
        models.append(np.vstack([outputs[:-1] - outputs[-1], outputs[-1]]))
    return models


def score_text(kind: str, value: float, exact: float) -> str:
    return f"{kind} {exact:.4f} ({100 * (value / exact - 1):+.2f} %)"


def line(table: Table, method: str, found: list[Weights], correlated: Table) -> str:
    """The gaps of a method's models."""
    clients, penalty = range(len(table)), ridge_of(table)

    def problems_of(of: Table) -> list[Problem]:
        """Those of all clients alone, or the one of all rows together."""
        parts = [[client] for client in clients] if method == "local" else [clients]
        return [problem_of(of, part, penalty) for part in parts]

    def optima(of: Table) -> list[Weights]:
        """scikit-learn's model of each client."""
        models = [problem.optimum(penalty) for problem in problems_of(of)]
        return models if method == "local" else models * len(table)

    best = optima(table)
    predicted, exact = predictions(table, found), predictions(table, best)
    value = mean_score(table, predicted)
    parts = [score_text("inputs", value, mean_score(table, exact))]
    if table.classes is None:
        score = mean_score(correlated, predictions(correlated, optima(correlated)))
        parts.append(score_text("columns", value, score))
    # A client of one class has no least objective.
    gaps = [
        (problem.objective(weights), problem.objective(optimum))
        for problem, weights, optimum in zip(
            problems_of(table), found, best, strict=False
        )
        if np.isfinite(optimum).all()
    ]
    total, least = np.sum(gaps, axis=0)
    parts.append(f"objective {least:.4f} ({total / least - 1:+.1e})")
    if table.classes is not None:
        changed = sum(
            int((one != other).sum())
            for one, other in zip(predicted, exact, strict=True)
        )
        rows = sum(map(len, predicted))
        parts.append(f"{changed} of {rows} test rows predicted in another way")
    return f"{value:.4f}; {'; '.join(parts)}"


def main(arguments: list[str]) -> None:
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(__doc__)
        raise SystemExit(0)
    path = Path(arguments[0])
    options = parse(
        OwnTableOptions,
        [*arguments[1:], "--algorithms", "local", "fedavg"],
        "benchmarks/optimum.py",
    )
    experiment, _ = prepare_table_experiment(path, options)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        comparison = Comparison(experiment, Path(folder), Settings(), source=path)
        comparison.run()
        seconds = time.perf_counter() - started
        changed = changed_options(options)
        for seed in experiment.file.seeds:
            table = from_table(path, seed=seed, **changed)
            correlated = from_table(
                path, seed=seed, **{**changed, "keep_correlated": True}
            )
            for run in comparison.method_runs:
                if run["seed"] != seed:
                    continue
                directory = Path(folder) / run["run"]
                rounds = read_summary(directory / "summary.json")["rounds"]
                found = found_weights(directory, table)
                print(
                    f"{path.name} seed {seed} {run['algorithm']}: after {rounds} rounds,"
                    f" {run['chosen']}: {line(table, run['algorithm'], found, correlated)}",
                    flush=True,
                )
    print(f"{path.name}: {comparison.done} runs in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
