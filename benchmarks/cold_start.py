"""Seconds until something happens: import, then the first round with an empty and with
a filled compilation cache.

python benchmarks/cold_start.py
"""

import argparse
import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from time import perf_counter

from measuring import Times, load, machine

IMPORT = "import fedtailor; fedtailor.run"
ROUND = """
from time import perf_counter
from cells import CELLS
from fedtailor.algorithms import FedAvg
from fedtailor.engine.runs import simulate
from fedtailor.protocol import SGD
cell = CELLS["mlp-10"]
federation = cell.federation
started = perf_counter()
simulate(FedAvg(SGD(batch_size=cell.batch_size)), federation, cell.model).advance()
print(perf_counter() - started)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--turns", type=int, default=7, help="fresh processes of each kind"
    )
    turns = parser.parse_args().turns
    imports, empty, filled = [], [], []
    for _ in range(turns):
        started = perf_counter()
        _python(IMPORT)
        imports.append(perf_counter() - started)
        with TemporaryDirectory() as cache:
            empty.append(float(_python(ROUND, JAX_COMPILATION_CACHE_DIR=cache)))
            filled.append(float(_python(ROUND, JAX_COMPILATION_CACHE_DIR=cache)))
    print(machine("jax"))
    print(f"minimum / median of {turns} processes, ms; load {load()}")
    for what, seconds in (
        ("Python, and import of the engine", imports),
        ("first round, nothing compiled yet", empty),
        ("first round, compiled before", filled),
    ):
        print(f"{what:<36}{Times(tuple(seconds))}")


def _python(program: str, **environment: str) -> str:
    # the cache takes what compiles in less than a second, too, as fedtailor sets it up
    # for its own cache
    settings = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": _path(),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
    )
    return done.stdout


def _path() -> str:
    return os.pathsep.join(
        [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    )


if __name__ == "__main__":
    main()
