"""A worker of `frameworks.py`: fedtailor, which evaluates every client's model on that
client's test samples.
"""

import sys

import jax
import numpy as np
from digits import digits
from pytorch_loop import to_torch
from rounds import start
from worker import Pipe, Task, serve, task


class Fedtailor:
    def __init__(self, task: Task) -> None:
        self.task, self.cell = task, digits(task.cell, *task.y_test.shape)
        self.training = start(self.cell, task.lr)

    def check(self) -> np.ndarray:
        training = start(self.cell, self.task.careful_lr)
        training.advance()
        return to_torch(self.cell, np.asarray(training.server.model[0])).numpy()

    def round(self, evaluate: bool) -> None:
        self.training.advance()
        if evaluate:
            self.training.evaluate()
        jax.block_until_ready(self.training.server)


if __name__ == "__main__":
    pipe, folder = Pipe(), sys.argv[1]
    serve(Fedtailor(task(folder)), folder, pipe, pipe)
