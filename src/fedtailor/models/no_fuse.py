"""Functions that the compiler must not fuse with other operations."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

P = ParamSpec("P")
R = TypeVar("R")


def no_fuse(function: Callable[P, R], static: tuple[str, ...] = ()) -> Callable[P, R]:
    """`function` with its arguments and results kept in memory (decorator; does nothing
    off the CPU).

    XLA's CPU backend fuses the computation of an array into every operation that reads it.
    This is slow for overlapping copies: the columns of an image repeat every pixel 25
    times, and after fusion each pixel is computed 25 times. XLA removes
    `jax.lax.optimization_barrier` before fusion, but it respects calls that must not be
    inlined, which cost nothing.

    Args:
        function: a function of arrays. Define it at module level, so that it is traced
            once for each shape.
        static: the names of its arguments that are not arrays.
    """
    compiled = jax.jit(function, static_argnames=static)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.default_backend() != "cpu":
            return function(*args, **kwargs)
        with set_xla_metadata(inlineable="false"):
            return compiled(*args, **kwargs)

    return call
