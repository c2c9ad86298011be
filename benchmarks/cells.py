"""The cells of the benchmark: which model, which clients, which batch size."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedtailor.data.federation import Federation, Ragged
from fedtailor.data.federation.sizes import PowerLaw
from fedtailor.models import (
    Architecture,
    Model,
    cnn_5x5,
    lenet5,
    logistic,
    mlp,
    resnet,
)

CLASSES = 10
DIGIT, PHOTO = (28, 28, 1), (32, 32, 3)


@dataclass(frozen=True)
class Cell:
    """One epoch of local training for each client, then an average.

    Attributes:
        sizes: training samples of each client.
        goal: how many times faster than the plain PyTorch loop this must be on two
            cores.
        goal_processes: the same, against that loop in one process for each core; None
            where nothing is promised.
        classes: of the labels.
        tolerance: of the check that ours and the loop train the same model: the largest
            difference of the two averages after a round, relative to how far the round
            moved the model.
    """

    name: str
    architecture: Architecture
    input_shape: tuple[int, ...]
    sizes: tuple[int, ...]
    batch_size: int
    goal: float
    goal_processes: float | None = None
    classes: int = CLASSES
    tolerance: float = 1e-3

    @cached_property
    def federation(self) -> Federation:
        """Normal inputs, about as long as those of MNIST, with the labels of a random
        linear teacher.
        """
        rng = np.random.default_rng(0)
        x = 0.3 * rng.standard_normal((sum(self.sizes), *self.input_shape), np.float32)
        flat = x.reshape(len(x), -1)
        teacher = rng.standard_normal((flat.shape[1], self.classes), np.float32)
        y = (flat @ teacher).argmax(axis=1)
        clients = len(self.sizes)
        train = Ragged.cut(np.arange(len(x)), np.array(self.sizes))
        names = tuple(f"client {index:04d}" for index in range(clients))
        return Federation(
            x,
            y,
            train,
            Ragged.empty(clients),
            Ragged.empty(clients),
            names,
            classes=self.classes,
        )

    @cached_property
    def model(self) -> Model:
        return self.architecture.bind(self.input_shape, self.classes)

    def smaller(self) -> "Cell":
        """A fifth of the clients."""
        return replace(self, sizes=self.sizes[::5])


def power_law_sizes(clients: int, low: int, high: int) -> tuple[int, ...]:
    """Sizes with density proportional to n^-2 in [low, high], the two ends among
    them.
    """
    drawn = PowerLaw(2.0, low, high).draw(clients, np.random.default_rng(0)).astype(int)
    return (low, high, *drawn[2:].tolist())


def _cells() -> Iterable[Cell]:
    even = (500,) * 20
    yield Cell("logistic-10", logistic(), (784,), (500,) * 100, 10, goal=14)
    yield Cell("mlp-10", mlp(128), (784,), even, 10, goal=7, goal_processes=2.7)
    for batch_size, goal, processes in (
        (10, 2.9, 1.5),
        (32, 1.7, None),
        (100, 1.4, None),
    ):
        yield Cell(
            f"lenet-{batch_size}", lenet5(), DIGIT, even, batch_size, goal, processes
        )
    for batch_size, goal in ((10, 2.2), (32, 1.4), (100, 1.1)):
        yield Cell(
            f"cifar-cnn-{batch_size}", lenet5("max"), PHOTO, even, batch_size, goal
        )
    # Larger networks: 0.88 and 11.2 million parameters.
    yield Cell("cnn-5x5-10", cnn_5x5(), PHOTO, (200,) * 10, 10, goal=2)
    yield Cell(
        "resnet18-20",
        resnet(18, stem="3x3"),
        PHOTO,
        (40,) * 4,
        20,
        goal=2,
        classes=100,
        # PyTorch's own gradients of this network in float32 are 0.1 to 0.8 % (with and
        # without oneDNN) from those in float64, and two steps make ten times as much of
        # it. Tests compare what it gives with PyTorch's in float64.
        tolerance=0.05,
    )
    yield Cell(
        "power-law-mlp-10", mlp(128), (784,), power_law_sizes(100, 50, 2000), 10, goal=4
    )


CELLS = {cell.name: cell for cell in _cells()}


def add_cells_argument(
    parser: ArgumentParser, cells: Mapping[str, Cell] = CELLS
) -> None:
    """Names of cells on the command line, `cells` of its options: all, where none is
    named.
    """
    choices = ", ".join(cells)

    def known(name: str) -> str:
        if name not in cells:
            raise ArgumentTypeError(f"there is no cell {name!r}; choose from {choices}")
        return name

    parser.add_argument(
        "cells",
        nargs="*",
        metavar="cell",
        type=known,
        default=list(cells),
        help=f"of {choices}; default: all",
    )
