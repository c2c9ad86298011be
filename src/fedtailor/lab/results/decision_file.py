"""`decision.json`: the decisions of an experiment, computed once and read by all.

The terminal, reports, `finalize` and `contributions` read the same file, so that they
cannot disagree.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl

from fedtailor._version import __version__
from fedtailor.engine.storage.digests import DIGEST_KEY, with_digest
from fedtailor.engine.storage.json_file import read_json, write_json
from fedtailor.engine.storage.run_files import COMPARISON_INDEX, SUMMARY
from fedtailor.lab.results.decision import Decision, decide
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.protocol.plain import parse
from fedtailor.statistics.decision.frames import frame_to_json

DECISION = "decision.json"
"""The file, in an experiment's folder."""
FORMAT = "fedtailor decision 1"

_OF_THE_CALL = ("seconds", "machine", DIGEST_KEY)
"""What an index says of the call that wrote it, and not of what was compared."""


def decisions_of(experiment: StoredExperiment) -> dict[str, Decision]:
    """The decisions of an experiment, from its file.

    They are computed, and the file is written, if it is missing, damaged, or rests on
    other runs.

    Returns:
        Scenario -> its decision, for all scenarios with a finished run.
    """
    path = experiment.results / experiment.index.name / DECISION
    rests_on = digest_of(experiment)
    # A file that cannot be read is made again.
    with suppress(ValueError):
        content = read_json(path, FORMAT, "report again")
        if (content["version"], content["rests_on"]) == (__version__, rests_on):
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
        "rests_on": rests_on,
        "decisions": _plain(decisions),
    }
    # Results may be read from a disk that cannot be written.
    with suppress(ValueError):
        write_json(path, FORMAT, content)
    return decisions


def decision_of(experiment: StoredExperiment, scenario: str) -> Decision | None:
    """The decision of a scenario; None if it has no finished run."""
    return decisions_of(experiment).get(scenario)


def digest_of(experiment: StoredExperiment) -> str:
    """A digest of what was compared and of all runs that were finished.

    How long the comparison took, and on which machine, is no part of it.
    """
    folder = experiment.results / experiment.index.name
    index = json.loads((folder / COMPARISON_INDEX).read_bytes())
    kept = {name: index[name] for name in index if name not in _OF_THE_CALL}
    digest = hashlib.sha256(with_digest(kept)[DIGEST_KEY].encode())
    listed = experiment.index
    runs = {run.run for run in (*listed.method_runs, *listed.baselines)}
    runs |= {candidate.run for candidate in listed.candidates if candidate.run}
    for run in sorted(runs):
        summary = experiment.results / run / SUMMARY
        content = summary.read_bytes() if summary.is_file() else b""
        digest.update(f"{run}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Dataclasses, tables and numbers as JSON, to the last bit.

    JSON has no NaN and infinity: they become an object with their name.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, pl.DataFrame):
        return _plain(frame_to_json(value))
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _with_floats(plain: Any) -> Any:
    """JSON with the NaN and infinity that `_plain` named."""
    if isinstance(plain, dict):
        if plain.keys() == {"float"}:
            return float(plain["float"])
        return {key: _with_floats(part) for key, part in plain.items()}
    if isinstance(plain, list):
        return [_with_floats(part) for part in plain]
    return plain
