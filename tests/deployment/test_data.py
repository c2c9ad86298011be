"""The data of a run, found again by its manifest."""

import numpy as np
import polars as pl
import pytest

from fedtailor._base.files import file_digest
from fedtailor.data.tables import from_table
from fedtailor.deployment.data import federation_of


@pytest.mark.parametrize("correlated", [True, False])
def test_a_regression_finds_its_data_by_its_options(tmp_path, correlated):
    rng = np.random.default_rng(0)
    a = rng.normal(size=40)
    frame = pl.DataFrame(
        {"site": ["a", "b"] * 20, "a": a, "b": a + 0.1 * rng.normal(size=40), "y": a**3}
    )
    frame.write_csv(tmp_path / "t.csv")
    options = {"client": "site", "target": "y", "keep_correlated": correlated}
    trained = from_table(tmp_path / "t.csv", **options)
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
    manifest["origin"]["parameters"]["keep_correlated"] = not correlated
    with pytest.raises(ValueError, match="their digest differs"):
        federation_of(tmp_path, manifest)
