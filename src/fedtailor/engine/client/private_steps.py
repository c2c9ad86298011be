"""DP-SGD (Abadi et al. 2016, algorithm 1): noisy sums of clipped per-example gradients.

Private steps of `steps.train_steps` read examples only here.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation.accounting.privacy import max_private_batch
from fedtailor.aggregation.noise import with_gaussian_noise
from fedtailor.engine.client.losses import mean_loss
from fedtailor.engine.client.shuffle import shuffled
from fedtailor.protocol import SGD, Batch, Params
from fedtailor.protocol.sgd import sgds_of

if TYPE_CHECKING:
    from fedtailor.engine.client.trainer import DeviceTrainer


class PrivateSteps:
    """The private gradients of one call of `LocalTrainer.sgd`.

    Every step draws each of the n examples with probability q = min(1, batch_size / n),
    independently of the others and of other steps (Poisson sampling, which the
    accounting assumes). Its gradient is

        ( sum_drawn g_j min(1, C / |g_j|) + z C N(0, I) ) / (q n),    C = `dp_norm`, z = `dp_noise`
    """

    def __init__(self, local: "DeviceTrainer", sgd: SGD, split: str) -> None:
        require(
            not local.model.has_statistics,
            "private steps clip the gradient of each example, which batch normalisation"
            " has none of; use a model with group instead of batch normalisation",
        )
        require(
            not local.model.task.couples_examples,
            "private steps clip the gradient of each example, and this loss compares the"
            " examples of a batch, as Cox's likelihood; use another, such as discrete hazards",
        )
        assert sgd.dp_noise is not None and sgd.dp_norm is not None
        if local.context.private_steps_only:
            _require_accounted(local, sgd, split)
        self._local = local
        self._split = split
        self._batch_size = sgd.batch_size
        self._norm = sgd.dp_norm
        self._deviation = sgd.dp_noise * sgd.dp_norm
        self._count = local.count(split)
        # Steps whose result stays at the client (a personal model) have other noise than
        # those of the round with the same number, which leave it.
        kind = "private" if local.context.private_steps_only else "own private"
        self._key = local.key(f"{kind} steps {local.context.next_private_loop()}")
        self._expected = jnp.minimum(sgd.batch_size, self._count)
        self._max_size = local.padded_size(max_private_batch(sgd.batch_size))
        self._cumulative = batch_size_cdf(self._count, sgd.batch_size, self._max_size)

    def gradient(self, params: Params, step: Int[Array, ""]) -> Params:
        """The noisy gradient of step number `step`, without weight decay and other
        terms.
        """
        model = self._local.model
        batch, dropout, noise = self._draw_batch(step)

        def clipped_gradient(x: Array, y: Array, number: Int[Array, ""]) -> Params:
            """The gradient of one example, clipped to the norm `dp_norm`."""
            single = Batch(x[None], y[None], jnp.ones(1, model.precision.sums))
            key = jax.random.fold_in(dropout, number) if model.stochastic else None
            grads = jax.grad(lambda p: mean_loss(model, p, single, 1, key))(params)
            squares = [jnp.square(g).sum() for g in jax.tree.leaves(grads)]
            norm = jnp.sqrt(sum(squares))
            tiny = jnp.finfo(norm.dtype).tiny
            scale = jnp.minimum(1.0, self._norm / jnp.maximum(norm, tiny))
            # An example on which the model overflows adds nothing. If the step became
            # NaN instead, one example would decide whether the client refuses.
            is_finite = jnp.isfinite(norm)
            return jax.tree.map(
                lambda g: jnp.where(is_finite, g * scale.astype(g.dtype), 0), grads
            )

        # The sum of the clipped gradients, in which padding has weight 0.
        numbers = jnp.arange(len(batch.y))
        gradients = jax.vmap(clipped_gradient)(batch.x, batch.y, numbers)
        sums = jax.tree.map(lambda g: jnp.tensordot(batch.weight, g, 1), gradients)

        # Add noise, and divide by the expected number of examples, because the number
        # that was drawn is private itself.
        leaves, structure = jax.tree.flatten(sums)
        keys = jax.random.split(noise, len(leaves))
        expected = jnp.maximum(self._expected, 1)
        noisy_means = []
        for leaf, key in zip(leaves, keys, strict=True):
            noisy_sum = with_gaussian_noise(leaf, self._deviation, key)
            noisy_means.append(noisy_sum / expected.astype(leaf.dtype))
        return jax.tree.unflatten(structure, noisy_means)

    def _draw_batch(self, step: Int[Array, ""]) -> tuple[Batch, Array, Array]:
        """Draw the examples of a step, and keys for dropout and noise."""
        key = jax.random.fold_in(self._key, step)
        size_key, order_key, dropout, noise = jax.random.split(key, 4)
        n = self._count
        # Poisson sampling in two steps. The number of examples is binomial: we apply the
        # inverse of its distribution function to a uniform number. Given this number, all
        # sets of examples are equally likely: we take the first ones of a random
        # permutation.
        size = (jax.random.uniform(size_key) > self._cumulative).sum()
        size = jnp.where(n <= self._batch_size, n, jnp.minimum(size, n))
        positions = jnp.arange(self._max_size, dtype=jnp.int32)
        clipped = jnp.clip(positions, 0, jnp.maximum(n - 1, 0))
        order_bits = jax.random.bits(order_key, (2,), jnp.uint32)
        indices = shuffled(clipped, n, order_bits, jnp.int32(0))
        with self._local.context.override(private_steps_only=False):
            batch = self._local.examples(indices, positions < size, self._split)
        return batch, dropout, noise


def _require_accounted(local: "DeviceTrainer", sgd: SGD, split: str) -> None:
    """Require steps that cost as much as the account says.

    It knows the settings among the method's hyper-parameters, and the number of a
    client's training rows. A step that draws as many examples from fewer rows costs
    more.

    Raises:
        ValueError: the steps are others.
    """
    rows = "all training rows of a client"
    require(
        split == "train",
        f"private steps are accounted for draws from {rows}, and this method takes them"
        f" on the split {split!r}; leave out dp_noise, or choose another method",
    )
    require(
        not local.is_part,
        f"private steps are accounted for draws from {rows}, and this method takes them"
        " on some of these rows; leave out dp_noise, or choose another method",
    )
    # The noise is compared by identity, as JAX may have put a placeholder in its place.
    is_own = any(
        sgd.dp_noise is own.dp_noise and sgd.batch_size == own.batch_size
        for own in local.context.accounted_settings
    )
    require(
        is_own,
        "private steps are accounted by the dp_noise and batch_size among a method's"
        " hyper-parameters, and this method takes them by other settings than its own",
    )


def batch_size_cdf(
    n: Int[Array, ""], batch_size: int, length: int
) -> Float[Array, " length"]:
    """The cumulative distribution function P(K <= k) of the number K of examples in a step.

    Args:
        n: the number of examples, each of which is drawn with probability
            q = batch_size / n.
        batch_size: the expected number of examples in a step.
        length: the number of values to compute, k = 0 .. length - 1.
    """
    # q is below 1, so that log(1 - q) is finite. If all examples are drawn, `_draw_batch`
    # does not use these values.
    q = jnp.minimum(batch_size / jnp.maximum(n, 1), 1 - 1e-6)
    log_q, log_not_q = jnp.log(q), jnp.log1p(-q)
    # P(K = 0) = (1 - q)^n, and P(K = k + 1) / P(K = k) = (n - k) / (k + 1) * q / (1 - q),
    # in the log domain.
    k = jnp.arange(length - 1)
    log_choices = jnp.log(jnp.maximum(n - k, 1) / (k + 1))
    log_ratios = jnp.where(k < n, log_choices + log_q - log_not_q, -jnp.inf)
    relative_to_zero = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_ratios)])
    return jnp.cumsum(jnp.exp(n * log_not_q + relative_to_zero))


def private_settings(algorithm: Any) -> list[SGD]:
    """The `SGD` settings with `dp_noise` among the hyper-parameters of a method and of the
    methods that it contains.
    """
    return [sgd for sgd in sgds_of(algorithm) if sgd.dp_noise is not None]


def accounted_settings(methods: Iterable[Any]) -> SGD | None:
    """The settings for the accounting of all private training with some methods.

    Args:
        methods: the methods of a schedule.

    Returns:
        The first of their private settings; None without any.

    Raises:
        ValueError: others of these settings spend another epsilon.
    """
    private = [settings for method in methods for settings in private_settings(method)]
    kinds = {(sgd.dp_noise, sgd.batch_size, sgd.dp_delta) for sgd in private}
    require(
        len(kinds) <= 1,
        "all private training of a run needs the same dp_noise, dp_delta and"
        " batch_size, also in other settings of a method, such as head",
    )
    return private[0] if private else None
