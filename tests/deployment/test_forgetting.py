"""After forgetting, no file of the new run holds the client's name, rows or states:
searched for here in other ways.
"""

import json
import shutil

import jax
import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

import fedtailor as ft
from deployment_helpers import BLOBS, NAMES
from fedtailor.deployment.forgetting import prove
from fedtailor.deployment.traces import Traces
from fedtailor.experiments import scenarios
from fedtailor.storage import check

FORGOTTEN = NAMES[0]


@pytest.fixture(scope="module")
def without(trained, tmp_path_factory):
    """(the old run opened, the new run, its directory)."""
    path, run = tmp_path_factory.mktemp("without") / "run", ft.open(trained[1])
    return run, ft.forget(run, FORGOTTEN, path), path


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


def test_the_proof_says_what_was_searched(without):
    proof = json.loads((without[2] / "forgotten.json").read_text())
    assert proof["found"] == 0
    assert proof["searched for"]["numbers of rows"] == 30
    for what in ("its examples", "its state", "its model", "its lines in the table"):
        assert proof["searched for"][f"pieces of {what}"] > 0
    assert {"checkpoint.safetensors", "models.safetensors", "manifest.toml"} <= set(
        proof["files"]
    )


def test_what_is_left_is_found(without, trained, tmp_path):
    """Each kind of trace, put back, is named."""
    run, _, path = without
    for file, what in {
        "checkpoint.safetensors": "its state",
        "models.safetensors": "its model",
        "models.json": "its name",
        "metrics.parquet": "its name",
        "rows.parquet": "numbers of its rows",
        "clients.parquet": "its name",
    }.items():
        copy = shutil.copytree(path, tmp_path / file)
        (copy / "forgotten.json").unlink()
        shutil.copy(run.path / file, copy / file)
        with pytest.raises(
            ValueError, match=f"still holds something of the client .*{file}: .*{what}"
        ):
            prove(run, FORGOTTEN, copy)
        assert not (copy / "forgotten.json").exists()
    place = run.federation.names.index(FORGOTTEN)
    (copy / "notes.bin").write_bytes(
        b"odd" + run.federation.x[run.federation.test[place]].tobytes()
    )
    with pytest.raises(ValueError, match=r"notes\.bin: its examples"):
        prove(run, FORGOTTEN, copy)
    (copy / "notes.bin").write_bytes((run.path.parent / "table.csv").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"notes\.bin: its "):
        prove(run, FORGOTTEN, copy)


def test_a_number_is_a_name_only_where_clients_are_named(tmp_path):
    """Numbers of arrays, categories and digests are no traces of client 14 or 1404."""
    array = {"14": np.zeros(2, np.float32), "1404": np.ones(2, np.float32)}
    save_file(array, tmp_path / "models.safetensors")
    others = {"clients": {"13": {"array": "14"}, "15": {"array": "1404"}}}
    others |= {"digest": "ab1404", "categories": ["14", "1404"]}
    (tmp_path / "models.json").write_text(json.dumps(others))
    (tmp_path / "manifest.toml").write_text('digest = "14"\n[data]\nclients = 1404\n')
    (tmp_path / "log.txt").write_text("14 1404")
    metrics = pl.DataFrame({"client": ["13", "15"], "metric": ["14", "1404"]})
    metrics.write_parquet(tmp_path / "metrics.parquet")
    for name in ("14", "1404"):
        traces = Traces((name,), {}, frozenset())
        assert traces.found_in(tmp_path) == []
        for file, write in {
            "models.json": lambda at, name=name: at.write_text(
                json.dumps({"clients": {name: {"array": "3"}}})
            ),
            "manifest.toml": lambda at, name=name: at.write_text(
                f'unseen = ["{name}"]'
            ),
            "metrics.parquet": lambda at, name=name: pl.DataFrame(
                {"client": ["13", name]}
            ).write_parquet(at),
        }.items():
            folder = tmp_path / name / file
            folder.mkdir(parents=True)
            write(folder / file)
            assert traces.found_in(folder) == [{"file": file, "what": "its name"}]
        shutil.rmtree(tmp_path / name)


def test_a_client_of_a_scenario_is_forgotten(of_arrays, tmp_path, monkeypatch):
    monkeypatch.setitem(scenarios.SCENARIOS, "blobs", BLOBS)
    run = ft.open(of_arrays[1])
    new = ft.forget(run, "client 1 of the blobs", tmp_path / "new")
    assert new.federation.names == ("client 0 of the blobs", "client 2 of the blobs")
    assert len(new.federation.x) == 24
    again = ft.open(tmp_path / "new")
    np.testing.assert_array_equal(again.federation.x, new.federation.x)
    with pytest.raises(ValueError, match="is not empty; name a new directory"):
        ft.forget(run, "client 1 of the blobs", tmp_path / "new")
    with pytest.raises(ValueError, match=r"no client of .* called 'client 7'"):
        ft.forget(run, "client 7", tmp_path / "other")
    assert not (tmp_path / "other").exists()
