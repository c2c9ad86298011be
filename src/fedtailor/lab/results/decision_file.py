"""`decision.json`: the decisions of an experiment, computed once and read by all.

The terminal, reports, `finalize` and `contributions` read the same file, so that they
cannot disagree.
"""

import hashlib
import math
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import fedtailor.lab.results
import fedtailor.statistics.decision
from fedtailor._version import __version__
from fedtailor.engine.storage.json_file import read_json, write_json
from fedtailor.lab.results.decision import Decision, decide
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.protocol.plain import parse, to_json
from fedtailor.statistics.decision.frames import frame_to_json

DECISION = "decision.json"
"""The file, in an experiment's folder."""
FORMAT = "fedtailor decision 1"


def decisions_of(experiment: StoredExperiment) -> dict[str, Decision]:
    """The decisions of an experiment, from its file.

    They are computed, and the file is written, if it is missing or damaged, rests on
    other runs, or was written by other code.

    Returns:
        Scenario -> its decision, for all scenarios with a finished run.
    """
    path = experiment.folder / DECISION
    made_of = {"code": _deciding_code(), "rests_on": experiment.digest}
    # A file that cannot be read is made again.
    with suppress(ValueError):
        content = read_json(path, FORMAT, "report again")
        if made_of.items() <= content.items():
            plain = _with_floats(content["decisions"])
            found: dict[str, Decision] = parse(dict[str, Decision], plain)
            return found
    decisions = {}
    for scenario in experiment.index.scenarios:
        decision = decide(experiment, scenario)
        if decision is not None:
            decisions[scenario] = decision
    content = {
        "version": __version__,
        **made_of,
        "decisions": to_json(decisions, _leaf),
    }
    # Results may be read from a disk that cannot be written.
    with suppress(ValueError):
        write_json(path, FORMAT, content)
    return decisions


def decision_of(experiment: StoredExperiment, scenario: str) -> Decision | None:
    """The decision of a scenario; None if it has no finished run."""
    return decisions_of(experiment).get(scenario)


@cache
def _deciding_code() -> str:
    """A digest of the modules that decide and word decisions.

    Decisions hold sentences, too. So a file that another version has written, or this one
    before a sentence was changed, is not read again.
    """
    digest = hashlib.sha256(__version__.encode())
    for package in (fedtailor.lab.results, fedtailor.statistics.decision):
        for module in sorted(Path(package.__path__[0]).glob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()


def _leaf(value: Any) -> Any:
    """Tables and numbers as JSON, to the last bit.

    JSON has no NaN and infinity: they become an object with their name.
    """
    if isinstance(value, pl.DataFrame):
        return to_json(frame_to_json(value), _leaf)
    if isinstance(value, np.generic):
        return _leaf(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _with_floats(plain: Any) -> Any:
    """JSON with the NaN and infinity that `_leaf` named."""
    if isinstance(plain, dict):
        if plain.keys() == {"float"}:
            return float(plain["float"])
        return {key: _with_floats(part) for key, part in plain.items()}
    if isinstance(plain, list):
        return [_with_floats(part) for part in plain]
    return plain
