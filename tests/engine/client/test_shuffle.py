import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.engine.client.shuffle import shuffled


@jax.jit
def permute(n, words, epoch):
    positions = jnp.minimum(jnp.arange(700), n - 1)
    return shuffled(positions, n, words, epoch)


def words(seed):
    return np.random.default_rng(seed).integers(0, 2**32, 2, dtype=np.uint32)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 100, 255, 256, 257, 699])
def test_is_a_permutation_of_any_length(n):
    for seed in range(3):
        order = np.asarray(permute(n, words(seed), jnp.int32(seed)))[:n]
        np.testing.assert_array_equal(np.sort(order), np.arange(n))


def test_keys_and_epochs_give_other_orders():
    first = np.asarray(permute(700, words(0), jnp.int32(0)))
    for other in (
        permute(700, words(0), jnp.int32(1)),
        permute(700, words(1), jnp.int32(0)),
    ):
        assert (np.asarray(other) == first).mean() < 0.02


def test_every_element_is_as_likely_in_every_place():
    """Chi-square over 4,000 permutations of 12, and over the pairs that neighbours
    form.
    """
    n, draws = 12, 4000
    keys = np.random.default_rng(7).integers(0, 2**32, (draws, 2), dtype=np.uint32)
    positions = jnp.arange(n)
    orders = np.asarray(
        jax.vmap(lambda key: shuffled(positions, jnp.int32(n), key, jnp.int32(0)))(keys)
    )
    counts = np.stack(
        [np.bincount(orders[:, place], minlength=n) for place in range(n)]
    )
    statistic = ((counts - draws / n) ** 2 / (draws / n)).sum()
    freedom = (n - 1) ** 2
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)
    pairs = np.bincount((orders[:, 0] * n + orders[:, 1]), minlength=n * n).reshape(
        n, n
    )
    expected = draws / (n * (n - 1))
    off = pairs[~np.eye(n, dtype=bool)]
    assert abs(((off - expected) ** 2 / expected).sum() - len(off) + 1) < 5 * np.sqrt(
        2 * len(off)
    )
