"""Group and batch normalisation, on planes [channels, height, width, b] and on vectors
[b, channels].
"""

from abc import abstractmethod
from typing import Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.protocol import along_axis

NormKind = Literal["group", "batch"]

EPSILON = 1e-5
MOMENTUM = 0.1
"""Share of a batch in the new running statistics, as PyTorch counts it."""
GROUPS = 2
"""Groups of `GroupNorm`, as in the federated ResNets of Reddi et al. 2021."""


Statistics = tuple[Float[Array, " channels"], Float[Array, " channels"]]
"""A mean and a variance of each channel."""


class StatefulLayer(eqx.Module):
    """A layer that keeps running statistics: called as other layers in evaluation,
    trained by `train`.
    """

    @abstractmethod
    def train(
        self, x: Array, key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Array, Self]:
        """The output of a training step, and the layer with new statistics. Examples of
        weight 0 are padding.
        """


class GroupNorm(eqx.Module):
    """Each group of an example's channels, normalised by its mean and variance over
    these channels and all pixels (Wu and He 2018), times `scale`, plus `bias`."""

    scale: Float[Array, " channels"]
    bias: Float[Array, " channels"]
    groups: int = eqx.field(static=True)

    def __init__(self, channels: int, groups: int = GROUPS) -> None:
        self.scale = jnp.ones(channels)
        self.bias = jnp.zeros(channels)
        self.groups = groups

    def __call__(
        self, x: Float[Array, "c h w b"], key: Array | None = None
    ) -> Float[Array, "c h w b"]:
        # [groups, channels of a group, h, w, b]: all axes but the group and the example
        # are averaged over
        grouped = x.reshape(self.groups, -1, *x.shape[1:])
        mean = grouped.mean((1, 2, 3), keepdims=True)
        variance = jnp.square(grouped - mean).mean((1, 2, 3), keepdims=True)
        normalized = (grouped - mean) * jax.lax.rsqrt(variance + EPSILON)
        normalized = normalized.reshape(x.shape)
        # scale and bias are of each channel, not of the group
        return normalized * _per_channel(self.scale, x) + _per_channel(self.bias, x)


class BatchNorm(StatefulLayer):
    """Each channel, normalised over the batch and its pixels (Ioffe and Szegedy 2015),
    times `scale`, plus `bias`.

    Evaluation normalises by the running mean and (unbiased) variance instead: running
    <- (1 - MOMENTUM) running + MOMENTUM batch in every training step, as in PyTorch.
    """

    scale: Float[Array, " channels"]
    bias: Float[Array, " channels"]
    running_mean: Float[Array, " channels"]
    running_variance: Float[Array, " channels"]

    def __init__(self, channels: int) -> None:
        self.scale = jnp.ones(channels)
        self.bias = jnp.zeros(channels)
        self.running_mean = jnp.zeros(channels)
        self.running_variance = jnp.ones(channels)

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        return self._normalized(x, self.running_mean, self.running_variance)

    def train(
        self, x: Array, key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Array, "BatchNorm"]:
        # Normalised by the batch itself; the running statistics are for evaluation
        # only.
        mean, variance, running = batch_statistics(
            x,
            weight,
            (self.running_mean, self.running_variance),
            MOMENTUM,
            batch_axis=0 if x.ndim == 2 else x.ndim - 1,
            channel_axis=_channel_axis(x),
        )
        layer = eqx.tree_at(
            lambda layer: (layer.running_mean, layer.running_variance), self, running
        )
        return self._normalized(x, mean, variance), layer

    def _normalized(self, x: Array, mean: Array, variance: Array) -> Array:
        # The division by the deviation and the scale are one factor a channel, which is
        # cheaper than two on every pixel.
        factor = _per_channel(self.scale * jax.lax.rsqrt(variance + EPSILON), x)
        return (x - _per_channel(mean, x)) * factor + _per_channel(self.bias, x)


def batch_statistics(
    x: Array,
    weight: Float[Array, " b"],
    running: Statistics,
    momentum: float,
    *,
    batch_axis: int,
    channel_axis: int,
) -> tuple[Float[Array, " channels"], Float[Array, " channels"], Statistics]:
    """The mean and variance of a batch, and running ones that it has updated.

    Args:
        x: a batch of any layout.
        weight: of each example in the means; 0 = padding.
        running: mean and unbiased variance until now.
        momentum: share of this batch in the new running statistics.
        batch_axis, channel_axis: of x; all other axes are pixels.

    Returns:
        The batch's mean and biased variance [c], which a training step normalises by,
        and the new running ones.
    """
    all_but_channels = tuple(axis for axis in range(x.ndim) if axis != channel_axis)
    pixels = x.size // (x.shape[batch_axis] * x.shape[channel_axis])

    # Weighted means over examples and pixels; padding has weight 0.
    weight = weight.astype(x.dtype)
    total = jnp.maximum(weight.sum() * pixels, jnp.finfo(x.dtype).tiny)
    share = along_axis(weight / total, batch_axis, x.ndim)
    mean = (x * share).sum(all_but_channels)
    squares = jnp.square(x - along_axis(mean, channel_axis, x.ndim))
    variance = (squares * share).sum(all_but_channels)

    # As in PyTorch: normalised by the biased variance, while the running one is made of
    # unbiased ones.
    count = (weight > 0).sum().astype(x.dtype) * pixels
    unbiased = variance * (count / jnp.maximum(count - 1, 1))
    old_mean, old_variance = running
    new_mean = old_mean + momentum * (mean - old_mean)
    new_variance = old_variance + momentum * (unbiased - old_variance)

    def unless_empty(new: Array, old: Array) -> Array:
        # A batch of nothing but padding must not move the running statistics.
        return jax.lax.stop_gradient(jnp.where(count > 0, new, old))

    running = unless_empty(new_mean, old_mean), unless_empty(new_variance, old_variance)
    return mean, variance, running


def _channel_axis(x: Array) -> int:
    """The axis of channels: of planes the first, of vectors the last."""
    return 1 if x.ndim == 2 else 0


def _per_channel(values: Float[Array, " channels"], x: Array) -> Array:
    """Values of channels in the shape in which they broadcast over x."""
    return along_axis(values, _channel_axis(x), x.ndim)


def norm_layer(kind: NormKind, channels: int) -> GroupNorm | BatchNorm:
    """The normalisation layer of a kind."""
    return GroupNorm(channels) if kind == "group" else BatchNorm(channels)
