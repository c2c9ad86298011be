"""Terms that local training adds to the gradient of the loss, masks over it, and the
bound of its norm.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PyTree

from fedtailor.protocol import SGD, Params

GradientChange = Callable[[Params, Params], Params]
"""(grads, params) -> the gradient with a term added, or with entries set to zero."""


def penalty(sgd: SGD, samples: ArrayLike) -> GradientChange:
    """Add the gradient of the L2 terms of `sgd`, for a client with so many training
    samples.
    """

    def add(grads: Params, params: Params) -> Params:
        return jax.tree.map(
            lambda g, w: g + sgd.penalty(w.ndim, samples) * w, grads, params
        )

    return add


def proximal(mu: ArrayLike, anchor: Params) -> GradientChange:
    """Add the gradient of mu/2 |w - anchor|^2."""

    def add(grads: Params, params: Params) -> Params:
        return jax.tree.map(lambda g, w, a: g + mu * (w - a), grads, params, anchor)

    return add


def linear_term(slope: Params) -> GradientChange:
    """Add the gradient of <slope, w>."""

    def add(grads: Params, params: Params) -> Params:
        return jax.tree.map(jnp.add, grads, slope)

    return add


def clipped(bound: ArrayLike) -> GradientChange:
    """Scale the gradient so that its Euclidean norm is at most `bound`."""

    def clip(grads: Params, params: Params) -> Params:
        squares = [jnp.square(g).sum() for g in jax.tree.leaves(grads)]
        norm = jnp.sqrt(sum(squares))
        # A gradient within the bound stays as it is, without rounding errors.
        return jax.tree.map(
            lambda g: jnp.where(norm > bound, (bound / norm * g).astype(g.dtype), g),
            grads,
        )

    return clip


def zero_outside(mask: PyTree[bool]) -> GradientChange:
    """Set the leaves of the gradient to zero where the mask, one bool a leaf, is False."""

    def zero(grads: Params, params: Params) -> Params:
        return jax.tree.map(lambda m, g: g if m else jnp.zeros_like(g), mask, grads)

    return zero


def select_leaves(mask: PyTree[bool], if_true: Params, if_false: Params) -> Params:
    """Choose each leaf from one of two trees.

    The mask is known while tracing, so that the choice adds no operations to the
    compiled program.
    """
    return jax.tree.map(lambda m, a, b: a if m else b, mask, if_true, if_false)
