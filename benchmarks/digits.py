"""The work that public frameworks are compared on: a cell of the benchmark with
handwritten digits for its images.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cells import CELLS, CLASSES, Cell
from numpy.typing import NDArray

from fedtailor.data.datasets import MissingData, mnist
from fedtailor.data.federation import Federation, Ragged


@dataclass(frozen=True)
class Digits(Cell):
    """A cell with MNIST in place of random inputs.

    Attributes:
        test_size: test samples of each client. Training samples do not depend on it.
    """

    test_size: int = 0

    @cached_property
    def federation(self) -> Federation:
        clients, trained = len(self.sizes), sum(self.sizes)
        x, y, name = _images(trained + clients * self.test_size)
        train = Ragged.cut(np.arange(trained), np.array(self.sizes))
        test = Ragged.cut(np.arange(trained, len(x)), np.full(clients, self.test_size))
        names = tuple(f"client {client:02d}" for client in range(clients))
        x = x.reshape(len(x), *self.input_shape)
        return Federation(
            x, y, train, Ragged.empty(clients), test, names, classes=CLASSES, name=name
        )


def digits(cell: str, clients: int, test_size: int = 0) -> Digits:
    """The first clients of the cell of that name, with digits."""
    plain = CELLS[cell]
    return Digits(
        **{**vars(plain), "sizes": plain.sizes[:clients]}, test_size=test_size
    )


def _images(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64], str]:
    """Standardized images [count, 28, 28], their labels, and what they are; the first
    ones are the same for any count.

    Where MNIST is not at hand, the images and labels are random.
    """
    images, labels = np.random.default_rng(0), np.random.default_rng(1)
    try:
        data = mnist()
    except MissingData:
        x = images.standard_normal((count, 28, 28), np.float32)
        return (
            x,
            labels.integers(CLASSES, size=count),
            "random images (MNIST is not at hand)",
        )
    rows = images.permutation(len(data))[:count]
    return (
        ((data.x[rows] - data.shift) * data.scale).astype(np.float32),
        data.y[rows].astype(np.int64),
        "MNIST",
    )
