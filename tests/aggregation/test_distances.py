import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.aggregation import distances
from fedtailor.aggregation.distances import cosine_similarity, gram, squared_distances

seeds = st.integers(0, 2**32 - 1)


def directly(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


@given(seeds, st.integers(1, 6), st.integers(1, 9))
@settings(max_examples=30)
def test_squared_distances(seed, count, size):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, size)), rng.normal(size=(3, size))
    np.testing.assert_allclose(squared_distances(x), directly(x, x), atol=1e-12)
    np.testing.assert_allclose(squared_distances(x, y), directly(x, y), atol=1e-12)


def test_close_rows_far_from_the_origin_keep_their_distance():
    x = 1e6 + np.array([[0.0, 0.0], [1e-3, 0.0], [0.0, 2e-3]])
    np.testing.assert_allclose(squared_distances(x), directly(x, x), rtol=1e-9)


def test_single_precision_rows_are_accumulated_in_double(monkeypatch):
    rows = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    whole = gram(rows)
    monkeypatch.setattr(
        distances, "_BLOCK_ELEMENTS", 4 * 37
    )  # blocks of columns, the last one smaller
    np.testing.assert_allclose(gram(rows), whole, rtol=1e-13, atol=1e-11)
    np.testing.assert_allclose(
        squared_distances(rows), directly(*[rows.astype(np.float64)] * 2), rtol=1e-12
    )


def test_cosine_similarity_of_a_zero_row_is_zero():
    similarity = cosine_similarity(
        np.array([[1.0, 0.0], [-2.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    )
    half = 1 / np.sqrt(2)
    np.testing.assert_allclose(
        similarity,
        [[1, -1, half, 0], [-1, 1, -half, 0], [half, -half, 1, 0], [0, 0, 0, 1]],
        atol=1e-15,
    )


def test_rows_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="row 1"):
        gram(np.array([[1.0, 2.0], [np.inf, 0.0]]))
