"""After forgetting, no file of the new run holds the client's name, rows or states:
searched for here in other ways.
"""

import jax
import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from deployment_helpers import BLOBS, NAMES
from fedtailor.engine.storage import check
from fedtailor.lab import scenarios

FORGOTTEN = NAMES[0]


@pytest.fixture(scope="module")
def without(trained, tmp_path_factory):
    """(the old run opened, the new run, its directory)."""
    path, run = tmp_path_factory.mktemp("without") / "run", ft.open(trained[1])
    return run, ft.unlearn(run, FORGOTTEN, path), path


def test_nothing_of_the_client_is_left(without):
    run, _, path = without
    lines = [
        line
        for line in (run.path.parent / "table.csv").read_text().splitlines()
        if FORGOTTEN in line
    ]
    place = run.federation.names.index(FORGOTTEN)
    rows = np.concatenate(
        [getattr(run.federation, split)[place] for split in ("train", "val", "test")]
    )
    mine = run.executor.seen.names.index(FORGOTTEN)
    states = [
        np.asarray(leaf)[mine].tobytes()
        for leaf in jax.tree.leaves(run.executor.states.rows)
    ]
    states = [state for state in states if len(state) >= 8]
    secrets = {
        "name": [FORGOTTEN.encode(), FORGOTTEN.encode("utf-16-le"), b"Lovelace"],
        "lines": [line.split(",", 1)[1].encode() for line in lines],
        "examples": [run.federation.x[row].tobytes() for row in rows],
        "states": [*states, run.personal(FORGOTTEN).theta.tobytes()],
    }
    assert {what: len(found) for what, found in secrets.items()} == {
        "name": 3,
        "lines": 30,
        "examples": 30,
        "states": len(states) + 1,
    }
    assert states
    files = [file for file in path.rglob("*") if file.is_file()]
    assert len(files) > 8
    for file in files:
        data = file.read_bytes()
        for what, found in secrets.items():
            assert not any(secret in data for secret in found), (file.name, what)
        if file.suffix == ".parquet":
            cells = pl.read_parquet(file)
            assert "Lovelace" not in str(cells.to_dicts())
            assert "row" not in cells.columns or not set(cells["row"]) & set(
                run.federation.rows[rows].tolist()
            )
    whole = (run.path / "checkpoint.safetensors").read_bytes()
    assert all(state in whole for state in states)  # the search finds what is there


def test_the_others_are_trained_as_before(without):
    run, new, path = without
    kept = sorted(name for name in NAMES if name != FORGOTTEN)
    assert list(new.federation.names) == kept
    assert new.federation.unseen.tolist() == [True, False]
    again = ft.open(path)
    assert list(again.names) == kept
    assert (
        again.federation.notes is not None
    )  # the table is found again, and is the same
    assert again.stored.rows is not None
    ages = [column for column in again.preprocessing.columns if column.name == "age"]
    before = [column for column in run.preprocessing.columns if column.name == "age"]
    assert (
        ages[0].mean != before[0].mean
    )  # also the preprocessing was learned without it
    assert [one.whole for one in check(path)] == [True]


def test_a_client_that_is_called_by_a_number_is_forgotten(tmp_path):
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(36, 4)).astype(np.float32), np.arange(36) % 3
    federation = ft.federation.from_arrays(
        x, (x[:, 0] > 0).astype(np.int32), client, test=0.25, val=0, seed=0
    )
    assert federation.names == ("0", "1", "2")
    model, path = ft.models.logistic(), tmp_path / "old"
    ft.run(ft.FedAvg(), federation, model, rounds=1, directory=path)
    new = ft.unlearn(ft.open(path, federation=federation), "1", tmp_path / "new")
    assert new.federation.names == ("0", "2")
    fresh = ft.run(ft.FedAvg(), federation.only(["0", "2"]), model, rounds=1)
    np.testing.assert_array_equal(
        new.personal("2").predictor, fresh.personal("2").predictor
    )


def test_a_client_of_a_scenario_is_forgotten(of_arrays, tmp_path, monkeypatch):
    monkeypatch.setitem(scenarios.SCENARIOS, "blobs", BLOBS)
    run = ft.open(of_arrays[1])
    new = ft.unlearn(run, "client 1 of the blobs", tmp_path / "new")
    assert new.federation.names == ("client 0 of the blobs", "client 2 of the blobs")
    assert len(new.federation.x) == 24
    again = ft.open(tmp_path / "new")
    np.testing.assert_array_equal(again.federation.x, new.federation.x)
    with pytest.raises(ValueError, match="is not empty; name a new directory"):
        ft.unlearn(run, "client 1 of the blobs", tmp_path / "new")
    with pytest.raises(ValueError, match=r"no client of .* called 'client 7'"):
        ft.unlearn(run, "client 7", tmp_path / "other")
    assert not (tmp_path / "other").exists()
