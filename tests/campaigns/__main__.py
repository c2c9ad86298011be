"""`python -m campaigns` in tests/: faults and bad input for a while, then how many
tries were good.
"""

import argparse
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import conftest  # noqa: F401 (the settings of a test process, before JAX is imported)
from campaigns.faults import FAULTS, Faults
from campaigns.inputs import INPUTS, Inputs

EXAMPLES = 10
"""Inputs that are drawn from one seed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="for how long")
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="the first seed; the next ones follow (default: the time)",
    )
    parser.add_argument(
        "--only",
        choices=(*FAULTS, *INPUTS),
        action="append",
        help="only this kind (several times)",
    )
    options = parser.parse_args()
    first = int(time.time()) if options.seed is None else options.seed
    logging.getLogger("fedtailor").setLevel(logging.ERROR)  # what is said at a resume
    warnings.simplefilter("ignore")
    tried, bad = Counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        faults = Faults(folder)
        inputs = Inputs(folder / "inputs", folder / "whole", folder / "models")
        end, number = time.monotonic() + 60 * options.minutes, first
        kinds = options.only or (*FAULTS, *INPUTS)
        while time.monotonic() < end:
            for kind in kinds:
                try:
                    if kind in FAULTS:
                        tried[kind] += 1
                        getattr(faults, kind)(np.random.default_rng(number))
                    else:
                        tried[kind] += getattr(inputs, kind)(number, EXAMPLES)
                except Exception as error:
                    tried[kind] += kind in INPUTS
                    bad.append((kind, number))
                    print(
                        f"BAD: {kind}, seed {number}: {type(error).__name__}:"
                        f" {str(error)[:1000]}",
                        flush=True,
                    )
                    traceback.print_exc(limit=-4)
            number += 1
    print(f"seeds {first} to {number - 1}")
    for kind in kinds:
        print(
            f"{kind:<24} {tried[kind]:>7} tried,"
            f" {tried[kind] - sum(one == kind for one, _ in bad):>7} good"
        )
    print(f"{tried.total()} tried, {tried.total() - len(bad)} good")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
