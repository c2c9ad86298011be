"""The normalisation of inputs, and the pool of examples of several federations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.client.pool import Normalization, build_pool, gather_examples


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_inputs_become_normalised_floats(kind):
    x = jnp.asarray([[10, 20], [30, 40]], kind)
    out = Normalization.of([10, 0], 0.5, "float32")(x)
    np.testing.assert_array_equal(out, [[0, 10], [10, 20]])
    assert out.dtype == jnp.float32


def test_without_normalisation_values_stay_and_token_ids_stay_integers():
    identity = Normalization.of(0, 1, "float32")
    assert identity.is_identity
    assert not Normalization.of([0, 1], 1, "float32").is_identity
    np.testing.assert_array_equal(identity(jnp.asarray([3], jnp.uint8)), [3.0])
    tokens = jnp.asarray([3, 4], jnp.int32)
    assert Normalization.of(1, 2, "float32")(tokens) is tokens


def test_every_split_of_two_federations_is_found_in_their_pool():
    def federation(first):
        # two clients whose examples are dealt out of order
        splits = [
            Ragged.cut(np.array([4, 0, 2]), np.array([1, 2])),
            Ragged.cut(np.array([1]), np.array([0, 1])),
            Ragged.cut(np.array([5, 3]), np.array([2, 0])),
        ]
        x = np.arange(first, first + 6, dtype=np.float32)[:, None]
        return Federation(x, np.zeros(6, np.int64), *splits, ("a", "b"), classes=2)

    federations = [federation(0), federation(100)]
    pool, starts = build_pool(federations, "float32")
    assert pool.largest == 2
    pool = jax.tree.map(jnp.asarray, pool)
    for one, start in zip(federations, starts, strict=True):
        for column, split in enumerate((one.train, one.val, one.test)):
            for client in range(2):
                places = jnp.asarray(start[client, column]) + jnp.arange(
                    len(split[client]), dtype=jnp.int32
                )
                x, _ = gather_examples(pool, places)
                np.testing.assert_array_equal(x, one.x[split[client]])
