"""Whether another version of fedtailor measures the same, to the bit: every method of
it, on three scenarios.

    python benchmarks/same_results.py OLD NEW            OLD, NEW: two checkouts of the repository
    python benchmarks/same_results.py OLD NEW ditto ucfl some methods

The scenarios are the rotated digits with full participation, the relabelled digits with
half of the clients in a round, and the rotated digits with unseen clients, validation
data, 60 % of the clients in a round, and a stop and resume after four of six rounds.
`metrics.parquet` and `ledger.parquet` are compared.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

WORKER = """
import dataclasses, sys
from pathlib import Path
import jax
import numpy as np
import fedtailor as ft
import fedtailor.algorithms
from fedtailor.protocol import Algorithm

def train(directory, algorithm, federation, model, rounds, **options):
    common = dict(seed=0, evaluate_every=2, checkpoint_every=2, **options)
    if ft.__version__ == "0.1.0":
        ft.run_in(directory, algorithm, federation, model, rounds, **common)
    else:
        ft.run(algorithm, federation, model, rounds, directory=directory, **common)

out, names = Path(sys.argv[1]), sys.argv[2:]
cases = {"full": ("digits-rotated", {}, 1.0), "half": ("digits-permuted", {}, 0.5),
         "unseen": ("digits-rotated", {"val": 0.1}, 0.6)}
for case, (name, sizes, share) in cases.items():
    scenario = ft.scenarios.find(name).sized(**sizes)
    federation = scenario.build(0)
    if case == "unseen":
        federation = dataclasses.replace(federation, unseen=np.arange(len(federation)) % 5 == 3)
    for method in names or sorted(Algorithm.registry):
        if method not in Algorithm.registry:
            continue
        who = ft.Participation(fraction=1.0 if method == "cfl" else share)
        algorithm = scenario.algorithm(method)
        for rounds in (4, 6) if case == "unseen" else (6,):
            train(out / f"{case}-{method}", algorithm, federation, scenario.model, rounds, participation=who,
                  resume=rounds == 6 and case == "unseen")
        # The programs of all methods together need more memory maps than Linux gives a process.
        jax.clear_caches()
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "methods", nargs="*", help="default: all that the old version has"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {}
        for name, checkout in (("old", options.old), ("new", options.new)):
            results[name] = Path(folder) / name
            environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
            methods = options.methods or sorted(
                {path.name.partition("-")[2] for path in results["old"].glob("full-*")}
            )
            command = [sys.executable, "-c", WORKER, str(results[name]), *methods]
            subprocess.run(command, check=True, env=environment)
        raise SystemExit(compare(results["old"], results["new"]))


def compare(old: Path, new: Path) -> int:
    """Print what differs; how many runs do."""
    differing = 0
    for run in sorted(old.iterdir()):
        tables = {
            name: [
                pl.read_parquet(side / run.name / f"{name}.parquet")
                for side in (old, new)
            ]
            for name in ("metrics", "ledger")
        }
        if all(one.equals(other) for one, other in tables.values()):
            continue
        differing += 1
        one, other = (table["value"] for table in tables["metrics"])
        far = (
            f"values at most {(one - other).abs().max():.2g} apart"
            if len(one) == len(other)
            else "other rows"
        )
        same = {
            name: "same" if pair[0].equals(pair[1]) else "differs"
            for name, pair in tables.items()
        }
        print(f"{run.name}: metrics {same['metrics']} ({far}), ledger {same['ledger']}")
    print(
        f"{len(list(old.iterdir())) - differing} runs measure the same, {differing}"
        " differ"
    )
    return int(differing > 0)


if __name__ == "__main__":
    main()
