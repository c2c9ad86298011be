"""What a simulation's server can draw from its clients' data."""

from dataclasses import replace

import numpy as np

from conformance.problems import quadratics
from fedtailor.engine.executors.examples import examples_of

FEDERATION = quadratics(
    [0.0, 1.0, 2.0, 3.0], sizes=[3, 8, 13, 18], unseen=[False, True, False, False]
)
SEEN = np.array([3, 0, 2])  # in an order of its own, as a population sorted by id
DRAW = examples_of(FEDERATION, SEEN)


def test_examples_are_drawn_from_the_seen_clients_training_data_by_size():
    x, y = DRAW(np.random.default_rng(0), 20_000)
    assert x.shape == (20_000, 0) and y.shape == (20_000, 2)
    shares = np.bincount(y[:, 1].astype(int), minlength=4) / 20_000
    np.testing.assert_allclose(shares, np.array([3, 0, 13, 18]) / 34, atol=0.02)


def test_every_example_of_some_clients_can_be_drawn():
    rows = FEDERATION.train[2]
    numbered = examples_of(_numbered(), SEEN)
    _, y = numbered(np.random.default_rng(0), 2_000, np.array([2]))
    np.testing.assert_array_equal(np.unique(y[:, 0]), rows)
    _, y = numbered(np.random.default_rng(0), 2_000, np.array([0, 2]))
    np.testing.assert_array_equal(
        np.unique(y[:, 0]), np.concatenate([rows, FEDERATION.train[3]])
    )


def _numbered():
    """The same federation; the target of an example is its row."""
    return replace(FEDERATION, y=np.arange(len(FEDERATION.y), dtype=float)[:, None])
