"""PyTorch's operations that draw random numbers, in JAX. Where there is no key, as in the
comparison with PyTorch, they give the mean of their distribution.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedtailor.models.pytorch.layout import Value, torch_layout
from fedtailor.models.pytorch.operations import Context, operation
from fedtailor.models.pytorch.shapes import dtype_of

RANDOM = ("bernoulli", "normal", "rand", "rand_like", "randn", "randn_like", "uniform")
"""Operations that are random at every rate and in both modes."""

MEANS = {"rand": 0.5, "randn": 0.0}
"""The mean of each distribution."""


@operation("native_dropout", layout=True)
def native_dropout(
    context: Context, x: Value, rate: float, train: bool | None = True
) -> tuple[Value, None]:
    return dropout(context, x, rate, train is not False), None


def dropout(context: Context, x: Value, rate: float, train: bool = True) -> Value:
    """Set entries to 0 with probability `rate`, and divide the others by 1 - rate."""
    if not train or context.key is None or rate == 0:
        return x
    array: Array = torch_layout(x)
    if rate >= 1:
        return jnp.zeros_like(array)
    is_kept = jax.random.bernoulli(_next_key(context), 1 - rate, array.shape)
    return jnp.where(is_kept, array / (1 - rate), 0)


@operation("bernoulli")
def _bernoulli(context: Context, x: Array, p: float | None = None) -> Array:
    probability = x if p is None else jnp.full(x.shape, p, x.dtype)
    if context.key is None:
        return probability
    return jax.random.bernoulli(_next_key(context), probability).astype(x.dtype)


@operation("rand", "randn")
def _random(
    context: Context, shape: Sequence[int], *, dtype: str | None = None, **kwargs: Any
) -> Array:
    return _draw(context, context.operation_name, shape, dtype_of(context, dtype))


@operation("rand_like", "randn_like")
def _random_like(
    context: Context, x: Array, *, dtype: str | None = None, **kwargs: Any
) -> Array:
    kind = context.operation_name.removesuffix("_like")
    return _draw(context, kind, x.shape, x.dtype)


@operation("uniform")
def _uniform(
    context: Context, x: Array, low: float = 0.0, high: float = 1.0, **kwargs: Any
) -> Array:
    return low + (high - low) * _draw(context, "rand", x.shape, x.dtype)


@operation("normal")
def _normal(
    context: Context, x: Array, mean: float = 0.0, std: float = 1.0, **kwargs: Any
) -> Array:
    return mean + std * _draw(context, "randn", x.shape, x.dtype)


def _draw(context: Context, kind: str, shape: Sequence[int], dtype: Any) -> Array:
    if context.key is None:
        return jnp.full(shape, MEANS[kind], dtype)
    draw: Callable[..., Array] = {
        "rand": jax.random.uniform,
        "randn": jax.random.normal,
    }[kind]
    return draw(_next_key(context), shape, dtype)


def _next_key(context: Context) -> Array:
    key = context.next_key()
    assert key is not None
    return key
