"""What is kept of test rows, and the table of them."""

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from fedtailor.models import (
    cross_entropy,
    from_function,
    logistic,
    squared_error,
    token_cross_entropy,
)
from fedtailor.models.metrics.rows import row_scores, rows_frame
from fedtailor.statistics.decision.row_scores import AreaScore

CLASSES = logistic().bind((3,), 3)
BINARY = logistic().bind((3,), 2)
ONE, TWO = (logistic().bind((3,), targets, squared_error) for targets in (1, 2))
SEQUENCES = from_function(lambda key: jnp.zeros(1), lambda params, x: x).bind(
    (2, 3), 3, token_cross_entropy
)
RNG = np.random.default_rng(0)


def test_rows_of_a_classification():
    outputs, y = (
        jnp.asarray(RNG.normal(size=(6, 3)), jnp.float32),
        jnp.array([0, 1, 2, 0, 1, 2]),
    )
    scores = row_scores(CLASSES, outputs, y)
    np.testing.assert_array_equal(scores["loss"], cross_entropy(outputs, y))
    np.testing.assert_array_equal(
        scores["correct"], np.argmax(outputs, 1) == np.asarray(y)
    )
    halves = [
        {k: np.asarray(v)[part] for k, v in scores.items()}
        for part in (slice(0, 2), slice(2, 6))
    ]
    frame = rows_frame(["b", "a"], [np.array([7, 3]), np.arange(4)], halves)
    assert dict(frame.schema) == {
        "client": pl.String,
        "row": pl.Int32,
        "loss": pl.Float32,
        "correct": pl.Boolean,
        "prediction": pl.Int32,
        "confidence": pl.Float32,
        "log_odds": pl.Float32,
    }
    assert frame["client"].to_list() == ["b"] * 2 + ["a"] * 4 and frame[
        "row"
    ].to_list() == [7, 3, 0, 1, 2, 3]
    np.testing.assert_array_equal(frame["loss"], scores["loss"])
    np.testing.assert_array_equal(frame["prediction"], np.argmax(outputs, 1))
    np.testing.assert_allclose(
        frame["confidence"], jax.nn.softmax(outputs).max(axis=1), rtol=1e-6
    )
    p = frame["confidence"].to_numpy().astype(float)
    np.testing.assert_allclose(frame["log_odds"], np.log(p / (1 - p)), rtol=1e-4)


def test_areas_are_not_those_of_probabilities_that_tie():
    """Above log-odds of 17 every probability is 1 in single precision."""
    odds = np.array([30.0, 40.0, 20.0, 25.0], np.float32)
    outputs = jnp.stack([jnp.zeros(4), jnp.asarray(odds)], axis=1)
    scores = row_scores(BINARY, outputs, jnp.array([1, 1, 0, 0]))
    np.testing.assert_array_equal(scores["confidence"], 1)
    frame = pl.DataFrame({name: np.asarray(it) for name, it in scores.items()})
    prepared = AreaScore().prepare(frame)
    area, _ = AreaScore().worth(
        prepared["score"].to_numpy(), prepared["truth"].to_numpy()
    )
    assert area == 1


@pytest.mark.parametrize("model", [ONE, TWO], ids=["one target", "two"])
def test_rows_of_a_regression_survive_a_parquet_file(model, tmp_path):
    outputs, y = (
        RNG.normal(size=(5, model.outputs)).astype(np.float32) for _ in range(2)
    )
    frame = rows_frame(
        ["a"],
        [np.arange(5)],
        [row_scores(model, jnp.asarray(outputs), jnp.asarray(y))],
    )
    frame.write_parquet(tmp_path / "rows.parquet")
    frame = pl.read_parquet(tmp_path / "rows.parquet")
    values = pl.List(pl.Float32) if model.outputs > 1 else pl.Float32
    assert dict(frame.schema) == {
        "client": pl.String,
        "row": pl.Int32,
        "loss": pl.Float32,
        "squared_error": pl.Float32,
        "prediction": values,
        "target": values,
    }
    np.testing.assert_allclose(
        frame["squared_error"], np.square(outputs - y).sum(1), rtol=1e-6
    )
    np.testing.assert_array_equal(
        np.array(frame["prediction"].to_list()).reshape(outputs.shape), outputs
    )


def test_rows_of_sequences_keep_the_loss():
    scores = row_scores(SEQUENCES, jnp.zeros((2, 2, 3)), jnp.array([[1, 2], [0, -1]]))
    assert scores.keys() == {"loss"}
    np.testing.assert_allclose(scores["loss"], np.log(3), rtol=1e-6)


def test_tables_that_do_not_fit_are_refused():
    scores = {
        "loss": np.zeros(2, np.float32),
        "correct": np.zeros(2, bool),
        "prediction": np.zeros(2, np.int32),
    }
    with pytest.raises(
        ValueError, match=r"columns of client 'a' have lengths \[2, 3\]"
    ):
        rows_frame(["a"], [np.arange(3)], [scores])
    with pytest.raises(ValueError, match="2 clients, rows of 1"):
        rows_frame(["a", "b"], [np.arange(2)], [scores])
    with pytest.raises(ValueError, match="0 clients"):
        rows_frame([], [], [])
