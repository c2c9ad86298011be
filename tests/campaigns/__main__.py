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
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import conftest  # noqa: F401 (the settings of a test process, before JAX is imported)
from campaigns.choosing import Choosing
from campaigns.client_process import ClientProcess
from campaigns.faults import FAULTS, Faults
from campaigns.hostile_client import HostileClient
from campaigns.hostile_coordinator import HostileCoordinator
from campaigns.inputs import INPUTS, Inputs
from campaigns.port import OpenPort
from campaigns.small_tables import SmallTables
from campaigns.sums import ChosenSums
from campaigns.twins import Twins
from campaigns.unsteady import Unsteady

EXAMPLES = 10
"""Inputs that are drawn from one seed."""


MOST_BAD = 50
"""Bad tries after which a campaign ends."""

FEDERATION = (
    "hostile_coordinator",
    "hostile_client",
    "chosen_trees",
    "chosen_models",
    "chosen_descriptions",
    "without_one",
    "chosen_sums",
    "small_tables",
    "small_outcomes",
    "twin_trees",
    "twin_models",
    "doubled",
    "other_rows",
    "stopped",
    "stopped_process",
    "cloned",
    "client_process",
    "open_port",
)
"""Tries of a federation of machines; they need the extra federation."""

KINDS = (*FAULTS, *INPUTS, *FEDERATION)

OF_ONE_SEED = {
    "hostile_coordinator": 10,
    "chosen_trees": 5,
    "chosen_models": 3,
    "chosen_descriptions": 3,
    "chosen_sums": 3,
    "small_tables": 5,
    "small_outcomes": 20,
    "twin_trees": 3,
    "client_process": 3,
    "open_port": 3,
}
"""Tries that are drawn from one seed, where it is not one: a whole training takes as long
as many messages.
"""


class Tries:
    """What makes the tries of each kind, made when it is first needed.

    Args:
        folder: for files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def faults(self) -> Faults:
        return Faults(self._folder)

    @cached_property
    def inputs(self) -> Inputs:
        folder = self.faults.folder
        return Inputs(folder / "inputs", folder / "whole", folder / "models")

    @cached_property
    def coordinator(self) -> HostileCoordinator:
        return HostileCoordinator(self._folder / "coordinator")

    @cached_property
    def choosing(self) -> Choosing:
        return Choosing(self._folder / "choosing")

    @cached_property
    def sums(self) -> ChosenSums:
        return ChosenSums()

    @cached_property
    def tables(self) -> SmallTables:
        return SmallTables(self._folder / "tables")

    @cached_property
    def twins(self) -> Twins:
        return Twins(self._folder / "twins")

    @cached_property
    def process(self) -> HostileCoordinator:
        return HostileCoordinator(
            self._folder / "process", ("fedavg", "ditto"), ClientProcess
        )

    @cached_property
    def client(self) -> HostileClient:
        return HostileClient(self._folder / "client")

    @cached_property
    def unsteady(self) -> Unsteady:
        return Unsteady(self._folder / "unsteady")

    @cached_property
    def port(self) -> OpenPort:
        return OpenPort(self._folder / "port")

    def of(self, kind: str) -> Any:
        """What has a function of this name."""
        names = {
            "hostile_client": "client",
            "chosen_trees": "choosing",
            "chosen_models": "choosing",
            "chosen_descriptions": "choosing",
            "without_one": "choosing",
            "chosen_sums": "sums",
            "small_tables": "tables",
            "small_outcomes": "tables",
            "twin_trees": "twins",
            "twin_models": "twins",
            "client_process": "process",
            "stopped": "unsteady",
            "stopped_process": "unsteady",
            "cloned": "unsteady",
            "open_port": "port",
        }
        in_federation = names.get(kind, "coordinator")
        return getattr(self, in_federation if kind in FEDERATION else "faults")

    def __enter__(self) -> "Tries":
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("coordinator", "process", "port"):
            if name in vars(self):
                vars(self)[name].stop()


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
        choices=KINDS,
        action="append",
        help="only this kind (several times)",
    )
    options = parser.parse_args()
    first = int(time.time()) if options.seed is None else options.seed
    logging.getLogger("fedtailor").setLevel(logging.ERROR)  # what is said at a resume
    warnings.simplefilter("ignore")
    tried, bad = Counter(), []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        tries = stack.enter_context(Tries(Path(name)))
        end, number = time.monotonic() + 60 * options.minutes, first
        kinds = options.only or KINDS
        while time.monotonic() < end and len(bad) < MOST_BAD:
            for kind in kinds:
                if time.monotonic() >= end:
                    break
                try:
                    if kind in INPUTS:
                        tried[kind] += getattr(tries.inputs, kind)(number, EXAMPLES)
                    else:
                        rng = np.random.default_rng(number)
                        for _ in range(OF_ONE_SEED.get(kind, 1)):
                            if time.monotonic() >= end:
                                break
                            tried[kind] += 1
                            getattr(tries.of(kind), kind)(rng)
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
