"""Pieces of a program that the compiler must not fuse into one another."""

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

    XLA's CPU backend fuses what makes an array into everything that reads it. For
    copies that overlap this is ruinous: the columns of an image repeat every pixel 25
    times, and fusion computes 25 times whatever made the pixel. It also discards
    `jax.lax.optimization_barrier` before it fuses. A call that must not be inlined is
    respected, and is free.

    Args:
        function: a function of arrays; write it at module level, where it is traced
            once for each shape.
        static: names of its arguments that are no arrays.
    """
    compiled = jax.jit(function, static_argnames=static)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.default_backend() != "cpu":
            return function(*args, **kwargs)
        with set_xla_metadata(inlineable="false"):
            return compiled(*args, **kwargs)

    return call
