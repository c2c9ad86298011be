"""The digits that are part of scikit-learn."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedtailor.data import datasets


@pytest.mark.parametrize("where", ["its file", "its function"])
def test_they_are_those_of_scikit_learn(where, monkeypatch):
    """Whether its file is found or not."""
    if where == "its function":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = datasets.digits()
    x, y = load_digits(return_X_y=True)
    np.testing.assert_array_equal(found.x.reshape(-1, 64), x)
    np.testing.assert_array_equal(found.y, y)
    assert found.x.dtype == np.uint8
