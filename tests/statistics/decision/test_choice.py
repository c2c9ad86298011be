"""A method for each client, chosen by validation data and judged on test data."""

import numpy as np
import pytest

from fedtailor.statistics.decision import choose_by_validation
from method_values import values


def tables(rng, clients=30, seeds=3, apart=1.0, noise=0.1):
    """Half of the clients are better off with one method, half with the other: true,
    val and test values.
    """
    true = np.zeros((2, 1, clients))
    true[0, :, : clients // 2] = true[1, :, clients // 2 :] = apart
    true[1] += 0.05
    return tuple(true + rng.normal(0, noise, (2, seeds, clients)) for _ in range(2))


def test_clients_that_need_different_methods_get_them():
    val, test = tables(np.random.default_rng(0))
    found = choose_by_validation(values(val), values(test), higher_is_better=True)
    chosen = found.chosen.sort("seed", "client")
    assert chosen["method"].to_list() == (["m0"] * 15 + ["m1"] * 15) * 3
    assert set(chosen["single"]) == {"m1"} and found.gain.verdict == "helps"
    best = np.where(np.arange(30) < 15, test[0], test[1])
    np.testing.assert_allclose(
        [found.value, found.single_value], [best.mean(), test[1].mean()], rtol=1e-12
    )
    np.testing.assert_allclose(found.gain.estimate, (best - test[1]).mean(), rtol=1e-10)
    assert "is better than one method" in found.conclusion()
    losses = choose_by_validation(values(-val), values(-test), higher_is_better=False)
    np.testing.assert_allclose(losses.gain.estimate, found.gain.estimate, rtol=1e-10)


def test_test_data_have_no_say_in_the_choice():
    rng = np.random.default_rng(1)
    val, test = tables(rng)
    first = choose_by_validation(
        values(val), values(test), higher_is_better=True
    ).chosen
    second = choose_by_validation(
        values(val), values(rng.normal(size=test.shape)), higher_is_better=True
    ).chosen
    assert first["method"].equals(second["method"]) and first["single"].equals(
        second["single"]
    )


def test_choosing_by_noise_is_not_taken_for_a_gain():
    rng, wrong = np.random.default_rng(2), 0
    for _ in range(100):
        val, test = tables(rng, clients=12, apart=0.0, noise=1.0)
        wrong += (
            choose_by_validation(
                values(val), values(test), higher_is_better=True
            ).gain.verdict
            == "helps"
        )
    assert wrong <= 8


def test_ties_go_to_the_method_that_is_better_overall_and_diverged_methods_to_nobody():
    val, test = np.array([[[0.5, 0.5, 0.1]], [[0.5, 0.5, 0.2]]]), np.ones((2, 1, 3))
    assert set(
        choose_by_validation(values(val), values(test), higher_is_better=True).chosen[
            "method"
        ]
    ) == {"m1"}
    val[1, 0, 0] = np.inf
    found = choose_by_validation(values(val), values(test), higher_is_better=True)
    assert found.chosen["method"].to_list() == ["m0", "m0", "m1"] and set(
        found.chosen["single"]
    ) == {"m0"}
    assert (
        found.gain.verdict == "cannot tell"
        and "No difference is shown" in found.conclusion()
    )


def test_without_validation_data_nothing_is_chosen():
    val = values(np.ones((2, 1, 3)))
    with pytest.raises(ValueError, match="no client has both"):
        choose_by_validation(val.clear(), val, higher_is_better=True)
