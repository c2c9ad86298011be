"""Grids are extended until the best value lies inside, and by nothing that is chance."""

import numpy as np
import pytest

from fedtailor.lab.experiments.bracketing import best_value, next_value

CLIENTS = np.linspace(-1, 1, 12)


def scores(**means):
    """Value -> scores of twelve clients around a mean; a rate is spelled r0_1."""
    found = {}
    for name, mean in means.items():
        value = float(name[1:].replace("_", "."))
        found[value] = None if mean is None else mean + CLIENTS
    return found


def test_the_first_value_is_the_best_unless_another_is_better_by_more_than_chance():
    assert best_value(scores(r0_3=0.8, r0_1=0.8)) == 0.3
    # Every client gains: no chance.
    assert best_value(scores(r0_3=0.8, r0_1=0.9)) == 0.1
    # Half of the clients gain, half lose.
    noisy = scores(r0_3=0.8)
    noisy[0.1] = noisy[0.3] + 0.01 + 0.5 * np.tile([1.0, -1.0], 6)
    assert best_value(noisy) == 0.3
    # A single client tells nothing apart.
    assert best_value({0.3: np.array([0.8]), 0.1: np.array([0.9])}) == 0.3


def test_of_two_better_values_that_are_equal_the_nearer_one_is_taken():
    found = scores(r0_3=0.8, r0_1=0.9, r0_03=0.9)
    assert best_value(found) == 0.1


def test_failed_values_are_bounds_and_never_best():
    assert best_value(scores(r0_3=None, r0_1=0.8)) == 0.1
    assert best_value(scores(r0_3=None, r0_1=None)) is None
    assert next_value(scores(r0_3=None, r0_1=0.8)) == 0.033
    assert next_value(scores(r0_3=0.8, r0_9=None, r0_1=0.7)) is None


@pytest.mark.parametrize("best", [30.0, 0.9, 0.3, 0.01, 0.0004])
def test_the_best_value_comes_to_lie_inside(best):
    def score(value):
        return -(np.log(value / best) ** 2) + CLIENTS

    tried = {0.3: score(0.3), 0.1: score(0.1)}
    for _ in range(10):
        value = next_value(tried)
        if value is None:
            break
        assert value not in tried
        tried[value] = score(value)
    found = best_value(tried)
    assert min(tried) < found < max(tried)
    assert best / 1.8 < found < best * 1.8


def test_what_cannot_be_bracketed_is_left_alone():
    assert next_value(scores(r0_3=0.8)) is None
    assert next_value({0.0: CLIENTS, 1.0: CLIENTS}) is None
