"""Of what the time of a training step of PFLlib's CNN is made, on one core, and how near
each part is to the speed of the machine's matrix products.

taskset -c 0 python benchmarks/cnn_parts.py

The network, the batch and the data are those of the cell `cnn-5x5-10` of `rounds.py`.
Milliseconds are the processor's, minimum / median of the turns; RECORD=1 writes
measured/cnn-parts.json, from which docs/speed.md has its table.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from cells import CELLS
from jax.nn import log_softmax
from measuring import machine, show, take_turns
from ours import rounds_of
from pytorch_loop import Loop, to_torch
from rich.console import Console
from rich.table import Table
from rounds import LR, start

from fedtailor.models.convolution import convolve, to_feature_maps
from fedtailor.models.pooling import convolve_windows, pool_relu, windows

TURNS = 15
CELL = replace(CELLS["cnn-5x5-10"], sizes=(200, 200))
BATCH = CELL.batch_size
STEPS = sum(CELL.sizes) // BATCH
NUMBERS = np.random.default_rng(0)


def random(*shape: int) -> jax.Array:
    return jnp.asarray(NUMBERS.normal(size=shape), jnp.float32)


def gradient_step(params: Any, images: jax.Array) -> Any:
    """A step of SGD without the drawing of its batch."""

    def loss(params: Any) -> jax.Array:
        outputs = log_softmax(CELL.model.logits(params, images, None))
        return -outputs[jnp.arange(BATCH), jnp.arange(BATCH) % CELL.classes].mean()

    gradient = jax.grad(loss)(params)
    return jax.tree.map(lambda theta, g: theta - LR * g, params, gradient)


def first_by_columns(
    kernel: jax.Array, bias: jax.Array, images: jax.Array, g: jax.Array
) -> Any:
    """As `first`, with the columns of pixels instead of pooling windows."""

    def layer(kernel: jax.Array, bias: jax.Array) -> jax.Array:
        y = windows(convolve(to_feature_maps(images), kernel))
        return pool_relu(y, bias, "max")

    y, derivative = jax.vjp(layer, kernel, bias)
    return y, derivative(g)


def first(kernel: jax.Array, bias: jax.Array, images: jax.Array, g: jax.Array) -> Any:
    """The first convolution, whose inputs need no derivative."""

    def layer(kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return pool_relu(convolve_windows(images, kernel), bias, "max")

    y, derivative = jax.vjp(layer, kernel, bias)
    return y, derivative(g)


def second(x: jax.Array, kernel: jax.Array, bias: jax.Array, g: jax.Array) -> Any:
    def layer(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return pool_relu(windows(convolve(x, kernel)), bias, "max")

    y, derivative = jax.vjp(layer, x, kernel, bias)
    return y, derivative(g)


def dense(w: jax.Array, x: jax.Array, g: jax.Array) -> Any:
    return x @ w, g @ w.T, w - LR * x.T @ g


def two_products(kernel: jax.Array, columns: jax.Array, g: jax.Array) -> Any:
    return kernel.T @ columns, columns @ g.T


def three_products(kernel: jax.Array, columns: jax.Array, g: jax.Array) -> Any:
    return kernel.T @ columns, kernel @ g, columns @ g.T


def parts() -> dict[str, tuple[float, Callable[..., Any], tuple[Any, ...]]]:
    """The name of a part -> its FLOP, a function and its arguments."""
    # Outputs of the convolutions are 28 x 28 and 10 x 10, pooled to 14 x 14 and 5 x 5.
    pixels, patch = (28 * 28 * BATCH, 10 * 10 * BATCH), (25 * 3, 25 * 32)
    conv_1, conv_2 = 4 * patch[0] * 32 * pixels[0], 6 * patch[1] * 64 * pixels[1]
    flat = 1600 * 512
    whole = conv_1 + conv_2 + 6 * BATCH * (flat + 512 * CELL.classes)
    images, params = random(BATCH, 32, 32, 3), CELL.model.params(jnp.asarray(init()))
    kernels = random(5, 5, 3, 32), random(5, 5, 32, 64)
    pooled = random(32, 14 * 14 * BATCH), random(64, 5 * 5 * BATCH)
    # The first convolution computes pooling windows: patches of 6 x 6 pixels.
    columns = random(36 * 3, pixels[0] // 4), random(patch[1], pixels[1])
    x, w = random(BATCH, 1600), random(1600, 512)
    return {
        "a matrix product, 1024 x 1024": (
            2 * 1024**3,
            jnp.matmul,
            (random(1024, 1024), random(1024, 1024)),
        ),
        "a step without its batch": (whole, gradient_step, (params, images)),
        "first convolution and pooling, derivative by weights": (
            conv_1,
            first,
            (kernels[0], random(32), images, pooled[0]),
        ),
        "the same by columns of pixels": (
            conv_1,
            first_by_columns,
            (kernels[0], random(32), images, pooled[0]),
        ),
        "products of the first convolution": (
            conv_1,
            two_products,
            (random(36 * 3, 128), columns[0], random(128, pixels[0] // 4)),
        ),
        "second convolution and pooling, both derivatives": (
            conv_2,
            second,
            (random(32, 14, 14, BATCH), kernels[1], random(64), pooled[1]),
        ),
        "products of the second convolution": (
            conv_2,
            three_products,
            (random(patch[1], 64), columns[1], random(64, pixels[1])),
        ),
        "dense layer, both derivatives, update": (
            6 * BATCH * flat,
            dense,
            (w, x, random(BATCH, 512)),
        ),
        "products of the dense layer": (
            6 * BATCH * flat,
            lambda w, x, g: (x @ w, g @ w.T, x.T @ g),
            (w, x, random(BATCH, 512)),
        ),
    }


def init() -> Any:
    return np.asarray(CELL.model.init(jax.random.key(0)))


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    torch.set_num_threads(1)
    loop, theta = Loop(CELL, range(len(CELL.sizes)), LR), to_torch(CELL, init())
    rounds: dict[str, Callable[[], object]] = {
        "a step of a round": rounds_of(start(CELL)),
        "a step of the PyTorch loop": lambda: loop.round(theta),
    }
    calls, flop = {**rounds}, {}
    for name, (operations, function, arguments) in parts().items():
        flop[name] = operations
        compiled = jax.jit(function)
        calls[name] = lambda f=compiled, a=arguments: jax.block_until_ready(f(*a))
    flop |= dict.fromkeys(rounds, flop["a step without its batch"])
    table = Table("part", "MFLOP", "ms", "GFLOP/s")
    for name, times in take_turns(calls, TURNS, process_time).items():
        one = times.per(STEPS if name in rounds else 1)
        milliseconds = f"{1e3 * one.minimum:.2f} / {1e3 * one.median:.2f}"
        speed = f"{flop[name] / one.minimum / 1e9:.0f}"
        table.add_row(name, f"{flop[name] / 1e6:.0f}", milliseconds, speed)
    command = "taskset -c 0 python benchmarks/cnn_parts.py"
    show(console, table, "cnn-parts", "jax", command=command)


if __name__ == "__main__":
    main()
