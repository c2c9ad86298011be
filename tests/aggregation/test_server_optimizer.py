import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.aggregation import ServerOptimizer

MOVED = np.array([True, True])


def rows(*values):
    return jnp.asarray(values, jnp.float32)


def test_plain_with_rate_one_is_exactly_the_mix():
    rng = np.random.default_rng(0)
    theta, mixed = (
        jnp.asarray(rng.standard_normal((2, 50)), jnp.float32) for _ in range(2)
    )
    optimizer = ServerOptimizer()
    state, moved = optimizer.apply(optimizer.init(theta), theta, mixed, MOVED)
    assert state == ()
    np.testing.assert_array_equal(moved, mixed)
    _, first_moved = optimizer.apply((), theta, mixed, np.array([True, False]))
    np.testing.assert_array_equal(first_moved, [mixed[0], theta[1]])


def test_plain_relaxes_by_its_rate():
    theta, mixed = rows([0.0], [4.0]), rows([1.0], [2.0])
    _, moved = ServerOptimizer(lr=0.5).apply((), theta, mixed, MOVED)
    np.testing.assert_allclose(moved, [[0.5], [3.0]])


def test_momentum_has_no_dampening():
    optimizer = ServerOptimizer("momentum", lr=0.5, momentum=0.9)
    theta, velocity = np.array([[1.0], [2.0]]), np.zeros((2, 1))
    with jax.enable_x64(True):
        state, ours = optimizer.init(jnp.asarray(theta)), jnp.asarray(theta)
        for step in range(4):
            mixed = theta * 0.5 + step
            velocity = 0.9 * velocity + (theta - mixed)
            theta = theta - 0.5 * velocity
            state, ours = optimizer.apply(state, ours, jnp.asarray(mixed), MOVED)
            np.testing.assert_allclose(ours, theta, atol=1e-12)
            np.testing.assert_allclose(state[0], velocity, atol=1e-12)


def test_adam_follows_its_recursion():
    optimizer = ServerOptimizer(
        "adam", lr=0.1, momentum=0.9, second_moment=0.99, epsilon=1e-3
    )
    theta, first, second = np.array([[1.0], [2.0]]), np.zeros((2, 1)), np.zeros((2, 1))
    with jax.enable_x64(True):
        state, ours = optimizer.init(jnp.asarray(theta)), jnp.asarray(theta)
        for step in range(1, 4):
            mixed = theta * 0.5 + step
            delta = theta - mixed
            first, second = 0.9 * first + 0.1 * delta, 0.99 * second + 0.01 * delta**2
            corrected = (
                first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-3)
            )
            theta = theta - 0.1 * corrected
            state, ours = optimizer.apply(state, ours, jnp.asarray(mixed), MOVED)
            np.testing.assert_allclose(ours, theta, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "momentum", "adam"])
def test_a_stream_that_nobody_moved_is_frozen_with_its_state(kind):
    optimizer = ServerOptimizer(kind, lr=0.5)
    theta = rows([1.0, 2.0], [-0.0, 4.0])
    mixed = rows([3.0, 3.0], [5.0, 5.0])
    state, theta = optimizer.apply(optimizer.init(theta), theta, mixed, MOVED)
    after, moved = optimizer.apply(
        state, theta, rows([3.0, 3.0], [np.nan, 9.0]), np.array([True, False])
    )
    assert np.asarray(moved[1]).tobytes() == np.asarray(theta[1]).tobytes()
    for old, new in zip(state, after, strict=True):
        np.testing.assert_array_equal(new[1], old[1])
        assert (np.asarray(new[0]) != np.asarray(old[0])).any()
    if kind != "plain":  # and it goes on as if the empty round had not been
        again, _ = optimizer.apply(after, moved, mixed, np.array([False, True]))
        straight, _ = optimizer.apply(state, theta, mixed, np.array([False, True]))
        for one, other in zip(again, straight, strict=True):
            np.testing.assert_array_equal(one[1], other[1])


def test_the_state_is_a_tuple_of_arrays_with_one_row_a_stream():
    state = ServerOptimizer("adam").init(rows([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]))
    assert type(state) is tuple
    assert all(isinstance(part, jax.Array) and part.shape[0] == 3 for part in state)


def test_another_rate_costs_no_new_program():
    from fedtailor.aggregation import server_optimizer

    theta = rows([1.0, 2.0], [3.0, 4.0])
    before = None
    for lr in (0.1, 0.2):
        ServerOptimizer("momentum", lr=lr).apply(
            (jnp.zeros_like(theta),), theta, theta, MOVED
        )
        before = before or server_optimizer._apply._cache_size()
    assert server_optimizer._apply._cache_size() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "sgd"},
        {"lr": 0},
        {"momentum": 1.0},
        {"second_moment": -0.1},
        {"epsilon": 0.0},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ServerOptimizer(**wrong)


def test_only_adaptive_rules_have_a_form_of_the_paper():
    with pytest.raises(ValueError, match="paper is a form of adam, yogi and adagrad"):
        ServerOptimizer("momentum", paper=True)
