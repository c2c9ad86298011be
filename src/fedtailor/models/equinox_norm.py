"""Equinox's BatchNorm with weights of examples, and a state of floating-point arrays."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.normalization import without_noise
from fedtailor.protocol import along_axis

_NONE = 1e-3
"""Up to here a mean of clients' counters or flags is 0: behind masks it has noise."""


class WeightedBatchNorm(eqx.nn.BatchNorm):
    """`eqx.nn.BatchNorm` that ignores examples of weight 0 (padding).

    The counter of steps (mode "batch") and the flag of the first batch (mode "ema") are
    floating-point numbers, so that they can be entries of theta and be averaged over
    clients, behind masks with noise (`_NONE`).
    """

    sample_weight: Float[Array, ""] | None

    def __init__(self, norm: eqx.nn.BatchNorm) -> None:
        # Copy the layer field by field, since Equinox's own constructor would
        # initialise a new one. Then replace the entries of its state that are not
        # floating-point arrays, and the averages of mode "ema", which start
        # uninitialised.
        for field in dataclasses.fields(eqx.nn.BatchNorm):
            object.__setattr__(self, field.name, getattr(norm, field.name))
        if norm.mode == "ema":
            size = (norm.input_size,)
            statistics = (jnp.zeros(size), jnp.ones(size))
            object.__setattr__(
                self, "ema_first_time_index", eqx.nn.StateIndex(jnp.ones(()))
            )
            object.__setattr__(self, "ema_state_index", eqx.nn.StateIndex(statistics))
        else:
            object.__setattr__(self, "batch_counter", eqx.nn.StateIndex(jnp.zeros(())))
        self.sample_weight = None

    def with_weight(self, weight: Float[Array, ""]) -> "WeightedBatchNorm":
        """The layer for one example of a weight (0 = padding)."""
        return eqx.tree_at(
            lambda norm: norm.sample_weight,
            self,
            weight,
            is_leaf=lambda node: node is None,
        )

    def __call__(
        self,
        x: Array,
        state: eqx.nn.State,
        *,
        key: Array | None = None,
        inference: bool | None = None,
    ) -> tuple[Array, eqx.nn.State]:
        inference = self.inference if inference is None else inference
        if inference:
            mean, variance, state = self._inference_statistics(state)
        else:
            mean, variance, state = self._training_statistics(x, state)

        def per_channel(values: Float[Array, " channels"]) -> Array:
            return along_axis(values, 0, x.ndim)

        deviation = jnp.sqrt(per_channel(without_noise(variance)) + self.eps)
        out = (x - per_channel(mean)) / deviation
        if self.weight is None or self.bias is None:
            return out, state
        return out * per_channel(self.weight) + per_channel(self.bias), state

    def _inference_statistics(
        self, state: eqx.nn.State
    ) -> tuple[Array, Array, eqx.nn.State]:
        """The mean and variance with which evaluation normalises.

        Returns:
            Mean and variance [channels], and the state, which does not change.
        """
        if self.mode == "ema":
            mean, variance = state.get(_require_index(self.ema_state_index))
            return mean, variance, state
        # Mode "batch": the averages start at zero, so that the weights in them sum to
        # 1 - momentum^steps. Divide by this sum.
        counter = state.get(_require_index(self.batch_counter))
        mean, variance = state.get(_require_index(self.batch_state_index))
        scale = jnp.where(counter <= _NONE, 1, 1 - self.momentum**counter)
        return mean / scale, variance / scale, state

    def _training_statistics(
        self, x: Array, state: eqx.nn.State
    ) -> tuple[Array, Array, eqx.nn.State]:
        """The mean and variance with which a training step normalises.

        Returns:
            Mean and variance [channels], and the state with new running statistics.
        """
        mean, variance, total_weight = self._batch_statistics(x)
        # A batch that is all padding must not change the running statistics, so its
        # weight in them is 0. Selecting the old ones afterwards would round
        # differently.
        is_empty = total_weight == 0
        running_weight = jnp.where(is_empty, 1.0, self.momentum)
        batch_weight = jnp.where(is_empty, 0.0, 1 - self.momentum)

        def average(running: Array, batch: Array) -> Array:
            return running_weight * running + batch_weight * batch

        if self.mode == "batch":
            counter = state.get(_require_index(self.batch_counter))
            running = state.get(_require_index(self.batch_state_index))
            running = jax.tree.map(average, running, (mean, variance))
            counter = jnp.where(is_empty, counter, counter + 1)
            state = state.set(_require_index(self.batch_counter), counter)
            state = state.set(_require_index(self.batch_state_index), running)
            return mean, variance, state

        is_first = state.get(_require_index(self.ema_first_time_index))
        # The first batch's statistics become the running statistics.
        replaces_running = (is_first > _NONE) & ~is_empty

        def first_or_average(running: Array, batch: Array) -> Array:
            return jnp.where(replaces_running, batch, average(running, batch))

        running = state.get(_require_index(self.ema_state_index))
        running = jax.tree.map(first_or_average, running, (mean, variance))
        is_first = jnp.where(is_empty, is_first, 0)
        state = state.set(_require_index(self.ema_first_time_index), is_first)
        state = state.set(_require_index(self.ema_state_index), running)
        # In this mode Equinox normalises by the running averages in training, too.
        return *running, state

    def _batch_statistics(self, x: Array) -> tuple[Array, Array, Array]:
        """Statistics of the batch without padding.

        Returns:
            Mean and biased variance [channels], and the total weight of the examples.
        """
        example_weight = (
            jnp.ones((), x.dtype) if self.sample_weight is None else self.sample_weight
        )
        weight = example_weight.astype(x.dtype)
        # This runs on one example, under `vmap`: sums over the named axis are sums over
        # the batch.
        total = lax.psum(weight, self.axis_name)
        # A batch that is all padding has total weight 0. A tiny positive number instead
        # makes its means 0, not NaN.
        normalized_weight = weight / jnp.maximum(total, jnp.finfo(x.dtype).tiny)
        pixels = tuple(range(1, x.ndim))
        mean = lax.psum(normalized_weight * x.mean(pixels), self.axis_name)
        squares = jnp.square(x - along_axis(mean, 0, x.ndim))
        variance = lax.psum(normalized_weight * squares.mean(pixels), self.axis_name)
        return mean, variance, total


def _require_index(index: eqx.nn.StateIndex | None) -> eqx.nn.StateIndex:
    """The index. A layer has the indices of its own mode, and None for the other mode."""
    assert index is not None
    return index
