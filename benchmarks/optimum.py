"""How far `local` and `fedavg` end from the optima of their linear models on tables.

    python benchmarks/optimum.py heart.csv --client hospital --target num --positive ">0"

trains both with the defaults of `fedtailor compare TABLE`, and fits scikit-learn's ridge
(alpha 1) or logistic regression (C 1) on the same rows of the same splits: for every
client alone, and for all rows together. "inputs" are those that the models see (of a
regression: decorrelated), "columns" the standardised columns as they are, with
`--keep-correlated`. A line for each seed; a gap is in percent of scikit-learn's value.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge

from fedtailor.cli.commands.compare import TableOptions
from fedtailor.cli.options import parse
from fedtailor.cli.own_table import changed_options, prepare_table_experiment
from fedtailor.executors import Settings
from fedtailor.experiments.compare import Comparison
from fedtailor.storage.run_files import read_summary
from fedtailor.tables import from_table


def fitted(table, clients):
    """scikit-learn's model for the training rows of some clients; None for one class."""
    x = np.concatenate([table.x[table.train[client]] for client in clients])
    y = np.concatenate([table.y[table.train[client]] for client in clients])
    if table.classes is None:
        return Ridge(alpha=1.0).fit(x.astype(np.float64), y)
    if len(np.unique(y)) == 1:
        return int(y[0])
    return LogisticRegression(C=1.0, max_iter=10_000).fit(x.astype(np.float64), y)


def mean_score(table, models):
    """The mean over clients of the accuracy in %, or of the RMSE in the target's unit."""
    scores = []
    for client, model in enumerate(models):
        x, y = table.x[table.test[client]], table.y[table.test[client]]
        if not len(y):
            continue
        predicted = model if isinstance(model, int) else model.predict(x)
        if table.classes is None:
            scale = table.preprocessing.target_scale
            scores.append(scale * np.sqrt(np.mean((predicted - y) ** 2)))
        else:
            scores.append(100 * np.mean(predicted == y))
    return float(np.mean(scores))


def optima(table):
    """The scores of scikit-learn alone and pooled."""
    clients = range(len(table))
    pooled = fitted(table, clients)
    alone = [fitted(table, [client]) for client in clients]
    return {
        "local": mean_score(table, alone),
        "fedavg": mean_score(table, [pooled for _ in clients]),
    }


def main(arguments: list[str]) -> None:
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(__doc__)
        raise SystemExit(0)
    path = Path(arguments[0])
    options = parse(
        TableOptions,
        [*arguments[1:], "--algorithms", "local", "fedavg"],
        "benchmarks/optimum.py",
    )
    experiment, _ = prepare_table_experiment(path, options)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        comparison = Comparison(experiment, Path(folder), Settings(), source=path)
        comparison.run()
        seconds = time.perf_counter() - started
        for seed in experiment.file.seeds:
            table = from_table(path, seed=seed, **changed_options(options))
            exact = {"inputs": optima(table)}
            if table.classes is None:
                correlated = {**changed_options(options), "keep_correlated": True}
                exact["columns"] = optima(from_table(path, seed=seed, **correlated))
            for cell in comparison.cells:
                if cell["seed"] != seed:
                    continue
                summary = read_summary(Path(folder) / cell["run"] / "summary.json")
                scale = 100 if table.classes is not None else 1
                value = scale * summary["mean"]
                method = cell["algorithm"]
                gaps = "; ".join(
                    f"{kind} {one[method]:.4f} ({100 * (value / one[method] - 1):+.2f} %)"
                    for kind, one in exact.items()
                )
                print(
                    f"{path.name} seed {seed} {method}: {value:.4f} after"
                    f" {summary['rounds']} rounds, {cell['chosen']}; {gaps}",
                    flush=True,
                )
    print(f"{path.name}: {comparison.done} runs in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
