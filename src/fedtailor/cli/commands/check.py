"""`fedtailor check PATH ...`: whether runs, exports and saved federations are what was
written.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor import algorithms
from fedtailor.cli.failures import DONE, FAILED
from fedtailor.cli.options import parse
from fedtailor.storage import check as look

assert algorithms.__all__  # importing them registers the states that checkpoints hold


@dataclass(frozen=True)
class Options:
    """Compare run directories, exported models and saved federations with the digests
    that they carry.
    """

    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH")
    ]
    """A run directory, an export, a saved federation, or a directory that holds some of
    them.
    """
    json: bool = False
    """Print one JSON array instead of lines."""


def check(arguments: list[str]) -> int:
    """Look at everything; the exit code is 0 where all of it is whole."""
    options = parse(Options, arguments, "fedtailor check")
    if not options.paths:
        raise ValueError(
            "there is nothing to check; name a run directory, an export or a saved"
            " federation"
        )
    found = [finding for path in options.paths for finding in look(path)]
    if options.json:
        entries = [
            {"path": str(one.path), "whole": one.whole, "what": one.what}
            for one in found
        ]
        print(json.dumps(entries, indent=2))
    else:
        for one in found:
            print(f"{one.path}: {'whole' if one.whole else 'NOT WHOLE'}: {one.what}")
        print(f"{sum(one.whole for one in found)} of {len(found)} whole")
    return DONE if all(one.whole for one in found) else FAILED
