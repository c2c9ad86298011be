"""Forms of the 5 x 5 convolutions of LeNet-5 beside the library's (im2col in planes),
with their derivatives.

python benchmarks/convolution.py

"Direct" adds the products of the 25 places of the kernel; "Winograd" is F(2 x 2, 5 x 5)
with the points 0, 1, -1, 2, -2, infinity, which multiplies 36 instead of 100 numbers
for four outputs. Both are differentiated by JAX.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from measuring import load, machine, show, take_turns
from rich.console import Console
from rich.table import Table

from fedtailor.models.convolution import convolve

SIDE = 5
LAYERS = {
    "LeNet-5, first": (1, 6, 28),
    "LeNet-5, second": (6, 16, 12),
    "CIFAR, first": (3, 6, 32),
    "CIFAR, second": (6, 16, 14),
}
"""Channels in and out, and the side of the input."""
CALLS, BATCH = 20, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--turns", type=int, default=15, help=f"timed turns of {CALLS} calls each"
    )
    turns = parser.parse_args().turns
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table("layer", *(f"{name}, us" for name in FORMS), "difference", "load")
    for name, (channels, filters, side) in LAYERS.items():
        x = jax.random.normal(jax.random.key(0), (channels, side, side, BATCH))
        kernel = 0.1 * jax.random.normal(
            jax.random.key(1), (SIDE, SIDE, channels, filters)
        )
        forms = {form: with_derivatives(function) for form, function in FORMS.items()}
        results = [form(x, kernel) for form in forms.values()]
        difference = max(
            relative(one, other)
            for found in results
            for one, other in zip(found, results[0], strict=True)
        )
        times = take_turns(
            {form: repeated(function, x, kernel) for form, function in forms.items()},
            turns,
        )
        each = [time.per(CALLS) for time in times.values()]
        table.add_row(
            name,
            *(f"{1e6 * one.minimum:.0f} / {1e6 * one.median:.0f}" for one in each),
            f"{difference:.0e}",
            load(),
        )
    show(console, table, "convolution", "jax")


def with_derivatives(
    function: Callable[..., jax.Array],
) -> Callable[..., tuple[jax.Array, ...]]:
    @jax.jit
    def call(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, ...]:
        y, back = jax.vjp(function, x, kernel)
        return (y, *back(jnp.ones_like(y)))

    return call


def repeated(
    function: Callable, x: jax.Array, kernel: jax.Array
) -> Callable[[], object]:
    def call() -> object:
        out: object = None
        for _ in range(CALLS):
            out = function(x, kernel)
        return jax.block_until_ready(out)

    return call


def relative(one: jax.Array, other: jax.Array) -> float:
    return float(jnp.abs(one - other).max() / jnp.abs(other).max())


def direct(x: jax.Array, kernel: jax.Array) -> jax.Array:
    _, height, width, batch = x.shape
    h, w = height - SIDE + 1, width - SIDE + 1
    places = [(i, j) for i in range(SIDE) for j in range(SIDE)]
    parts = (
        kernel[i, j].T @ x[:, i : i + h, j : j + w].reshape(len(x), -1)
        for i, j in places
    )
    return sum(parts, start=jnp.zeros(())).reshape(-1, h, w, batch)


def winograd(x: jax.Array, kernel: jax.Array) -> jax.Array:
    channels, height, width, batch = x.shape
    h, w = height - SIDE + 1, width - SIDE + 1
    rows, columns, tile = -(-h // 2), -(-w // 2), SIDE + 1
    x = jnp.pad(
        x,
        (
            (0, 0),
            (0, 2 * rows + SIDE - 1 - height),
            (0, 2 * columns + SIDE - 1 - width),
            (0, 0),
        ),
    )
    tiles = jnp.stack(
        [
            jnp.stack(
                [
                    x[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2]
                    for j in range(tile)
                ]
            )
            for i in range(tile)
        ]
    )
    weights = jnp.einsum("pi,qj,ijco->pqco", OF_KERNEL, OF_KERNEL, kernel)
    inputs = jnp.einsum(
        "pi,qj,ijn->pqn", OF_INPUT, OF_INPUT, tiles.reshape(tile, tile, -1)
    )
    products = jnp.einsum(
        "pqco,pqcn->pqon", weights, inputs.reshape(tile, tile, channels, -1)
    )
    y = jnp.einsum(
        "ap,bq,pqn->abn", OF_OUTPUT, OF_OUTPUT, products.reshape(tile, tile, -1)
    )
    y = y.reshape(2, 2, -1, rows, columns, batch).transpose(2, 3, 0, 4, 1, 5)
    return y.reshape(-1, 2 * rows, 2 * columns, batch)[:, :h, :w]


def _powers(count: int) -> np.ndarray:
    """The points' powers 0 to count - 1; infinity has only the last one."""
    return np.array(
        [
            *(
                [float(point) ** power for power in range(count)]
                for point in (0, 1, -1, 2, -2)
            ),
            [0.0] * (count - 1) + [1.0],
        ]
    )


OF_OUTPUT, OF_KERNEL, OF_INPUT = (
    jnp.asarray(matrix, jnp.float32)
    for matrix in (_powers(2).T, _powers(SIDE), np.linalg.inv(_powers(SIDE + 1)).T)
)
FORMS = {"im2col": convolve, "direct": direct, "Winograd": winograd}


if __name__ == "__main__":
    main()
