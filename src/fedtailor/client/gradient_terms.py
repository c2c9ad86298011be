"""What training adds to the gradient of the loss, each term a function of its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PyTree

from fedtailor.protocol import Params

GradientTerm = Callable[[Params, Params], Params]
"""(grads, params) -> grads with the term."""


def weight_decay(coefficient: ArrayLike) -> GradientTerm:
    """Add the gradient of coefficient/2 |w|^2."""

    def add(grads: Params, params: Params) -> Params:
        return jax.tree.map(lambda g, w: g + coefficient * w, grads, params)

    return add


def proximal(mu: ArrayLike, anchor: Params) -> GradientTerm:
    """Add the gradient of mu/2 |w - anchor|^2."""

    def add(grads: Params, params: Params) -> Params:
        return jax.tree.map(lambda g, w, a: g + mu * (w - a), grads, params, anchor)

    return add


def linear(slope: Params) -> GradientTerm:
    """Add the gradient of <slope, w>."""

    def add(grads: Params, params: Params) -> Params:
        return jax.tree.map(jnp.add, grads, slope)

    return add


def only(is_trained: PyTree[bool]) -> GradientTerm:
    """Set the gradient of all other parameters to zero."""

    def mask(grads: Params, params: Params) -> Params:
        return jax.tree.map(
            lambda g, trained: g if trained else jnp.zeros_like(g), grads, is_trained
        )

    return mask
