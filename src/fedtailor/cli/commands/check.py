"""`fedtailor check PATH ...`: whether runs, exports and saved federations are what was
written.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor import algorithms
from fedtailor._base.printable import say, say_block
from fedtailor.cli.failures import DONE, FAILED
from fedtailor.cli.options import parse
from fedtailor.engine.storage import check as check_path

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
    """Checks all paths; the exit code is 0 if everything is whole."""
    options = parse(Options, arguments, "fedtailor check")
    if not options.paths:
        raise ValueError(
            "there is nothing to check; name a run directory, an export or a saved"
            " federation"
        )
    findings = [finding for path in options.paths for finding in check_path(path)]
    if options.json:
        entries = [
            {"path": str(finding.path), "whole": finding.whole, "what": finding.what}
            for finding in findings
        ]
        say_block(json.dumps(entries, indent=2))
    else:
        for finding in findings:
            state = "whole" if finding.whole else "NOT WHOLE"
            say(f"{finding.path}: {state}: {finding.what}")
        say(f"{sum(finding.whole for finding in findings)} of {len(findings)} whole")
    return DONE if all(finding.whole for finding in findings) else FAILED
