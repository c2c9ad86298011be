"""`python -m federation_faults` in tests/: random kills of a federation, then how many
were good.
"""

import argparse
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import conftest  # noqa: F401 (the settings of a test process, before JAX is imported)
from federation_faults.in_process import Trials
from federation_faults.processes import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="federation_faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processes",
        action="store_true",
        help="real processes over TLS (needs the extra federation)",
    )
    parser.add_argument(
        "--method", default="ditto", help="of the processes: ditto (default) or fedavg"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="a folder for the federation's files and logs, which stay",
    )
    options = parser.parse_args()
    with (
        nullcontext(options.out) if options.out else tempfile.TemporaryDirectory()
    ) as name:
        if options.processes:
            tried, good = campaign(
                Path(name) / "digits",
                options.kills,
                options.seed,
                lambda line: print(line, flush=True),
                options.method,
            )
            print("final models and measurements are the simulation's")
        else:
            tried, good, trials = options.kills, 0, Trials(Path(name))
            for number in range(options.seed, options.seed + options.kills):
                try:
                    print(
                        f"seed {number}: {trials.kill(np.random.default_rng(number))}",
                        flush=True,
                    )
                    good += 1
                except Exception as error:
                    print(
                        f"BAD: seed {number}: {type(error).__name__}:"
                        f" {str(error)[:500]}",
                        flush=True,
                    )
                    traceback.print_exc(limit=-4)
    print(f"{tried} tried, {good} good")
    return 0 if tried == good else 1


if __name__ == "__main__":
    sys.exit(main())
