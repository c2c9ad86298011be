"""The data of a run, found again by its manifest."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedtailor._files import file_digest
from fedtailor.deployment.data import federation_of
from fedtailor.tables import from_table


@pytest.mark.parametrize("before", [True, False])
def test_a_regression_from_before_inputs_were_decorrelated_finds_its_data(
    tmp_path, before
):
    rng = np.random.default_rng(0)
    a = rng.normal(size=40)
    frame = pl.DataFrame(
        {"site": ["a", "b"] * 20, "a": a, "b": a + 0.1 * rng.normal(size=40), "y": a**3}
    )
    frame.write_csv(tmp_path / "t.csv")
    options = {"client": "site", "target": "y"}
    trained = from_table(tmp_path / "t.csv", keep_correlated=before, **options)
    trained.preprocessing.save(tmp_path / "preprocessing.json")
    manifest = {
        "origin": {
            "scenario": "table",
            "seed": 0,
            "file": file_digest(tmp_path / "t.csv"),
            "parameters": {"path": "t.csv", **options},
        },
        "data": {"name": "t", "digest": trained.digest},
    }
    found = federation_of(tmp_path, manifest)
    np.testing.assert_array_equal(found.x, trained.x)
    assert (np.abs(np.corrcoef(found.x.T)[0, 1]) > 0.9) == before
    learned = from_table(frame, **options).preprocessing
    other = learned if before else replace(learned, decorrelation=None)
    other.save(tmp_path / "preprocessing.json")
    with pytest.raises(ValueError, match="their digest differs"):
        federation_of(tmp_path, manifest)
