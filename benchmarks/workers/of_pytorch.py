"""A worker of `frameworks.py`: the plain PyTorch loop. It has no evaluation."""

import sys

import numpy as np
import torch
from digits import digits
from pytorch_loop import Loop
from worker import Pipe, Task, serve, task


class PyTorch:
    def __init__(self, task: Task) -> None:
        self.task, self.cell = task, digits(task.cell, len(task.clients))
        self.theta = torch.from_numpy(task.theta)
        self.loop = Loop(self.cell, task.clients, task.lr)

    def check(self) -> np.ndarray:
        loop = Loop(self.cell, self.task.clients, self.task.careful_lr)
        return loop.round(
            torch.from_numpy(self.task.theta), self.task.order.__getitem__
        ).numpy()

    def round(self, evaluate: bool) -> None:
        self.theta = self.loop.round(self.theta)


if __name__ == "__main__":
    pipe, folder = Pipe(), sys.argv[1]
    serve(PyTorch(task(folder)), folder, pipe, pipe)
