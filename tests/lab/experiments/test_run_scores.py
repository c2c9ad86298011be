"""By what candidates are compared: the clients that train, on their validation rows,
after the last round.
"""

import json

import polars as pl
import pytest

from fedtailor._base.digests import with_digest
from fedtailor.lab.experiments.run_scores import has_diverged, validation_score

ROWS = [
    # round, client, unseen, split, metric, value
    (1, "a", False, "val", "accuracy", 0.1),
    (1, "b", False, "val", "accuracy", 0.1),
    (2, "a", False, "val", "accuracy", 0.5),
    (2, "b", False, "val", "accuracy", 0.7),
    (2, "a", False, "test", "accuracy", 0.0),
    (2, "b", False, "test", "accuracy", 0.0),
    (2, "a", False, "val", "loss", 2.0),
    (2, "b", False, "val", "loss", 3.0),
    (2, "newcomer", True, "val", "accuracy", 1.0),
    (2, "newcomer", True, "val", "loss", 9.0),
]


@pytest.mark.parametrize(("metric", "score"), [("accuracy", 0.6), ("loss", -2.5)])
def test_neither_unseen_clients_nor_test_rows_nor_earlier_rounds_choose(
    tmp_path, metric, score
):
    names = ["round", "client", "unseen", "split", "metric", "value"]
    pl.DataFrame(ROWS, schema=names, orient="row").write_parquet(
        tmp_path / "metrics.parquet"
    )
    (tmp_path / "summary.json").write_text(
        json.dumps(with_digest({"metric": metric, "rounds": 2}))
    )
    assert validation_score(tmp_path) == pytest.approx(score, abs=1e-12)


def test_a_run_that_diverged_has_no_score(tmp_path):
    (tmp_path / "summary.json").write_text(
        json.dumps(with_digest({"diverged": "in round 3", "rounds": 5}))
    )
    assert validation_score(tmp_path) is None and has_diverged(tmp_path)
