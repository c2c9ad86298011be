import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedtailor.aggregation.simplex import project_onto_simplex

vectors = arrays(np.float64, st.integers(1, 8), elements=st.floats(-100, 100))


@given(vectors)
@settings(max_examples=100)
def test_the_optimality_conditions(v):
    x = project_onto_simplex(v)
    support = x > 0
    assert (x >= 0).all()
    assert x.sum() == pytest.approx(1, abs=1e-10)
    shift = (v - x)[support]
    np.testing.assert_allclose(
        shift, shift[0], rtol=0, atol=1e-10
    )  # one multiplier on the support,
    assert (
        v[~support] <= shift[0] + 1e-10
    ).all()  # and nobody outside it would want to enter


@given(vectors, st.floats(-50, 50))
@settings(max_examples=30)
def test_a_common_shift_changes_nothing_and_points_of_the_simplex_stay(v, shift):
    x = project_onto_simplex(v)
    np.testing.assert_allclose(project_onto_simplex(v + shift), x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(project_onto_simplex(x), x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("v", [np.zeros(0), np.zeros((2, 2)), np.array([1.0, np.nan])])
def test_what_is_no_vector_of_numbers_is_refused(v):
    with pytest.raises(ValueError, match="simplex"):
        project_onto_simplex(v)
