"""FLamby's logistic regression has one weight for each input, ours one for each input
and class.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid, log_softmax

from fedtailor.lab.scenarios import find
from fedtailor.protocol import SGD

PUBLISHED_RATE = 0.001


def test_half_the_rate_makes_the_published_steps():
    local = find("flamby-heart").algorithm("fedavg").sgd
    assert isinstance(local, SGD) and (local.steps, local.batch_size) == (100, 4)

    with jax.enable_x64(True):
        x, v, theta = np.random.default_rng(0).normal(size=(3, 20, 6))
        y, v = jnp.arange(20) % 2, jnp.asarray(v[0])
        # Two rows of weights whose difference is v.
        both = jnp.stack([theta[0], theta[0] + v])

        def published(v):
            return -jnp.mean(log_sigmoid(jnp.where(y == 1, 1, -1) * (x @ v)))

        def ours(both):
            return -jnp.mean(log_softmax(x @ both.T)[jnp.arange(20), y])

        for _ in range(50):
            v -= PUBLISHED_RATE * jax.grad(published)(v)
            both -= local.lr * jax.grad(ours)(both)
        np.testing.assert_allclose(both[1] - both[0], v, rtol=0, atol=1e-10)
