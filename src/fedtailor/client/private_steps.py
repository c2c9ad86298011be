"""DP-SGD (Abadi et al. 2016, algorithm 1): noisy sums of clipped gradients of single examples.

Only the step's direction differs from `steps.train`; what it descends along is all that an example has any part in.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.accounting.privacy import batch_room
from fedtailor.client.losses import mean_loss
from fedtailor.client.shuffle import shuffled
from fedtailor.protocol import SGD, Batch, Params, require

if TYPE_CHECKING:
    from fedtailor.client.trainer import DeviceTrainer


class PrivateSteps:
    """What the private steps of one `LocalTrainer.sgd` have in common.

    Every step draws each of the n examples with probability q = batch_size / n (all, if there are fewer), independently
    of other steps (Poisson sampling, which the accounting assumes), and descends along

        ( sum_drawn g_j min(1, C / |g_j|) + z C N(0, I) ) / (q n),    C = `dp_norm`, z = `dp_noise`
    """

    def __init__(self, local: "DeviceTrainer", sgd: SGD, split: str) -> None:
        require(not local.model.has_statistics, "private steps clip the gradient of each example, which batch "
                "normalisation has none of; use a model with group instead of batch normalisation")  # fmt: skip
        assert sgd.dp_noise is not None and sgd.dp_norm is not None
        self._local, self._sgd, self._split = local, sgd, split
        self._norm, self._deviation = sgd.dp_norm, sgd.dp_noise * sgd.dp_norm
        self._count = local.count(split)
        self._key = local.key(f"private steps {local.next_private_loop()}")
        self._expected = jnp.minimum(sgd.batch_size, self._count)
        self._below = drawn_at_most(self._count, sgd.batch_size)

    def direction(self, params: Params, step: Int[Array, ""]) -> Params:
        """What step number `step` descends along, before weight decay and the like."""
        local = self._local
        batch, dropout, noise = self._draw(step)
        stochastic = local.model.stochastic

        def one(x: Array, y: Array, number: Int[Array, ""]) -> Params:
            single = Batch(x[None], y[None], jnp.ones(1, local.model.dtype))
            key = jax.random.fold_in(dropout, number) if stochastic else None
            gradient = jax.grad(lambda p: mean_loss(local.model, p, single, 1, key))(params)
            length = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
            shorter = jnp.minimum(1.0, self._norm / jnp.maximum(length, jnp.finfo(length.dtype).tiny))
            return jax.tree.map(lambda leaf: leaf * shorter.astype(leaf.dtype), gradient)

        each = jax.vmap(one)(batch.x, batch.y, jnp.arange(len(batch.y)))
        leaves, tree = jax.tree.flatten(jax.tree.map(lambda leaf: jnp.tensordot(batch.weight, leaf, 1), each))
        deviation, expected = self._deviation, jnp.maximum(self._expected, 1)
        noisy = [
            (leaf + deviation * jax.random.normal(key, leaf.shape, leaf.dtype)) / expected.astype(leaf.dtype)
            for leaf, key in zip(leaves, jax.random.split(noise, len(leaves)), strict=True)
        ]
        return jax.tree.unflatten(tree, noisy)

    def _draw(self, step: Int[Array, ""]) -> tuple[Batch, Array, Array]:
        """The examples of a step, and keys for dropout and noise."""
        how_many, order, dropout, noise = jax.random.split(jax.random.fold_in(self._key, step), 4)
        n, room = self._count, batch_room(self._sgd.batch_size)
        # so many of a random permutation are what as many independent draws give
        drawn = (jax.random.uniform(how_many) > self._below).sum()
        drawn = jnp.where(n <= self._sgd.batch_size, n, jnp.minimum(drawn, n))
        places = jnp.arange(room, dtype=jnp.int32)
        words = jax.random.bits(order, (2,), jnp.uint32)
        examples = shuffled(jnp.clip(places, 0, jnp.maximum(n - 1, 0)), n, words, jnp.int32(0))
        with self._local.reading_privately():
            return self._local.examples(examples, places < drawn, self._split), dropout, noise


def drawn_at_most(n: Int[Array, ""], batch_size: int) -> Float[Array, " room"]:
    """P(K <= k), k = 0 .. room - 1, for how many of n examples are drawn when `batch_size` are expected."""
    q = jnp.minimum(batch_size / jnp.maximum(n, 1), 1 - 1e-6)
    k = jnp.arange(batch_room(batch_size) - 1)
    rise = jnp.where(k < n, jnp.log(jnp.maximum(n - k, 1) / (k + 1)) + jnp.log(q) - jnp.log1p(-q), -jnp.inf)
    logs = n * jnp.log1p(-q) + jnp.concatenate([jnp.zeros(1), jnp.cumsum(rise)])
    return jnp.cumsum(jnp.exp(logs))


def private_settings(algorithm: Any) -> list[SGD]:
    """All local training of a method, or of parts of it, that is private."""
    found = []
    for value in vars(algorithm).values():
        if isinstance(value, SGD):
            found += [value] if value.dp_noise is not None else []
        elif getattr(type(value), "__is_hyperparameters__", False):
            found += private_settings(value)
    return found
