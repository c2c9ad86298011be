"""decision.json: computed once, the same to the bit for all who read it."""

import json
import math

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fedtailor.engine.storage.run_files import SUMMARY
from fedtailor.lab.results import decision_file
from fedtailor.lab.results.decision import decide
from fedtailor.lab.results.decision_file import DECISION, decision_of, decisions_of
from fedtailor.protocol.plain import to_json
from fedtailor.statistics.decision.frames import frame_from_json, frame_to_json
from lab.results.test_decision import build


def refuse(*args):
    raise AssertionError("a decision that is stored is computed again")


def test_a_decision_is_computed_once_and_read_as_it_was(tmp_path, monkeypatch):
    experiment = build(tmp_path)
    scenario = next(iter(experiment.index.scenarios))
    computed = decide(experiment, scenario)
    assert computed is not None and computed.verdict is not None
    written = decisions_of(experiment)
    monkeypatch.setattr(decision_file, "decide", refuse)
    read = decision_of(build_again(experiment), scenario)
    for decision in (written[scenario], read):
        assert decision.as_dict() == computed.as_dict()
        assert decision.table.csv() == computed.table.csv()
        assert decision.verdict.table().csv() == computed.verdict.table().csv()
        assert_frame_equal(
            decision.winner.pairs, computed.winner.pairs, check_exact=True
        )
        assert_frame_equal(decision.gains, computed.gains, check_exact=True)


def build_again(experiment):
    return type(experiment).read(experiment.results, experiment.index.name)


def test_other_runs_or_a_damaged_file_make_it_anew(tmp_path):
    experiment = build(tmp_path)
    scenario = next(iter(experiment.index.scenarios))
    path = experiment.results / experiment.index.name / DECISION
    decisions_of(experiment)
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b'"metric"', b'"metrik"', 1))
    assert (
        decision_of(experiment, scenario).as_dict()
        == decide(experiment, scenario).as_dict()
    )
    assert path.read_bytes() == kept
    run = experiment.results / experiment.index.method_runs[0].run
    summary = run / SUMMARY
    summary.write_bytes(summary.read_bytes() + b"\n")
    decisions_of(build_again(experiment))
    assert json.loads(path.read_bytes())["rests_on"] != json.loads(kept)["rests_on"]


def test_a_file_of_other_code_is_made_again(tmp_path, monkeypatch):
    """Its sentences would be those of before."""
    experiment = build(tmp_path)
    path = experiment.folder / DECISION
    monkeypatch.setattr(decision_file, "_deciding_code", lambda: "older")
    decisions_of(experiment)
    monkeypatch.undo()
    decisions_of(experiment)
    assert json.loads(path.read_bytes())["code"] != "older"


def test_the_file_is_json_without_nan(tmp_path):
    experiment = build(tmp_path)
    decisions_of(experiment)
    path = experiment.results / experiment.index.name / DECISION
    json.loads(path.read_bytes(), parse_constant=refuse)


def test_numbers_keep_their_bits():
    numbers = {"a": [math.nan, -math.inf, 1 / 3, None], "b": {"float": "nan"}}
    plain = json.loads(
        json.dumps(to_json(numbers, decision_file._leaf), allow_nan=False)
    )
    found = decision_file._with_floats(plain)["a"]
    assert math.isnan(found[0]) and found[1:] == numbers["a"][1:]
    frame = pl.DataFrame(
        {
            "x": np.float32([0.1, np.nan]),
            "n": [1, None],
            "name": ["a", "{}"],
            "b": [True, None],
        }
    )
    assert_frame_equal(frame_from_json(frame_to_json(frame)), frame, check_exact=True)
    with pytest.raises(ValueError, match="no table"):
        frame_from_json({"x": {"type": "Nothing", "values": []}})
