"""Processes that run the code of several checkouts of the repository, and take
turns.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]

_SIMULATE = """
import fedtailor as ft

try:
    from fedtailor.engine.runs import simulate
except ImportError:  # in 0.2.0
    from fedtailor.runs import simulate
"""
"""What begins every worker: `simulate`, whatever a version calls it."""


class Checkout:
    """A process with one checkout's code, which answers a line of text with a line of
    JSON.

    Args:
        root: of the checkout.
        worker: the program: reads lines of standard input, prints one for each. `ft`
            and `simulate` are there.
    """

    def __init__(self, root: Path, worker: str) -> None:
        folders = [root.resolve() / "src", root.resolve() / "benchmarks"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SIMULATE + worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, request: str) -> Any:
        """What the worker answers.

        Raises:
            SystemExit: it has ended; what went wrong stands on its standard error.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        print(request, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker ended at {request!r}")
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()


def in_turns(
    checkouts: Mapping[Path, Checkout], request: str, turns: int
) -> dict[Path, Sequence[Any]]:
    """Every checkout's answers to so many equal requests, in alternating order; those
    to a first one, which compiles, are left out."""
    answers: dict[Path, list[Any]] = {root: [] for root in checkouts}
    for checkout in checkouts.values():
        checkout.ask(request)
    for turn in range(turns):
        for root in list(checkouts)[:: 1 if turn % 2 == 0 else -1]:
            answers[root].append(checkouts[root].ask(request))
    return {root: tuple(values) for root, values in answers.items()}
