"""Records of a client's part of an exchange, made while it is traced: the work done, and
what steps and privacy require.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from fedtailor.protocol import Batch, IntScalar


class StepWork(NamedTuple):
    """Work on its batch that one place in a step's code does.

    Attributes:
        gradients, forwards: passes over each example of the batch.
        repeats: the number of repetitions of each loop inside the step around that
            place.
    """

    gradients: int
    forwards: int
    repeats: tuple[IntScalar, ...]


class Step:
    """The state of a step of `loop` while it is traced.

    Attributes:
        key: the randomness of the step; None for models that need none.
        repeats: the number of repetitions of each loop inside the step that is being
            traced.
        work: done so far.
        batches: drawn so far.
        took_gradient, renewed: whether the step has trained a model, and whether it has
            renewed running statistics.
    """

    def __init__(self, key: Array | None) -> None:
        self.key = key
        self.repeats: tuple[IntScalar, ...] = ()
        self.work: list[StepWork] = []
        self.batches: list[Batch] = []
        self.took_gradient = False
        self.renewed = False
        self._draws = 0

    def next_key(self) -> Array | None:
        """A key for one more use of randomness in this step."""
        self._draws += 1
        # Nearly all steps use one key only, and are spared the work of folding in.
        if self.key is None or self._draws == 1:
            return self.key
        return jax.random.fold_in(self.key, self._draws - 1)

    def weight_of(self, x: Shaped[Array, "b ..."]) -> Float[Array, " b"] | None:
        """The weights of inputs that the step has drawn; None for other inputs."""
        for batch in self.batches:
            if batch.x is x:
                return batch.weight
        return None

    def one_pass(self, key: Array | None, times: IntScalar) -> "Step":
        """The state of one of several passes over the batch, with randomness of its
        own.
        """
        inner = Step(key)
        inner.repeats = (*self.repeats, times)
        inner.work = self.work
        inner.batches = self.batches
        return inner


class Trace:
    """The record of one client in an exchange, which a trainer shares with all of its
    views (`part`, `in_round`).

    Attributes:
        work: [2] gradients and forward passes of single examples.
        step: the step of `loop` that is being traced, if any.
        is_repeated: whether `map` or `fori_loop` repeats what is being traced.
        evaluating: whether test rows may be read.
        only_privately: whether examples may be read by private steps only.
        private_steps: how many of these were taken; None = none.
    """

    def __init__(self) -> None:
        self.work: Int[Array, " 2"] = jnp.zeros(2, jnp.int32)
        self.step: Step | None = None
        self.is_repeated = False
        self.evaluating = False
        self.only_privately = False
        self.private_steps: Int[Array, ""] | None = None
        self._private_loops = 0

    def add_work(self, gradients: IntScalar = 0, forwards: IntScalar = 0) -> None:
        """Count passes over single examples, outside of steps."""
        work = jnp.stack(
            [jnp.asarray(gradients, jnp.int32), jnp.asarray(forwards, jnp.int32)]
        )
        self.work = self.work + work

    def add_steps(self, work: list[StepWork], examples: IntScalar) -> None:
        """Count the work of steps.

        Args:
            work: of one step, on its batch.
            examples: in the batches of all steps together.
        """
        gradients = forwards = 0
        for part in work:
            times = math.prod(part.repeats)
            gradients += part.gradients * times
            forwards += part.forwards * times
        self.add_work(examples * gradients, examples * forwards)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """While it is open, `map` or `fori_loop` repeats what is traced."""
        before, self.is_repeated = self.is_repeated, True
        try:
            yield
        finally:
            self.is_repeated = before

    @contextmanager
    def reading_privately(self) -> Iterator[None]:
        """While it is open examples may be read."""
        before, self.only_privately = self.only_privately, False
        try:
            yield
        finally:
            self.only_privately = before

    def next_private_loop(self) -> int:
        """A number for each loop of private steps of a round: no two may draw the same
        noise.
        """
        self._private_loops += 1
        return self._private_loops
