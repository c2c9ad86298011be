"""Group and batch normalisation of feature maps [channels, height, width, b] and of
vectors [b, channels].

Feature maps have the batch last because the convolutions of this package are fastest in
this layout (see `convolution`). In both layouts there are b examples in a batch.
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
"""The weight of the batch in the running statistics, as PyTorch defines momentum."""
GROUPS = 2
"""Groups of `GroupNorm`, as in the federated ResNets of Reddi et al. 2021."""

MOST_NOISE = 1e-2
"""Variances down to so far below 0 may be 0 with noise (`without_noise`)."""

ChannelStatistics = tuple[Float[Array, " channels"], Float[Array, " channels"]]
"""A mean and a variance of each channel."""


class StatefulLayer(eqx.Module):
    """A layer that keeps running statistics.

    In evaluation mode it is called as other layers. In training mode its method `train` is
    called instead, which also returns new statistics.
    """

    @abstractmethod
    def train(
        self, x: Array, key: Array | None, weight: Float[Array, " b"]
    ) -> tuple[Array, Self]:
        """One training step.

        Args:
            x: a batch of inputs.
            key: the random key of the step, for dropout.
            weight: the weight of each example: 1, or 0 for padding.

        Returns:
            The output, and the layer with new running statistics.
        """


def without_noise(variance: Float[Array, "..."]) -> Float[Array, "..."]:
    """Variances of which those a little below 0 are 0: a mean of clients' variances that was
    added behind masks has noise. One far below 0 is a divergence, and gives NaN.
    """
    return jnp.where(variance > -MOST_NOISE, jnp.maximum(variance, 0), variance)


class GroupNorm(eqx.Module):
    """Group normalisation of feature maps (Wu and He 2018).

    Each group of an example's channels is normalised by its mean and variance over
    these channels and all pixels; then each channel is multiplied by `scale`, and
    `bias` is added.
    """

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
        # [groups, channels of a group, h, w, b]: the mean is over all axes except the
        # group and the example.
        grouped = x.reshape(self.groups, -1, *x.shape[1:])
        mean = grouped.mean((1, 2, 3), keepdims=True)
        variance = jnp.square(grouped - mean).mean((1, 2, 3), keepdims=True)
        normalized = (grouped - mean) * jax.lax.rsqrt(variance + EPSILON)
        normalized = normalized.reshape(x.shape)
        return normalized * _per_channel(self.scale, x) + _per_channel(self.bias, x)


class BatchNorm(StatefulLayer):
    """Batch normalisation of feature maps or vectors (Ioffe and Szegedy 2015).

    Each channel is normalised by its mean and variance over the batch and all pixels,
    multiplied by `scale`, and `bias` is added. Evaluation normalises by a running mean
    and (unbiased) variance instead, which every training step updates as PyTorch does:

        running <- (1 - MOMENTUM) running + MOMENTUM batch
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
        # Training normalises by the statistics of the batch, evaluation by the running ones.
        mean, variance, running = batch_statistics(
            x,
            weight,
            (self.running_mean, self.running_variance),
            MOMENTUM,
            batch_axis=_batch_axis(x),
            channel_axis=_channel_axis(x),
        )
        layer = eqx.tree_at(
            lambda layer: (layer.running_mean, layer.running_variance), self, running
        )
        return self._normalized(x, mean, variance), layer

    def _normalized(self, x: Array, mean: Array, variance: Array) -> Array:
        # One factor for each channel combines the division by the standard deviation and
        # the multiplication by the scale, so that each pixel needs one multiplication.
        deviation = jax.lax.rsqrt(without_noise(variance) + EPSILON)
        factor = _per_channel(self.scale * deviation, x)
        return (x - _per_channel(mean, x)) * factor + _per_channel(self.bias, x)


def batch_statistics(
    x: Array,
    example_weight: Float[Array, " b"],
    running: ChannelStatistics,
    momentum: float,
    *,
    batch_axis: int,
    channel_axis: int,
) -> tuple[Float[Array, " channels"], Float[Array, " channels"], ChannelStatistics]:
    """The mean and variance of a batch, and the running statistics after it.

    Args:
        x: a batch in any layout.
        example_weight: the weight of each example in the means and variances; 0 marks
            padding.
        running: running mean and (unbiased) variance before this batch.
        momentum: weight of this batch in the new running statistics.
        batch_axis, channel_axis: the axes of x for examples and for channels; all other
            axes are pixels.

    Returns:
        The batch's mean and biased variance [channels], with which a training step
        normalises, and the new running statistics, through which no gradient flows.
    """
    axes = tuple(axis for axis in range(x.ndim) if axis != channel_axis)
    num_pixels = x.size // (x.shape[batch_axis] * x.shape[channel_axis])

    # Means over examples and pixels, with weights that sum to 1.
    example_weight = example_weight.astype(x.dtype)
    total = example_weight.sum() * num_pixels
    # A batch that is all padding has total weight 0. A tiny positive number instead
    # makes its means 0, not NaN.
    total = jnp.maximum(total, jnp.finfo(x.dtype).tiny)
    pixel_weight = along_axis(example_weight / total, batch_axis, x.ndim)
    mean = (x * pixel_weight).sum(axes)
    squares = jnp.square(x - along_axis(mean, channel_axis, x.ndim))
    variance = (squares * pixel_weight).sum(axes)

    # As in PyTorch, training normalises by the biased variance, and the running
    # variance averages unbiased ones.
    count = (example_weight > 0).sum().astype(x.dtype) * num_pixels
    unbiased_variance = variance * (count / jnp.maximum(count - 1, 1))
    old_mean, old_variance = running
    new_mean = old_mean + momentum * (mean - old_mean)
    new_variance = old_variance + momentum * (unbiased_variance - old_variance)

    # A batch that is all padding does not change the running statistics.
    new_mean = jnp.where(count > 0, new_mean, old_mean)
    new_variance = jnp.where(count > 0, new_variance, old_variance)
    return mean, variance, jax.lax.stop_gradient((new_mean, new_variance))


def _batch_axis(x: Array) -> int:
    """The axis of examples: the first of vectors, the last of feature maps."""
    return 0 if x.ndim == 2 else x.ndim - 1


def _channel_axis(x: Array) -> int:
    """The axis of channels: the last of vectors, the first of feature maps."""
    return 1 if x.ndim == 2 else 0


def _per_channel(values: Float[Array, " channels"], x: Array) -> Array:
    """One value for each channel, in a shape that broadcasts over x."""
    return along_axis(values, _channel_axis(x), x.ndim)


def norm_layer(kind: NormKind, channels: int) -> GroupNorm | BatchNorm:
    """The normalisation layer of a kind."""
    return GroupNorm(channels) if kind == "group" else BatchNorm(channels)
