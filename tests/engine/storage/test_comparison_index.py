"""The index of a comparison is one value, written and read by one codec."""

import json
from dataclasses import replace

import pytest

from fedtailor.engine.storage.comparison_index import (
    BaselineRun,
    CandidateRun,
    Index,
    MethodRun,
    RoundBudget,
    ScenarioUse,
    Skipped,
    Sweep,
    read_index,
    write_index,
)

INDEX = Index(
    name="small",
    file="../small.toml",
    size="quick",
    title="A small one",
    source="",
    note="",
    seeds=[0],
    metrics=["mean"],
    figures=[],
    scenarios={"one": ScenarioUse("table", {"path": "t.csv"}, "mlp(4)", 3, 0.5)},
    algorithms=["FedAvg"],
    published={"mean": {"one": {"FedAvg": "76.7 ± 4.0"}}},
    sweeps={"FedAvg": Sweep("sgd.lr", {"0.1": "FedAvg"})},
    runs=2,
    method_runs=[MethodRun("one", "FedAvg", 0, "runs/x", {"sgd.lr": 0.1})],
    baselines=[BaselineRun("one", "mixed", "Mixed", True, True, 0, "runs/y")],
    candidates=[
        CandidateRun(
            scenario="one",
            algorithm="FedAvg",
            parameters={"sgd.lr": 0.1},
            seed=0,
            run="runs/x",
            val=None,
            chosen=True,
        )
    ],
    skipped=[Skipped("one", "FedAvg", None, {}, "it diverged", 1)],
    seconds=1.5,
    machine="2 cores",
    versions={"fedtailor": "0.2"},
)


def test_what_is_written_is_read(tmp_path):
    for index in (
        INDEX,
        replace(INDEX, budget=RoundBudget(30, 90), file=None, until_converged=True),
        replace(INDEX, candidates=[replace(INDEX.candidates[0], rounds=12)]),
        replace(
            INDEX,
            scenarios={"one": replace(INDEX.scenarios["one"], sampling="samples")},
        ),
    ):
        write_index(tmp_path / "experiment.json", index)
        assert read_index(tmp_path / "experiment.json") == index


def test_the_file_has_the_keys_that_it_has_always_had(tmp_path):
    write_index(tmp_path / "experiment.json", INDEX)
    content = json.loads((tmp_path / "experiment.json").read_text())
    assert " ".join(content) == (
        "name file size title source note seeds metrics figures scenarios algorithms"
        " published sweeps until_converged runs cells baselines deployable candidates"
        " skipped budget seconds core_seconds machine versions digest"
    )
    assert content["cells"] == [
        {
            "scenario": "one",
            "algorithm": "FedAvg",
            "seed": 0,
            "run": "runs/x",
            "chosen": {"sgd.lr": 0.1},
        }
    ]
    assert content["budget"] is None and content["skipped"][0]["seed"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-5], "is not an index of an experiment"),
        (
            lambda text: text.replace("1.5", "'long'"),
            "is not an index of an experiment",
        ),
        (lambda text: text.replace("1.5", "1.25"), "its digest is wrong"),
        (lambda text: text.replace('"digest"', '"note"'), "its digest is wrong"),
        (lambda text: text.replace('"quick"', "3"), "size is 3; it must be"),
    ],
)
def test_damage_is_told(tmp_path, change, message):
    path = tmp_path / "experiment.json"
    write_index(path, INDEX)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as refused:
        read_index(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_runs_of_what_is_not_compared_are_refused(tmp_path):
    alien = MethodRun("two", "FedAvg", 0, "runs/z")
    write_index(tmp_path / "experiment.json", replace(INDEX, method_runs=[alien]))
    with pytest.raises(
        ValueError, match="a run of 'FedAvg' on 'two', which it does not"
    ):
        read_index(tmp_path / "experiment.json")
