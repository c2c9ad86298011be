"""What the worker processes of `frameworks.py` share: the task, and the pipe on which
rounds are ordered.

Workers may run in virtual environments of their own: this file needs nothing but NumPy,
and PyTorch where it is used.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Task:
    """One epoch of SGD at every client, then the average.

    Attributes:
        cell: its name in the benchmark; it says which model.
        x, y: [clients, samples, ...] training samples; images are [28, 28, 1].
        x_test, y_test: the same of test samples.
        order: [clients, samples] in which samples are visited in the round that checks
            a framework.
        theta: [d] initial model, in PyTorch's order and layout.
        lr: learning rate of timed rounds.
        careful_lr: learning rate of that check: small, so that rounding errors do not
            grow along the way.
    """

    cell: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    order: np.ndarray
    theta: np.ndarray
    batch_size: int
    lr: float
    careful_lr: float

    @property
    def clients(self) -> range:
        return range(len(self.x))

    def ordered(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's training samples as the check visits them."""
        return self.x[client][self.order[client]], self.y[client][self.order[client]]

    def save(self, folder: Path) -> None:
        np.savez(folder / "task.npz", **asdict(self))


@lru_cache
def task(folder: str) -> Task:
    """The task in a folder."""
    with np.load(Path(folder) / "task.npz") as arrays:
        return Task(
            **{
                name: array if array.ndim else array.item()
                for name, array in arrays.items()
            }
        )


@lru_cache
def network(folder: str) -> Any:
    """The initial model of the task as a PyTorch module that takes images as [b, 1, 28,
    28].
    """
    import torch

    return torch.load(Path(folder) / "network.pt", weights_only=False)


def torch_data(x: np.ndarray, y: np.ndarray) -> Any:
    """Samples as tensors, images with their channels first."""
    import torch

    inputs = torch.from_numpy(x)
    return (
        inputs.permute(0, 3, 1, 2).contiguous() if inputs.ndim == 4 else inputs
    ), torch.from_numpy(y)


class Contender(Protocol):
    """One framework at work on a task."""

    def check(self) -> np.ndarray:
        """The model [d], in PyTorch's layout, after a round from the initial one with
        the orders and `careful_lr`.
        """
        ...

    def round(self, evaluate: bool) -> None:
        """Another round, with or without the evaluation that the framework makes of
        one.
        """
        ...


class Pipe:
    """Standard input and output, between this process and the one that started it.

    Whatever a framework prints goes to standard error from now on.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def __iter__(self) -> Iterator[str]:
        return (line.strip() for line in sys.stdin)

    def answer(self) -> None:
        print("done", file=self._answers, flush=True)


def serve(
    contender: Contender, folder: str, commands: Iterable[str], pipe: Pipe | None
) -> None:
    """Obey `check`, which leaves its model in the folder, `train` and `evaluate`;
    answer each on the pipe, if any.
    """
    for command in commands:
        if command == "check":
            model = contender.check()
            if pipe:
                np.save(Path(folder) / "checked.npy", model)
        else:
            contender.round(evaluate=command == "evaluate")
        if pipe:
            pipe.answer()
