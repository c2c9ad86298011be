"""DP-SGD (Abadi et al. 2016, algorithm 1): noisy sums of clipped gradients of single
examples.

Only the step's direction differs from `steps.train`; what it descends along is all that
an example has any part in.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.accounting.privacy import batch_room
from fedtailor.client.losses import mean_loss
from fedtailor.client.shuffle import shuffled
from fedtailor.protocol import SGD, Batch, Params, is_hyperparameters, require

if TYPE_CHECKING:
    from fedtailor.client.trainer import DeviceTrainer


class PrivateSteps:
    """What the private steps of one `LocalTrainer.sgd` have in common.

    Every step draws each of the n examples with probability q = batch_size / n (all, if
    there are fewer), independently of other steps (Poisson sampling, which the
    accounting assumes), and descends along

        ( sum_drawn g_j min(1, C / |g_j|) + z C N(0, I) ) / (q n),    C = `dp_norm`, z = `dp_noise`
    """

    def __init__(self, local: "DeviceTrainer", sgd: SGD, split: str) -> None:
        require(
            not local.model.has_statistics,
            "private steps clip the gradient of each example, which batch normalisation"
            " has none of; use a model with group instead of batch normalisation",
        )
        assert sgd.dp_noise is not None and sgd.dp_norm is not None
        self._local, self._sgd, self._split = local, sgd, split
        self._norm, self._deviation = sgd.dp_norm, sgd.dp_noise * sgd.dp_norm
        self._count = local.count(split)
        self._key = local.key(f"private steps {local.trace.next_private_loop()}")
        self._expected = jnp.minimum(sgd.batch_size, self._count)
        self._room = local.room(batch_room(sgd.batch_size))
        self._below = drawn_at_most(self._count, sgd.batch_size, self._room)

    def gradient(self, params: Params, step: Int[Array, ""]) -> Params:
        """What step number `step` descends along, before weight decay and the like."""
        model = self._local.model
        batch, dropout, noise = self._draw(step)

        def clipped_gradient(x: Array, y: Array, number: Int[Array, ""]) -> Params:
            """The gradient of one example, at most `dp_norm` long."""
            single = Batch(x[None], y[None], jnp.ones(1, model.dtype))
            key = jax.random.fold_in(dropout, number) if model.stochastic else None
            gradient = jax.grad(lambda p: mean_loss(model, p, single, 1, key))(params)
            length = jnp.sqrt(
                sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient))
            )
            tiny = jnp.finfo(length.dtype).tiny
            scale = jnp.minimum(1.0, self._norm / jnp.maximum(length, tiny))
            return jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), gradient)

        # Algorithm 1: a gradient for each example, clipped; their sum, places that
        # nobody was drawn for left out; noise.
        gradients = jax.vmap(clipped_gradient)(
            batch.x, batch.y, jnp.arange(len(batch.y))
        )
        sums = jax.tree.map(
            lambda leaf: jnp.tensordot(batch.weight, leaf, 1), gradients
        )
        leaves, tree = jax.tree.flatten(sums)
        # By the expected number: the one that was drawn depends on which examples there
        # are.
        divisor = jnp.maximum(self._expected, 1)
        noisy = []
        for leaf, key in zip(leaves, jax.random.split(noise, len(leaves)), strict=True):
            drawn = jax.random.normal(key, leaf.shape, leaf.dtype)
            noisy.append((leaf + self._deviation * drawn) / divisor.astype(leaf.dtype))
        return jax.tree.unflatten(tree, noisy)

    def _draw(self, step: Int[Array, ""]) -> tuple[Batch, Array, Array]:
        """The examples of a step, and keys for dropout and noise."""
        key = jax.random.fold_in(self._key, step)
        how_many, order, dropout, noise = jax.random.split(key, 4)
        n, batch_size = self._count, self._sgd.batch_size
        # The first so many of a random permutation are distributed as the examples that
        # independent draws choose. The number is binomial, drawn by the inverse of its
        # distribution function at a uniform number.
        drawn = (jax.random.uniform(how_many) > self._below).sum()
        drawn = jnp.where(n <= batch_size, n, jnp.minimum(drawn, n))
        positions = jnp.arange(self._room, dtype=jnp.int32)
        words = jax.random.bits(order, (2,), jnp.uint32)
        examples = shuffled(
            jnp.clip(positions, 0, jnp.maximum(n - 1, 0)), n, words, jnp.int32(0)
        )
        with self._local.trace.reading_privately():
            batch = self._local.examples(examples, positions < drawn, self._split)
        return batch, dropout, noise


def drawn_at_most(
    n: Int[Array, ""], batch_size: int, room: int
) -> Float[Array, " room"]:
    """P(K <= k), k = 0 .. room - 1, for how many of n examples are drawn when
    `batch_size` are expected.
    """
    # Below 1, so that log(1 - q) is finite; where all examples are drawn, `_draw` does
    # not look at this.
    q = jnp.minimum(batch_size / jnp.maximum(n, 1), 1 - 1e-6)
    k = jnp.arange(room - 1)
    # By their ratios, in the log domain: P(K = k + 1) / P(K = k) = (n - k) / (k + 1) *
    # q / (1 - q).
    log_choices = jnp.log(jnp.maximum(n - k, 1) / (k + 1))
    log_ratios = jnp.where(k < n, log_choices + jnp.log(q) - jnp.log1p(-q), -jnp.inf)
    log_probabilities = n * jnp.log1p(-q) + jnp.concatenate(
        [jnp.zeros(1), jnp.cumsum(log_ratios)]
    )
    return jnp.cumsum(jnp.exp(log_probabilities))


def private_settings(algorithm: Any) -> list[SGD]:
    """All local training of a method, or of parts of it, that is private.

    Returns:
        The settings that have `dp_noise`, also those of methods inside a schedule.
    """
    private = []
    for value in vars(algorithm).values():
        if isinstance(value, SGD) and value.dp_noise is not None:
            private.append(value)
        elif is_hyperparameters(value):
            private += private_settings(value)
    return private
